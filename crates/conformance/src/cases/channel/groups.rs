//! Cases for groups: ranks in threads, each with its own context.

use std::thread;

use rdma_group::{BarrierAlgorithm, Error, Group, Reduction};
use rdma_mem::open_device;
use test_support::loopback::free_address;

use crate::case::cases;
use crate::device::Device;

cases![all_collectives_return_their_results, a_rank_that_leaves_is_named_on_all_others];

/// Runs a group of three ranks. Returns their results in rank order.
fn ranks<T: Send>(device: &Device, part: impl Fn(&mut Group) -> T + Sync) -> Vec<T> {
    let (name, size, master) = (&**device, 3, free_address().to_string());
    thread::scope(|threads| {
        let (master, part) = (&master, &part);
        let rank = |rank| {
            threads.spawn(move || {
                let pd = open_device(name).unwrap().allocate_pd().unwrap();
                part(&mut Group::builder(&pd, rank, size, master).join().unwrap())
            })
        };
        let ranks: Vec<_> = (0..size).map(rank).collect();
        ranks.into_iter().map(|rank| rank.join().unwrap()).collect()
    })
}

/// Calls all collectives. Each rank has as many elements as `each` for each rank.
fn call_all(group: &mut Group, each: usize) -> Result<(), Error> {
    let own = group.rank();
    let of = |ranks: [usize; 3]| ranks.map(|rank| vec![rank; each]).concat();
    for algorithm in [BarrierAlgorithm::Centralized, BarrierAlgorithm::BinaryTree] {
        group.barrier_with(algorithm)?;
    }
    group.barrier()?;
    let mut buffer = of([own; 3]);
    group.broadcast(1, &mut buffer)?;
    assert_eq!(buffer, of([1; 3]));
    let mut buffer = of([own; 3]);
    group.gather(2, &mut buffer)?;
    assert!(own != 2 || buffer == of([0, 1, 2]));
    let mut buffer = if own == 0 { of([0, 1, 2]) } else { of([9; 3]) };
    group.scatter(0, &mut buffer)?;
    assert_eq!(buffer[own * each..][..each], vec![own; each]);
    let mut buffer = of([own; 3]);
    group.all_gather(&mut buffer)?;
    assert_eq!(buffer, of([0, 1, 2]));
    let mut buffer = of([own, own + 10, own + 20]);
    group.all_to_all(&mut buffer)?;
    assert_eq!(buffer, of([0, 1, 2].map(|from| from + 10 * own)));
    let mut buffer = vec![own as u64; each];
    group.reduce(1, &mut buffer, Reduction::Max)?;
    assert!(own != 1 || buffer == vec![2; each]);
    let mut buffer = vec![own as f64; 3 * each];
    group.all_reduce(&mut buffer, Reduction::Sum)?;
    assert_eq!(buffer, vec![3.0; 3 * each]);
    let mut buffer = vec![own as i32 - 1; 3 * each];
    let block = group.reduce_scatter(&mut buffer, Reduction::Min)?;
    assert_eq!(buffer[block], vec![-1; each]);
    let mut pair = group.split(u64::from(own == 0), 0)?;
    let mut size = [1_u64];
    pair.all_reduce(&mut size, Reduction::Sum)?;
    assert_eq!(size[0], pair.world_size() as u64);
    group.barrier()
}

fn all_collectives_return_their_results(device: &Device) {
    ranks(device, |group| {
        // A message each, and several.
        for each in [1, 10_000] {
            call_all(group, each).unwrap();
        }
    });
}

fn a_rank_that_leaves_is_named_on_all_others(device: &Device) {
    let results = ranks(device, |group| {
        group.barrier().unwrap();
        if group.rank() == 1 { Ok(()) } else { group.barrier() }
    });
    for (rank, result) in results.into_iter().enumerate().filter(|(rank, _)| *rank != 1) {
        assert!(matches!(result, Err(Error::Lost { rank: 1, .. })), "rank {rank}: {result:?}");
    }
}
