//! Requests and replies, and their IDs.

use std::collections::HashSet;

use rdma_message::{Delivery, Messages, OperationError, SendError};

use crate::pair::{Pair, bytes, small};

const LENGTHS: [usize; 5] = [0, 30, 490, 600, 7_000];

#[test]
fn each_request_gets_its_reply() {
    let mut pair = Pair::<Messages>::open(small());
    for request in LENGTHS {
        for reply in LENGTHS {
            let call = pair.ends[0].call(bytes(1, request)).unwrap();
            pair.run();
            let (id, received) = pair.ends[1].take_request();
            assert_eq!(received, bytes(1, request));
            let sent = pair.ends[1].reply(id, bytes(2, reply)).unwrap();
            pair.run();
            assert_eq!(pair.ends[0].replies.remove(&call), Some(bytes(2, reply)));
            assert_eq!(pair.ends[0].completed.get(&call), Some(&Ok(())));
            assert_eq!(pair.ends[1].completed.get(&sent), Some(&Ok(())));
        }
    }
}

#[test]
fn replies_may_be_sent_in_any_order() {
    let mut pair = Pair::<Messages>::open(small());
    let calls: Vec<_> = (0..4).map(|n| pair.ends[0].call(bytes(n, 20)).unwrap()).collect();
    pair.run();
    let requests: Vec<_> = (0..4).map(|_| pair.ends[1].take_request()).collect();
    for (id, request) in requests.into_iter().rev() {
        pair.ends[1].reply(id, [request, vec![9]].concat()).unwrap();
    }
    pair.run();
    for (n, call) in (0..).zip(calls) {
        assert_eq!(pair.ends[0].replies[&call], [bytes(n, 20), vec![9]].concat());
    }
}

#[test]
fn a_refused_request_fails_its_call() {
    let mut pair = Pair::<Messages>::open(small());
    let call = pair.ends[0].call(bytes(1, 20)).unwrap();
    pair.run();
    let (id, _) = pair.ends[1].take_request();
    pair.ends[1].machine.refuse(id);
    assert_eq!(pair.ends[1].machine.reply(id, 1), Err(SendError::NotOpenRequest));
    pair.run();
    assert_eq!(pair.ends[0].completed.get(&call), Some(&Err(OperationError::Refused)));
    assert!(pair.ends[1].completed.is_empty(), "a refusal is not an operation");
}

#[test]
fn a_cancelled_call_notifies_the_peer_and_discards_the_reply() {
    for (request, reply) in [(20, 20), (490, 490), (600, 600), (20, 0)] {
        let mut pair = Pair::<Messages>::open(small());
        let call = pair.ends[0].call(bytes(1, request)).unwrap();
        pair.run();
        let (id, _) = pair.ends[1].take_request();
        // The reply and the cancel frame pass each other.
        pair.ends[1].reply(id, bytes(2, reply)).unwrap();
        pair.ends[0].machine.cancel(call);
        pair.drive(0);
        pair.drive(1);
        pair.run();
        assert_eq!(pair.ends[0].completed.get(&call), Some(&Err(OperationError::Cancelled)));
        assert!(pair.ends[0].replies.is_empty() && pair.ends[0].arriving.is_empty());
        assert_eq!(pair.ends[0].machine.counters().late_replies, 1);
        assert!(pair.ends[1].sending.is_empty(), "the reply is over");
        // The reply was sent before the cancel frame arrived.
        assert!(pair.ends[1].cancelled.is_empty());
        // The index is used again, and the connection still works.
        let call = pair.ends[0].call(bytes(3, 8)).unwrap();
        pair.run();
        let (next, _) = pair.ends[1].take_request();
        assert_eq!(next.index(), id.index());
        assert!(next.serial() > id.serial());
        pair.ends[1].reply(next, bytes(4, 8)).unwrap();
        pair.run();
        assert_eq!(pair.ends[0].replies[&call], bytes(4, 8));
    }
}

#[test]
fn a_request_that_the_peer_cancelled_takes_no_reply() {
    let mut pair = Pair::<Messages>::open(small());
    let call = pair.ends[0].call(bytes(1, 20)).unwrap();
    pair.run();
    let (id, _) = pair.ends[1].take_request();
    pair.ends[0].machine.cancel(call);
    pair.run();
    assert_eq!(pair.ends[1].cancelled, [id]);
    assert_eq!(pair.ends[1].machine.reply(id, 8), Err(SendError::NotOpenRequest));
    pair.ends[1].machine.refuse(id);
    pair.run();
    assert_eq!(pair.ends[0].machine.counters().late_replies, 0);
}

#[test]
fn a_call_cancelled_between_its_frames_is_sent_whole_and_cancelled() {
    let mut pair = Pair::<Messages>::open(small());
    let call = pair.ends[0].call(bytes(1, 490)).unwrap();
    pair.drive(0);
    pair.ends[0].machine.cancel(call);
    pair.run();
    let (id, request) = pair.ends[1].take_request();
    assert_eq!(request, bytes(1, 490));
    assert_eq!(pair.ends[1].cancelled, [id]);
    pair.ends[1].machine.refuse(id);
    pair.run();
    assert_eq!(pair.ends[0].completed.get(&call), Some(&Err(OperationError::Cancelled)));
}

#[test]
fn a_reply_cancelled_while_it_arrives_is_discarded() {
    for length in [490, 5_000] {
        let mut pair = Pair::<Messages>::open(small());
        let call = pair.ends[0].call(bytes(1, 20)).unwrap();
        pair.run();
        let (id, _) = pair.ends[1].take_request();
        pair.ends[1].reply(id, bytes(2, length)).unwrap();
        pair.drive(1);
        assert!(pair.execute(1), "the first part, or the offer");
        pair.drive(0);
        assert_eq!(pair.ends[0].arriving.len(), 1);
        pair.ends[0].machine.cancel(call);
        pair.run();
        assert!(pair.ends[0].arriving.is_empty(), "discarded");
        assert!(!pair.ends[0].kinds.contains(&0x17), "it needs no cancel frame");
        assert!(pair.ends[0].replies.is_empty());
        assert!(pair.ends[1].sending.is_empty(), "the peer's reply is over");
    }
}

#[test]
fn an_id_is_never_used_twice() {
    let mut pair = Pair::<Messages>::open(small());
    let mut seen = HashSet::new();
    for n in 0..500_u32 {
        let call = pair.ends[0].call(bytes(n, 20)).unwrap();
        if n % 3 == 0 {
            pair.drive(0);
            pair.ends[0].machine.cancel(call);
        }
        pair.run();
        let (id, _) = pair.ends[1].take_request();
        assert!(seen.insert(id), "{id:?}");
        if n % 3 == 1 {
            pair.ends[1].reply(id, bytes(n, 10)).unwrap();
        }
        pair.ends[1].machine.refuse(id);
        pair.run();
    }
    assert!(seen.iter().all(|id| id.index() < 8));
}

#[test]
fn the_peer_bounds_the_open_calls() {
    let mut pair = Pair::<Messages>::open(small());
    let calls: Vec<_> = (0..8).map(|n| pair.ends[0].call(bytes(n, 9)).unwrap()).collect();
    assert_eq!(pair.ends[0].machine.call(9), Err(SendError::Full));
    pair.run();
    let (id, _) = pair.ends[1].take_request();
    pair.ends[1].reply(id, Vec::new()).unwrap();
    pair.run();
    assert_eq!(pair.ends[0].replies[&calls[0]], b"");
    pair.ends[0].call(bytes(9, 9)).unwrap();
    assert_eq!(pair.ends[0].machine.call(9), Err(SendError::Full));
}

#[test]
fn a_reply_arrives_while_messages_are_not_taken() {
    let mut pair = Pair::<Messages>::open(small());
    for n in 0..5 {
        pair.ends[1].send(bytes(n, 40)).unwrap();
    }
    let call = pair.ends[0].call(bytes(9, 20)).unwrap();
    pair.run();
    let (id, _) = pair.ends[1].take_request();
    pair.ends[1].reply(id, bytes(8, 4_000)).unwrap();
    pair.run();
    assert_eq!(pair.ends[0].replies[&call], bytes(8, 4_000));
    assert_eq!(pair.ends[0].inbox.len(), 5);
    assert!(pair.ends[0].inbox.iter().all(|it| it.delivery == Delivery::Message));
}

#[test]
fn a_reply_cancelled_before_it_is_sent_refuses_the_request() {
    let mut pair = Pair::<Messages>::open(small());
    let call = pair.ends[0].call(bytes(1, 20)).unwrap();
    pair.run();
    let (id, _) = pair.ends[1].take_request();
    let reply = pair.ends[1].reply(id, bytes(2, 20)).unwrap();
    pair.ends[1].machine.cancel(reply);
    pair.run();
    assert_eq!(pair.ends[1].completed.get(&reply), Some(&Err(OperationError::Cancelled)));
    assert_eq!(pair.ends[0].completed.get(&call), Some(&Err(OperationError::Refused)));
}

#[test]
fn refusals_use_no_operation() {
    let mut options = small();
    (options.operations, options.receives) = (2, 1);
    let mut pair = Pair::<Messages>::open(options);
    for round in 0..3 {
        let calls = [1, 2].map(|n| pair.ends[0].call(bytes(n, 20)).unwrap());
        pair.run();
        let requests = [1, 2].map(|_| pair.ends[1].take_request().0);
        // The peer holds its only receive, so that nothing can be sent.
        pair.ends[0].holds = true;
        let held = pair.ends[1].send(bytes(3, 20)).unwrap();
        pair.run();
        requests.into_iter().for_each(|id| pair.ends[1].machine.refuse(id));
        let message = pair.ends[1].send(bytes(4, 20)).unwrap();
        assert!([held, message].iter().all(|it| it.index() < 2), "round {round}");
        pair.ends[0].holds = false;
        pair.ends[0].release(0);
        pair.run();
        while pair.ends[0].take().is_some() {}
        for call in calls {
            assert_eq!(pair.ends[0].completed[&call], Err(OperationError::Refused));
        }
    }
}

/// Otherwise both ends would wait for each other's replies.
#[test]
fn replies_begin_while_calls_use_all_operations() {
    let mut options = small();
    options.operations = 2;
    let mut pair = Pair::<Messages>::open(options);
    let calls = [0, 1, 0, 1].map(|at| (at, pair.ends[at].call(bytes(1, 20)).unwrap()));
    pair.run();
    for at in 0..2 {
        assert_eq!(pair.ends[at].machine.send(8), Err(SendError::Full));
        for _ in 0..2 {
            let (id, request) = pair.ends[at].take_request();
            pair.ends[at].reply(id, request).unwrap();
        }
    }
    pair.run();
    for (at, call) in calls {
        assert_eq!(pair.ends[at].completed.get(&call), Some(&Ok(())));
    }
}

/// The driver then awaits the completion of the SEND, because nothing else ends the call.
#[test]
fn a_call_whose_answer_is_early_awaits_the_completion_of_its_request() {
    for is_refused in [false, true] {
        let mut pair = Pair::<Messages>::open(small());
        let call = pair.ends[0].call(bytes(1, 20)).unwrap();
        pair.drive(0);
        assert!(pair.execute(0) && !pair.ends[0].machine.awaits_sent());
        pair.drive(1);
        let (id, _) = pair.ends[1].take_request();
        match is_refused {
            true => pair.ends[1].machine.refuse(id),
            false => _ = pair.ends[1].reply(id, bytes(2, 20)).unwrap(),
        }
        pair.drive(1);
        while pair.execute(1) {}
        pair.drive(0);
        assert!(pair.ends[0].completed.is_empty() && pair.ends[0].machine.awaits_sent());
        while pair.complete(0, 0) {}
        pair.drive(0);
        assert!(pair.ends[0].completed.contains_key(&call) && !pair.ends[0].machine.awaits_sent());
    }
}

#[test]
fn a_refusal_does_not_come_between_the_parts_of_a_message() {
    let mut pair = Pair::<Messages>::open(small());
    let call = pair.ends[0].call(bytes(1, 20)).unwrap();
    pair.run();
    let (id, _) = pair.ends[1].take_request();
    pair.ends[1].send(bytes(2, 490)).unwrap();
    pair.drive(1);
    pair.ends[1].machine.refuse(id);
    pair.ends[1].send(bytes(3, 490)).unwrap();
    pair.run();
    assert_eq!(pair.ends[0].completed.get(&call), Some(&Err(OperationError::Refused)));
    assert_eq!(pair.ends[0].take().unwrap().bytes, bytes(2, 490));
    pair.run();
    assert_eq!(pair.ends[0].take().unwrap().bytes, bytes(3, 490));
}

/// Otherwise a peer could start any number of requests: it would cancel each.
#[test]
fn a_cancelled_request_counts_until_it_is_answered() {
    let mut pair = Pair::<Messages>::open(small());
    for n in 0..8 {
        let call = pair.ends[0].call(bytes(n, 20)).unwrap();
        pair.run();
        pair.ends[0].machine.cancel(call);
        pair.run();
    }
    assert_eq!(pair.ends[1].cancelled.len(), 8);
    assert_eq!(pair.ends[0].machine.call(20), Err(SendError::Full));
    let (id, _) = pair.ends[1].take_request();
    pair.ends[1].machine.refuse(id);
    let (id, _) = pair.ends[1].take_request();
    assert_eq!(pair.ends[1].machine.reply(id, 8), Err(SendError::NotOpenRequest));
    pair.run();
    for _ in 0..2 {
        pair.ends[0].call(bytes(9, 20)).unwrap();
    }
    assert_eq!(pair.ends[0].machine.call(20), Err(SendError::Full));
    pair.run();
    assert_eq!(pair.ends[0].machine.counters().late_replies, 0, "refusals are no replies");
}

#[test]
fn cancelled_calls_that_are_never_answered_do_not_hold_back_the_end() {
    for is_finished_first in [false, true] {
        let mut pair = Pair::<Messages>::open(small());
        let call = pair.ends[0].call(bytes(1, 20)).unwrap();
        pair.run();
        if is_finished_first {
            pair.ends[0].machine.finish();
        }
        pair.ends[0].machine.cancel(call);
        pair.ends[0].machine.finish();
        pair.run();
        assert_eq!(pair.ends[0].completed.get(&call), Some(&Err(OperationError::Cancelled)));
        assert!(pair.ends[0].is_flushed);
        // The answer is late.
        let (id, _) = pair.ends[1].take_request();
        pair.ends[1].machine.refuse(id);
        pair.ends[1].machine.finish();
        pair.run();
        assert!(pair.ends.iter().all(|end| end.disconnect == Some(None)));
    }
}

/// [`SendError::Full`] would let the caller wait for an event that never follows.
#[test]
fn a_peer_without_calls_accepts_no_requests() {
    let mut options = small();
    options.calls = 0;
    let mut pair = Pair::<Messages>::open(options);
    assert_eq!(pair.ends[0].machine.call(1), Err(SendError::NoRequests));
}
