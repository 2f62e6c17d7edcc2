use std::sync::{Arc, mpsc};

use super::*;
use crate::engine::completion::CompletionQueue;
use crate::fabric::Polled;
use crate::sync::AtomicU32;

fn at(ns: u64) -> Time {
    Time::from_nanoseconds(ns)
}

/// Returns a schedule of timers without an owner, set to these times.
fn schedule(times: impl IntoIterator<Item = u64>) -> Schedule {
    let mut schedule = Schedule::new();
    for time in times {
        let place = schedule.add(nobody());
        assert!(schedule.set(place, at(time)));
    }
    schedule
}

#[test]
fn the_earliest_timer_expires_first() {
    let mut schedule = schedule([30, 10, 0, 20]);
    for next in [10, 20, 30] {
        assert!(schedule.take_due(at(20)).is_some());
        assert_eq!(schedule.earliest(), Some(at(next)));
    }
    assert!(schedule.take_due(at(20)).is_none(), "it is not due yet");
}

#[test]
fn an_earlier_time_counts_and_a_later_one_does_not() {
    let mut schedule = schedule([20]);
    assert!(!schedule.set(0, at(30)) && schedule.set(0, at(10)));
    assert!(schedule.take_due(at(10)).is_some());
    assert!(schedule.take_due(at(100)).is_none(), "it has expired");
    // A timer that is set again expires again. The outdated entry of its first setting has no effect.
    assert!(schedule.set(0, at(50)));
    assert!(schedule.take_due(at(40)).is_none());
    assert!(schedule.take_due(at(50)).is_some());
    assert!(schedule.take_due(at(100)).is_none());
}

#[test]
fn setting_expired_timers_again_does_not_allocate() {
    let mut schedule = schedule([1000, 1000]);
    let room = schedule.queue.capacity();
    for n in 0..1000 {
        assert!(schedule.set(0, at(999 - n)));
    }
    assert_eq!(schedule.queue.capacity(), room);
    assert!(schedule.take_due(at(0)).is_some());
    schedule.remove(0);
    assert!(schedule.take_due(at(999)).is_none());
    assert!(schedule.take_due(at(1000)).is_some());
    assert_eq!((schedule.add(nobody()), schedule.earliest()), (0, None));
}

/// The deadline of a destroyed queue pair costs later polls nothing, even without a thread.
#[test]
fn a_poll_forgets_timers_that_are_gone() {
    static FABRIC: Fabric = Fabric::new();
    FABRIC.serve_by_polls_alone();
    let timer = Timer::new(&FABRIC, nobody());
    timer.set(at(1));
    assert!(FABRIC.timers.is_set());
    drop(timer);
    FABRIC.expire_due_timers();
    assert!(!FABRIC.timers.is_set());
}

/// The list grows with the timers that exist at a time, not with all that ever existed.
#[test]
fn a_dropped_timer_releases_its_place() {
    static FABRIC: Fabric = Fabric::new();
    for _ in 0..3 {
        let places = [(); 2].map(|()| Timer::new(&FABRIC, nobody())).map(|timer| timer.place);
        assert!(places == [0, 1] || places == [1, 0], "{places:?}");
    }
}

/// A timer that is set to expire at once, again and again, is handled after timers that were set before it.
#[test]
fn a_timer_that_is_always_due_does_not_delay_others() {
    static FABRIC: Fabric = Fabric::new();
    FABRIC.serve_by_polls_alone();
    const FIRST: usize = MOST_EXPIRED as usize;
    let all: [Timer; FIRST + 1] = timers_of(&FABRIC);
    all.iter().for_each(|timer| timer.set(Time::AT_ONCE));
    FABRIC.expire_due_timers();
    assert!(is_set(&all[FIRST]));
    all[..FIRST].iter().for_each(|timer| timer.set(Time::AT_ONCE));
    FABRIC.expire_due_timers();
    assert!(!is_set(&all[FIRST]) && is_set(&all[FIRST - 1]), "the first was served twice");
}

fn timers_of<const N: usize>(fabric: &'static Fabric) -> [Timer; N] {
    std::array::from_fn(|_| Timer::new(fabric, nobody()))
}

fn is_set(timer: &Timer) -> bool {
    timer.fabric.timers.lock().timers[timer.place].as_ref().is_some_and(|slot| slot.at.is_some())
}

fn poll(queue: &CompletionQueue) {
    assert_eq!(queue.poll(1, |_, _, _| ()), Ok(0));
}

/// A queue that stays empty serves a newly set timer at its next poll, not 63 polls later.
#[test]
fn the_first_empty_poll_after_a_timer_was_set_looks_at_the_clock() {
    static FABRIC: Fabric = Fabric::new();
    FABRIC.serve_by_polls_alone();
    let queue = CompletionQueue::new(&FABRIC, 1, None).unwrap();
    let [first, second] = timers_of(&FABRIC);
    // Neither a timer that has expired nor one that is set for later hides the second timer.
    let later = FABRIC.clock.now() + Duration::from_secs(3600);
    for before in [None, Some(&first)] {
        for _ in 0..3 {
            before.inspect(|before| before.set(later));
            poll(&queue);
            second.set(Time::AT_ONCE);
            poll(&queue);
            assert!(!is_set(&second));
        }
    }
}

/// Even if many timers are due, each of a different queue pair, a few polls handle all of them.
#[test]
fn each_empty_poll_expires_some_of_the_due_timers() {
    static FABRIC: Fabric = Fabric::new();
    FABRIC.serve_by_polls_alone();
    let queue = CompletionQueue::new(&FABRIC, 1, None).unwrap();
    let all: [Timer; 10] = timers_of(&FABRIC);
    all.iter().for_each(|timer| timer.set(Time::AT_ONCE));
    let left = std::array::from_fn(|_| {
        poll(&queue);
        all.iter().filter(|timer| is_set(timer)).count()
    });
    assert_eq!(left, [6, 2, 0]);
}

/// A link whose program polls all the time.
#[derive(Debug)]
struct Spinning(AtomicU32);

impl Polled for Spinning {
    fn poll(&'static self) {}

    fn catch_up(&'static self) {}

    fn polls(&self) -> u32 {
        self.0.fetch_add(1 << 20, Ordering::Relaxed)
    }

    fn poller_sleeps(&self) {}

    fn handle_arrivals(&'static self) {}
}

/// Signals the expiry of its timer.
#[derive(Debug)]
struct Bell {
    entry: Entry,
    rung: mpsc::Sender<()>,
}

impl Task for Bell {
    fn entry(&self) -> &Entry {
        &self.entry
    }

    fn expire(self: Arc<Self>) {
        let _ = self.rung.send(());
    }
}

/// The thread leaves timers to a program that polls, but not for long. It expires timers that were set meanwhile, even
/// if no poll does.
#[test]
fn a_timer_expires_while_the_thread_leaves_timers_to_polls() {
    static FABRIC: Fabric = Fabric::new();
    static SPINNING: Spinning = Spinning(AtomicU32::new(0));
    assert!(FABRIC.polled.set(&SPINNING).is_ok());
    let (sender, rung) = mpsc::channel();
    let bell = Arc::new_cyclic(|own: &Weak<Bell>| Bell {
        entry: Entry::new(&FABRIC, own.clone()),
        rung: sender,
    });
    let hundred = |_| {
        let begin = FABRIC.clock.now();
        for _ in 0..100 {
            bell.entry.set_timer(FABRIC.clock.now() + Duration::from_micros(300));
            rung.recv_timeout(Duration::from_secs(60)).unwrap();
        }
        FABRIC.clock.now().since(begin)
    };
    // A thread that misses a timer expires it only when `LINGER` has passed. A single attempt may take as long because
    // it gets no processor.
    assert!((0..5).map(hundred).any(|took| took < LINGER));
}
