//! Operations that wait for a free slot get one.

use std::sync::Arc;

use rdma_connect::TransportError;

use super::{Others, model, post, send, spawn};
use crate::CloseReason;
use crate::mock::{Faults, NicOutcome, PostFault, block_on, poll_once};

/// Two tasks wait for the only slot while the device uses it.
#[test]
fn loom_a_slot_is_for_all_who_wait() {
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
fn loom_the_slot_of_a_dropped_operation_is_for_who_waits() {
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
fn loom_who_is_dropped_hands_its_wake_up_on() {
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
fn loom_a_newcomer_may_be_faster() {
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
fn loom_who_is_refused_hands_its_wake_up_on() {
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
fn loom_who_waits_is_told_of_a_failure() {
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
