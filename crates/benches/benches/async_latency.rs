//! The latency of awaited operations, compared with a blocking channel or, for tasks that sleep, with a plain
//! `AsyncFd`.
//!
//! ```sh
//! cargo bench -p benches --bench async_latency
//! ```
//! `RDMA_DEVICE` names a device other than soft0.
#![allow(unsafe_code)]
#![allow(clippy::panic)] // a failing bench reports it

use std::env;
use std::os::fd::OwnedFd;
use std::sync::{Arc, Barrier};
use std::thread;
use std::time::{Duration, Instant};

use criterion::{BenchmarkId, Criterion, criterion_group, criterion_main};
use rdma_async::{Connection, ConnectionOptions, Driver};
use rdma_channel::prelude::*;
use rdma_mem::{AccessFlags, BufferPool, ProtectionDomain, open_device};
use rustix::event::{EventfdFlags, eventfd};
use tokio::io::Interest;
use tokio::io::unix::AsyncFd;
use tokio::runtime::{Builder, Runtime};

type Outcome<T> = Result<T, Box<dyn std::error::Error + Send + Sync>>;

const LENGTH: usize = 8;
/// The longest time that a completion queue is polled before its task sleeps.
const SPIN: Duration = Duration::from_micros(50);

criterion_group!(benches, writes, sleeps);
criterion_main!(benches);

fn runtime() -> Runtime {
    Builder::new_current_thread().enable_all().build().unwrap_or_else(|error| panic!("{error}"))
}

fn domain() -> Outcome<ProtectionDomain> {
    rdma_soft::install();
    let device = env::var("RDMA_DEVICE").unwrap_or_else(|_| "soft0".to_owned());
    Ok(open_device(&device)?.allocate_pd()?)
}

/// Two connections of one driver that are connected to each other.
async fn pair(pd: &ProtectionDomain) -> Outcome<(Connection, Connection)> {
    let driver = Driver::spawn(pd.context())?;
    let options = ConnectionOptions::new(pd);
    let listener = driver.listen("127.0.0.1:0", options.clone()).await?;
    let connect = driver.connect(listener.local_addr(), options);
    let (client, server) = tokio::join!(connect, listener.accept());
    Ok((client?.0, server?))
}

/// A write of 8 bytes, on one thread.
fn writes(criterion: &mut Criterion) {
    let mut group = criterion.benchmark_group("a write");
    let failed = |error| panic!("{error}");
    group.bench_function("awaited", |bencher| {
        bencher.iter_custom(|rounds| awaited(rounds).unwrap_or_else(failed));
    });
    group.bench_function("by a blocking channel", |bencher| {
        bencher.iter_custom(|rounds| blocking(rounds).unwrap_or_else(failed));
    });
    group.finish();
}

fn awaited(rounds: u64) -> Outcome<Duration> {
    runtime().block_on(async {
        let pd = domain()?;
        let access = AccessFlags::new().with_local_write().with_remote_write();
        let board = pd.allocate_shared_region(LENGTH, access)?;
        let (client, _server) = pair(&pd).await?;
        let mut buffer = BufferPool::new(&pd).allocate(LENGTH)?;
        let begin = Instant::now();
        for _ in 0..rounds {
            buffer = client.write(buffer, board.remote()).await?;
        }
        Ok(begin.elapsed())
    })
}

fn blocking(rounds: u64) -> Outcome<Duration> {
    let pd = domain()?;
    let access = AccessFlags::new().with_local_write().with_remote_write();
    let board = pd.allocate_shared_region(LENGTH, access)?;
    let (here, there) = (pd.create_channel().build()?, pd.create_channel().build()?);
    let endpoint = here.endpoint();
    let mut here = here.handshake(there.endpoint())?;
    let _there = there.handshake(endpoint)?;
    let source = pd.allocate_region(LENGTH)?;
    let begin = Instant::now();
    for _ in 0..rounds {
        here.write_from(&source, board.remote())?;
    }
    Ok(begin.elapsed())
}

/// Round trips between two threads. Each sleeps in its runtime until the other one has woken it, or spins first.
fn sleeps(criterion: &mut Criterion) {
    let mut group = criterion.benchmark_group("wake and be woken");
    let failed = |error| panic!("{error}");
    group.bench_function(BenchmarkId::from_parameter("connection"), |bencher| {
        bencher.iter_custom(|rounds| by_connection(rounds, Duration::ZERO).unwrap_or_else(failed));
    });
    group.bench_function(BenchmarkId::from_parameter("connection that spins first"), |bencher| {
        bencher.iter_custom(|rounds| by_connection(rounds, SPIN).unwrap_or_else(failed));
    });
    group.bench_function(BenchmarkId::from_parameter("eventfd and AsyncFd"), |bencher| {
        bencher.iter_custom(|rounds| by_eventfd(rounds).unwrap_or_else(failed));
    });
    group.finish();
}

/// Runs one end of `rounds` rounds. A round is a message and its answer.
async fn exchange(
    connection: &Connection,
    pool: &BufferPool,
    rounds: u64,
    spin: Duration,
    begins: bool,
) -> Outcome<()> {
    let (mut into, mut from) = (pool.allocate(LENGTH)?, pool.allocate(LENGTH)?);
    let mut receive = connection.receive(into).post().await?;
    if begins {
        from = connection.send(from).await?;
    }
    for round in 1..=rounds {
        into = if spin.is_zero() { receive.await? } else { receive.busy_poll(spin).await? }.memory;
        receive = connection.receive(into).post().await?;
        if !begins || round < rounds {
            from = connection.send(from).await?;
        }
    }
    Ok(())
}

fn by_connection(rounds: u64, spin: Duration) -> Outcome<Duration> {
    let pd = domain()?;
    // Each end has its own driver, in the runtime of its thread.
    let prepare = |runtime: &Runtime| -> Outcome<_> {
        let driver = runtime.block_on(async { Driver::spawn(pd.context()) })?;
        let qp =
            rdma_qp::QueuePair::builder(&pd).max_rnr_retries(rdma_qp::MaxRnrRetries::unlimited());
        Ok(driver.prepare(qp)?)
    };
    let (runtime_here, runtime_there) = (runtime(), runtime());
    let (here, there) = (prepare(&runtime_here)?, prepare(&runtime_there)?);
    let (at_here, at_there) = (here.endpoint(), there.endpoint());
    let (here, there) = (here.handshake(at_there)?, there.handshake(at_here)?);
    let pool = BufferPool::new(&pd);
    thread::scope(|threads| {
        let answers =
            threads.spawn(|| runtime_there.block_on(exchange(&there, &pool, rounds, spin, false)));
        let begin = Instant::now();
        runtime_here.block_on(exchange(&here, &pool, rounds, spin, true))?;
        let took = begin.elapsed();
        answers.join().map_err(|_| "the other thread has panicked")??;
        Ok(took)
    })
}

fn by_eventfd(rounds: u64) -> Outcome<Duration> {
    let flags = EventfdFlags::CLOEXEC | EventfdFlags::NONBLOCK;
    let files: [Arc<OwnedFd>; 2] = [Arc::new(eventfd(0, flags)?), Arc::new(eventfd(0, flags)?)];
    let barrier = Barrier::new(2);
    thread::scope(|threads| {
        let answers = threads.spawn(|| toss(&files[1], &files[0], rounds, false, &barrier));
        let took = toss(&files[0], &files[1], rounds, true, &barrier)?;
        answers.join().map_err(|_| "the other thread has panicked")??;
        Ok(took)
    })
}

fn toss(
    own: &OwnedFd,
    other: &OwnedFd,
    rounds: u64,
    begins: bool,
    barrier: &Barrier,
) -> Outcome<Duration> {
    runtime().block_on(async {
        let file = own.try_clone()?;
        // SAFETY: only this value has the duplicate, which is open until it is dropped.
        let file = unsafe { AsyncFd::register_with_interest(file, Interest::READABLE) }?;
        barrier.wait();
        let begin = Instant::now();
        if begins {
            rustix::io::write(other, &1_u64.to_ne_bytes())?;
        }
        for round in 1..=rounds {
            loop {
                let mut ready = file.readable().await?;
                match rustix::io::read(file.get_ref(), &mut [0; 8]) {
                    Ok(_) => break,
                    Err(rustix::io::Errno::AGAIN) => ready.clear_ready(),
                    Err(error) => return Err(error.into()),
                }
            }
            if !begins || round < rounds {
                rustix::io::write(other, &1_u64.to_ne_bytes())?;
            }
        }
        Ok(begin.elapsed())
    })
}
