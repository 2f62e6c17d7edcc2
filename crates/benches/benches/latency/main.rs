//! Latency of channel operations, on any device. `docs/performance.md` explains how to run it on two hosts, and has the
//! results.
//!
//! ```sh
//! cargo bench -p benches --bench latency                               # soft0, with itself
//! cargo bench -p benches --bench latency -- --device rxe0 write        # another device, one operation
//! cargo bench -p benches --bench latency -- --device plain0            # a software device without atomics
//! cargo bench -p benches --bench latency -- wake                       # waking sleepers, compared with poll(2)
//! cargo bench -p benches --bench latency -- --device mlx5_0 --listen 10.0.0.1:4000
//! cargo bench -p benches --bench latency -- --device mlx5_0 --connect 10.0.0.1:4000
//! ```
#![allow(clippy::panic)] // a failing bench panics

use std::net::{TcpListener, TcpStream};
use std::thread;
use std::time::Duration;

use criterion::{BenchmarkId, Criterion, Throughput};
use end::{DEPTH, End, LONGEST, Outcome};
use hdrhistogram::Histogram;
use options::{Options, Peer, fail};
use rdma_soft::Builder;
use work::{Form, Memory, Operation, run};

mod connect;
mod end;
mod options;
mod wake;
mod work;

/// A software device without atomics.
const PLAIN: &str = "plain0";
/// The upper limit of the histogram, a minute in nanoseconds.
const LATEST: u64 = 60_000_000_000;

/// The result of one measurement.
struct Row {
    name: String,
    length: usize,
    found: Result<Histogram<u64>, String>,
}

fn main() {
    rdma_soft::install();
    let plain = Builder::new(PLAIN).without_atomics().install().map_err(Into::into);
    let options = plain.and_then(|_| Options::from_environment().map_err(Into::into));
    if let Err(error) = options.and_then(bench) {
        fail(&error);
    }
}

fn bench(Options { device, peer }: Options) -> Outcome<()> {
    match peer {
        Peer::Client(address) => {
            let listener = TcpListener::bind(&address).map_err(|e| format!("{address}: {e}"))?;
            println!("{device} waits for a client at {}", listener.local_addr()?);
            let (stream, client) = listener.accept()?;
            println!("serving {client}");
            End::connect(&device, stream)?.serve()
        }
        Peer::Server(address) => {
            let stream = TcpStream::connect(&address)
                .map_err(|e| format!("{address}: {e}: is the other end there, with --listen?"))?;
            measure(End::connect(&device, stream)?, None)
        }
        Peer::Here => {
            let listener = TcpListener::bind("127.0.0.1:0")?;
            let address = listener.local_addr()?;
            let name = device.clone();
            let server = thread::spawn(move || -> Outcome<()> {
                End::connect(&name, listener.accept()?.0)?.serve()
            });
            measure(End::connect(&device, TcpStream::connect(address)?)?, Some(&device))?;
            server.join().map_err(|_| "the other end has panicked")?
        }
    }
}

/// Measures everything, and prints the table. The server ends when `end` is dropped. If the other end is in this
/// process, on this device, connecting and waking are measured, too.
fn measure(mut end: End, here: Option<&str>) -> Outcome<()> {
    let mut criterion = Criterion::default()
        .warm_up_time(Duration::from_millis(300))
        .measurement_time(Duration::from_secs(1))
        .sample_size(20)
        .configure_from_args();
    let region = || end.pd.allocate_region(DEPTH * LONGEST);
    let mut memory = Memory { source: region()?, target: region()? };
    let mut rows = Vec::new();
    for operation in Operation::ALL {
        if let (true, Some(why)) = (operation.is_atomic(), end.no_atomics) {
            let (name, length) = (operation.name().to_owned(), operation.lengths()[0]);
            rows.push(Row { name, length, found: Err(why.to_owned()) });
            continue;
        }
        let mut group = criterion.benchmark_group(operation.name());
        for form in Form::ALL {
            for &length in operation.lengths() {
                let mut histogram = Histogram::new_with_bounds(1, LATEST, 3)?;
                let mut failure = None;
                group.throughput(Throughput::Elements(form.depth() as u64));
                group.bench_function(BenchmarkId::new(form.name(), length), |bencher| {
                    bencher.iter_custom(|iterations| {
                        let work = (operation, form, length);
                        let took = run(&mut end, &mut memory, work, iterations, &mut histogram);
                        took.unwrap_or_else(|error| {
                            failure.get_or_insert(error.to_string());
                            // Records no measurement, but lets criterion go on.
                            Duration::from_nanos(iterations)
                        })
                    });
                });
                let found = match failure {
                    Some(error) => Err(error),
                    None if histogram.is_empty() => continue, // not selected
                    None => Ok(histogram),
                };
                let name = format!("{}, {}", operation.name(), form.name());
                rows.push(Row { name, length, found });
            }
        }
        group.finish();
    }
    if let Some(device) = here {
        rows.extend(connect::measure(device, &mut criterion)?);
        wake::measure(&mut criterion, &end.pd)?;
    }
    criterion.final_summary();
    print(&rows);
    Ok(())
}

/// Prints the rows, in microseconds.
fn print(rows: &[Row]) {
    println!(
        "\n{:<46}{:>9}{:>9}{:>9}{:>9}{:>9}{:>9}{:>10}",
        "us per operation", "bytes", "count", "p50", "p90", "p99", "p99.9", "max"
    );
    for Row { name, length, found } in rows {
        match found {
            Ok(histogram) => {
                print!("{name:<46}{length:>9}{:>9}", histogram.len());
                for quantile in [0.5, 0.9, 0.99, 0.999] {
                    print!("{:>9.2}", us(histogram.value_at_quantile(quantile)));
                }
                println!("{:>10.2}", us(histogram.max()));
            }
            Err(why) => println!("{name:<46}{length:>9}  {why}"),
        }
    }
}

#[allow(clippy::cast_precision_loss)] // for display
fn us(nanoseconds: u64) -> f64 {
    nanoseconds as f64 / 1000.0
}
