//! Ranks that die, leave, or call different collectives.

use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::{Barrier, Mutex};
use std::thread;

use rdma_group::{BarrierAlgorithm, Error, Group, Reduction};
use test_support::program::in_own_process;
use test_support::rig::fork::Child;

use crate::collectives::{LENGTHS_AT_ENDS, blocking};
use crate::ranks::{domain, free_address, named, processes, text, threads};

/// The number of steps at which [`death`] can occur.
const STEPS: usize = 8;

/// Calls collectives until a rank dies. `argument` is that rank and the step at which it dies.
pub(crate) fn death(group: &mut Group, argument: &str) {
    let (dying, step) = argument.split_once(' ').unwrap();
    let (dying, step): (usize, usize) = (dying.parse().unwrap(), step.parse().unwrap());
    let is_dying = group.rank() == dying;
    let die_at = |now| {
        if is_dying && now == step {
            std::process::abort();
        }
    };
    let result = (|| -> Result<(), Error> {
        let mut numbers = [1_u64; 8];
        die_at(0);
        group.barrier()?;
        die_at(1);
        group.all_reduce(&mut numbers, Reduction::Sum)?;
        die_at(2);
        let dies = |lower, _| {
            die_at(3);
            lower
        };
        group.all_reduce(&mut numbers, Reduction::Custom(&dies))?;
        die_at(4);
        group.all_to_all(&mut numbers)?;
        die_at(5);
        group.barrier_with(BarrierAlgorithm::BinaryTree)?;
        die_at(6);
        group.all_reduce(&mut [0.5; 100_000], Reduction::Sum)?;
        die_at(7);
        group.all_gather(&mut numbers)?;
        group.barrier()
    })();
    let host = group.host(dying).unwrap();
    match result {
        Err(Error::Lost { rank, host: of }) => assert_eq!((rank, of), (dying, host)),
        other => panic!("{other:?}"),
    }
    assert!(matches!(group.barrier(), Err(Error::Closed)));
}

#[test]
fn the_death_of_a_rank_is_named_on_all_others() {
    for step in 0..STEPS {
        let dying = [7, 0, 3][step % 3];
        processes(8, "death", &format!("{dying} {step}"), &[dying]);
    }
}

#[test]
fn a_rank_that_leaves_is_lost_if_others_need_it() {
    let results = threads(4, |group| {
        group.barrier()?;
        if group.rank() == 2 { Ok(()) } else { group.barrier() }
    });
    for (rank, result) in results.into_iter().enumerate() {
        match result {
            Ok(()) => assert_eq!(rank, 2),
            Err(Error::Lost { rank: lost, .. }) => assert_eq!(lost, 2, "rank {rank}"),
            Err(other) => panic!("rank {rank}: {other}"),
        }
    }
}

/// Ranks whose calls differ: that of one rank from those of the others. Some rank names both calls, and the others name
/// that rank.
fn differ(odd: usize, expected: &[&str], part: impl Fn(&mut Group) -> Result<(), Error> + Sync) {
    let errors = threads(3, |group| {
        group.barrier().unwrap();
        let result = part(group).and_then(|()| group.barrier());
        assert!(matches!(group.barrier(), Err(Error::Closed)));
        named(result, group.rank(), odd, |rank| group.host(rank))
    });
    let names_both = |error: &String| expected.iter().all(|part| error.contains(part));
    assert!(errors.iter().any(names_both), "{errors:?}");
    for error in errors {
        let is_told = error.contains(" has closed the group: ");
        assert!(error.contains(" called ") || is_told, "{error}");
        assert!(!(is_told && error.contains("this rank")), "{error}");
    }
}

#[test]
fn different_lengths_are_named() {
    differ(1, &["all_reduce", "5 elements of f32, Sum", "4 elements of f32, Sum"], |group| {
        let length = if group.rank() == 1 { 5 } else { 4 };
        group.all_reduce(&mut vec![1.0_f32; length], Reduction::Sum)
    });
}

#[test]
fn different_collectives_are_named() {
    differ(2, &["all_reduce (call 1 ", "all_gather (call 1 "], |group| match group.rank() {
        2 => group.all_gather(&mut [1_u8; 3]),
        _ => group.all_reduce(&mut [1_u8; 3], Reduction::Sum),
    });
}

/// Ranks 0 and 1 wait for each other, and rank 2 waits for rank 0.
#[test]
fn different_collectives_without_messages_between_their_ranks_are_named() {
    differ(1, &[" called barrier (call 1 ", " called all_gather (call 1 "], |group| {
        if group.rank() == 1 { group.barrier() } else { group.all_gather(&mut [1_u8; 3]) }
    });
}

/// Ranks 1 and 2 wait for each other. Rank 0 is in no collective, so it compares no calls.
#[test]
fn different_collectives_of_a_subgroup_without_rank_0_are_named_on_both_ranks() {
    let named = Barrier::new(3);
    threads(3, |group| {
        let mut others = group.split(u64::from(group.rank() == 0), 0).unwrap();
        if group.rank() > 0 {
            others.barrier().unwrap();
            let error = text(others.broadcast(2 - group.rank(), &mut [0_u8]));
            named.wait();
            let parts = [" called broadcast (call 1 ", "root 0)", "root 1)"];
            assert!(parts.iter().all(|part| error.contains(part)), "{error}");
        } else {
            named.wait();
        }
    });
}

#[test]
fn a_call_that_one_rank_has_left_out_is_named() {
    differ(0, &["barrier (call 1 ", "barrier (call 2 "], |group| match group.rank() {
        0 => Ok(()),
        _ => group.broadcast(1, &mut [0_u8]),
    });
}

#[test]
fn different_types_and_reductions_are_named() {
    differ(0, &["of u32, Min", "of i32, Max"], |group| match group.rank() {
        0 => group.all_reduce(&mut [1_u32], Reduction::Min),
        _ => group.all_reduce(&mut [1_i32], Reduction::Max),
    });
}

#[test]
fn different_lengths_of_blocks_are_named() {
    differ(1, &["gather (call 1 ", ", counts ", " called gather "], |group| match group.rank() {
        1 => group.gather_v(0, &mut [0_u8; 3], &[1, 1, 1]),
        _ => group.gather_v(0, &mut [0_u8; 3], &[0, 1, 2]),
    });
}

/// All ranks wait for each other. Rank 0 waits for rank 1, but has a message of rank 2.
#[test]
fn different_algorithms_of_barriers_are_named() {
    let [one, other] = [BarrierAlgorithm::Centralized, BarrierAlgorithm::Dissemination];
    let text = |algorithm| format!(", {algorithm:?})");
    differ(0, &[&text(one), &text(other)], |group| {
        group.barrier_with(if group.rank() == 0 { one } else { other })
    });
}

#[test]
fn elements_of_different_long_types_are_named() {
    differ(0, &["2 elements of 512 bytes", "2 elements of 256 bytes"], |group| {
        match group.rank() {
            0 => group.broadcast(0, &mut [[0_u8; 512]; 2]),
            _ => group.broadcast(0, &mut [[0_u8; 256]; 2]),
        }
    });
}

/// A rank that leaves before any other is connected to it.
#[test]
fn a_rank_that_leaves_at_once_is_lost() {
    for left in [0, 1] {
        let results = threads(3, |group| match group.rank() {
            rank if rank == left => Ok(()),
            _ => group.broadcast(left, &mut [0_u8]),
        });
        for (rank, result) in results.into_iter().enumerate().filter(|(rank, _)| *rank != left) {
            assert!(
                matches!(result, Err(Error::Lost { rank: lost, .. }) if lost == left),
                "rank {rank}: {result:?}"
            );
        }
    }
}

/// Rank 2 waits for rank 1 to connect, and is not connected to it. Rank 0 makes no call.
#[test]
fn a_rank_that_leaves_before_it_connects_is_lost() {
    let lost = Barrier::new(2);
    threads(3, |group| {
        let mut rest = group.split(u64::from(group.rank() == 0), 0).unwrap();
        match group.rank() {
            0 => _ = lost.wait(),
            1 => {}
            _ => {
                let result = rest.broadcast(0, &mut [0_u8]);
                lost.wait();
                assert!(matches!(result, Err(Error::Lost { rank: 1, .. })), "{result:?}");
            }
        }
    });
}

#[test]
fn a_function_that_panics_is_named_on_all_others() {
    for panics in [0, 2] {
        let results = threads(3, |group| {
            let rank = group.rank();
            let function = |lower: u32, _| {
                assert!(rank != panics, "a planted panic");
                lower
            };
            let call = || group.all_reduce(&mut [7_u32], Reduction::Custom(&function));
            let result = catch_unwind(AssertUnwindSafe(call));
            let outcome = result.unwrap_or_else(|_| group.barrier());
            outcome.and_then(|()| group.barrier())
        });
        for (rank, result) in results.into_iter().enumerate() {
            match result {
                Err(Error::Closed) => assert_eq!(rank, panics),
                Err(Error::Failed { rank: cause, reason, .. }) => {
                    assert_eq!((cause, &*reason), (panics, "its function panicked"));
                }
                other => panic!("rank {rank}: {other:?}"),
            }
        }
    }
}

/// Rank 0 has left, so it does not decide.
#[test]
fn a_function_that_panics_is_named_in_a_subgroup_without_rank_0() {
    const PANICS: usize = 1;
    let results = threads(4, |group| {
        let rank = group.rank();
        let mut others = group.split(u64::from(rank == 0), 0).unwrap();
        if rank == 0 {
            return None;
        }
        others.barrier().unwrap();
        let function = |lower: u32, _| {
            assert!(rank != PANICS, "a planted panic");
            lower
        };
        let call = || others.all_reduce(&mut [7_u32], Reduction::Custom(&function));
        let result = catch_unwind(AssertUnwindSafe(call));
        let outcome = result.unwrap_or_else(|_| others.barrier());
        Some(outcome.and_then(|()| others.barrier()))
    });
    for (rank, result) in results.into_iter().enumerate().skip(1) {
        match result.unwrap() {
            Err(Error::Closed) => assert_eq!(rank, PANICS),
            Err(Error::Failed { rank: cause, reason, .. }) => {
                assert_eq!((cause, &*reason), (PANICS, "its function panicked"));
            }
            other => panic!("rank {rank}: {other:?}"),
        }
    }
}

#[test]
fn a_function_cannot_call_its_group() {
    threads(2, |group| {
        let sub = Mutex::new(group.split(0, 0).unwrap());
        let function = |lower: u32, higher| {
            let mut sub = sub.lock().unwrap();
            assert!(sub.host(0).is_some());
            assert!(matches!(sub.barrier(), Err(Error::Argument(_))));
            lower + higher
        };
        let mut buffer = [1];
        group.all_reduce(&mut buffer, Reduction::Custom(&function)).unwrap();
        assert_eq!(buffer, [2]);
        sub.into_inner().unwrap().barrier().unwrap();
    });
}

#[test]
fn a_forked_child_disturbs_no_rank() {
    in_own_process("failures::a_forked_child_disturbs_no_rank", || {
        let (pd, master) = (domain(), free_address());
        let join = |rank| Group::builder(&pd, rank, 2, &master).join().unwrap();
        let mut group = None;
        thread::scope(|threads| {
            let other = threads.spawn(|| {
                let mut group = join(1);
                group.barrier().unwrap();
                group.barrier().unwrap();
            });
            group = Some(join(0));
            group.as_mut().unwrap().barrier().unwrap();
            Child::fork(|| {
                let mut group = group.take().unwrap();
                let error = text(group.barrier());
                assert!(error.contains("a forked child"), "{error}");
            })
            .join();
            group.take().unwrap().barrier().unwrap();
            other.join().unwrap();
        });
    });
}

/// Rank 0 sends to rank 1, which receives nothing, when rank 2 fails.
#[test]
fn a_failure_is_noticed_by_a_rank_that_sends() {
    let noticed = Barrier::new(2);
    threads(3, |group| {
        let mut first = group.split(u64::from(group.rank() == 2), 0).unwrap();
        let mut last = group.split(u64::from(group.rank() == 0), 0).unwrap();
        match group.rank() {
            0 => {
                let error = text(first.broadcast(0, &mut vec![0_u8; 1 << 20]));
                noticed.wait();
                assert!(error.starts_with("rank 2 on ") && error.contains(" called "), "{error}");
            }
            1 => {
                last.broadcast(0, &mut [0_u8]).unwrap();
                noticed.wait();
            }
            _ => assert!(matches!(last.barrier(), Err(Error::Mismatch { rank: 1, .. }))),
        }
    });
}

/// Rank 0 waits for the landing of rank 1, which makes another call that opens none.
#[test]
fn a_long_call_and_another_call_are_a_mismatch_on_both_ranks() {
    for other in 0..3 {
        threads(2, |group| {
            let error = match (group.rank(), other) {
                (0, _) => text(group.broadcast(0, &mut vec![0_u8; 1 << 20])),
                (_, 0) => text(group.broadcast(0, &mut [0_u8; 1 << 10])),
                (_, 1) => text(group.broadcast(1, &mut vec![0_u8; 1 << 20])),
                _ => text(group.barrier()),
            };
            assert!(error.contains(" called "), "{error}");
        });
    }
}

#[test]
fn a_block_with_different_lengths_at_its_ends_is_a_mismatch_on_both_ranks() {
    for lengths in LENGTHS_AT_ENDS {
        for both in [false, true] {
            threads(2, |group| blocking::differ(group, lengths, both));
        }
    }
}

#[test]
fn an_empty_buffer_takes_part_in_collectives() {
    threads(2, |group| {
        let mut buffer = group.buffer::<f64>(0).unwrap();
        assert!(buffer.is_empty());
        group.broadcast(0, &mut buffer).unwrap();
        group.all_reduce(&mut buffer, Reduction::Sum).unwrap();
        assert!(buffer.is_empty());
    });
}
