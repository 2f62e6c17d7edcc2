//! Events: a queue of them, and a pipe that is readable while there are some.
//!
//! The pipe carries only tokens of the size that the kernel's events have, so that programs may poll it
//! as they poll the kernel's file. What an event is about stays in the queue, from which the events of
//! an object that goes away are removed.

use std::collections::VecDeque;
use std::fs::File;
use std::io::{ErrorKind, Read, Write};
use std::os::fd::{AsRawFd, OwnedFd, RawFd};
use std::sync::{Condvar, Mutex, PoisonError};

use rdma_sys::Errno;
use rustix::fs::{Mode, OFlags};
use rustix::pipe::{PipeFlags, pipe_with};

use crate::sync::locked;

/// The largest token.
const TOKEN: usize = 16;

#[derive(Debug)]
pub(crate) struct EventQueue<E> {
    state: Mutex<State<E>>,
    /// The program's end: it sets `O_NONBLOCK` as it likes.
    read: File,
    /// The same end, never blocking, for taking back tokens of events that went away.
    take_back: Option<File>,
    write: File,
    token: usize,
}

#[derive(Debug)]
struct State<E> {
    events: VecDeque<E>,
    /// In the pipe, and at most one for each event; less while the pipe is full.
    tokens: usize,
    /// How many different events there can be.
    room: usize,
}

impl<E: Copy> EventQueue<E> {
    /// A queue whose events are `token` bytes in the pipe, at most 16.
    pub(crate) fn new(token: usize) -> rustix::io::Result<Self> {
        let (read, write) = pipe_with(PipeFlags::CLOEXEC)?;
        let flags = rustix::fs::fcntl_getfl(&write)?;
        rustix::fs::fcntl_setfl(&write, flags | OFlags::NONBLOCK)?;
        Ok(Self {
            state: Mutex::new(State { events: VecDeque::new(), tokens: 0, room: 0 }),
            take_back: reopen(&read),
            read: File::from(read),
            write: File::from(write),
            token,
        })
    }

    pub(crate) fn fd(&self) -> RawFd {
        self.read.as_raw_fd()
    }

    pub(crate) fn push(&self, event: E) {
        let mut state = locked(&self.state);
        state.events.push_back(event);
        self.refill(&mut state);
    }

    /// As [`push`](Self::push), unless the same event is waiting already: it says no more twice.
    pub(crate) fn push_new(&self, event: E)
    where
        E: PartialEq,
    {
        let mut state = locked(&self.state);
        if !state.events.contains(&event) {
            state.events.push_back(event);
            self.refill(&mut state);
        }
    }

    /// One more object reports here, each of up to `kinds` events: makes room, so that reporting does
    /// not allocate.
    pub(crate) fn join(&self, kinds: usize) {
        let mut state = locked(&self.state);
        state.room += kinds;
        let room = state.room;
        state.events.reserve(room);
    }

    pub(crate) fn leave(&self, kinds: usize) {
        locked(&self.state).room -= kinds;
    }

    /// Has a token in the pipe for each event, as far as there is room.
    fn refill(&self, state: &mut State<E>) {
        while state.tokens < state.events.len()
            && matches!((&self.write).write(&[0; TOKEN][..self.token]), Ok(n) if n == self.token)
        {
            state.tokens += 1;
        }
    }

    /// Takes the oldest event, and hands it to `deliver` before it can be discarded. Waits for one, if
    /// the program has not made its end of the pipe non-blocking.
    pub(crate) fn take<R>(&self, deliver: impl FnOnce(E) -> R) -> Result<R, Errno> {
        loop {
            let mut token = [0; TOKEN];
            match (&self.read).read(&mut token[..self.token]) {
                Ok(n) if n == self.token => {}
                Ok(_) => return Err(Errno::EIO),
                Err(error) => return Err(Errno::from_raw(error.raw_os_error().unwrap_or(5))),
            }
            let mut state = locked(&self.state);
            state.tokens = state.tokens.saturating_sub(1);
            // None if it was discarded after its token was read.
            if let Some(event) = state.events.pop_front() {
                self.refill(&mut state);
                return Ok(deliver(event));
            }
        }
    }

    /// Removes the events that `unwanted` names.
    pub(crate) fn discard(&self, unwanted: impl Fn(E) -> bool) {
        let mut state = locked(&self.state);
        state.events.retain(|&event| !unwanted(event));
        let Some(take_back) = &self.take_back else { return };
        while state.tokens > state.events.len() {
            let mut token = [0; TOKEN];
            match (&mut &*take_back).read(&mut token[..self.token]) {
                Ok(_) => state.tokens -= 1,
                // Another thread has taken it, and counts it when it gets the lock.
                Err(error) if error.kind() == ErrorKind::WouldBlock => return,
                Err(_) => return,
            }
        }
    }
}

/// A second description of a pipe's end, since blocking is a property of the description.
fn reopen(read: &OwnedFd) -> Option<File> {
    let path = format!("/proc/self/fd/{}", read.as_raw_fd());
    let flags = OFlags::RDONLY | OFlags::NONBLOCK | OFlags::CLOEXEC;
    rustix::fs::open(path, flags, Mode::empty()).ok().map(File::from)
}

/// How many events of an object were delivered and are acknowledged: it is not destroyed before they
/// are equal (man ibv_get_cq_event, ibv_get_async_event).
#[derive(Debug, Default)]
pub(crate) struct Acknowledgements {
    missing: Mutex<u64>,
    none: Condvar,
}

impl Acknowledgements {
    pub(crate) fn delivered(&self) {
        *locked(&self.missing) += 1;
    }

    pub(crate) fn acknowledge(&self, count: u32) {
        let mut missing = locked(&self.missing);
        *missing = missing.saturating_sub(u64::from(count));
        if *missing == 0 {
            self.none.notify_all();
        }
    }

    /// Waits until nothing is missing.
    pub(crate) fn wait(&self) {
        let mut missing = locked(&self.missing);
        while *missing > 0 {
            missing = self.none.wait(missing).unwrap_or_else(PoisonError::into_inner);
        }
    }
}

#[cfg(all(test, not(loom)))]
mod tests {
    use super::*;
    use rustix::event::{PollFd, PollFlags, poll};

    fn readable(queue: &EventQueue<u32>) -> bool {
        let mut fds = [PollFd::new(&queue.read, PollFlags::IN)];
        poll(&mut fds, Some(&rustix::event::Timespec { tv_sec: 0, tv_nsec: 0 })) == Ok(1)
    }

    #[test]
    fn the_pipe_is_readable_exactly_while_there_are_events() {
        let queue = EventQueue::new(8).unwrap();
        assert!(!readable(&queue));
        for n in 0..10 {
            queue.push(n);
        }
        queue.discard(|n| n % 2 == 1);
        for n in [0, 2, 4, 6, 8] {
            assert!(readable(&queue));
            assert_eq!(queue.take(|event| event), Ok(n));
        }
        assert!(!readable(&queue));
    }

    #[test]
    fn more_events_than_the_pipe_has_room_for_are_kept() {
        let queue = EventQueue::new(16).unwrap();
        let count = 100_000;
        (0..count).for_each(|n| queue.push(n));
        assert!((0..count).all(|n| queue.take(|event| event) == Ok(n)));
        assert!(!readable(&queue));
    }

    #[test]
    fn an_empty_queue_that_does_not_block_says_so() {
        let queue = EventQueue::<u32>::new(8).unwrap();
        rustix::fs::fcntl_setfl(&queue.read, OFlags::NONBLOCK).unwrap();
        assert_eq!(queue.take(|event| event), Err(Errno::EAGAIN));
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
}
