//! Time limits that expire while another event affects the operation. A limit of zero has expired whenever it is
//! polled.

use std::sync::Arc;
use std::time::Duration;

use rdma_connect::TransportError;

use super::{Others, Outcome, close_meanwhile, model, post, send, spawn};
use crate::CloseReason;
use crate::mock::{block_on, poll_once};
use crate::operation::failed::Failed;

/// Returns true if the operation succeeded. If it timed out, the device still has its memory.
#[track_caller]
fn has_succeeded(outcome: Outcome) -> bool {
    match outcome {
        Ok(_) => true,
        Err(Failed { memory: None, error: TransportError::Timeout { .. } }) => false,
        Err(failed) => panic!("{failed}"),
    }
}

/// Only the driver polls for the completion of a request that timed out.
#[test]
fn loom_a_request_completes_when_its_time_is_over() {
    model(3, |rig| {
        let connection = rig.connect([1, 0]);
        let mut posted = post(&connection, rig);
        let others = Others::new(rig, 1);
        if poll_once(&mut posted, &Arc::default()).is_pending() {
            has_succeeded(block_on(posted.within(Duration::ZERO)));
        }
        others.end(rig);
        assert_eq!(rig.pool.usage().buffers, 0, "the driver was not notified");
    });
}

/// The message is either the outcome or kept for `take_unclaimed`.
#[test]
fn loom_a_message_arrives_when_the_time_of_its_receive_is_over() {
    model(3, |rig| {
        let connection = rig.connect([0, 1]);
        let receive = connection.receive(rig.buffer()).into_owned(&connection);
        let receive = block_on(receive.post()).unwrap();
        let others = Others::new(rig, 1);
        let received = block_on(receive.within(Duration::ZERO));
        others.end(rig);
        match (received, connection.take_unclaimed()) {
            (Ok(received), None) => assert_eq!(received.bytes(), b"message"),
            (Err(Failed { memory: None, .. }), Some(kept)) => assert_eq!(kept.length, 7),
            (received, kept) => panic!("{received:?}, {kept:?}"),
        }
    });
}

/// The request succeeds, times out, or fails with the connection and returns its memory.
#[test]
fn loom_a_connection_ends_when_the_time_of_its_request_is_over() {
    model(2, |rig| {
        close_meanwhile(rig, |posted| match block_on(posted.within(Duration::ZERO)) {
            Err(Failed {
                memory: Some(_),
                error: TransportError::Closed { reason: CloseReason::Asked, .. },
            }) => {}
            outcome => {
                has_succeeded(outcome);
            }
        });
    });
}

/// The next operation gets the slot, even if the waiter before it has timed out.
#[test]
fn loom_the_time_is_over_while_an_operation_waits_for_a_slot() {
    model(1, |rig| {
        let connection = rig.connect([1, 0]);
        drop(post(&connection, rig));
        let others = Others::new(rig, 3);
        let other = connection.clone();
        let task = spawn(rig, move |rig| drop(send(&other, rig).unwrap()));
        let limited = connection.send(rig.buffer()).into_owned(&connection);
        match block_on(limited.within(Duration::ZERO)) {
            Err(Failed { memory: Some(_), error: TransportError::Timeout { .. } }) => {
                send(&connection, rig).map(drop).unwrap();
            }
            outcome => {
                has_succeeded(outcome);
            }
        }
        task.join().unwrap();
        others.end(rig);
    });
}
