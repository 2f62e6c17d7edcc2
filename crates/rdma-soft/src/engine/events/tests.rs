//! Tests of event queues, with each kind of file.

use std::os::fd::AsFd;
use std::sync::Barrier;
use std::thread;

use super::*;
use crate::engine::events::file::tests::kinds;
use rustix::event::{EventfdFlags, PollFd, PollFlags, eventfd, poll};
use rustix::fs::OFlags;

static FABRIC: Fabric = Fabric::new();

/// Returns one queue for each kind of file.
fn queues() -> impl Iterator<Item = Arc<EventQueue<u32>>> {
    kinds().into_iter().map(|file| EventQueue::with_file(&FABRIC, file))
}

fn readable(queue: &EventQueue<u32>) -> bool {
    is_readable(queue.file.program())
}

fn is_readable(file: impl AsFd) -> bool {
    let mut fds = [PollFd::new(&file, PollFlags::IN)];
    poll(&mut fds, Some(&rustix::event::Timespec { tv_sec: 0, tv_nsec: 0 })) == Ok(1)
}

fn push(queue: &Arc<EventQueue<u32>>, events: impl Iterator<Item = u32>) {
    events.for_each(|event| queue.push(event));
    FABRIC.run_queue.run();
}

#[test]
fn the_file_is_readable_exactly_while_there_are_events() {
    // The result does not depend on the flags that the program sets on its end of the file.
    let flags = [OFlags::empty(), OFlags::NONBLOCK];
    for (queue, flags) in queues().flat_map(|queue| flags.map(|flags| (queue.clone(), flags))) {
        rustix::fs::fcntl_setfl(queue.file.program(), flags).unwrap();
        assert!(!readable(&queue));
        push(&queue, 0..10);
        queue.discard(|n| n % 2 == 1);
        for n in [0, 2, 4, 6, 8] {
            assert!(readable(&queue));
            assert_eq!(queue.take(|event| event), Ok(n));
        }
        assert!(!readable(&queue));
        push(&queue, 0..10);
        queue.discard(|_| true);
        assert!(!readable(&queue));
    }
}

#[test]
fn an_event_that_is_discarded_before_the_file_is_readable_leaves_nothing() {
    let queue = EventQueue::new(&FABRIC).unwrap();
    queue.push(1);
    queue.push(2);
    queue.discard(|event| event == 1);
    FABRIC.run_queue.run();
    assert_eq!(queue.take(|event| event), Ok(2));
    assert!(!readable(&queue));
}

#[test]
fn the_same_event_is_queued_once() {
    let queue = EventQueue::new(&FABRIC).unwrap();
    queue.push_new(1);
    FABRIC.run_queue.run();
    queue.push_new(1);
    FABRIC.run_queue.run();
    assert_eq!(queue.take(|event| event), Ok(1));
    assert!(!readable(&queue));
}

#[test]
fn a_wake_up_without_an_event_finds_none() {
    for queue in queues() {
        queue.wake();
        queue.wake();
        assert!(readable(&queue));
        rustix::fs::fcntl_setfl(queue.file.program(), OFlags::NONBLOCK).unwrap();
        assert_eq!(queue.take(|event| event), Err(Errno::AGAIN));
        assert!(!readable(&queue));
        push(&queue, 0..1);
        assert!(readable(&queue));
    }
}

#[test]
fn a_file_that_wakes_early_is_readable_for_events_and_while_the_link_is() {
    for queue in queues() {
        assert!(!queue.file.watch(std::io::stdin().as_fd()), "the program has not allowed it");
        queue.wake_early().unwrap();
        let early = || is_readable(queue.early_file());
        assert_eq!((early(), queue.take(|event| event)), (false, Err(Errno::AGAIN)));
        push(&queue, 0..2);
        assert!(early());
        assert_eq!([(); 2].map(|()| queue.take(|event| event)), [Ok(0), Ok(1)]);
        assert_eq!((early(), queue.taken()), (false, 2));
        let link = eventfd(1, EventfdFlags::CLOEXEC).unwrap();
        assert!(queue.watch(link.as_fd()));
        assert_eq!((early(), queue.take(|event| event)), (true, Err(Errno::AGAIN)));
        queue.unwatch(link.as_fd());
        assert!(!early());
        queue.wake();
        assert_eq!((early(), queue.take(|event| event)), (true, Err(Errno::AGAIN)));
        assert!(!early());
        queue.end_early();
    }
}

/// The thread that executes what has arrived takes the event, so no byte is written for it.
#[test]
fn a_thread_that_executes_arrivals_takes_their_event_without_the_file() {
    for queue in queues() {
        let arrive = |events| {
            push(&queue, events);
            assert!(!readable(&queue));
        };
        assert_eq!(queue.take_after(|event| event, || arrive(0..1)), Some(0));
        assert!(!readable(&queue));
        assert_eq!(queue.take_after(|event| event, || arrive(1..3)), Some(1));
        assert!(readable(&queue), "an event is left");
        assert_eq!(queue.take(|event| event), Ok(2));
        assert_eq!(queue.take_after(|event| event, || {}), None);
        assert!(!readable(&queue));
    }
}

/// Each thread takes one of two events, and goes on to the next two when both are taken.
#[test]
fn threads_that_wait_for_events_get_them_all() {
    for queue in queues() {
        let (round, count) = (Barrier::new(3), 1_000);
        let takes = || -> Vec<u32> {
            (0..count)
                .map(|_| {
                    let taken = queue.take(|event| event).unwrap();
                    round.wait();
                    taken
                })
                .collect()
        };
        let mut taken = thread::scope(|threads| {
            let takers = [(); 2].map(|()| threads.spawn(takes));
            for n in 0..count {
                push(&queue, 2 * n..2 * n + 2);
                round.wait();
                assert!(queue.is_empty());
            }
            takers.map(|taker| taker.join().unwrap()).concat()
        });
        taken.sort_unstable();
        assert!(taken.into_iter().eq(0..2 * count));
        assert!(!readable(&queue));
    }
}

/// The program reads a byte that is meant only for `poll(2)`.
#[test]
fn a_program_that_reads_its_file_blocks_no_thread() {
    for queue in queues() {
        let other = EventQueue::new(&FABRIC).unwrap();
        push(&queue, 0..1);
        assert_eq!(rustix::io::read(queue.file.program(), &mut [0]), Ok(1));
        push(&queue, 1..2);
        push(&other, 2..3);
        assert_eq!(other.take(|event| event), Ok(2));
        assert_eq!([(); 2].map(|()| queue.take(|event| event)), [Ok(0), Ok(1)]);
        push(&queue, 3..4);
        assert!(readable(&queue), "as before");
    }
}

#[test]
fn a_socket_shut_down_by_the_program_blocks_no_thread() {
    let [_, deaf] = kinds().map(|file| EventQueue::with_file(&FABRIC, file));
    let other = EventQueue::new(&FABRIC).unwrap();
    rustix::net::shutdown(deaf.file.program(), rustix::net::Shutdown::Both).unwrap();
    for n in 0..2 {
        deaf.push(n);
        push(&other, n..n + 1);
        assert_eq!(other.take(|event| event), Ok(n));
        assert_eq!(deaf.take(|event| event), Ok(n));
        assert_eq!(deaf.take(|event| event), Err(Errno::IO), "the call does not wait");
    }
}

#[test]
fn an_empty_nonblocking_queue_returns_eagain() {
    for queue in queues() {
        rustix::fs::fcntl_setfl(queue.file.program(), OFlags::NONBLOCK).unwrap();
        assert_eq!(queue.take(|event| event), Err(Errno::AGAIN));
    }
}

#[test]
fn waiting_ends_with_the_last_acknowledgement() {
    let acknowledgements = Acknowledgements::default();
    (0..3).for_each(|_| acknowledgements.delivered());
    std::thread::scope(|threads| {
        let waiter = threads.spawn(|| acknowledgements.wait());
        acknowledgements.acknowledge(2);
        assert!(!waiter.is_finished());
        acknowledgements.acknowledge(1);
        waiter.join().unwrap();
    });
}
