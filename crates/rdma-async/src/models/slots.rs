//! Operations that wait for a free slot get one.

use std::sync::Arc;

use rdma_connect::TransportError;

use super::{Others, model, post, send, spawn};
use crate::CloseReason;
use crate::mock::{Faults, NicOutcome, PostFault, block_on, poll_once};

/// Two tasks wait for the only slot while the device uses it.
#[test]
fn loom_all_waiters_get_the_slot() {
    model(1, |rig| {
        let connection = rig.connect([1, 0]);
        let first = post(&connection, rig);
        let others = Others::new(rig, 3);
        let other = connection.clone();
        let task = spawn(rig, move |rig| drop(send(&other, rig).unwrap()));
        block_on(first).unwrap();
        send(&connection, rig).unwrap();
        task.join().unwrap();
        others.end(rig);
    });
}

/// Only the driver polls, so it has to free the slot.
#[test]
fn loom_the_slot_of_a_dropped_operation_goes_to_the_waiter() {
    model(3, |rig| {
        let connection = rig.connect([1, 0]);
        drop(post(&connection, rig));
        let others = Others::new(rig, 2);
        send(&connection, rig).unwrap();
        others.end(rig);
    });
}

/// A waiter may be dropped after it was woken: then it wakes the next one.
#[test]
fn loom_a_dropped_waiter_passes_on_its_wake_up() {
    model(2, |rig| {
        let connection = rig.connect([1, 0]);
        drop(post(&connection, rig));
        let waits = connection.send(rig.buffer()).into_owned(&connection);
        let mut waits = Box::pin(waits.post());
        assert!(poll_once(&mut waits, &Arc::default()).is_pending());
        let others = Others::new(rig, 2);
        let other = connection.clone();
        let task = spawn(rig, move |rig| drop(send(&other, rig).unwrap()));
        drop(waits);
        task.join().unwrap();
        others.end(rig);
    });
}

/// A waiter that is woken and finds the slot occupied waits again.
#[test]
fn loom_a_new_operation_may_take_the_slot_first() {
    model(1, |rig| {
        let connection = rig.connect([1, 0]);
        let first = post(&connection, rig);
        let others = Others::new(rig, 3);
        let other = connection.clone();
        let task = spawn(rig, move |rig| drop(send(&other, rig).unwrap()));
        drop(first);
        drop(post(&connection, rig));
        task.join().unwrap();
        others.end(rig);
    });
}

/// A waiter whose post is refused does not use the slot that it was woken for: it wakes the next one.
#[test]
fn loom_a_refused_waiter_passes_on_its_wake_up() {
    model(2, |rig| {
        let connection = rig.connect([1, 0]);
        drop(post(&connection, rig));
        rig.nic.set_faults(Faults { posts: Some(PostFault::Clear), ..Faults::default() });
        let others = Others::new(rig, 2);
        let other = connection.clone();
        let task = spawn(rig, move |rig| drop(send(&other, rig)));
        drop(send(&connection, rig));
        task.join().unwrap();
        others.end(rig);
    });
}

/// No task awaits the failed operation.
#[test]
fn loom_a_waiter_is_woken_on_a_failure() {
    model(3, |rig| {
        let connection = rig.connect([1, 0]);
        let first = post(&connection, rig);
        let others = Others::with(rig, |rig| rig.nic.serve_with(1, NicOutcome::Failed));
        let failed = send(&connection, rig).unwrap_err().error;
        let TransportError::Closed { reason, .. } = failed else { panic!("{failed}") };
        assert!(matches!(reason, CloseReason::Work { .. }), "{reason}");
        assert!(block_on(first).is_err());
        others.end(rig);
    });
}
