//! Tests of devices that refuse requests or fail.

use super::*;
use crate::mock::{Faults, PostFault};

#[test]
fn a_refused_post_returns_its_memory_and_a_doubtful_one_keeps_it() {
    let rig = Rig::new();
    let connection = rig.connect([2, 0]);
    rig.nic.set_faults(Faults { posts: Some(PostFault::Clear), ..Faults::default() });
    let Failed { memory, error } = connection.send(filled(&rig, 1)).try_post().unwrap_err();
    assert!(matches!(error, TransportError::PostError(_)), "{error}");
    let mut memory = memory.unwrap();
    memory.fill(2);
    let earlier = {
        rig.nic.set_faults(Faults::default());
        post(connection.send(memory))
    };
    // The device holds the request although the post failed, and the queue pair cannot be destroyed.
    let posts = Some(PostFault::Doubtful);
    rig.nic.set_faults(Faults { posts, destroys: true, ..Faults::default() });
    let mut doubtful = post(connection.send(filled(&rig, 3)));
    assert!(poll(&mut doubtful).is_pending() && rig.nic.posted() == 2);
    rig.nic.end(1, NicOutcome::Done(&[]));
    assert_eq!(rig.nic.take_sent(), [vec![3; 16]]);
    outcome(doubtful).unwrap();
    rig.nic.set_faults(Faults::default());
    connection.close().unwrap();
    let (why, memory) = reason(outcome(earlier));
    assert!(matches!(why, CloseReason::Doubtful { .. }), "{why}");
    assert_eq!(memory[..], [2; 16]);
    drop((memory, connection));
    end(rig);
}

#[test]
fn a_failed_request_ends_and_closes_its_connection() {
    let rig = Rig::new();
    let connection = rig.connect([1, 1]);
    let sleeper = Arc::<Sleeper>::default();
    let mut read = post(connection.read(rig.buffer(), remote()));
    assert!(poll_once(&mut read, &sleeper).is_pending());
    let mut waits = Box::pin(connection.send(filled(&rig, 1)).into_future());
    assert!(poll(&mut waits).is_pending());
    rig.nic.end(0, NicOutcome::Failed);
    rig.driver.0.sweep(false).unwrap();
    assert_eq!(sleeper.take_wakes(), 1);
    let Failed { memory, error } = outcome(read).unwrap_err();
    assert!(matches!(error, TransportError::WorkError(_)), "{error}");
    let Poll::Ready(over) = poll(&mut waits) else { panic!("the waiter was not woken") };
    let (why, other) = reason(over);
    assert!(matches!(why, CloseReason::Work { .. }), "{why}");
    drop((memory, other, waits));
    drop(connection);
    end(rig);
}

/// The memory stays in its slot, because the device may still use it.
#[test]
fn a_queue_pair_that_cannot_be_destroyed_keeps_its_memory() {
    let rig = Rig::new();
    let connection = rig.connect([2, 0]);
    let mut posted = post(connection.send(filled(&rig, 5)));
    drop(post(connection.send(filled(&rig, 6))));
    rig.nic.set_faults(Faults { destroys: true, ..Faults::default() });
    connection.close().unwrap_err();
    assert!(poll(&mut posted).is_pending());
    assert_eq!(rig.pool.usage().buffers, 2);
    rig.nic.end(0, NicOutcome::Done(&[]));
    rig.nic.end(0, NicOutcome::Done(&[]));
    assert_eq!(rig.nic.take_sent(), [vec![5; 16], vec![6; 16]]);
    outcome(posted).unwrap();
    drop(connection);
    // Dropping the connection did not destroy its queue pair. The end of the driver tries again.
    rig.nic.set_faults(Faults::default());
    rig.driver.0.end();
    end(rig);
}

#[test]
fn a_completion_queue_that_fails_ends_everything() {
    let rig = Rig::new();
    let connections = [(); 2].map(|()| rig.connect([1, 1]));
    let [mut one, mut other] =
        connections.each_ref().map(|connection| post(connection.send(filled(&rig, 1))));
    let sleeper = Arc::<Sleeper>::default();
    assert!(poll_once(&mut other, &sleeper).is_pending());
    drop(post(connections[0].receive(rig.buffer())));
    rig.nic.end(0, NicOutcome::Done(&[]));
    rig.nic.set_faults(Faults { polls: true, ..Faults::default() });
    let Poll::Ready(over) = poll(&mut one) else { panic!("the operation has not ended") };
    assert_eq!((reason(over).0, sleeper.take_wakes()), (CloseReason::Poll, 1));
    assert_eq!(reason(outcome(other)).0, CloseReason::Poll);
    drop(one);
    drop(connections);
    end(rig);
}

#[test]
fn a_completion_queue_that_cannot_be_armed_ends_everything() {
    let rig = Rig::new();
    let connection = rig.connect([1, 1]);
    rig.nic.set_faults(Faults { asks: true, ..Faults::default() });
    let sent = outcome(post(connection.send(filled(&rig, 1))));
    assert_eq!(reason(sent).0, CloseReason::Poll);
    drop(connection);
    end(rig);
}

/// The refused waiter was woken for a slot, and that slot is still free.
#[test]
fn a_refused_waiter_passes_on_its_wake_up() {
    let rig = Rig::new();
    let connection = rig.connect([1, 0]);
    let first = post(connection.send(filled(&rig, 1)));
    let sleepers = [(); 2].map(|()| Arc::<Sleeper>::default());
    let wait = |byte| Box::pin(connection.send(filled(&rig, byte)).into_future());
    let [mut one, mut other] = [wait(2), wait(3)];
    assert!(poll_once(&mut one, &sleepers[0]).is_pending());
    assert!(poll_once(&mut other, &sleepers[1]).is_pending());
    rig.nic.end(0, NicOutcome::Done(&[]));
    outcome(first).unwrap();
    rig.nic.set_faults(Faults { posts: Some(PostFault::Clear), ..Faults::default() });
    assert!(poll(&mut one).is_ready());
    assert_eq!(sleepers[1].take_wakes(), 1);
    rig.nic.set_faults(Faults::default());
    assert!(poll_once(&mut other, &sleepers[1]).is_pending() && rig.nic.posted() == 1);
    drop((one, other));
    drop(connection);
    end(rig);
}

/// The port may go down again before a connection is renewed. The renewal then fails, but another one may succeed.
#[test]
fn a_port_that_goes_down_during_a_renewal_is_no_close() {
    let rig = Rig::new();
    let connection = rig.connect([1, 1]);
    connection.close().unwrap();
    let inner = connection.inner();
    let state = || inner.look(|entry| (entry.can_renew(), entry.has_lost_port()));
    inner.look(|entry| entry.expect_renewal());
    assert_eq!(state(), (true, false));
    inner.ledger.close_those_of(Some(1), CloseReason::Port { port: 1 });
    assert_eq!(state(), (false, true));
    inner.look(|entry| entry.expect_renewal());
    assert_eq!(state(), (true, false));
    inner.ledger.close_those_of(Some(1), CloseReason::Port { port: 1 });
    connection.close().unwrap();
    assert_eq!(state(), (false, false), "the program closed the connection");
    inner.ledger.close_those_of(Some(1), CloseReason::Port { port: 1 });
    assert_eq!(state(), (false, false));
    drop(connection);
    end(rig);
}
