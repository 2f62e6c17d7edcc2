//! Events and their tokens, in every order of threads.

use std::sync::Arc;

use loom::thread;
use rustix::io::Errno;

use crate::engine::events::EventQueue;
use crate::fabric::Fabric;

/// Queues an event, and settles as a verb does before it returns.
fn report(queue: &Arc<EventQueue<u32>>, event: u32) {
    queue.push(event);
    queue.fabric().unsettled.settle();
}

fn spawn(
    queue: &Arc<EventQueue<u32>>,
    act: impl FnOnce(&Arc<EventQueue<u32>>) + 'static,
) -> thread::JoinHandle<()> {
    let queue = Arc::clone(queue);
    thread::spawn(move || act(&queue))
}

/// Who has settled can be heard, though another thread adds the tokens of both.
#[test]
fn loom_the_token_of_an_event_is_there_when_its_thread_has_settled() {
    loom::model(|| {
        let queue = EventQueue::new(Fabric::of_model(), 3).unwrap();
        let other = spawn(&queue, |queue| {
            report(queue, 1);
            assert!(queue.tokens().count() > 0);
        });
        report(&queue, 2);
        let count = queue.tokens().count();
        assert!(count > 0);
        other.join().unwrap();
        assert_eq!(queue.tokens().count(), 2);
    });
}

/// A token that is added late for an event that went away is taken back.
#[test]
fn loom_no_token_is_left_of_an_event_that_was_discarded() {
    loom::model(|| {
        let queue = EventQueue::new(Fabric::of_model(), 3).unwrap();
        let other = spawn(&queue, |queue| report(queue, 1));
        queue.push(2);
        queue.discard(|event| event == 2);
        queue.fabric().unsettled.settle();
        other.join().unwrap();
        assert_eq!(queue.tokens().count(), 1);
        queue.discard(|event| event == 1);
        assert_eq!(queue.tokens().count(), 0);
    });
}

#[test]
fn loom_no_token_is_left_where_events_are_taken_and_discarded() {
    loom::model(|| {
        let queue = EventQueue::new(Fabric::of_model(), 3).unwrap();
        report(&queue, 1);
        let taker = spawn(&queue, |queue| {
            let taken = queue.take(|event| event);
            assert!([Ok(1), Ok(2), Err(Errno::AGAIN)].contains(&taken), "{taken:?}");
        });
        let other = spawn(&queue, |queue| report(queue, 2));
        queue.discard(|event| event == 1);
        taker.join().unwrap();
        other.join().unwrap();
        // What is left can be heard, and nothing else.
        while queue.take(|event| event).is_ok() {}
        queue.discard(|_| panic!("an event without a token"));
        assert_eq!(queue.tokens().count(), 0);
    });
}

/// Where there is no space for a token, who takes the one before adds it.
#[test]
fn loom_an_event_for_whose_token_there_was_no_room_is_heard() {
    loom::model(|| {
        let queue = EventQueue::new(Fabric::of_model(), 1).unwrap();
        report(&queue, 1);
        let taker = spawn(&queue, |queue| assert_eq!(queue.take(|event| event), Ok(1)));
        report(&queue, 2);
        taker.join().unwrap();
        assert_eq!(queue.take(|event| event), Ok(2));
        assert_eq!(queue.tokens().count(), 0);
    });
}
