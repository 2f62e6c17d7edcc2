use std::sync::atomic::AtomicBool;
use std::sync::{Arc, Barrier, Weak};
use std::thread;

use rdma_types::{WcOpcode, WcStatus};

use super::queue::{Overflowed, User};
use super::*;
use crate::engine::Refusal;
use crate::engine::completion::work_completion::{Completion, Side, Source};
use crate::fabric::Fabric;
use crate::fabric::clock::Time;
use crate::fabric::run_queue::{Entry, Task};
use crate::sync::{AtomicU32, Ordering};

static FABRIC: Fabric = Fabric::new();

fn queue(capacity: u32) -> Arc<CompletionQueue> {
    Arc::new(CompletionQueue::new(&FABRIC, capacity, None).unwrap())
}

/// Returns the counters of a new queue pair, and its seat in `queue`.
fn seat(queue: &CompletionQueue) -> (Arc<Reclaimed>, Seat) {
    let counters = Arc::new(Reclaimed::default());
    let seat = queue.attach(&counters);
    (counters, seat)
}

fn push(queue: &Arc<CompletionQueue>, seat: Seat, ids: impl IntoIterator<Item = u32>) {
    for id in ids {
        queue.push(seat, Completion::success(id.into(), id));
    }
}

fn poll(queue: &CompletionQueue, most: u32) -> Result<Vec<u64>, Overflowed> {
    let mut got = Vec::new();
    let count = queue.poll(most, |n, completion, _| {
        assert_eq!(n as usize, got.len());
        got.push(completion.wr_id);
    })?;
    assert_eq!(count as usize, got.len());
    Ok(got)
}

#[test]
fn every_field_comes_out_as_it_went_in() {
    let queue = queue(2);
    let (counters, seat) = seat(&queue);
    let full = Completion {
        wr_id: u64::MAX - 1,
        status: WcStatus::from_raw(u32::MAX - 2),
        opcode: WcOpcode::from_raw(u32::MAX - 3),
        byte_len: u32::MAX - 4,
        imm: u32::MAX - 5,
        flags: 15,
        qpn: u32::MAX - 6,
        vendor_err: u32::MAX - 7,
        source: Source { qpn: 0x00ff_fff7, lid: 0xfff6, service_level: 0xf5, path_bits: 0xf4 },
        solicited: false,
        side: Side::Receive,
        upto: u32::MAX - 8,
    };
    let plain = Completion::success(7, 8);
    queue.push(seat, full);
    queue.push(seat, plain);
    let mut got = Vec::new();
    assert_eq!(queue.poll(8, |_, completion, _| got.push(*completion)), Ok(2));
    assert_eq!(got, [full, plain]);
    assert_eq!(counters.of(Side::Receive).load(Ordering::Relaxed), full.upto);
    assert_eq!(counters.of(Side::Send).load(Ordering::Relaxed), plain.upto);
}

#[test]
fn completions_come_in_order_round_and_round() {
    for capacity in 1..=9 {
        let queue = queue(capacity);
        let (counters, seat) = seat(&queue);
        let (mut pushed, mut polled) = (0, 0);
        for round in 0..50 {
            let fill = if round % 2 == 0 { capacity } else { round % capacity + 1 };
            push(&queue, seat, pushed..pushed + fill);
            pushed += fill;
            while polled < pushed {
                let got = poll(&queue, round % 3 + 1).unwrap();
                assert!(!got.is_empty());
                for wr_id in got {
                    assert_eq!(wr_id, u64::from(polled));
                    polled += 1;
                }
                assert_eq!(counters.of(Side::Send).load(Ordering::Relaxed), polled - 1);
            }
            assert_eq!(poll(&queue, 4), Ok(vec![]));
        }
        assert!(!queue.is_overflowed());
    }
}

#[test]
fn capacity_is_exact_and_an_overflow_keeps_what_fitted() {
    for capacity in [1, 2, 3, 5, 8] {
        let queue = queue(capacity);
        let (_counters, seat) = seat(&queue);
        // Start after the beginning of the ring.
        push(&queue, seat, 0..1);
        assert_eq!(poll(&queue, 1), Ok(vec![0]));
        push(&queue, seat, 1..=capacity);
        assert!(!queue.is_overflowed());
        push(&queue, seat, 100..101);
        assert!(queue.is_overflowed());
        assert_eq!(poll(&queue, 0), Ok(vec![]));
        for id in 1..=capacity {
            assert_eq!(poll(&queue, 1), Ok(vec![id.into()]));
        }
        for most in [0, 1, 8] {
            assert_eq!(poll(&queue, most), Err(Overflowed));
        }
        // The queue stays in error, though there is space again.
        push(&queue, seat, 101..102);
        assert_eq!(poll(&queue, 8), Err(Overflowed));
    }
    FABRIC.run_queue.run();
}

#[test]
fn purge_drops_one_queue_pairs_completions_and_keeps_the_others_order() {
    let queue = queue(6);
    let ((_, first), (_, second)) = (seat(&queue), seat(&queue));
    for round in 0..64_u32 {
        // Start at another slot of the ring in each round.
        push(&queue, second, 0..round % 3);
        poll(&queue, 8).unwrap();
        let of_first = round;
        for id in 0..6 {
            let dropped = of_first >> id & 1 != 0;
            push(&queue, if dropped { first } else { second }, [id]);
        }
        queue.purge(first);
        let stay = (0..6).filter(|id| of_first >> id & 1 == 0);
        // Dropping completions has freed exactly their space.
        let more = 10..10 + of_first.count_ones();
        push(&queue, first, more.clone());
        let got = poll(&queue, 8).unwrap();
        assert!(got.into_iter().eq(stay.chain(more).map(u64::from)), "round {round}");
        assert_eq!(poll(&queue, 1), Ok(vec![]));
    }
    assert!(!queue.is_overflowed());
}

#[test]
fn dropped_completions_release_no_slots() {
    for capacity in [1, 2, 3] {
        let queue = queue(capacity);
        let (counters, seat) = seat(&queue);
        for _ in 0..5 {
            push(&queue, seat, 1..=capacity);
            queue.purge(seat);
            assert_eq!(poll(&queue, 8), Ok(vec![]));
            queue.purge(seat);
            assert_eq!(counters.of(Side::Send).load(Ordering::Relaxed), 0);
        }
    }
}

#[test]
fn seats_are_used_again_without_what_they_had() {
    let queue = queue(4);
    let ((_, first), (_, second)) = (seat(&queue), seat(&queue));
    push(&queue, first, [1]);
    push(&queue, second, [2]);
    queue.detach(first);
    let (again, third) = seat(&queue);
    assert_eq!((third, third == second), (first, false));
    push(&queue, third, [3]);
    assert_eq!(poll(&queue, 8), Ok(vec![2, 3]));
    assert_eq!(again.of(Side::Send).load(Ordering::Relaxed), 3);
}

/// A resize is invisible to polls, whichever rings and entries they read. The test resizes queues between all small
/// sizes, and fills and drains them so that they wrap around.
#[test]
fn a_resize_keeps_completions_their_order_and_their_slots() {
    for (before, after) in (1..=9).flat_map(|before| (1..=9).map(move |after| (before, after))) {
        let queue = queue(before);
        let (counters, seat) = seat(&queue);
        let (mut pushed, mut polled, mut capacity) = (0, 0, before);
        for round in 0..30_u32 {
            let there = pushed - polled;
            let next = if round % 2 == 0 { after } else { before };
            let fits = there <= next;
            let mut done = false;
            let resized = queue.resize(next, || done = true);
            assert_eq!((resized.is_ok(), done), (fits, fits), "{there} of {next}");
            capacity = if fits { next } else { capacity };
            let more = round % (capacity - there + 1);
            push(&queue, seat, pushed..pushed + more);
            pushed += more;
            let most = round % 4;
            let got = poll(&queue, most).unwrap();
            assert!(got.iter().copied().eq((polled..).map(u64::from).take(got.len())));
            let count = u32::try_from(got.len()).unwrap();
            assert_eq!(count, most.min(pushed - polled));
            polled += count;
            if polled > 0 {
                assert_eq!(counters.of(Side::Send).load(Ordering::Relaxed), polled - 1);
            }
        }
        // The queue is exactly full: it has no slot left.
        push(&queue, seat, pushed..polled + capacity);
        assert!(!queue.is_overflowed());
        push(&queue, seat, [1000]);
        assert!(queue.is_overflowed());
        assert!(
            poll(&queue, 16).unwrap().into_iter().eq((polled..polled + capacity).map(u64::from))
        );
        assert_eq!(poll(&queue, 1), Err(Overflowed));
        FABRIC.run_queue.run();
    }
}

#[test]
fn a_queue_is_not_resized_below_what_is_in_it() {
    let queue = queue(8);
    let (_counters, seat) = seat(&queue);
    push(&queue, seat, 0..5);
    assert_eq!(queue.resize(4, || panic!("it was refused")), Err(Refusal::Invalid));
    assert_eq!(queue.resize(5, || ()), Ok(()));
    assert_eq!(poll(&queue, 8), Ok(vec![0, 1, 2, 3, 4]));
}

#[test]
fn completions_that_were_dropped_do_not_come_back_with_a_ring_that_is_used_again() {
    let queue = queue(8);
    let ((_, first), (_, second)) = (seat(&queue), seat(&queue));
    push(&queue, first, 0..6);
    queue.resize(16, || ()).unwrap();
    queue.purge(first);
    push(&queue, second, 10..12);
    queue.resize(8, || ()).unwrap();
    assert_eq!(poll(&queue, 8), Ok(vec![10, 11]));
    assert_eq!(poll(&queue, 8), Ok(vec![]));
}

/// A timer that sets itself to the same time whenever it expires, so it expires again and again. It counts how often.
#[derive(Debug)]
struct AlwaysDue {
    entry: Entry,
    expired: AtomicU32,
}

impl Task for AlwaysDue {
    fn entry(&self) -> &Entry {
        &self.entry
    }

    fn expire(self: Arc<Self>) {
        self.expired.fetch_add(1, Ordering::Relaxed);
        self.entry.set_timer(PAST);
    }
}

const PAST: Time = Time::from_nanoseconds(1);

/// The timer is always due, so the number of times it expires shows how often polls looked at the clock.
#[test]
fn one_of_64_empty_polls_looks_at_the_clock() {
    static FABRIC: Fabric = Fabric::new();
    FABRIC.serve_by_polls_alone();
    let due = Arc::new_cyclic(|own: &Weak<AlwaysDue>| AlwaysDue {
        entry: Entry::new(&FABRIC, own.clone()),
        expired: AtomicU32::new(0),
    });
    let queue = Arc::new(CompletionQueue::new(&FABRIC, 1, None).unwrap());
    let (_counters, seat) = seat(&queue);
    // Polls are not even counted while no timer is set.
    (0..10).for_each(|_| assert_eq!(poll(&queue, 1), Ok(vec![])));
    due.entry.set_timer(PAST);
    let looks = |polls: u32| {
        let before = due.expired.load(Ordering::Relaxed);
        (0..polls).for_each(|_| assert_eq!(poll(&queue, 1), Ok(vec![])));
        // The timer expires four times per look.
        (due.expired.load(Ordering::Relaxed) - before) / 4
    };
    assert_eq!([1, 63, 1, 63, 1].map(looks), [1, 0, 1, 0, 1]);
    // The first empty poll after a completion looks at the clock immediately.
    push(&queue, seat, [1]);
    assert_eq!(poll(&queue, 1), Ok(vec![1]));
    assert_eq!([1, 63, 1].map(looks), [1, 0, 1]);
}

/// A user whose move to error waits for the test's permission. It signals when the move has begun and when it is done.
#[derive(Debug)]
struct Slow {
    begun: Barrier,
    go_on: Barrier,
    done: AtomicBool,
}

impl User for Slow {
    fn completion_is_lost(&self) {
        self.begun.wait();
        self.go_on.wait();
        self.done.store(true, Ordering::Release);
    }
}

/// While another thread moves the users of a queue to error, this thread runs the run queue. When the run returns, all
/// users are in error.
#[test]
fn users_that_another_thread_moves_to_error_are_waited_for() {
    static FABRIC: Fabric = Fabric::new();
    let queue = Arc::new(CompletionQueue::new(&FABRIC, 1, None).unwrap());
    let (_counters, seat) = seat(&queue);
    let slow = Arc::new(Slow {
        begun: Barrier::new(2),
        go_on: Barrier::new(2),
        done: AtomicBool::new(false),
    });
    let user: Weak<Slow> = Arc::downgrade(&slow);
    queue.add_user(1, user);
    push(&queue, seat, [1, 2]);
    let other = thread::spawn(|| FABRIC.run_queue.run());
    slow.begun.wait();
    let this = thread::spawn({
        let slow = Arc::clone(&slow);
        move || {
            FABRIC.run_queue.run();
            slow.done.load(Ordering::Acquire)
        }
    });
    slow.go_on.wait();
    assert!(this.join().unwrap(), "it went on before the user was in error");
    other.join().unwrap();
    // The completion queue has left the run queue, and another overflow queues it again.
    assert_eq!(Arc::strong_count(&queue), 1);
    queue.remove_user(1);
    push(&queue, seat, [3]);
    assert_eq!(Arc::strong_count(&queue), 2);
    FABRIC.run_queue.run();
    assert_eq!(Arc::strong_count(&queue), 1);
}
