//! Whether a completion queue can hold all outstanding requests of its queue pairs.

use crate::common::parts;
use rdma_mem::ProtectionDomain;
use rdma_qp::{CompletionQueue, Error, PreparedQueuePair, QueuePairBuilder, prelude::*};
use test_support::events::{self, Event};
use test_support::program::in_own_process;
use tracing::Level;

/// Returns the result of `work`, and the number of warnings of this crate.
fn warnings<T>(work: impl FnOnce() -> T) -> (T, u32) {
    let warns = |event: &Event| event.level == Level::WARN && event.target.starts_with("rdma_qp");
    events::count(warns, work)
}

/// A builder with the default of 16 sends and 16 receives.
fn both<'a>(pd: &'a ProtectionDomain, cq: &'a CompletionQueue) -> QueuePairBuilder<'a> {
    pd.create_qp().send_cq(cq).recv_cq(cq)
}

fn strict(builder: QueuePairBuilder<'_>) -> Result<PreparedQueuePair, Error> {
    builder.strict_cq(true).build()
}

/// Returns the queue that is too small, and the required capacity.
#[track_caller]
fn too_small(built: Result<PreparedQueuePair, Error>) -> (&'static str, u32) {
    match built {
        Err(Error::CompletionQueueTooSmall { knob, needed, .. }) => (knob, needed),
        other => panic!("{other:?}"),
    }
}

fn queue(pd: &ProtectionDomain, capacity: u32) -> CompletionQueue {
    match CompletionQueue::create(pd.context(), capacity) {
        Ok(cq) if cq.min_capacity() == capacity => cq,
        other => panic!("{other:?}"),
    }
}

/// In a process of its own. Otherwise a thread of another test, which has no subscriber, may emit an event first, and
/// `tracing` then disables that event.
#[test]
fn a_small_completion_queue_is_legal_and_logged_once() {
    in_own_process("completion_room::a_small_completion_queue_is_legal_and_logged_once", || {
        let (pd, _) = parts("soft0");
        let cq = queue(&pd, 40);
        let (first, count) = warnings(|| both(&pd, &cq).build().unwrap());
        assert_eq!(count, 0, "it fits");
        let (more, count) = warnings(|| [(); 3].map(|()| both(&pd, &cq).build().unwrap()));
        assert_eq!(count, 1, "when it became too small");
        drop((first, more));
        let (_, count) = warnings(|| both(&pd, &cq).max_send_wr(64).build().unwrap());
        assert_eq!(count, 1, "and again, after there had been room");
    });
}

#[test]
fn a_strict_queue_pair_needs_room_for_all_that_complete_there() {
    let (pd, _) = parts("soft0");
    let cq = queue(&pd, 96);
    let first = strict(both(&pd, &cq)).unwrap();
    let second = both(&pd, &cq).build().unwrap();
    let third = strict(both(&pd, &cq)).unwrap();
    let (refused, count) = warnings(|| strict(both(&pd, &cq)));
    assert_eq!(
        (too_small(refused), count),
        (("send_cq", 128), 0),
        "those that are not strict count"
    );
    let text = strict(both(&pd, &cq)).unwrap_err().to_string();
    assert!(text.contains("holds 96") && text.contains("128 at a time"), "{text}");
    let mut there = vec![third];
    for gone in [first, second] {
        drop(gone);
        there.push(strict(both(&pd, &cq)).unwrap());
        if there.len() == 2 {
            // Including the second one, which is still alive.
            assert_eq!(too_small(strict(both(&pd, &cq).max_send_wr(1).max_recv_wr(0))).1, 97);
        }
    }
}

#[test]
fn each_side_counts_where_it_completes_and_a_refused_queue_pair_does_not() {
    let (pd, _) = parts("soft0");
    let (sends, receives) = (queue(&pd, 32), queue(&pd, 16));
    let builder = || pd.create_qp().send_cq(&sends).recv_cq(&receives);
    let first = strict(builder()).unwrap();
    for _ in 0..3 {
        assert_eq!(too_small(strict(builder())), ("recv_cq", 32));
    }
    let _second = strict(builder().max_recv_wr(0)).unwrap();
    assert_eq!(too_small(strict(builder().max_recv_wr(0))), ("send_cq", 48));
    // The device refuses this one.
    drop(first);
    assert!(matches!(strict(builder().max_send_sge(u32::MAX)), Err(Error::Verb(_))));
    let (_first, other) = (strict(builder()).unwrap(), queue(&pd, 16));
    let crossed = pd.create_qp().send_cq(&other).recv_cq(&sends);
    assert_eq!(too_small(strict(crossed)), ("recv_cq", 48));
}

#[test]
fn receives_of_a_shared_queue_count_once_in_each_completion_queue() {
    let (pd, _) = parts("soft0");
    let (sends, receives, others) = (queue(&pd, 1000), queue(&pd, 64), queue(&pd, 128));
    let (srq, more) = (pd.create_srq().max_wr(64), pd.create_srq().max_wr(1));
    let (srq, more) = (srq.build().unwrap(), more.build().unwrap());
    let of_srq = || pd.create_qp().send_cq(&sends).recv_cq(&receives).srq(&srq);
    let first = strict(of_srq()).unwrap();
    let second = strict(of_srq()).unwrap();
    assert_eq!(too_small(strict(of_srq().srq(&more))), ("recv_cq", 65));
    drop(first);
    assert_eq!(too_small(strict(of_srq().srq(&more))), ("recv_cq", 65), "one is left");
    let elsewhere = strict(of_srq().recv_cq(&others)).unwrap();
    drop(second);
    let _small = strict(of_srq().srq(&more)).unwrap();
    assert_eq!(too_small(strict(of_srq())), ("recv_cq", 65));
    // One queue for both sides.
    let _one = strict(of_srq().send_cq(&others).recv_cq(&others)).unwrap();
    assert_eq!(
        too_small(strict(both(&pd, &others).max_send_wr(49).max_recv_wr(0))).1,
        64 + 16 + 49
    );
    let _full = strict(both(&pd, &others).max_send_wr(48).max_recv_wr(0)).unwrap();
    drop(elsewhere);
    assert_eq!(too_small(strict(both(&pd, &others).max_recv_wr(0))).1, 128 + 16);
}
