//! Tests of the memory that slots hold, on the mock device, which accesses memory through raw pointers when a request
//! ends. They are written for Miri, which detects both uses of freed memory and references that conflict with the
//! device's accesses.
#![allow(clippy::unwrap_used, clippy::panic, clippy::mem_forget)] // for tests

mod ends;
mod faults;
mod threads;

use std::future::IntoFuture;
use std::mem::forget;
use std::sync::{Arc, Mutex};
use std::task::Poll;

use rdma_connect::TransportError;

use crate::connection::Connection;
use crate::ledger::Armed;
use crate::mock::{NicOutcome, Rig, Sleeper, poll_once};
use crate::operation::Op;
use crate::operation::failed::Failed;
use crate::operation::kinds::Kind;
use crate::operation::posted::Posted;
use crate::{Buffer, BufferExt, CloseReason, RemoteMemoryRegion};

type Outcome<K> = Result<<K as Kind>::Output, Failed<<K as Kind>::Memory>>;

/// Memory of a peer. The mock device does not check it.
fn remote() -> RemoteMemoryRegion {
    RemoteMemoryRegion::new(4096, 64, rdma_mem::Rkey::new(7))
}

fn filled(rig: &Rig, byte: u8) -> Buffer {
    let mut buffer = rig.buffer();
    buffer.fill(byte);
    buffer
}

/// Polls once, with a waker that the test ignores.
fn poll<F: Future + Unpin>(future: &mut F) -> Poll<F::Output> {
    poll_once(future, &Arc::<Sleeper>::default())
}

/// Posts an operation. A slot must be free.
fn post<K: Kind>(op: Op<'_, K>) -> Posted<'_, K> {
    op.try_post().unwrap()
}

/// Returns the outcome of an operation that has ended.
#[track_caller]
fn outcome<K: Kind>(mut posted: Posted<'_, K>) -> Outcome<K> {
    match poll(&mut posted) {
        Poll::Ready(outcome) => outcome,
        Poll::Pending => panic!("the operation has not ended"),
    }
}

/// Returns the close reason and the memory of an operation that ended with its connection.
#[track_caller]
fn reason<O, B>(outcome: Result<O, Failed<B>>) -> (CloseReason, B) {
    match outcome {
        Err(Failed { memory: Some(memory), error: TransportError::Closed { reason, .. } }) => {
            (reason, memory)
        }
        Err(failed) => panic!("{failed}"),
        Ok(_) => panic!("the operation succeeded"),
    }
}

/// Checks that nothing is left after all connections were dropped.
fn end(rig: Rig) {
    assert_eq!(rig.pool.usage().buffers, 0, "memory was not released");
    let nic = Arc::clone(&rig.nic);
    drop(rig);
    assert_eq!(nic.objects(), 0, "objects were not destroyed");
}

#[test]
fn sent_memory_is_read_by_the_device_and_returned() {
    let rig = Rig::new();
    let connection = rig.connect([2, 2]);
    let mut sent = Box::pin(connection.send(filled(&rig, 3)).into_future());
    assert!(poll(&mut sent).is_pending() && rig.nic.posted() == 1);
    let written = post(connection.write(filled(&rig, 4).slice(5..9), remote()));
    rig.nic.end(1, NicOutcome::Done(&[]));
    rig.nic.end(0, NicOutcome::Done(&[]));
    let Poll::Ready(Ok(mut back)) = poll(&mut sent) else { panic!("the send has not completed") };
    assert_eq!(rig.nic.take_sent(), [vec![4; 4], vec![3; 16]]);
    // The memory belongs to the program again.
    back.fill(9);
    let mut part = outcome(written).unwrap();
    part.fill(8);
    let whole = part.into_inner();
    assert_eq!((whole[4], whole[5], whole[8], whole[9]), (4, 8, 8, 4));
    drop((sent, back, whole));
    drop(connection);
    end(rig);
}

#[test]
fn received_and_read_memory_is_written_by_the_device() {
    let rig = Rig::new();
    let connection = rig.connect([2, 2]);
    let mut received = Box::pin(connection.receive(filled(&rig, 1)).into_future());
    assert!(poll(&mut received).is_pending());
    let read = post(connection.read(filled(&rig, 2).slice(8..16), remote()));
    rig.nic.end(0, NicOutcome::Done(b"hello"));
    rig.nic.end(0, NicOutcome::Done(b"12345678"));
    let Poll::Ready(Ok(message)) = poll(&mut received) else {
        panic!("the receive has not completed")
    };
    assert_eq!((&message.memory[..6], message.length), (&b"hello\x01"[..], 5));
    let mut read = outcome(read).unwrap();
    assert_eq!(*read, *b"12345678");
    read.fill(0);
    drop((received, message, read));
    drop(connection);
    end(rig);
}

/// The program also reads the memory while the device reads it.
#[test]
fn shared_memory_is_read_by_several_requests_at_once() {
    let rig = Rig::new();
    let connection = rig.connect([3, 0]);
    let shared = filled(&rig, 6).freeze();
    let looked_at = &shared[..];
    let sent = [shared.clone(), shared.slice(2..5), shared.clone()]
        .map(|shared| post(connection.send(shared)));
    for _ in 0..3 {
        rig.nic.end(0, NicOutcome::Done(&[]));
        assert_eq!(looked_at, [6; 16]);
    }
    let shared = shared.try_thaw().unwrap_err();
    sent.into_iter().for_each(|sent| drop(outcome(sent).unwrap()));
    let mut thawed = shared.try_thaw().unwrap();
    thawed.fill(7);
    assert_eq!(rig.nic.take_sent(), [vec![6; 16], vec![6; 3], vec![6; 16]]);
    drop((thawed, connection));
    end(rig);
}

/// Each operation has its own word.
#[test]
fn an_atomic_operation_returns_the_value_in_its_word() {
    let rig = Rig::new();
    let connection = rig.connect([2, 0]);
    let [one, other] = [1, 2].map(|add| post(connection.fetch_add(remote(), add)));
    rig.nic.end(1, NicOutcome::Done(&[0; 22]));
    rig.nic.end(0, NicOutcome::Done(&[0; 11]));
    assert_eq!((outcome(one).unwrap(), outcome(other).unwrap()), (11, 22));
    let swapped = post(connection.compare_and_swap(remote(), 1, 2));
    rig.nic.end(0, NicOutcome::Done(&[0; 33]));
    assert_eq!(outcome(swapped).unwrap(), 33);
    drop(connection);
    end(rig);
}

#[test]
fn dropped_memory_stays_until_the_device_is_done() {
    let rig = Rig::new();
    let connection = rig.connect([2, 0]);
    let mut awaited = post(connection.send(filled(&rig, 1)));
    assert!(poll(&mut awaited).is_pending());
    drop(awaited);
    drop(post(connection.send(filled(&rig, 2))));
    assert_eq!(rig.pool.trim(), 0);
    // No other buffer gets the memory that the device is about to read.
    let other = filled(&rig, 9);
    assert_eq!(rig.pool.usage().buffers, 3);
    rig.nic.end(0, NicOutcome::Done(&[]));
    rig.nic.end(0, NicOutcome::Done(&[]));
    assert_eq!(rig.nic.take_sent(), [vec![1; 16], vec![2; 16]]);
    // The next sweep releases the memory of the dropped operations.
    assert_eq!(rig.driver.0.sweep(false).unwrap(), 2);
    assert_eq!(rig.pool.usage().buffers, 1);
    // Both slots are free.
    drop((post(connection.send(filled(&rig, 3))), post(connection.send(other))));
    drop(connection);
    end(rig);
}

/// The channel's file becomes readable when its first event occurs. If an event were left, it would not become readable
/// again.
#[test]
fn no_event_is_left_if_a_queue_is_armed_while_others_are_received() {
    let rig = Rig::new();
    let connection = rig.connect([3, 0]);
    let ledger = &connection.inner().ledger;
    // A task that awaits any completion arms the queue again.
    assert!(ledger.lock().arm_for(Armed::Solicited, ledger.cq()).unwrap());
    let first = post(connection.send(filled(&rig, 1)));
    rig.nic.end(0, NicOutcome::Done(&[]));
    assert!(rig.nic.wait_for_event());
    let (other, nic, buffer) = (connection.clone(), Arc::clone(&rig.nic), filled(&rig, 2));
    rig.nic.set_before_event(move || {
        let mut second = post(other.send(buffer));
        assert!(poll(&mut second).is_pending());
        nic.end(0, NicOutcome::Done(&[]));
    });
    rig.driver.0.sweep(false).unwrap();
    let mut third = post(connection.send(filled(&rig, 3)));
    assert!(poll(&mut third).is_pending());
    rig.nic.end(0, NicOutcome::Done(&[]));
    rig.nic.stop_waiting();
    assert!(rig.nic.wait_for_event(), "an event was left");
    for sent in [first, third] {
        outcome(sent).unwrap();
    }
    drop(connection);
    end(rig);
}

#[test]
fn an_event_is_received_without_a_call_that_finds_none() {
    let rig = Rig::new();
    let connection = rig.connect([1, 0]);
    let calls = || {
        rig.driver.0.sweep(false).unwrap();
        rig.nic.take_event_calls()
    };
    let send = || {
        let mut sent = post(connection.send(filled(&rig, 1)));
        assert!(poll(&mut sent).is_pending());
        sent
    };
    let mut sent = send();
    assert_eq!(calls(), 1, "the file was readable without an event");
    for _ in 0..3 {
        rig.nic.end(0, NicOutcome::Done(&[]));
        assert!(rig.nic.wait_for_event());
        assert_eq!(calls(), 1);
        outcome(sent).unwrap();
        sent = send();
    }
    drop(sent);
    drop(connection);
    end(rig);
}

#[test]
fn an_event_of_a_queue_that_another_thread_has_added_is_received() {
    let rig = Arc::new(Rig::new());
    let added = Arc::new(Mutex::new(None));
    let (other, adds) = (Arc::clone(&rig), Arc::clone(&added));
    rig.nic.set_before_event(move || {
        let connection = other.connect([2, 0]);
        let mut sent = post(connection.send(filled(&other, 1)));
        assert!(poll(&mut sent).is_pending());
        other.nic.end(0, NicOutcome::Done(&[]));
        drop(sent);
        *adds.lock().unwrap() = Some(connection);
    });
    // The driver already calls for an event.
    rig.driver.0.sweep(false).unwrap();
    let connection = added.lock().unwrap().take().unwrap();
    assert!(rig.nic.wait_for_event());
    let mut second = post(connection.send(filled(&rig, 2)));
    assert!(poll(&mut second).is_pending());
    rig.nic.end(0, NicOutcome::Done(&[]));
    rig.nic.stop_waiting();
    assert!(rig.nic.wait_for_event(), "the queue was not armed again");
    outcome(second).unwrap();
    drop(connection);
    end(Arc::into_inner(rig).unwrap());
}

#[test]
fn a_message_for_a_dropped_receive_is_kept_with_its_memory() {
    let rig = Rig::new();
    let connection = rig.connect([0, 3]);
    let [mut done, gone, none] = [
        post(connection.receive(filled(&rig, 1))),
        post(connection.receive(filled(&rig, 2))),
        post(connection.receive(filled(&rig, 3))),
    ];
    assert!(poll(&mut done).is_pending());
    drop((gone, none));
    rig.nic.end(1, NicOutcome::Done(b"second"));
    rig.nic.end(0, NicOutcome::Done(b"first"));
    rig.driver.0.sweep(false).unwrap();
    // The outcome of `done` is ready but has not been taken.
    drop(done);
    let next = || connection.take_unclaimed();
    let messages = [next().unwrap(), next().unwrap()];
    let texts = messages.each_ref().map(|m| m.memory.as_ref().unwrap()[..m.length].to_vec());
    assert_eq!(texts, [b"second".to_vec(), b"first".to_vec()]);
    assert!(next().is_none());
    let mut memory = messages.map(|message| message.memory.unwrap().into_inner());
    memory.iter_mut().for_each(|buffer| buffer.fill(5));
    drop((memory, connection));
    end(rig);
}

#[test]
fn a_forgotten_operation_keeps_its_memory_until_its_connection_ends() {
    let rig = Rig::new();
    let connection = rig.connect([2, 1]);
    let mut awaited = post(connection.send(filled(&rig, 1)));
    assert!(poll(&mut awaited).is_pending());
    forget(awaited);
    forget(post(connection.receive(filled(&rig, 2))));
    forget(post(connection.fetch_add(remote(), 1)));
    rig.nic.end(0, NicOutcome::Done(&[]));
    rig.driver.0.sweep(false).unwrap();
    assert_eq!(rig.pool.usage().buffers, 2);
    // The device keeps using the memory until the queue pair is destroyed.
    rig.nic.end(0, NicOutcome::Done(b"message"));
    drop(connection);
    end(rig);
}
