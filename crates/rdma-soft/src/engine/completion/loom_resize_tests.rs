//! Resizing against pushing and polling, in every order of threads.

use std::sync::Arc;

use loom::thread;

use super::*;
use crate::engine::completion::work_completion::{Completion, Side};
use crate::fabric::Fabric;
use crate::sync::{AtomicU32, Ordering};

fn queue(capacity: u32) -> (Arc<CompletionQueue>, Arc<Reclaimed>, Seat) {
    let queue = Arc::new(CompletionQueue::new(Fabric::of_model(), capacity, None).unwrap());
    let counters = Arc::new(Reclaimed::default());
    let seat = queue.attach(&counters);
    (queue, counters, seat)
}

fn push(queue: &Arc<CompletionQueue>, seat: Seat, id: u32) {
    queue.push(seat, Completion::success(id.into(), id));
}

fn poll(queue: &CompletionQueue, most: u32) -> Vec<u64> {
    let mut got = Vec::new();
    queue.poll(most, |_, completion, _| got.push(completion.wr_id)).unwrap();
    got
}

/// Completions that arrive while a queue grows are polled once, in order.
#[test]
fn loom_no_completion_is_lost_doubled_or_overtaken_in_a_resize() {
    loom::model(|| {
        let (queue, counters, seat) = queue(2);
        push(&queue, seat, 1);
        let pusher = {
            let queue = Arc::clone(&queue);
            thread::spawn(move || push(&queue, seat, 2))
        };
        let poller = {
            let queue = Arc::clone(&queue);
            thread::spawn(move || poll(&queue, 1))
        };
        queue.resize(4, || ()).unwrap();
        pusher.join().unwrap();
        let mut got = poller.join().unwrap();
        assert_eq!(got, [1], "it was there before");
        got.extend(poll(&queue, 4));
        assert_eq!(got, [1, 2]);
        assert_eq!(poll(&queue, 4), []);
        assert_eq!(counters.of(Side::Send).load(Ordering::Relaxed), 2);
    });
}

/// A queue that was never empty does not look empty to a poll without the lock. That also holds if the queue changes to
/// a ring that was used before.
#[test]
fn loom_a_poll_during_resizes_finds_the_completions() {
    loom::model(|| {
        let (queue, _counters, seat) = queue(2);
        push(&queue, seat, 1);
        push(&queue, seat, 2);
        let poller = {
            let queue = Arc::clone(&queue);
            thread::spawn(move || {
                let got = poll(&queue, 1);
                assert_eq!(got.len(), 1);
                got
            })
        };
        queue.resize(4, || ()).unwrap();
        let mut got = poll(&queue, 1);
        push(&queue, seat, 3);
        queue.resize(2, || ()).unwrap();
        got.extend(poller.join().unwrap());
        got.extend(poll(&queue, 4));
        got.sort_unstable();
        assert_eq!(got, [1, 2, 3]);
    });
}

/// A thread that was notified of a completion finds it, whichever ring holds it.
#[test]
fn loom_a_poll_is_not_empty_after_a_push_and_a_resize() {
    loom::model(|| {
        let (queue, _counters, seat) = queue(1);
        let notified = Arc::new(AtomicU32::new(0));
        let poller = {
            let (queue, notified) = (Arc::clone(&queue), Arc::clone(&notified));
            thread::spawn(move || {
                let was_notified = notified.load(Ordering::Acquire) == 1;
                let got = poll(&queue, 1);
                assert!(!was_notified || got == [1], "{got:?}");
            })
        };
        queue.resize(2, || ()).unwrap();
        push(&queue, seat, 1);
        notified.store(1, Ordering::Release);
        poller.join().unwrap();
    });
}

/// A poll that reads the head before a resize and the ring after it does not find the queue empty. Another poll takes
/// the oldest completion meanwhile, but the queue always holds one.
#[test]
fn loom_a_head_from_before_a_resize_is_not_looked_for_in_the_ring_from_after_it() {
    loom::model(|| {
        let (queue, _counters, seat) = queue(1);
        push(&queue, seat, 1);
        let poller = {
            let queue = Arc::clone(&queue);
            thread::spawn(move || poll(&queue, 1))
        };
        queue.resize(2, || ()).unwrap();
        push(&queue, seat, 2);
        let mut got = poll(&queue, 1);
        let by_other = poller.join().unwrap();
        assert_eq!(by_other.len(), 1, "there always was one");
        got.extend(by_other);
        got.extend(poll(&queue, 2));
        got.sort_unstable();
        assert_eq!(got, [1, 2]);
    });
}
