//! Pushing and polling in every order of threads. The model checker tries stale values for a load only if the load runs
//! after the newer store. So the poller is the last spawned thread.

use std::sync::Arc;

use loom::thread;

use super::queue::Overflowed;
use super::*;
use crate::engine::completion::work_completion::{Completion, Side};
use crate::fabric::Fabric;
use crate::sync::{AtomicU32, Ordering};

/// Returns the counters of a new queue pair, and its seat in `queue`.
fn seat(queue: &CompletionQueue) -> (Arc<Reclaimed>, Seat) {
    let counters = Arc::new(Reclaimed::default());
    let seat = queue.attach(&counters);
    (counters, seat)
}

fn poll(queue: &CompletionQueue, most: u32, got: &mut Vec<u64>) -> Result<u32, Overflowed> {
    queue.poll(most, |_, completion, _| got.push(completion.wr_id))
}

/// Two queue pairs complete into one queue while it is polled. Each completion is polled once and releases its slot.
/// The completions of each queue pair keep their order.
#[test]
fn loom_no_completion_is_lost_doubled_or_overtaken() {
    loom::model(|| {
        let queue = Arc::new(CompletionQueue::new(Fabric::of_model(), 3, None).unwrap());
        let ((first, first_seat), (second, second_seat)) = (seat(&queue), seat(&queue));
        let pusher = {
            let queue = Arc::clone(&queue);
            thread::spawn(move || queue.push(second_seat, Completion::success(11, 1)))
        };
        let poller = {
            let queue = Arc::clone(&queue);
            thread::spawn(move || {
                let mut got = Vec::new();
                poll(&queue, 1, &mut got).unwrap();
                poll(&queue, 2, &mut got).unwrap();
                got
            })
        };
        queue.push(first_seat, Completion::success(1, 1));
        queue.push(first_seat, Completion::success(2, 2));
        pusher.join().unwrap();
        let mut got = poller.join().unwrap();
        poll(&queue, 3, &mut got).unwrap();
        let of_first: Vec<_> = got.iter().filter(|&&wr_id| wr_id < 10).collect();
        assert_eq!(of_first, [&1, &2]);
        got.sort_unstable();
        assert_eq!(got, [1, 2, 11]);
        assert_eq!(poll(&queue, 1, &mut got), Ok(0));
        let given_back = |counters: &Reclaimed| counters.of(Side::Send).load(Ordering::Relaxed);
        assert_eq!((given_back(&first), given_back(&second)), (2, 1));
    });
}

/// A thread that was notified of a completion finds it, though an empty poll takes no lock.
#[test]
fn loom_a_poll_is_not_empty_after_a_push() {
    loom::model(|| {
        let queue = Arc::new(CompletionQueue::new(Fabric::of_model(), 1, None).unwrap());
        let (_counters, seat) = seat(&queue);
        let notified = Arc::new(AtomicU32::new(0));
        let poller = {
            let (queue, notified) = (Arc::clone(&queue), Arc::clone(&notified));
            thread::spawn(move || {
                let was_notified = notified.load(Ordering::Acquire) == 1;
                let polled = poll(&queue, 1, &mut Vec::new());
                assert!(!was_notified || polled == Ok(1), "{polled:?}");
            })
        };
        queue.push(seat, Completion::success(1, 1));
        notified.store(1, Ordering::Release);
        poller.join().unwrap();
    });
}

/// A poster that sees its slot released finds space for the completion of the next request.
#[test]
fn loom_a_released_slot_has_room() {
    loom::model(|| {
        let queue = Arc::new(CompletionQueue::new(Fabric::of_model(), 1, None).unwrap());
        let (counters, seat) = seat(&queue);
        queue.push(seat, Completion::success(1, 1));
        let poster = {
            let queue = Arc::clone(&queue);
            thread::spawn(move || {
                let free = counters.of(Side::Send).load(Ordering::Acquire) == 1;
                if free {
                    queue.push(seat, Completion::success(2, 2));
                }
                u64::from(free)
            })
        };
        let mut got = Vec::new();
        poll(&queue, 1, &mut got).unwrap();
        let posted = 1 + poster.join().unwrap();
        poll(&queue, 1, &mut got).unwrap();
        assert!(!queue.is_overflowed());
        assert_eq!(got, (1..=posted).collect::<Vec<_>>());
    });
}

/// Completions pushed before an overflow are polled before the error.
#[test]
fn loom_the_error_comes_after_the_completions() {
    loom::model(|| {
        let queue = Arc::new(CompletionQueue::new(Fabric::of_model(), 1, None).unwrap());
        let (_counters, seat) = seat(&queue);
        let poller = {
            let queue = Arc::clone(&queue);
            thread::spawn(move || {
                let mut got = Vec::new();
                let polled = poll(&queue, 1, &mut got);
                assert!(polled.is_ok(), "{polled:?} before the completion");
                got
            })
        };
        queue.push(seat, Completion::success(1, 1));
        queue.push(seat, Completion::success(2, 2));
        let mut got = poller.join().unwrap();
        if poll(&queue, 1, &mut got) == Err(Overflowed) {
            assert_eq!(got, [1]);
        }
        queue.fabric.run_queue.run();
    });
}

/// Like the model above, but the poller sees a completion that another poller then takes.
#[test]
fn loom_the_error_comes_after_the_completions_for_each_poller() {
    loom::model(|| {
        let queue = Arc::new(CompletionQueue::new(Fabric::of_model(), 1, None).unwrap());
        let (_counters, seat) = seat(&queue);
        queue.push(seat, Completion::success(1, 1));
        let poller = {
            let queue = Arc::clone(&queue);
            thread::spawn(move || {
                let mut got = Vec::new();
                let polled = poll(&queue, 1, &mut got);
                assert!(polled.is_ok(), "{polled:?} before the last completion");
                got
            })
        };
        let mut got = Vec::new();
        poll(&queue, 1, &mut got).unwrap();
        queue.push(seat, Completion::success(2, 2));
        queue.push(seat, Completion::success(3, 3));
        got.extend(poller.join().unwrap());
        queue.fabric.run_queue.run();
        while let Ok(1) = poll(&queue, 1, &mut got) {}
        got.sort_unstable();
        let kept: &[u64] = if queue.is_overflowed() { &[1, 2] } else { &[1, 2, 3] };
        assert_eq!(got, kept);
    });
}

/// A reset drops only the completions of its own queue pair. A poller of the remaining completions never finds the
/// queue empty.
#[test]
fn loom_a_reset_hides_no_completion_of_others() {
    loom::model(|| {
        let queue = Arc::new(CompletionQueue::new(Fabric::of_model(), 3, None).unwrap());
        let ((_dropped, of_reset), (_kept, of_other)) = (seat(&queue), seat(&queue));
        queue.push(of_reset, Completion::success(1, 1));
        queue.push(of_other, Completion::success(11, 1));
        let pusher = {
            let queue = Arc::clone(&queue);
            thread::spawn(move || queue.push(of_other, Completion::success(12, 2)))
        };
        let poller = {
            let queue = Arc::clone(&queue);
            thread::spawn(move || {
                let mut got = Vec::new();
                assert_eq!(poll(&queue, 1, &mut got), Ok(1), "it was there before");
                got
            })
        };
        queue.purge(of_reset);
        let mut got = poller.join().unwrap();
        pusher.join().unwrap();
        poll(&queue, 3, &mut got).unwrap();
        let first_polled = usize::from(got[0] == 1);
        assert_eq!(got[first_polled..], [11, 12]);
    });
}

/// A poller that others overtake, all the way round the ring, never mistakes a nonempty queue for an empty one.
#[test]
fn loom_a_poller_that_is_overtaken_finds_the_completions() {
    loom::model(|| {
        let queue = Arc::new(CompletionQueue::new(Fabric::of_model(), 2, None).unwrap());
        let (_counters, seat) = seat(&queue);
        queue.push(seat, Completion::success(1, 1));
        queue.push(seat, Completion::success(2, 2));
        let poller = {
            let queue = Arc::clone(&queue);
            thread::spawn(move || {
                let mut got = Vec::new();
                assert_eq!(poll(&queue, 1, &mut got), Ok(1));
                got
            })
        };
        let mut got = Vec::new();
        assert_eq!(poll(&queue, 1, &mut got), Ok(1));
        queue.push(seat, Completion::success(3, 3));
        got.extend(poller.join().unwrap());
        poll(&queue, 2, &mut got).unwrap();
        got.sort_unstable();
        assert_eq!(got, [1, 2, 3]);
    });
}
