//! Collectives that are repeated allocate nothing. The test has its own `main`, because the threads of the usual
//! harness allocate, too.
#![allow(clippy::unwrap_used)] // a test

use std::thread;

use rdma_group::{BarrierAlgorithm, Error, Group, Reduction};
use rdma_mem::ProtectionDomain;
use test_support::alloc_counter::CountingAllocator;
use test_support::loopback::free_address;

#[global_allocator]
static ALLOCATOR: CountingAllocator = CountingAllocator::new();

const RANKS: usize = 3;

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
        ranks.into_iter().for_each(|rank| rank.join().unwrap());
    });
    println!("no allocation: ok");
}

fn run(pd: &ProtectionDomain, rank: usize, master: &str) -> Result<(), Error> {
    let mut group = Group::builder(pd, rank, RANKS, master).join()?;
    // One rank counts the allocations of all. The last number that it broadcasts states whether there is another round.
    let mut rounds = (rank == 1).then(|| ALLOCATOR.rounds("short collectives"));
    loop {
        let mut numbers = [rank as u64; 9];
        group.all_reduce(&mut numbers, Reduction::Sum)?;
        numbers[8] = u64::from(rounds.as_mut().is_some_and(|rounds| rounds.next().is_some()));
        group.broadcast(1, &mut numbers)?;
        group.barrier_with(BarrierAlgorithm::BinaryTree)?;
        group.barrier()?;
        assert_eq!(numbers[..8], [3; 8]);
        if numbers[8] == 0 {
            return Ok(());
        }
    }
}
