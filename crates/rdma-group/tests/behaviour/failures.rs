//! Ranks that die, leave, or call different collectives.

use rdma_group::{BarrierAlgorithm, Error, Group, Reduction};

use crate::ranks::{processes, text, threads};

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

/// Ranks whose calls differ. Some rank names both calls, and the others name that rank.
fn differ(expected: &[&str], part: impl Fn(&mut Group) -> Result<(), Error> + Sync) {
    let results = threads(3, |group| {
        group.barrier().unwrap();
        let result = part(group).and_then(|()| group.barrier());
        assert!(matches!(group.barrier(), Err(Error::Closed)));
        result
    });
    let errors: Vec<_> = results.into_iter().map(text).collect();
    let named = |error: &String| expected.iter().all(|part| error.contains(part));
    assert!(errors.iter().any(named), "{errors:?}");
    for error in errors {
        assert!(error.contains(" called ") || error.contains(" has closed the group: "), "{error}");
    }
}

#[test]
fn different_lengths_are_named() {
    differ(&["all_reduce", "5 elements of f32, Sum", "4 elements of f32, Sum"], |group| {
        let length = if group.rank() == 1 { 5 } else { 4 };
        group.all_reduce(&mut vec![1.0_f32; length], Reduction::Sum)
    });
}

#[test]
fn different_collectives_are_named() {
    differ(&["all_reduce (call 1 ", "all_gather (call 1 "], |group| match group.rank() {
        2 => group.all_gather(&mut [1_u8; 3]),
        _ => group.all_reduce(&mut [1_u8; 3], Reduction::Sum),
    });
}

#[test]
fn a_call_that_one_rank_has_left_out_is_named() {
    differ(&["barrier (call 1 ", "barrier (call 2 "], |group| match group.rank() {
        0 => Ok(()),
        _ => group.broadcast(1, &mut [0_u8]),
    });
}

#[test]
fn different_types_and_reductions_are_named() {
    differ(&["of u32, Min", "of i32, Max"], |group| match group.rank() {
        0 => group.all_reduce(&mut [1_u32], Reduction::Min),
        _ => group.all_reduce(&mut [1_i32], Reduction::Max),
    });
}
