//! Collectives that are repeated allocate nothing. The test has its own `main`, because the threads of the usual
//! harness allocate, too.
#![allow(clippy::unwrap_used)] // a test

use std::thread;

use rdma_group::{BarrierAlgorithm, Error, Group, Reduction};
use rdma_mem::ProtectionDomain;
use test_support::alloc_counter::{CountingAllocator, assert_steady};
use test_support::loopback::free_address;

#[global_allocator]
static ALLOCATOR: CountingAllocator = CountingAllocator::new();

const RANKS: usize = 3;
const ROUNDS: usize = 60;

fn main() {
    rdma_soft::install();
    let pd = rdma_mem::open_device("soft0").unwrap().allocate_pd().unwrap();
    let master = free_address().to_string();
    thread::scope(|threads| {
        let start = |rank| {
            threads.spawn({
                let (pd, master) = (&pd, &master);
                move || run(pd, rank, master).unwrap()
            })
        };
        let ranks: Vec<_> = (0..RANKS).map(start).collect();
        let counts: Vec<_> = ranks.into_iter().map(|rank| rank.join().unwrap()).collect();
        assert_steady(&counts[0], "short collectives");
    });
    println!("no allocation: ok");
}

/// Returns the number of allocations of all ranks after each round.
fn run(pd: &ProtectionDomain, rank: usize, master: &str) -> Result<[u64; ROUNDS], Error> {
    let mut group = Group::builder(pd, rank, RANKS, master).join()?;
    let mut counts = [0; ROUNDS];
    for count in &mut counts {
        let mut numbers = [rank as u64; 8];
        group.all_reduce(&mut numbers, Reduction::Sum)?;
        group.broadcast(1, &mut numbers)?;
        group.barrier_with(BarrierAlgorithm::BinaryTree)?;
        group.barrier()?;
        assert_eq!(numbers, [3; 8]);
        *count = ALLOCATOR.allocations();
    }
    Ok(counts)
}
