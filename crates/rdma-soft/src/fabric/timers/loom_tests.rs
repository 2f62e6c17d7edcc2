//! Alarms of nobody, set and seen to in every order of threads.

use std::sync::Arc;

use loom::thread;

use super::model::Alarms;
use super::*;

fn alarm(fabric: &'static Fabric) -> Arc<Alarm> {
    Arc::new(Alarm::new(fabric, nobody()))
}

fn spawn(alarm: &Arc<Alarm>, act: impl FnOnce(&Alarm) + 'static) -> thread::JoinHandle<()> {
    let alarm = Arc::clone(alarm);
    thread::spawn(move || act(&alarm))
}

/// What an empty poll does.
fn poll(fabric: &'static Fabric) {
    if fabric.timers.is_set() {
        fabric.ring_due_alarms();
    }
}

/// Nobody polls: the thread is informed of each alarm, and starts if it is not there.
#[test]
fn loom_the_thread_hears_of_each_alarm() {
    loom::model(|| {
        let fabric = Fabric::of_model_with(Alarms::WithThread);
        let [first, second] = [(); 2].map(|()| alarm(fabric));
        let other = spawn(&second, |alarm| alarm.set(Time::AT_ONCE));
        first.set(Time::AT_ONCE);
        other.join().unwrap();
        fabric.rest();
        assert!(!first.is_set() && !second.is_set() && !fabric.timers.is_set());
        fabric.let_time_pass();
        fabric.thread_ends();
    });
}

/// The thread waits for a later alarm when an earlier one is set.
#[test]
fn loom_the_thread_hears_of_an_earlier_alarm() {
    loom::model(|| {
        let fabric = Fabric::of_model_with(Alarms::WithThread);
        let [first, second] = [(); 2].map(|()| alarm(fabric));
        first.set(fabric.clock.now() + Duration::from_secs(1));
        second.set(Time::AT_ONCE);
        fabric.rest();
        assert!(first.is_set() && !second.is_set() && fabric.timers.is_set());
        fabric.let_time_pass();
        fabric.thread_ends();
        assert!(!first.is_set() && !fabric.timers.is_set());
    });
}

/// An alarm that is set while the thread ends has another one made, or is seen to before.
#[test]
fn loom_an_alarm_is_not_left_to_a_thread_that_ends() {
    loom::model(|| {
        let fabric = Fabric::of_model_with(Alarms::WithThread);
        let [first, second] = [(); 2].map(|()| alarm(fabric));
        first.set(Time::AT_ONCE);
        let other = spawn(&second, |alarm| alarm.set(Time::AT_ONCE));
        fabric.let_time_pass();
        other.join().unwrap();
        fabric.thread_ends();
        assert!(!first.is_set() && !second.is_set() && !fabric.timers.is_set());
    });
}

/// Without a thread: what is set while others poll is known to later polls.
#[test]
fn loom_polls_alone_see_to_each_alarm() {
    loom::model(|| {
        let fabric = Fabric::of_model_with(Alarms::AtPolls);
        let [first, second] = [(); 2].map(|()| alarm(fabric));
        let others = [&first, &second].map(|alarm| spawn(alarm, |alarm| alarm.set(Time::AT_ONCE)));
        poll(fabric);
        for other in others {
            other.join().unwrap();
        }
        poll(fabric);
        poll(fabric);
        assert!(!first.is_set() && !second.is_set() && !fabric.timers.is_set());
    });
}

/// Two alarms of different times: the later one hides the earlier one from no poll.
#[test]
fn loom_a_later_alarm_hides_no_earlier_one() {
    loom::model(|| {
        let fabric = Fabric::of_model_with(Alarms::AtPolls);
        let [first, second] = [(); 2].map(|()| alarm(fabric));
        let later = fabric.clock.now() + Duration::from_secs(1);
        let other = spawn(&second, move |alarm| alarm.set(later));
        first.set(Time::AT_ONCE);
        other.join().unwrap();
        poll(fabric);
        assert!(!first.is_set() && second.is_set() && fabric.timers.is_set());
    });
}

/// Who polls on and on hears of an alarm that another thread sets, though nothing else orders the two.
#[test]
fn loom_a_poller_hears_of_an_alarm_in_the_end() {
    loom::model(|| {
        let fabric = Fabric::of_model_with(Alarms::AtPolls);
        let alarm = alarm(fabric);
        let other = spawn(&alarm, |alarm| alarm.set(Time::AT_ONCE));
        while !fabric.timers.is_set() {
            thread::yield_now();
        }
        // Who sets it may still hold the lock.
        while fabric.timers.is_set() {
            fabric.ring_due_alarms();
            thread::yield_now();
        }
        other.join().unwrap();
        assert!(!alarm.is_set());
    });
}

/// The thread and a poll, of which either may take an alarm: none is left, and the thread sleeps at last.
#[test]
fn loom_polls_and_the_thread_leave_no_alarm() {
    loom::model(|| {
        let fabric = Fabric::of_model_with(Alarms::WithThread);
        let alarm = alarm(fabric);
        alarm.set(Time::AT_ONCE);
        poll(fabric);
        alarm.set(Time::AT_ONCE);
        fabric.rest();
        assert!(!alarm.is_set() && !fabric.timers.is_set());
        fabric.let_time_pass();
        fabric.thread_ends();
    });
}

/// An alarm that goes while it is to ring: it is forgotten, whoever comes first.
#[test]
fn loom_an_alarm_that_goes_is_forgotten() {
    loom::model(|| {
        let fabric = Fabric::of_model_with(Alarms::AtPolls);
        let [first, second] = [(); 2].map(|()| alarm(fabric));
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
