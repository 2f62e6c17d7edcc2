//! Tasks that await an operation are woken when it ends.

use std::sync::Arc;
use std::task::Poll;

use super::{Others, model, post, send, spawn};
use crate::mock::{Sleeper, block_on, poll_once};

/// Covers a completion that arrives between the last poll and the arming of the queue. It also covers one that arrives
/// just after the driver has received the previous event.
#[test]
fn loom_a_waiting_task_is_woken() {
    model(3, |rig| {
        let connection = rig.connect([1, 0]);
        let others = Others::new(rig, 2);
        send(&connection, rig).unwrap();
        send(&connection, rig).unwrap();
        others.end(rig);
    });
}

/// Each of the two tasks may poll completions of the other one.
#[test]
fn loom_two_waiting_tasks_are_woken() {
    model(2, |rig| {
        let connection = rig.connect([2, 0]);
        let others = Others::new(rig, 2);
        let other = connection.clone();
        let task = spawn(rig, move |rig| drop(send(&other, rig).unwrap()));
        send(&connection, rig).unwrap();
        task.join().unwrap();
        others.end(rig);
    });
}

/// Both connections complete in one queue.
#[test]
fn loom_tasks_of_two_connections_are_woken() {
    model(2, |rig| {
        let [one, other] = [(); 2].map(|()| rig.connect([1, 0]));
        let others = Others::new(rig, 2);
        let task = spawn(rig, move |rig| drop(send(&other, rig).unwrap()));
        send(&one, rig).unwrap();
        task.join().unwrap();
        others.end(rig);
    });
}

/// The task that awaited last is woken.
#[test]
fn loom_a_task_that_takes_over_is_woken() {
    model(3, |rig| {
        let connection = rig.connect([1, 0]);
        let mut posted = post(&connection, rig);
        let before = Arc::<Sleeper>::default();
        assert!(poll_once(&mut posted, &before).is_pending());
        let others = Others::new(rig, 1);
        block_on(posted).unwrap();
        others.end(rig);
    });
}

/// A task arms the queue and then finds its completion. It must also poll any completions that arrived after that one
/// but before the arming, because they cause no event. A task that drops its operation at that moment relies on an
/// event.
#[test]
fn loom_later_completions_are_polled_after_arming() {
    model(2, |rig| {
        let connection = rig.connect([2, 0]);
        let [first, second] = [(); 2].map(|()| post(&connection, rig));
        let others = Others::new(rig, 2);
        let task = spawn(rig, move |_| drop(second));
        block_on(first).unwrap();
        task.join().unwrap();
        others.end(rig);
        assert_eq!(rig.pool.usage().buffers, 0, "the driver was not notified");
    });
}

/// If a receive is dropped while its message arrives, the message is kept with the receive's memory.
#[test]
fn loom_a_message_is_not_lost_with_its_receive() {
    model(3, |rig| {
        let connection = rig.connect([0, 1]);
        let receive = connection.receive(rig.buffer()).into_owned(&connection);
        let mut receive = block_on(receive.post()).unwrap();
        let others = Others::new(rig, 1);
        let polled = poll_once(&mut receive, &Arc::default());
        drop(receive);
        others.end(rig);
        let kept = connection.take_unclaimed();
        let (length, memory) = match polled {
            Poll::Ready(received) => {
                assert!(kept.is_none());
                let received = received.unwrap();
                (received.length, received.memory)
            }
            Poll::Pending => {
                let kept = kept.expect("the driver has delivered it");
                (kept.length, kept.memory.unwrap().into_inner())
            }
        };
        assert_eq!(&memory[..length], b"message");
    });
}

/// Only the driver polls: it needs an event although no task awaits.
#[test]
fn loom_memory_of_a_dropped_operation_is_released() {
    model(3, |rig| {
        let connection = rig.connect([1, 0]);
        let others = Others::new(rig, 1);
        drop(post(&connection, rig));
        others.end(rig);
        assert_eq!(rig.pool.usage().buffers, 0, "the driver was not notified");
    });
}

/// Same as above, but the operation is awaited before it is dropped.
#[test]
fn loom_memory_of_an_awaited_operation_is_released_after_a_drop() {
    model(3, |rig| {
        let connection = rig.connect([1, 0]);
        let mut posted = post(&connection, rig);
        let others = Others::new(rig, 1);
        drop(poll_once(&mut posted, &Arc::default()));
        drop(posted);
        others.end(rig);
        assert_eq!(rig.pool.usage().buffers, 0, "the driver was not notified");
    });
}
