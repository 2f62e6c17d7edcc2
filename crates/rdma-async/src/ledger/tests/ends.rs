//! Tests of connections that end, and of later connections that use their entries.

use super::*;

#[test]
fn outstanding_memory_is_returned_when_the_connection_ends() {
    let rig = Rig::new();
    let connection = rig.connect([2, 2]);
    let sleeper = Arc::<Sleeper>::default();
    let mut sent = post(connection.send(filled(&rig, 1)));
    assert!(poll_once(&mut sent, &sleeper).is_pending());
    let done = post(connection.send(filled(&rig, 2)));
    let received = post(connection.receive(rig.buffer()));
    drop(post(connection.receive(rig.buffer())));
    // A request that completed before the close succeeds.
    rig.nic.end(1, NicOutcome::Done(&[]));
    connection.close().unwrap();
    assert_eq!((rig.nic.posted(), sleeper.take_wakes()), (0, 1));
    assert_eq!(rig.pool.usage().buffers, 3);
    let (why, mut memory) = reason(outcome(sent));
    memory.fill(7);
    assert_eq!(why, CloseReason::Asked);
    outcome(done).unwrap();
    // The outcome of a receive can still be taken after the close.
    let received = reason(outcome(received));
    assert_eq!(received.0, CloseReason::Asked);
    let refused = connection.send(filled(&rig, 3)).try_post();
    assert_eq!(reason(refused).1[..], [3; 16]);
    connection.close().unwrap();
    drop((memory, received));
    drop(connection);
    end(rig);
}

/// A completion belongs to one generation, so a completion of an earlier request or connection has no effect.
#[test]
fn late_repeated_and_invented_completions_match_no_request() {
    let rig = Rig::new();
    let connection = rig.connect([1, 0]);
    let first = post(connection.send(filled(&rig, 1)));
    let id = rig.nic.end(0, NicOutcome::Done(&[]));
    rig.nic.invent(id);
    outcome(first).unwrap();
    let mut second = post(connection.send(filled(&rig, 2)));
    for id in [id, 0, 1, 1 << 16, u64::MAX] {
        rig.nic.invent(id);
    }
    assert!(poll(&mut second).is_pending());
    let late = rig.nic.end(0, NicOutcome::Done(&[]));
    outcome(second).unwrap();
    let ledger = Arc::clone(&connection.inner().ledger);
    drop(connection);
    // The new connection uses the same entry.
    let connection = rig.connect([1, 0]);
    assert!(Arc::ptr_eq(&ledger, &connection.inner().ledger) && connection.inner().entry == 0);
    let mut third = post(connection.send(filled(&rig, 3)));
    rig.nic.invent(late);
    rig.nic.invent(id);
    assert!(poll(&mut third).is_pending());
    assert_ne!(rig.nic.end(0, NicOutcome::Done(&[])), late);
    outcome(third).unwrap();
    drop((ledger, connection));
    end(rig);
}

/// The waiters get the only slot one after the other, each when the slot becomes free.
#[test]
fn waiters_get_slots_in_order() {
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
    let woken = || sleepers.each_ref().map(|sleeper| sleeper.take_wakes());
    assert_eq!(woken(), [1, 0]);
    assert!(poll_once(&mut one, &sleepers[0]).is_pending() && rig.nic.posted() == 1);
    // The first waiter, which got the slot, passes its wake-up on to the next one.
    assert_eq!(woken(), [0, 1]);
    assert!(poll_once(&mut other, &sleepers[1]).is_pending());
    // `set` drops the first waiter. Its slot becomes free when the device has completed the request.
    one.set(connection.send(filled(&rig, 4)).into_future());
    assert_eq!(woken(), [0, 0]);
    rig.nic.end(0, NicOutcome::Done(&[]));
    rig.driver.0.sweep(false).unwrap();
    assert_eq!(woken(), [0, 1]);
    assert!(poll_once(&mut other, &sleepers[1]).is_pending());
    connection.close().unwrap();
    assert_eq!(woken(), [0, 1]);
    let Poll::Ready(over) = poll(&mut other) else { panic!("the operation has not ended") };
    let memory = reason(over).1;
    drop((memory, other, one));
    assert_eq!(connection.inner().ledger.lock().awaited(), Armed::No);
    drop(connection);
    end(rig);
}

/// The driver ends while requests are outstanding. The future of one request was leaked.
#[test]
fn a_driver_that_ends_returns_all_memory() {
    let rig = Rig::new();
    let connections = [(); 2].map(|()| rig.connect([1, 1]));
    let posted = connections.each_ref().map(|connection| post(connection.send(filled(&rig, 1))));
    forget(post(connections[0].receive(rig.buffer())));
    rig.driver.0.end();
    for posted in posted {
        assert_eq!(reason(outcome(posted)).0, CloseReason::Destroyed);
    }
    drop(connections);
    end(rig);
}

#[test]
fn counters_cover_success_failure_waits_and_a_destroyed_queue_pair() {
    let rig = Rig::new();
    let connection = rig.connect([1, 3]);
    let counts = || {
        let all = connection.counters();
        (all.posted, all.completed, all.failed, all.slot_waits)
    };
    let sent = post(connection.send(filled(&rig, 1)));
    let mut waits = Box::pin(connection.send(filled(&rig, 2)).into_future());
    assert!(poll(&mut waits).is_pending() && poll(&mut waits).is_pending());
    assert_eq!(counts(), (1, 0, 0, 1), "one wait, however often it is polled");
    rig.nic.end(0, NicOutcome::Done(&[]));
    outcome(sent).unwrap();
    assert!(poll(&mut waits).is_pending());
    assert_eq!(counts(), (2, 1, 0, 1));
    let received = post(connection.receive(rig.buffer()));
    let dropped = post(connection.receive(rig.buffer()));
    rig.nic.end(1, NicOutcome::Done(b"hello"));
    outcome(received).unwrap();
    assert_eq!(counts(), (4, 2, 0, 1));
    drop(dropped);
    connection.close().unwrap();
    assert_eq!(counts(), (4, 4, 2, 1), "the send and the dropped receive");
    connection.send(rig.buffer()).try_post().unwrap_err();
    assert_eq!(counts().0, 4, "an operation whose post fails is not counted");
    drop(waits);
    drop(connection);
    end(rig);
}
