//! Connections, drivers and completion queues that end while operations are in progress.

use std::future::IntoFuture;
use std::mem::forget;
use std::sync::Arc;

use super::{Others, close_meanwhile, is_done, model, post, send, spawn};
use crate::CloseReason;
use crate::mock::{Faults, block_on, poll_once};

/// The awaited operation succeeds or ends with the connection.
#[test]
fn loom_a_connection_ends_while_it_is_awaited() {
    model(2, |rig| {
        close_meanwhile(rig, |posted| {
            is_done(block_on(posted), CloseReason::Asked);
        });
    });
}

/// The operation that waits for a slot fails.
#[test]
fn loom_a_connection_ends_while_an_operation_waits_for_a_slot() {
    model(2, |rig| {
        let connection = rig.connect([1, 0]);
        let first = post(&connection, rig);
        let (one, other) = (connection.clone(), connection.clone());
        let closes = spawn(rig, move |_| one.close().unwrap());
        let waits = spawn(rig, move |rig| {
            assert!(!is_done(send(&other, rig), CloseReason::Asked));
        });
        assert!(!is_done(send(&connection, rig), CloseReason::Asked));
        closes.join().unwrap();
        waits.join().unwrap();
        assert!(!is_done(block_on(first), CloseReason::Asked));
    });
}

/// Only one of the two destroys the queue pair. The entry is free after both have ended.
#[test]
fn loom_a_connection_and_its_driver_end_together() {
    model(3, |rig| {
        let connection = rig.connect([1, 0]);
        let ledger = rig.driver.0.ledger_for(0).unwrap();
        ledger.unreserve(0);
        forget(block_on(connection.send(rig.buffer()).post()).unwrap());
        let device = spawn(rig, |rig| rig.serve_what_is_there());
        let task = spawn(rig, |rig| rig.driver.0.end());
        drop(connection);
        task.join().unwrap();
        device.join().unwrap();
        assert!(ledger.reserve(4096), "the entry was not freed");
    });
}

/// A connection that is created while its driver ends is closed.
#[test]
fn loom_a_driver_that_ends_closes_new_connections() {
    model(3, |rig| {
        let task = spawn(rig, |rig| rig.driver.0.end());
        let connection = rig.connect([1, 0]);
        assert!(!is_done(send(&connection, rig), CloseReason::Destroyed));
        task.join().unwrap();
    });
}

/// All operations fail when the completion queue fails.
#[test]
fn loom_a_failed_completion_queue_ends_all_operations() {
    model(2, |rig| {
        let [one, other] = [(); 2].map(|()| rig.connect([1, 0]));
        let mut posted = post(&other, rig);
        assert!(poll_once(&mut posted, &Arc::default()).is_pending());
        let others = Others::with(rig, |rig| {
            rig.nic.set_faults(Faults { polls: true, ..Faults::default() });
            rig.serve_what_is_there();
        });
        let task = spawn(rig, move |_| {
            is_done(block_on(posted), CloseReason::Poll);
        });
        is_done(block_on(one.send(rig.buffer()).into_future()), CloseReason::Poll);
        task.join().unwrap();
        others.end(rig);
    });
}
