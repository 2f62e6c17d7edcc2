//! Blocking calls that wait for a free slot in a full queue, and later calls.
#![allow(unsafe_code)]

use std::thread;
use std::time::{Duration, Instant};

use rdma_channel::TransportError;
use rdma_mem::GatherList;
use rdma_qp::WriteWorkRequest;

use crate::common::provider::{at_next_poll, faulty};
use crate::common::{DRAIN, HELD, Pair, must_end};

const LONG: Duration = Duration::from_secs(5);

/// A channel with two slots, after a call that waited for a free slot, got it, and was then refused. Its time is over.
fn refused_after_a_wait() -> Pair {
    let mut pair = Pair::on(&faulty(HELD), |builder| {
        builder.max_send_wr(2).drain_timeout(DRAIN).write_timeout(DRAIN)
    });
    let (soft, qpn) = (pair.device, pair.here.qpn().unwrap());
    let remote = pair.board.remote().slice(0..8).unwrap();
    for _ in 0..2 {
        // SAFETY: SAFETY.md F8: the request has no memory.
        drop(unsafe { pair.here.write_unpolled(WriteWorkRequest::new(&[], remote)) }.unwrap());
    }
    let data = pair.memory(64, 5);
    let list = GatherList::from([data.as_slice()]);
    // The first poll is empty, which starts the time. At the second one there is room.
    at_next_poll(move || at_next_poll(move || soft.release(qpn, 1)));
    let begin = Instant::now();
    let error = pair.here.write(WriteWorkRequest::from_list(&list, remote)).unwrap_err();
    assert!(matches!(error, TransportError::PostError(_)), "it should not fit: {error}");
    soft.release(qpn, 1);
    pair.here.scope(|_| Ok::<(), TransportError>(())).unwrap();
    while begin.elapsed() <= 2 * DRAIN {
        thread::yield_now();
    }
    // This uses the slot that the refused request did not use.
    at_next_poll(move || soft.release(qpn, 1));
    pair.here.write(WriteWorkRequest::new(&[], remote)).unwrap();
    pair
}

#[test]
fn a_call_has_its_own_time_after_one_that_waited_for_room_and_was_refused() {
    must_end(|| {
        let mut pair = refused_after_a_wait();
        let (soft, qpn) = (pair.device, pair.here.qpn().unwrap());
        let remote = pair.board.remote().slice(0..8).unwrap();
        at_next_poll(move || at_next_poll(move || soft.release(qpn, 1)));
        let begin = Instant::now();
        let outcome = pair.here.within(LONG).write(WriteWorkRequest::new(&[], remote));
        assert!(outcome.is_ok(), "after {:?}: {outcome:?}", begin.elapsed());
        assert_eq!(pair.here.closed(), None);
    });
}

#[test]
fn a_handle_has_its_own_time_after_a_call_that_waited_for_room_and_was_refused() {
    must_end(|| {
        let mut pair = refused_after_a_wait();
        let (soft, qpn) = (pair.device, pair.here.qpn().unwrap());
        let remote = pair.board.remote().slice(0..8).unwrap();
        pair.here
            .scope(|s| {
                let write = s.post_write(WriteWorkRequest::new(&[], remote))?;
                at_next_poll(move || at_next_poll(move || soft.release(qpn, 1)));
                write.wait(LONG).map(drop)
            })
            .unwrap();
    });
}
