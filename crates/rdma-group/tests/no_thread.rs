//! No thread serves a group between its collectives. The test has its own `main`, because the usual harness starts
//! threads, too.
#![allow(clippy::unwrap_used)] // a test

use std::path::{Path, PathBuf};
use std::{fs, thread};

use rdma_group::{Error, Group, Reduction};
use rdma_mem::ProtectionDomain;
use test_support::loopback::free_address;

const RANKS: usize = 3;

fn main() {
    rdma_soft::install();
    let pd = rdma_mem::open_device("soft0").unwrap().allocate_pd().unwrap();
    let groups = groups(&pd);
    assert_eq!(threads().len(), 1, "{:?}", threads());
    drop(groups);
    println!("no thread: ok");
}

/// Returns the groups of all ranks, which have called collectives.
fn groups(pd: &ProtectionDomain) -> Vec<Group> {
    let master = free_address().to_string();
    let start = |rank| {
        let (pd, master) = (pd.clone(), master.clone());
        thread::spawn(move || {
            let thread = Path::new("/proc").join(fs::read_link("/proc/thread-self").unwrap());
            (run(&pd, rank, &master).unwrap(), thread)
        })
    };
    let ranks: Vec<_> = (0..RANKS).map(start).collect();
    let joined = ranks.into_iter().map(|rank| rank.join().unwrap());
    let (groups, ranks): (Vec<_>, Vec<PathBuf>) = joined.unzip();
    // The kernel lists a thread a little longer.
    while ranks.iter().any(|rank| rank.exists()) {
        thread::yield_now();
    }
    groups
}

fn run(pd: &ProtectionDomain, rank: usize, master: &str) -> Result<Group, Error> {
    let mut group = Group::builder(pd, rank, RANKS, master).join()?;
    group.barrier()?;
    group.all_reduce(&mut [1.0; 100_000], Reduction::Sum)?;
    group.all_to_all(&mut [rank; RANKS])?;
    Ok(group)
}

/// Returns the names of the threads of this process that are not those of the device.
fn threads() -> Vec<String> {
    let tasks = fs::read_dir("/proc/self/task").unwrap();
    // A thread may end before its name is read.
    let name = |task: fs::DirEntry| fs::read_to_string(task.path().join("comm")).ok();
    let names = tasks.filter_map(|task| name(task.unwrap()));
    names.filter(|name| !name.starts_with("rdma-soft ")).collect()
}
