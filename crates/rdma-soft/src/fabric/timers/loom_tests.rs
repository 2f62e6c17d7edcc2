//! Timers without an owner, set and run in every order of threads.

use std::sync::Arc;

use loom::thread;

use super::model::ServedBy;
use super::*;

fn timer(fabric: &'static Fabric) -> Arc<Timer> {
    Arc::new(Timer::new(fabric, nobody()))
}

fn spawn(timer: &Arc<Timer>, act: impl FnOnce(&Timer) + 'static) -> thread::JoinHandle<()> {
    let timer = Arc::clone(timer);
    thread::spawn(move || act(&timer))
}

/// Does the same as an empty poll.
fn poll(fabric: &'static Fabric) {
    if fabric.timers.is_set() {
        fabric.expire_due_timers();
    }
}

/// Without polls, the thread is notified of each timer, and starts if it does not run.
#[test]
fn loom_the_thread_is_notified_of_each_timer() {
    loom::model(|| {
        let fabric = Fabric::of_model_with(ServedBy::PollsAndThread);
        let [first, second] = [(); 2].map(|()| timer(fabric));
        let other = spawn(&second, |timer| timer.set(Time::AT_ONCE));
        first.set(Time::AT_ONCE);
        other.join().unwrap();
        fabric.wait_until_idle();
        assert!(!first.is_set() && !second.is_set() && !fabric.timers.is_set());
        fabric.let_time_pass();
        fabric.thread_ends();
    });
}

/// While the thread waits for a later timer, an earlier one is set, and the thread is notified.
#[test]
fn loom_the_thread_is_notified_of_an_earlier_timer() {
    loom::model(|| {
        let fabric = Fabric::of_model_with(ServedBy::PollsAndThread);
        let [first, second] = [(); 2].map(|()| timer(fabric));
        first.set(fabric.clock.now() + Duration::from_secs(1));
        second.set(Time::AT_ONCE);
        fabric.wait_until_idle();
        assert!(first.is_set() && !second.is_set() && fabric.timers.is_set());
        fabric.let_time_pass();
        fabric.thread_ends();
        assert!(!first.is_set() && !fabric.timers.is_set());
    });
}

/// A timer is set while the thread ends. Either that thread still handles it, or another thread starts.
#[test]
fn loom_a_timer_is_not_left_to_a_thread_that_ends() {
    loom::model(|| {
        let fabric = Fabric::of_model_with(ServedBy::PollsAndThread);
        let [first, second] = [(); 2].map(|()| timer(fabric));
        first.set(Time::AT_ONCE);
        let other = spawn(&second, |timer| timer.set(Time::AT_ONCE));
        fabric.let_time_pass();
        other.join().unwrap();
        fabric.thread_ends();
        assert!(!first.is_set() && !second.is_set() && !fabric.timers.is_set());
    });
}

/// Without a thread, later polls see the timers that are set during a poll.
#[test]
fn loom_polls_alone_expire_each_timer() {
    loom::model(|| {
        let fabric = Fabric::of_model_with(ServedBy::Polls);
        let [first, second] = [(); 2].map(|()| timer(fabric));
        let others = [&first, &second].map(|timer| spawn(timer, |timer| timer.set(Time::AT_ONCE)));
        poll(fabric);
        for other in others {
            other.join().unwrap();
        }
        poll(fabric);
        poll(fabric);
        assert!(!first.is_set() && !second.is_set() && !fabric.timers.is_set());
    });
}

/// Two timers of different times: the later one does not hide the earlier one from polls.
#[test]
fn loom_a_later_timer_does_not_hide_an_earlier_one() {
    loom::model(|| {
        let fabric = Fabric::of_model_with(ServedBy::Polls);
        let [first, second] = [(); 2].map(|()| timer(fabric));
        let later = fabric.clock.now() + Duration::from_secs(1);
        let other = spawn(&second, move |timer| timer.set(later));
        first.set(Time::AT_ONCE);
        other.join().unwrap();
        poll(fabric);
        assert!(!first.is_set() && second.is_set() && fabric.timers.is_set());
    });
}

/// A thread that polls repeatedly sees a timer that another thread sets, though nothing else orders the two.
#[test]
fn loom_a_poller_eventually_sees_a_timer() {
    loom::model(|| {
        let fabric = Fabric::of_model_with(ServedBy::Polls);
        let timer = timer(fabric);
        let other = spawn(&timer, |timer| timer.set(Time::AT_ONCE));
        while !fabric.timers.is_set() {
            thread::yield_now();
        }
        // The thread that set the timer may still hold the lock.
        while fabric.timers.is_set() {
            fabric.expire_due_timers();
            thread::yield_now();
        }
        other.join().unwrap();
        assert!(!timer.is_set());
    });
}

/// Whether the thread or a poll handles a timer, none is left, and the thread finally sleeps.
#[test]
fn loom_polls_and_the_thread_leave_no_timer() {
    loom::model(|| {
        let fabric = Fabric::of_model_with(ServedBy::PollsAndThread);
        let timer = timer(fabric);
        timer.set(Time::AT_ONCE);
        poll(fabric);
        timer.set(Time::AT_ONCE);
        fabric.wait_until_idle();
        assert!(!timer.is_set() && !fabric.timers.is_set());
        fabric.let_time_pass();
        fabric.thread_ends();
    });
}

/// A timer that is dropped while it expires is forgotten, in any order.
#[test]
fn loom_a_dropped_timer_is_forgotten() {
    loom::model(|| {
        let fabric = Fabric::of_model_with(ServedBy::Polls);
        let [first, second] = [(); 2].map(|()| timer(fabric));
        first.set(Time::AT_ONCE);
        second.set(Time::AT_ONCE);
        let other = thread::spawn(move || drop(first));
        poll(fabric);
        other.join().unwrap();
        poll(fabric);
        poll(fabric);
        assert!(!second.is_set() && !fabric.timers.is_set());
    });
}
