//! Threads that share an end: what one of them does wakes the others.

use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::mpsc;
use std::thread;
use std::time::Duration;

use rdma_channel::message::{ConnectionError, MessageError, Messages, Options, SendError};
use rdma_channel::{BufferPool, Wait};
use rdma_mem::Errno;
use test_support::events::{Event, Hears};
use test_support::program::in_own_process;

use super::ends::{CREDIT, open};
use super::rig::{Rig, bytes, on_each};
use crate::common::must_end;
use crate::common::provider::{
    KEEP_REGIONS, POST, PRETEND, Post, STAY, at_next_poll, faulty, honest,
};

/// One thread sleeps in `receive`. Another one cannot post, and the device has failed: no request of the queue pair
/// completes before the queue pair is destroyed.
#[test]
fn a_sleeping_receiver_wakes_when_another_thread_ends_the_connection() {
    must_end(|| {
        let rig = Rig::of(faulty("soft0"), Wait::Sleep);
        let (victim, peer) = rig.messages(Options::new());
        victim.send(b"the connection is open").unwrap();
        peer.receive().unwrap().unwrap();
        let (polls, sleeps) = mpsc::channel();
        thread::scope(|threads| {
            let receives = threads.spawn(|| {
                // From this poll until it sleeps, the thread has the lock.
                at_next_poll(move || polls.send(()).unwrap());
                victim.receive().unwrap_err()
            });
            sleeps.recv().unwrap();
            POST.set(Post::Refused(Errno::EIO));
            STAY.set(true);
            victim.send(b"refused").unwrap_err();
            honest();
            let error = receives.join().unwrap();
            assert!(matches!(error, MessageError::Ended(ConnectionError::Lost)), "{error}");
        });
    });
}

/// The limit of the flush is long, but each call ends at its own limit.
#[test]
fn a_device_that_does_not_flush_prolongs_no_call() {
    must_end(|| {
        let limit = Duration::from_millis(20);
        let rig = Rig::of(faulty("soft0"), Wait::SpinThenSleep).within(limit);
        let options = Options::new().linger(Duration::ZERO);
        let (victim, mut peer) =
            rig.channels_with(options, |client| client.drain_timeout(Duration::from_secs(3600)));
        let victim = Messages::new(victim, &rig.pool, options).unwrap();
        open(&rig, &mut peer);
        POST.set(Post::Refused(Errno::EIO));
        PRETEND.set(true);
        let error = victim.receive().unwrap_err();
        assert!(matches!(error, MessageError::TimedOut { .. }), "{error}");
        let error = victim.send(b"refused").unwrap_err();
        assert!(matches!(error, MessageError::TimedOut { .. }), "{error}");
        honest();
    });
}

/// The peer gives no further credit after the first frames of a message, so no completion follows.
#[test]
fn finish_fails_a_message_that_waits_for_its_start() {
    on_each(|rig| {
        let options = Options::new().operations(1);
        let (victim, mut peer) = rig.channels(options);
        let victim = Messages::new(victim, &rig.pool, options).unwrap();
        open(&rig, &mut peer);
        let mut memory = rig.pool.allocate(4096).unwrap();
        thread::scope(|threads| {
            let sends = threads.spawn(|| victim.send(&bytes(100_000)).unwrap_err());
            (0..CREDIT).for_each(|_| _ = peer.receive_into(&mut memory).unwrap());
            let waits = threads.spawn(|| victim.send(b"never").unwrap_err());
            let finishes = threads.spawn(|| victim.finish().unwrap_err());
            let error = waits.join().unwrap();
            assert!(matches!(error, MessageError::NotSent(SendError::Finished)), "{error}");
            drop(peer);
            sends.join().unwrap();
            finishes.join().unwrap();
        });
    });
}

/// Runs in its own process, because `tracing` remembers that an event had no subscriber.
#[test]
fn a_subscriber_that_panics_leaves_no_thread_without_wake_ups() {
    let name = "message::threads::a_subscriber_that_panics_leaves_no_thread_without_wake_ups";
    in_own_process(name, || must_end(panics_before_it_sleeps));
}

/// The memory of a message is freed before the thread sleeps. That fails, and an event reports it.
fn panics_before_it_sleeps() {
    let rig = Rig::of(faulty("soft0"), Wait::Sleep);
    let (victim, mut peer) = rig.channels(Options::new());
    let victim = Messages::new(victim, &rig.pool, Options::new()).unwrap();
    open(&rig, &mut peer);
    let message = BufferPool::new(&rig.pd).allocate(1000).unwrap();
    let hears = Hears(|event: Event| {
        assert!(!event.target.starts_with("rdma_mem"), "the subscriber panics");
    });
    KEEP_REGIONS.set(true);
    // The peer has posted no receive, so the message waits.
    tracing::subscriber::with_default(hears, || {
        catch_unwind(AssertUnwindSafe(|| victim.send_buffer(message))).unwrap_err();
    });
    honest();
    thread::scope(|threads| {
        let receives = threads.spawn(|| victim.receive().unwrap_err());
        drop(peer);
        let error = receives.join().unwrap();
        assert!(matches!(error, MessageError::Ended(ConnectionError::Lost)), "{error}");
    });
}
