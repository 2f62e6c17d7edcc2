//! Groups whose collectives are futures.

mod cancelled;

use std::future::{Future, IntoFuture as _};
use std::pin::pin;
use std::process::abort;
use std::sync::{Barrier, Mutex, OnceLock};
use std::task::{Context, Poll, Waker};
use std::thread;

use rdma_channel::BufferPool;
use rdma_group::{BarrierAlgorithm, Error, Group, GroupBuilder, Reduction, aio};
use tokio::runtime::{Builder, Runtime};

use crate::collectives::{LENGTHS_AT_ENDS, asynchronous, blocking};
use crate::ranks::{LIMIT, domain, free_address, named, processes, text};

/// Returns the runtime that all ranks of this process share.
fn runtime() -> &'static Runtime {
    static RUNTIME: OnceLock<Runtime> = OnceLock::new();
    let builder = || Builder::new_multi_thread().worker_threads(2).enable_all().build();
    RUNTIME.get_or_init(|| builder().unwrap())
}

pub(crate) fn wait<F: Future>(future: F) -> F::Output {
    runtime().block_on(future)
}

/// Runs a group whose ranks are threads. A rank uses futures if `is_async` returns true.
fn mixed<T: Send>(
    size: usize,
    is_async: impl Fn(usize) -> bool + Sync,
    one: impl Fn(&mut Group) -> T + Sync,
    other: impl Fn(&mut aio::Group) -> T + Sync,
) -> Vec<T> {
    let (pd, master) = (domain(), free_address());
    let rank = |rank| {
        let builder = Group::builder(&pd, rank, size, &master).limit(LIMIT).join_limit(LIMIT);
        if is_async(rank) {
            other(&mut wait(builder.join_async()).unwrap())
        } else {
            one(&mut builder.join().unwrap())
        }
    };
    thread::scope(|threads| {
        let rank = &rank;
        let ranks: Vec<_> = (0..size).map(|own| threads.spawn(move || rank(own))).collect();
        ranks.into_iter().map(|rank| rank.join().unwrap()).collect()
    })
}

#[test]
fn asynchronous_ranks_run_all_collectives() {
    for size in [1, 2, 3, 5] {
        mixed(size, |_| true, |_| unreachable!(), asynchronous::part);
    }
}

#[test]
fn blocking_and_asynchronous_ranks_form_a_group() {
    for odd in [0, 1] {
        mixed(4, |rank| rank % 2 == odd, blocking::part, asynchronous::part);
    }
}

/// A rank of a group whose odd ranks are asynchronous, as a process.
pub(crate) fn part(builder: GroupBuilder<'_>, rank: usize) {
    match rank % 2 {
        0 => blocking::part(&mut builder.join().unwrap()),
        _ => asynchronous::part(&mut wait(builder.join_async()).unwrap()),
    }
}

#[test]
fn blocking_and_asynchronous_processes_form_a_group() {
    processes(5, "mixed", "", &[]);
}

/// An asynchronous rank as a process. Rank 1 dies in a collective.
pub(crate) fn death(builder: GroupBuilder<'_>) {
    let mut group = wait(builder.join_async()).unwrap();
    wait(group.barrier()).unwrap();
    let rank = group.rank();
    let dies = |lower: u32, _| if rank == 1 { abort() } else { lower };
    let result = wait(group.all_reduce(&mut [1; 9], Reduction::Custom(&dies)));
    let result = result.and_then(|()| wait(group.barrier()));
    assert!(matches!(result, Err(Error::Lost { rank: 1, .. })), "{result:?}");
    assert!(matches!(wait(group.barrier()), Err(Error::Closed)));
}

#[test]
fn the_death_of_a_rank_is_named_on_asynchronous_ranks() {
    processes(4, "async_death", "", &[1]);
}

/// Polls a future once, and drops it.
fn poll_once<F: Future>(future: F) -> Poll<F::Output> {
    let _runtime = runtime().enter();
    pin!(future).poll(&mut Context::from_waker(Waker::noop()))
}

fn begin(future: impl Future) {
    assert!(poll_once(future).is_pending());
}

/// A function that waits for such a call would wait for its own end.
#[test]
fn a_function_of_an_asynchronous_rank_cannot_call_its_group() {
    let calls = |group: &mut aio::Group| {
        let sub = Mutex::new(wait(group.split(0, 0)).unwrap());
        let other = 1 - group.rank();
        let function = |lower: u32, higher| {
            let mut sub = sub.lock().unwrap();
            let barrier = poll_once(sub.barrier());
            assert!(matches!(barrier, Poll::Ready(Err(Error::Argument(_)))), "{barrier:?}");
            let connect = poll_once(sub.connect(other)).map_ok(drop);
            assert!(matches!(connect, Poll::Ready(Err(Error::Argument(_)))), "{connect:?}");
            lower + higher
        };
        let mut buffer = [1];
        wait(group.all_reduce(&mut buffer, Reduction::Custom(&function))).unwrap();
        assert_eq!(buffer, [2]);
        wait(sub.into_inner().unwrap().barrier()).unwrap();
    };
    mixed(2, |_| true, |_| unreachable!(), calls);
}

/// Rank 0 begins a call while another one is in progress. The function of the latter then polls the former.
#[test]
fn a_function_of_an_asynchronous_rank_cannot_continue_a_call_that_waits_for_its_own() {
    let begun = Barrier::new(2);
    let calls = |group: &mut aio::Group| {
        let mut sub = wait(group.split(0, 0)).unwrap();
        let is_first = group.rank() == 0;
        let waiting = Mutex::new(is_first.then(|| Box::pin(sub.barrier())));
        let poll_waiting = || {
            let _runtime = runtime().enter();
            let mut waiting = waiting.lock().unwrap();
            waiting.as_mut().map(|it| it.as_mut().poll(&mut Context::from_waker(Waker::noop())))
        };
        let polled = Mutex::new(None);
        let function = |lower: u32, higher| {
            *polled.lock().unwrap() = poll_waiting();
            lower + higher
        };
        let mut buffer = [1];
        let mut call = Box::pin(group.all_reduce(&mut buffer, Reduction::Custom(&function)));
        if is_first {
            assert!(poll_once(call.as_mut()).is_pending());
            assert!(matches!(poll_waiting(), Some(Poll::Pending)));
        }
        begun.wait();
        wait(call).unwrap();
        assert_eq!(buffer, [2]);
        let polled = polled.into_inner().unwrap();
        assert!(
            !is_first || matches!(polled, Some(Poll::Ready(Err(Error::Argument(_))))),
            "{polled:?}"
        );
        drop(waiting);
        wait(sub.barrier()).unwrap();
    };
    mixed(2, |_| true, |_| unreachable!(), calls);
}

/// The functions of both ranks wait for a barrier of another group.
#[test]
fn a_function_of_an_asynchronous_rank_can_poll_another_group() {
    let calls = |group: &mut aio::Group, other: &mut aio::Group| {
        let other = Mutex::new(other);
        let function = |lower: u32, higher| {
            let _runtime = runtime().enter();
            let mut other = other.lock().unwrap();
            let mut barrier = pin!(other.barrier());
            let mut poll = || barrier.as_mut().poll(&mut Context::from_waker(Waker::noop()));
            while poll().map(Result::unwrap).is_pending() {
                thread::yield_now();
            }
            lower + higher
        };
        let mut buffer = [1];
        wait(group.all_reduce(&mut buffer, Reduction::Custom(&function))).unwrap();
        assert_eq!(buffer, [2]);
        wait(group.barrier()).unwrap();
        wait(other.into_inner().unwrap().barrier()).unwrap();
    };
    let (pd, [first, second]) = (domain(), [(); 2].map(|()| free_address()));
    let join = |rank, master: &str| {
        let builder = Group::builder(&pd, rank, 2, master).limit(LIMIT).join_limit(LIMIT);
        wait(builder.join_async()).unwrap()
    };
    thread::scope(|threads| {
        let rank = |rank| calls(&mut join(rank, &first), &mut join(rank, &second));
        let ranks = [0, 1].map(|own| threads.spawn(move || rank(own)));
        ranks.into_iter().for_each(|rank| rank.join().unwrap());
    });
}

#[test]
fn a_long_call_and_a_barrier_are_a_mismatch_on_both_asynchronous_ranks() {
    let long = |group: &mut aio::Group| {
        let error = match group.rank() {
            0 => text(wait(async { group.broadcast(0, &mut vec![0_u8; 1 << 20]).await })),
            _ => text(wait(async { group.barrier().await })),
        };
        assert!(error.contains(" called "), "{error}");
    };
    mixed(2, |_| true, |_| unreachable!(), long);
}

#[test]
fn a_block_with_different_lengths_at_its_ends_is_a_mismatch_on_both_asynchronous_ranks() {
    for lengths in LENGTHS_AT_ENDS {
        for both in [false, true] {
            let part = |group: &mut aio::Group| asynchronous::differ(group, lengths, both);
            mixed(2, |_| true, |_| unreachable!(), part);
        }
    }
}

/// Ranks 0 and 1 wait for each other, and rank 2 waits for rank 0.
#[test]
fn different_collectives_without_messages_between_asynchronous_ranks_are_named() {
    let part = |group: &mut aio::Group| match group.rank() {
        1 => named(wait(group.barrier()), 1, 1, |rank| group.host(rank)),
        own => named(wait(group.all_gather(&mut [1_u8; 3])), own, 1, |rank| group.host(rank)),
    };
    for error in mixed(3, |_| true, |_| unreachable!(), part) {
        assert!(error.contains("barrier (call 0 ") && error.contains("all_gather (call 0 "));
    }
}

/// Ranks 1 and 2 wait for each other. Rank 0 is in no collective, so it compares no calls.
#[test]
fn different_collectives_of_an_asynchronous_subgroup_without_rank_0_are_named_on_both_ranks() {
    let named = Barrier::new(3);
    let part = |group: &mut aio::Group| {
        let own = group.rank();
        let mut others = wait(group.split(u64::from(own == 0), 0)).unwrap();
        if own > 0 {
            wait(others.barrier()).unwrap();
            let error = text(wait(others.broadcast(2 - own, &mut [0_u8])));
            named.wait();
            let parts = [" called broadcast (call 1 ", "root 0)", "root 1)"];
            assert!(parts.iter().all(|part| error.contains(part)), "{error}");
        } else {
            named.wait();
        }
    };
    mixed(3, |_| true, |_| unreachable!(), part);
}

/// All ranks wait for each other. Rank 0 waits for rank 1, but has a message of rank 2.
#[test]
fn different_algorithms_of_barriers_are_named_on_asynchronous_ranks() {
    let [one, other] = [BarrierAlgorithm::Centralized, BarrierAlgorithm::Dissemination];
    let part = |group: &mut aio::Group| {
        wait(group.barrier()).unwrap();
        let algorithm = if group.rank() == 0 { one } else { other };
        named(wait(group.barrier_with(algorithm)), group.rank(), 0, |rank| group.host(rank))
    };
    for error in mixed(3, |_| true, |_| unreachable!(), part) {
        let named = |algorithm| error.contains(&format!(", {algorithm:?})"));
        assert!(named(one) && named(other), "{error}");
    }
}

#[test]
fn another_process_can_join_after_a_join_was_dropped() {
    let (pd, master) = (domain(), free_address());
    let builder = |rank| Group::builder(&pd, rank, 2, &master).join_limit(LIMIT);
    begin(builder(1).join_async());
    let mut group = thread::scope(|threads| {
        let other = threads.spawn(|| builder(1).join().unwrap().barrier().unwrap());
        let mut group = builder(0).join().unwrap();
        group.barrier().unwrap();
        other.join().unwrap();
        group
    });
    assert!(group.barrier().is_err());
}

#[test]
fn calls_can_move_to_other_threads() {
    fn check<T: Send>(future: T) -> T {
        future
    }
    mixed(
        2,
        |_| true,
        |_| unreachable!(),
        |group| {
            let mut buffer = vec![1.0_f32; 10];
            let sum = |lower, higher| lower + higher;
            wait(check(group.all_reduce(&mut buffer, Reduction::Custom(&sum)))).unwrap();
            wait(check(group.broadcast(0, &mut buffer))).unwrap();
            assert_eq!(buffer, [2.0; 10]);
        },
    );
}

#[test]
fn an_asynchronous_rank_connects_to_a_blocking_one() {
    for is_async in [0, 1] {
        mixed(
            2,
            |rank| rank == is_async,
            |group| {
                let own = group.rank();
                let mut channel = group.connect(1 - own).unwrap();
                let pd = channel.pd().clone();
                let mut received = pd.allocate_region(5).unwrap();
                channel.receive_into(&mut received).unwrap();
                assert_eq!(received[..], *b"hello");
                group.barrier().unwrap();
            },
            |group| {
                let own = group.rank();
                let connection = wait(group.connect(1 - own)).unwrap();
                let mut hello = BufferPool::new(connection.pd()).allocate(5).unwrap();
                hello.copy_from_slice(b"hello");
                wait(connection.send(hello).into_future()).unwrap();
                wait(group.barrier()).unwrap();
            },
        );
    }
}
