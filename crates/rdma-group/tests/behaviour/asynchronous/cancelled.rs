//! Calls whose futures are dropped before they are ready.

use std::future::poll_fn;
use std::iter;

use tokio::task::{consume_budget, coop::has_budget_remaining};

use super::*;

/// A call of rank `dropped`, whose future is polled once. The ranks are 0 to 2.
#[derive(Clone, Copy, Debug)]
enum Call {
    Broadcast,
    Split,
    /// With rank 1.
    Connect,
}

/// Makes the call whose future another rank has dropped.
fn call(call: Call, group: &mut Group, dropped: usize) -> Result<(), Error> {
    match call {
        Call::Broadcast => group.broadcast((dropped + 1) % 3, &mut [0_u8; 100_000]),
        Call::Split => group.split(0, 0).map(drop),
        Call::Connect if group.rank() == 1 => group.connect(dropped).map(drop),
        Call::Connect => Ok(()),
    }
}

#[test]
fn a_dropped_call_is_named_on_all_others() {
    for (made, dropped) in [Call::Broadcast, Call::Split, Call::Connect]
        .into_iter()
        .flat_map(|made| [(made, 0), (made, 2)])
    {
        // Before the call is dropped, all ranks have completed the barrier. Afterwards, the others make the call.
        let [completed, entered] = [(); 2].map(|()| Barrier::new(3));
        let results = mixed(
            3,
            |rank| rank == dropped,
            |group| {
                group.barrier().unwrap();
                completed.wait();
                entered.wait();
                text(call(made, group, dropped).and_then(|()| group.barrier()))
            },
            |group| {
                wait(group.barrier()).unwrap();
                completed.wait();
                match made {
                    Call::Broadcast => {
                        begin(group.broadcast((dropped + 1) % 3, &mut [0_u8; 100_000]))
                    }
                    Call::Split => begin(group.split(0, 0)),
                    Call::Connect => begin(group.connect(1)),
                }
                entered.wait();
                text(wait(group.barrier()))
            },
        );
        for (rank, error) in results.into_iter().enumerate() {
            let expected = match rank == dropped {
                true => "the group was closed by an earlier error",
                false => "has closed the group: its call was cancelled",
            };
            assert!(error.contains(expected), "{made:?}, rank {rank}: {error}");
            assert!(rank == dropped || error.starts_with(&format!("rank {dropped} ")), "{error}");
        }
    }
}

/// Rank 0 has left, so it does not decide.
#[test]
fn a_dropped_call_is_named_in_a_subgroup_without_rank_0() {
    let dropped = Barrier::new(3);
    let part = |group: &mut aio::Group| {
        let rank = group.rank();
        let mut others = wait(group.split(u64::from(rank == 0), 0)).unwrap();
        if rank == 0 {
            return None;
        }
        wait(others.barrier()).unwrap();
        if rank == 2 {
            begin(others.broadcast(0, &mut [0_u8]));
        }
        dropped.wait();
        Some(text(wait(others.barrier())))
    };
    let results = mixed(4, |_| true, |_| unreachable!(), part);
    for (rank, error) in results.into_iter().enumerate().skip(1) {
        let error = error.unwrap();
        let names_rank = error.starts_with("rank 2 on ")
            && error.ends_with(" has closed the group: its call was cancelled");
        assert!(names_rank || rank == 2 && error.contains("closed by an earlier error"), "{error}");
    }
}

/// Takes a unit of the budget of this task. Without a budget, no operation of tokio or of a device completes.
fn spend(cx: &mut Context<'_>) {
    assert!(pin!(consume_budget()).poll(cx).is_ready());
}

/// Returns the budget of a task in a poll.
fn budget() -> usize {
    wait(poll_fn(|cx| {
        Poll::Ready(iter::repeat_with(|| spend(cx)).take_while(|()| has_budget_remaining()).count())
    })) + 1
}

/// Polls a future once with a budget of this many units, and drops it.
fn poll_with_budget<F: Future>(units: usize, future: F) -> Poll<F::Output> {
    let mut future = Box::pin(future);
    let all = budget();
    wait(poll_fn(|cx| {
        (units..all).for_each(|_| spend(cx));
        Poll::Ready(future.as_mut().poll(cx))
    }))
}

/// Rank 0 drops a call that has lent its registered memory to a WRITE, or is about to.
#[test]
fn the_memory_of_a_dropped_call_is_replaced_while_it_is_lent() {
    let lent: Vec<_> = (1..=3).map(drops_with_budget).collect();
    // The call takes a lock before it lends memory.
    assert!(lent.contains(&true), "{lent:?}");
}

/// Drops a call after it has used this budget. Returns true if its memory was lent.
fn drops_with_budget(units: usize) -> bool {
    const LENGTH: usize = 1 << 20;
    let results = mixed(
        2,
        |rank| rank == 0,
        |group| {
            let mut buffer = vec![0_u8; LENGTH];
            group.broadcast(0, &mut buffer).unwrap();
            assert!(buffer.iter().all(|byte| *byte == 6));
            group.barrier().unwrap();
            let error = text(group.broadcast(0, &mut buffer));
            assert!(error.starts_with("rank 0 on "), "{error}");
            assert!(error.ends_with(" has closed the group: its call was cancelled"), "{error}");
            false
        },
        |group| {
            let mut buffer = group.buffer::<u8>(LENGTH).unwrap();
            buffer.fill(6);
            wait(group.broadcast(0, &mut buffer)).unwrap();
            // Afterwards, all slots of the peer are free.
            wait(group.barrier()).unwrap();
            buffer.fill(7);
            assert!(poll_with_budget(units, group.broadcast(0, &mut buffer)).is_pending());
            assert!(matches!(wait(group.barrier()), Err(Error::Closed)));
            let is_lent = buffer[0] == 0;
            assert!(buffer.iter().all(|byte| *byte == if is_lent { 0 } else { 7 }));
            assert_eq!(buffer.len(), LENGTH);
            // This memory belongs to the program, whatever the device does with the other memory.
            buffer.fill(8);
            assert!(buffer.iter().all(|byte| *byte == 8));
            is_lent
        },
    );
    results[0]
}
