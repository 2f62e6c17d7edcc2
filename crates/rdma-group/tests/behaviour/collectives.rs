//! Collectives between ranks that are connected by queue pairs. The schedules themselves are tested in memory.

use std::env;

use rdma_group::{BarrierAlgorithm, Group, Reduction};

use crate::ranks::{processes, text, threads};

const ALGORITHMS: [BarrierAlgorithm; 3] =
    [BarrierAlgorithm::Centralized, BarrierAlgorithm::BinaryTree, BarrierAlgorithm::Dissemination];

/// The lengths of a block at the end that sends it, and at the other end. In both, the block may have several pieces.
pub(crate) const LENGTHS_AT_ENDS: [(usize, usize); 6] = [
    (200_000, 16),
    (16, 200_000),
    (60_000, 200_000),
    (200_000, 100_000),
    (600_000, 700_000),
    (20, 16),
];

/// Defines the calls of a rank. `$run` returns the result of a call.
macro_rules! calls {
    ($module:ident, $group:ty, $run:path) => {
        pub(crate) mod $module {
            use super::*;

            /// Sends a block to the other of two ranks, if this is rank 0 or `both` send. The rank that receives it expects
            /// another length.
            pub(crate) fn differ(
                group: &mut $group,
                (sent, expected): (usize, usize),
                both: bool,
            ) {
                let (rank, other) = (group.rank(), 1 - group.rank());
                let counts = |length, exists| {
                    let mut counts = [0; 2];
                    counts[other] = if exists { length } else { 0 };
                    counts
                };
                let (into, from) = (counts(sent, both || rank == 0), counts(expected, both || rank == 1));
                let (own, mut received) = (vec![0_u8; into[other]], vec![0_u8; from[other]]);
                let called = $run(group.all_to_all_v(&own, &into, &mut received, &from));
                let error = text(called.and_then(|()| $run(group.barrier())));
                let parts = [format!(" with {sent} bytes, but "), format!(" called it with {expected} bytes")];
                assert!(parts.iter().all(|part| error.contains(part)), "{error}");
            }

            /// Calls each collective, with buffers of one message and of many.
            pub(crate) fn part(group: &mut $group) {
                let (rank, size) = (group.rank(), group.world_size());
                let (own, ranks) = (rank as u64, size as u64);
                for algorithm in ALGORITHMS {
                    $run(group.barrier_with(algorithm)).unwrap();
                }
                let all: Vec<u64> = (0..ranks).collect();
                for repeat in [1, 6000, 10_000] {
                    let of = |ranks: &[u64]| ranks.iter().flat_map(|r| vec![*r; repeat]).collect::<Vec<_>>();
                    for root in [0, size - 1] {
                        let mut buffer = vec![own; repeat];
                        $run(group.broadcast(root, &mut buffer)).unwrap();
                        assert_eq!(buffer, vec![root as u64; repeat]);

                        let mut buffer = of(&vec![own; size]);
                        $run(group.gather(root, &mut buffer)).unwrap();
                        assert!(rank != root || buffer == of(&all));

                        let mut buffer = if rank == root { of(&all) } else { of(&vec![0; size]) };
                        $run(group.scatter(root, &mut buffer)).unwrap();
                        assert_eq!(buffer[rank * repeat..][..repeat], vec![own; repeat]);

                        let mut buffer = vec![own as f64; repeat];
                        $run(group.reduce(root, &mut buffer, Reduction::Max)).unwrap();
                        assert!(rank != root || buffer == vec![ranks as f64 - 1.0; repeat]);
                    }
                    let mut buffer = of(&vec![own; size]);
                    $run(group.all_gather(&mut buffer)).unwrap();
                    assert_eq!(buffer, of(&all));

                    let to_each: Vec<_> = all.iter().map(|to| own * ranks + to).collect();
                    let from_each: Vec<_> = all.iter().map(|from| from * ranks + own).collect();
                    let mut buffer = of(&to_each);
                    $run(group.all_to_all(&mut buffer)).unwrap();
                    assert_eq!(buffer, of(&from_each));

                    let mut buffer = vec![own as f32; repeat * size];
                    $run(group.all_reduce(&mut buffer, Reduction::Sum)).unwrap();
                    let sum = (size * (size - 1) / 2) as f32;
                    assert_eq!(buffer, vec![sum; repeat * size]);

                    let mut buffer = vec![own as i64 - 3; repeat * size + 1];
                    let range = $run(group.reduce_scatter(&mut buffer, Reduction::Min)).unwrap();
                    assert_eq!(buffer[range], vec![-3; repeat + usize::from(rank == 0)]);

                    // The element of the lowest rank: associative, but not commutative.
                    let first = |lower, _| lower;
                    let mut buffer = vec![own + 7; repeat];
                    $run(group.all_reduce(&mut buffer, Reduction::Custom(&first))).unwrap();
                    assert_eq!(buffer, vec![7; repeat]);
                }
                registered_buffers(group);
                blocks_of_different_lengths(group);
                subgroups(group);
            }

            /// Uses registered buffers with and without long blocks, one of them several times.
            fn registered_buffers(group: &mut $group) {
                let (rank, size) = (group.rank(), group.world_size());
                for repeat in [1, 20_000] {
                    let mut buffer = group.buffer::<u64>(repeat * size).unwrap();
                    assert!(buffer.iter().all(|element| *element == 0));
                    for round in 0..3_usize {
                        buffer.fill(rank as u64);
                        $run(group.all_reduce(&mut buffer, Reduction::Sum)).unwrap();
                        let sum = (size * (size - 1) / 2) as u64;
                        assert!(buffer.iter().all(|element| *element == sum));
                        buffer[rank * repeat..][..repeat].fill((rank + round) as u64);
                        $run(group.all_gather(&mut buffer)).unwrap();
                        let all = (0..size).flat_map(|from| vec![(from + round) as u64; repeat]);
                        assert!(buffer.iter().copied().eq(all));
                        let root = round % size;
                        buffer.fill(rank as u64);
                        $run(group.broadcast(root, &mut buffer)).unwrap();
                        assert!(buffer.iter().all(|element| *element == root as u64));
                        buffer.fill(rank as u64 + 1);
                        $run(group.all_to_all(&mut buffer)).unwrap();
                        assert!(buffer.iter().copied().eq((0..size as u64).flat_map(|from| vec![from + 1; repeat])));
                    }
                }
            }

            fn blocks_of_different_lengths(group: &mut $group) {
                let (rank, size) = (group.rank(), group.world_size());
                let counts: Vec<_> = (0..size).collect();
                let all: Vec<_> = (0..size).flat_map(|rank| vec![rank as u64; rank]).collect();
                let own = || all.iter().map(|r| if *r == rank as u64 { *r } else { 0 }).collect();
                let mut buffer: Vec<_> = own();
                $run(group.all_gather_v(&mut buffer, &counts)).unwrap();
                assert_eq!(buffer, all);
                let mut buffer: Vec<_> = own();
                $run(group.gather_v(1 % size, &mut buffer, &counts)).unwrap();
                assert!(rank != 1 % size || buffer == all);
                let mut buffer = if rank == 0 { all.clone() } else { vec![0; all.len()] };
                $run(group.scatter_v(0, &mut buffer, &counts)).unwrap();
                let start = rank * rank.saturating_sub(1) / 2;
                assert_eq!(buffer[start..][..rank], vec![rank as u64; rank]);

                // Each rank sends its rank to each other one, as often as that one's rank.
                let sent = vec![rank as u64; all.len()];
                let mut received = vec![0; size * rank];
                $run(group.all_to_all_v(&sent, &counts, &mut received, &vec![rank; size])).unwrap();
                let expected: Vec<_> = (0..size).flat_map(|from| vec![from as u64; rank]).collect();
                assert_eq!(received, expected);
            }

            /// Even and odd ranks form groups, in descending order of their ranks.
            fn subgroups(group: &mut $group) {
                let (rank, size) = (group.rank(), group.world_size());
                let mut half = $run(group.split(rank as u64 % 2, (size - rank) as u64)).unwrap();
                let mut members = vec![0; half.world_size()];
                members[half.rank()] = rank;
                $run(half.all_gather(&mut members)).unwrap();
                let expected: Vec<_> = (0..size).rev().filter(|other| other % 2 == rank % 2).collect();
                assert_eq!(members, expected);
                assert_eq!(half.host(0), group.host(expected[0]));
                $run(half.barrier()).unwrap();
                $run(group.barrier()).unwrap();
            }
        }
    };
}

calls! { blocking, Group, std::convert::identity }
#[cfg(feature = "async")]
calls! { asynchronous, rdma_group::aio::Group, crate::asynchronous::wait }

#[test]
fn ranks_in_threads_run_all_collectives() {
    for size in [1, 2, 3, 5] {
        threads(size, blocking::part);
    }
}

#[test]
fn ranks_in_processes_run_all_collectives() {
    let size = env::var("RDMA_TEST_RANKS").map_or(8, |size| size.parse().unwrap());
    processes(size, "collectives", "", &[]);
}

/// Calls two collectives that connect each rank to few others.
pub(crate) fn few(group: &mut Group) {
    group.barrier().unwrap();
    let mut ranks = [1_u64];
    group.all_reduce(&mut ranks, Reduction::Sum).unwrap();
    assert_eq!(ranks, [group.world_size() as u64]);
}

#[test]
#[ignore = "starts a thousand processes, which take about 18 GB"]
fn a_thousand_ranks_run_a_barrier_and_a_sum() {
    processes(1000, "few", "", &[]);
}
