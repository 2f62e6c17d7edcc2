//! Collectives of two ranks in two processes.
//!
//! ```sh
//! cargo bench -p benches --bench groups
//! ```
//! `RDMA_DEVICE` names a device other than soft0. Each line has the name of a collective and the median time of a call in
//! microseconds. `compare.sh` measures Open MPI by turns with this program.
#![allow(clippy::panic)] // a failing bench reports it

use std::env;
use std::hint::black_box;
use std::process::Command;
use std::time::Instant;

use rdma_group::{Error, Group, Reduction};
use rdma_mem::open_device;
use test_support::loopback::free_address;

type Outcome<T> = Result<T, Box<dyn std::error::Error>>;

/// The number of batches; the median batch counts.
const BATCHES: usize = 15;

fn main() -> Outcome<()> {
    rdma_soft::install();
    if env::var_os("RDMA_RANK").is_some() {
        return rank();
    }
    let master = free_address().to_string();
    let rank = |rank: &str| {
        let mut command = Command::new(env::current_exe()?);
        command.env("RDMA_RANK", rank).env("RDMA_WORLD_SIZE", "2").env("RDMA_MASTER", &master);
        command.spawn()
    };
    let (mut first, mut second) = (rank("0")?, rank("1")?);
    let succeeded = first.wait()?.success() && second.wait()?.success();
    if succeeded { Ok(()) } else { Err("a rank has failed".into()) }
}

fn rank() -> Outcome<()> {
    let device = env::var("RDMA_DEVICE");
    let pd = open_device(device.as_deref().unwrap_or("soft0"))?.allocate_pd()?;
    let mut group = Group::from_environment(&pd)?;
    time(&mut group, "barrier", 2000, Group::barrier)?;
    let mut number = [1_f64];
    time(&mut group, "all_reduce of 8 B", 2000, |group| {
        number[0] = 1.0;
        group.all_reduce(black_box(&mut number), Reduction::Sum)
    })?;
    let mut numbers = vec![1_f32; 1 << 18];
    time(&mut group, "all_reduce of 1 MiB", 40, |group| {
        group.all_reduce(black_box(&mut numbers), Reduction::Sum)
    })?;
    let mut registered = group.buffer::<f32>(1 << 18)?;
    time(&mut group, "all_reduce of 1 MiB, registered", 40, |group| {
        group.all_reduce(black_box(&mut registered), Reduction::Sum)
    })
}

/// Prints the time of a call on rank 0. The first batch is not measured.
fn time(
    group: &mut Group,
    name: &str,
    calls: u32,
    mut call: impl FnMut(&mut Group) -> Result<(), Error>,
) -> Outcome<()> {
    let mut times = Vec::new();
    for batch in 0..=BATCHES {
        group.barrier()?;
        let begin = Instant::now();
        for _ in 0..calls {
            call(group)?;
        }
        if batch > 0 {
            times.push(begin.elapsed().as_secs_f64() * 1e6 / f64::from(calls));
        }
    }
    times.sort_by(f64::total_cmp);
    if group.rank() == 0 {
        println!("{name}: {:.2}", times[BATCHES / 2]);
    }
    Ok(())
}
