//! Events and the writes to their file, in every order of threads.

use std::sync::Arc;

use loom::thread;
use rustix::io::Errno;

use crate::engine::events::EventQueue;
use crate::fabric::Fabric;

/// Queues an event, and then settles, as a verb does before it returns.
fn report(queue: &Arc<EventQueue<u32>>, event: u32) {
    queue.push(event);
    queue.fabric().run_queue.run();
}

fn spawn(
    queue: &Arc<EventQueue<u32>>,
    act: impl FnOnce(&Arc<EventQueue<u32>>) + 'static,
) -> thread::JoinHandle<()> {
    let queue = Arc::clone(queue);
    thread::spawn(move || act(&queue))
}

/// Limits preemptions: each lock adds two operations, so there would be too many orders without a limit.
fn model(act: impl Fn() + Sync + Send + 'static) {
    let mut builder = loom::model::Builder::new();
    builder.preemption_bound = Some(3);
    builder.check(act);
}

/// When a thread has settled, the file is readable, even if another thread writes the byte for both.
#[test]
fn loom_the_file_is_readable_when_the_thread_of_an_event_has_settled() {
    model(|| {
        let queue = EventQueue::new(Fabric::of_model()).unwrap();
        let other = spawn(&queue, |queue| {
            report(queue, 1);
            assert_eq!(queue.file().bytes(), 1);
        });
        report(&queue, 2);
        assert_eq!(queue.file().bytes(), 1);
        other.join().unwrap();
        assert_eq!(queue.file().bytes(), 1);
    });
}

/// If the byte for a discarded event is written late, it is taken from the file.
#[test]
fn loom_the_file_is_not_readable_for_an_event_that_was_discarded() {
    model(|| {
        let queue = EventQueue::new(Fabric::of_model()).unwrap();
        let other = spawn(&queue, |queue| report(queue, 1));
        queue.push(2);
        queue.discard(|event| event == 2);
        queue.fabric().run_queue.run();
        other.join().unwrap();
        assert_eq!(queue.file().bytes(), 1);
        queue.discard(|event| event == 1);
        assert_eq!(queue.file().bytes(), 0);
    });
}

#[test]
fn loom_the_file_is_readable_for_the_rest_after_events_are_taken_and_discarded() {
    model(|| {
        let queue = EventQueue::new(Fabric::of_model()).unwrap();
        report(&queue, 1);
        let taker = spawn(&queue, |queue| {
            let taken = queue.take(|event| event);
            assert!([Ok(1), Ok(2), Err(Errno::AGAIN)].contains(&taken), "{taken:?}");
        });
        let other = spawn(&queue, |queue| report(queue, 2));
        queue.discard(|event| event == 1);
        taker.join().unwrap();
        other.join().unwrap();
        is_readable_for_what_is_left(&queue);
    });
}

/// Two threads take events, each perhaps before the byte of its event is written.
#[test]
fn loom_the_file_is_readable_for_the_rest_after_two_threads_take() {
    model(|| {
        let queue = EventQueue::new(Fabric::of_model()).unwrap();
        let takers = [(); 2].map(|()| {
            spawn(&queue, |queue| {
                let _ = queue.take(|event| event);
            })
        });
        report(&queue, 1);
        report(&queue, 2);
        takers.into_iter().for_each(|taker| taker.join().unwrap());
        is_readable_for_what_is_left(&queue);
    });
}

/// One thread executes what has arrived, and then takes an event. The event of the other thread may come meanwhile.
#[test]
fn loom_the_file_is_readable_for_the_rest_after_a_thread_executes_and_takes() {
    model(|| {
        let queue = EventQueue::new(Fabric::of_model()).unwrap();
        let other = spawn(&queue, |queue| report(queue, 1));
        let taken = queue.take_after(|event| event, || report(&queue, 2));
        assert!([Some(1), Some(2)].contains(&taken), "{taken:?}");
        other.join().unwrap();
        is_readable_for_what_is_left(&queue);
    });
}

/// Two threads execute what has arrived. The last of them makes the file readable for the event that is left.
#[test]
fn loom_the_file_is_readable_for_the_rest_after_two_threads_execute_and_take() {
    model(|| {
        let queue = EventQueue::new(Fabric::of_model()).unwrap();
        let other = spawn(&queue, |queue| {
            let _ = queue.take_after(|event| event, || {});
        });
        let taken = queue.take_after(
            |event| event,
            || {
                report(&queue, 1);
                report(&queue, 2);
            },
        );
        assert!(taken.is_some());
        other.join().unwrap();
        is_readable_for_what_is_left(&queue);
    });
}

/// A byte written to wake a sleeping thread is enough for an event.
#[test]
fn loom_the_file_is_readable_for_an_event_during_a_wake_up() {
    model(|| {
        let queue = EventQueue::new(Fabric::of_model()).unwrap();
        let waker = spawn(&queue, |queue| queue.wake());
        report(&queue, 1);
        assert_eq!(queue.file().bytes(), 1);
        waker.join().unwrap();
        assert_eq!(queue.file().bytes(), 1);
        assert_eq!(queue.take(|event| event), Ok(1));
        assert_eq!(queue.file().bytes(), 0);
    });
}

/// The event may be taken with the byte that was written by the wake-up.
#[test]
fn loom_the_file_is_readable_for_the_rest_after_a_wake_up() {
    model(|| {
        let queue = EventQueue::new(Fabric::of_model()).unwrap();
        let waker = spawn(&queue, |queue| queue.wake());
        let taker = spawn(&queue, |queue| {
            let _ = queue.take(|event| event);
        });
        report(&queue, 1);
        waker.join().unwrap();
        taker.join().unwrap();
        assert!(queue.file().bytes() >= queue.events());
        while queue.take(|event| event).is_ok() {}
        assert_eq!(queue.file().bytes(), 0);
    });
}

fn is_readable_for_what_is_left(queue: &EventQueue<u32>) {
    assert_eq!(queue.file().bytes(), usize::from(queue.events() > 0));
    while queue.take(|event| event).is_ok() {}
    assert_eq!(queue.file().bytes(), 0);
}
