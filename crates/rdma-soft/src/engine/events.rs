//! Events: a queue of them, and a descriptor that is readable while there are some.
//!
//! The descriptor carries only [`Tokens`] of the size that the kernel's events have. What an event is about
//! stays in the queue, from which the events of an object that goes away are removed.
//!
//! Events come while locks of the engine are held, and tokens cost a system call. So an event is queued, and
//! its token follows when the thread [settles](Fabric::unsettled), which it does with no lock held and before
//! its verb returns.

pub(crate) mod report;
#[cfg(not(all(test, loom)))]
pub(crate) mod tokens;

use std::collections::VecDeque;
use std::os::fd::RawFd;
use std::sync::{Arc, Condvar, PoisonError};

use rustix::io::Errno;

#[cfg(not(all(test, loom)))]
use crate::engine::events::tokens::{NotAdded, Tokens};
#[cfg(all(test, loom))]
use crate::engine::models::tokens::{NotAdded, Tokens};
use crate::fabric::Fabric;
use crate::fabric::overflow::Settle;
use crate::sync::{Lock, Mutex, locked_for_calls, locked_to_wait};

#[derive(Debug)]
pub(crate) struct EventQueue<E> {
    fabric: &'static Fabric,
    state: Lock<State<E>>,
    tokens: Tokens,
    /// Held by who adds tokens, or takes them back, by no lock of the engine. Who settles and finds that
    /// another thread is about to add the token of its event waits here until it is there.
    writing: Mutex<()>,
}

#[derive(Debug)]
struct State<E> {
    events: VecDeque<E>,
    /// How many tokens are in the descriptor, or about to be, or were taken by a thread that has
    /// not said so yet. At most one for each event, but while events are discarded, and one to
    /// [wake](EventQueue::wake) who sleeps; less while there is no space.
    tokens: usize,
    /// How many different events there can be.
    room: usize,
    /// Noted where those who settle look.
    noted: bool,
}

impl<E: Copy + Send + std::fmt::Debug + 'static> EventQueue<E> {
    /// A queue whose events have tokens of that many bytes, at most 16.
    pub(crate) fn new(fabric: &'static Fabric, token: usize) -> rustix::io::Result<Arc<Self>> {
        let state = State { events: VecDeque::new(), tokens: 0, room: 0, noted: false };
        let tokens = Tokens::new(token)?;
        fabric.unsettled.reserve_events();
        Ok(Arc::new(Self { fabric, state: Lock::new(state), tokens, writing: Mutex::new(()) }))
    }

    #[cfg(all(test, loom))]
    pub(crate) fn fabric(&self) -> &'static Fabric {
        self.fabric
    }

    #[cfg(all(test, loom))]
    pub(crate) fn tokens(&self) -> &Tokens {
        &self.tokens
    }

    pub(crate) fn fd(&self) -> RawFd {
        self.tokens.fd()
    }

    /// Queues an event. The caller [settles](Fabric::unsettled) when it holds no lock.
    pub(crate) fn push(self: &Arc<Self>, event: E) {
        self.push_if(event, |_| true);
    }

    /// As [`push`](Self::push), unless the same event is in the queue already.
    pub(crate) fn push_new(self: &Arc<Self>, event: E)
    where
        E: PartialEq,
    {
        self.push_if(event, |events| !events.contains(&event));
    }

    fn push_if(self: &Arc<Self>, event: E, is_wanted: impl FnOnce(&VecDeque<E>) -> bool) {
        let mut state = self.state.lock();
        if is_wanted(&state.events) {
            state.events.push_back(event);
            if !state.noted {
                state.noted = true;
                self.fabric.unsettled.note_events(Arc::<Self>::clone(self));
            }
        }
    }

    /// One more object reports here, each of up to `kinds` events: makes space, so that reporting
    /// does not allocate.
    pub(crate) fn join(&self, kinds: usize) {
        let mut state = self.state.lock();
        state.room += kinds;
        let room = state.room;
        state.events.reserve(room);
    }

    pub(crate) fn leave(&self, kinds: usize) {
        self.state.lock().room -= kinds;
    }

    /// Takes the oldest event, and hands it to `deliver` before it can be discarded. Waits for one, if
    /// the program has not made its end of the descriptor non-blocking; in virtual time, what is to come
    /// comes meanwhile.
    pub(crate) fn take<R>(&self, deliver: impl Fn(E) -> R) -> Result<R, Errno> {
        loop {
            if self.fabric.simulation.is_some() && self.tokens.wait() {
                while self.state.lock().events.is_empty() && self.fabric.step() {}
            }
            self.tokens.take()?;
            // None if it was discarded after its token was taken.
            let (taken, more) = {
                let mut state = self.state.lock();
                state.tokens = state.tokens.saturating_sub(1);
                let taken = state.events.pop_front();
                (taken.map(&deliver), state.events.len() > state.tokens)
            };
            if more {
                self.settle(); // there was no room for their tokens
            }
            if let Some(taken) = taken {
                return Ok(taken);
            }
        }
    }

    /// Has the descriptor readable, if it is not, without an event: who sleeps by it looks again.
    pub(crate) fn wake(&self) {
        let _writing = locked_for_calls(&self.writing);
        {
            let mut state = self.state.lock();
            if state.tokens > 0 {
                return;
            }
            state.tokens = 1;
        }
        if self.tokens.put().is_err() {
            let mut state = self.state.lock();
            state.tokens = state.tokens.saturating_sub(1);
        }
    }

    /// Removes the events that `unwanted` names.
    pub(crate) fn discard(&self, unwanted: impl Fn(E) -> bool) {
        let _writing = locked_for_calls(&self.writing);
        let surplus = {
            let mut state = self.state.lock();
            state.events.retain(|&event| !unwanted(event));
            state.tokens.saturating_sub(state.events.len())
        };
        // If there are fewer another thread has taken one, and says so when it gets the lock.
        for _ in (0..surplus).take_while(|_| self.tokens.take_back()) {
            let mut state = self.state.lock();
            state.tokens = state.tokens.saturating_sub(1);
        }
    }
}

impl<E: Copy + Send + std::fmt::Debug + 'static> Settle for EventQueue<E> {
    /// Adds the tokens of all events that have none.
    fn settle(&self) {
        let _writing = locked_for_calls(&self.writing);
        loop {
            let due = {
                let mut state = self.state.lock();
                let due = state.events.len().saturating_sub(state.tokens);
                state.tokens += due;
                if due == 0 {
                    return self.is_settled(&mut state);
                }
                due
            };
            for added in 0..due {
                let Err(why) = self.tokens.put() else { continue };
                let mut state = self.state.lock();
                state.tokens = state.tokens.saturating_sub(due - added);
                // Who takes the last token that there is adds more. If that has happened already, and
                // these were counted, nobody will.
                if why == NotAdded::Deaf || state.tokens > 0 {
                    return self.is_settled(&mut state);
                }
                break;
            }
        }
    }
}

impl<E> EventQueue<E> {
    /// Nothing can be added.
    fn is_settled(&self, state: &mut State<E>) {
        if std::mem::take(&mut state.noted) {
            self.fabric.unsettled.forget_events(std::ptr::from_ref(self).cast());
        }
    }
}

impl<E> Drop for EventQueue<E> {
    fn drop(&mut self) {
        self.fabric.unsettled.unreserve_events();
    }
}

/// How many events of an object were delivered and are acknowledged: it is not destroyed before they
/// are equal (man ibv_get_cq_event, ibv_get_async_event).
#[derive(Debug, Default)]
pub(crate) struct Acknowledgements {
    missing: std::sync::Mutex<u64>,
    none: Condvar,
}

impl Acknowledgements {
    pub(crate) fn delivered(&self) {
        *locked_to_wait(&self.missing) += 1;
    }

    pub(crate) fn acknowledge(&self, count: u32) {
        let mut missing = locked_to_wait(&self.missing);
        *missing = missing.saturating_sub(u64::from(count));
        if *missing == 0 {
            self.none.notify_all();
        }
    }

    /// Waits until nothing is missing.
    pub(crate) fn wait(&self) {
        let mut missing = locked_to_wait(&self.missing);
        while *missing > 0 {
            missing = self.none.wait(missing).unwrap_or_else(PoisonError::into_inner);
        }
    }
}

#[cfg(all(test, not(loom)))]
mod tests {
    use super::*;
    use rustix::event::{PollFd, PollFlags, poll};
    use rustix::fs::OFlags;

    static FABRIC: Fabric = Fabric::new();

    fn readable(queue: &EventQueue<u32>) -> bool {
        let mut fds = [PollFd::new(queue.tokens.file(), PollFlags::IN)];
        poll(&mut fds, Some(&rustix::event::Timespec { tv_sec: 0, tv_nsec: 0 })) == Ok(1)
    }

    fn push(queue: &Arc<EventQueue<u32>>, events: impl Iterator<Item = u32>) {
        events.for_each(|event| queue.push(event));
        FABRIC.unsettled.settle();
    }

    #[test]
    fn the_descriptor_is_readable_exactly_while_there_are_events() {
        // Whatever the program has made of its end.
        for flags in [OFlags::empty(), OFlags::NONBLOCK] {
            let queue = EventQueue::new(&FABRIC, 8).unwrap();
            rustix::fs::fcntl_setfl(queue.tokens.file(), flags).unwrap();
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
    fn an_event_that_is_discarded_before_its_token_is_there_has_none() {
        let queue = EventQueue::new(&FABRIC, 8).unwrap();
        queue.push(1);
        queue.push(2);
        queue.discard(|event| event == 1);
        FABRIC.unsettled.settle();
        assert_eq!(queue.take(|event| event), Ok(2));
        assert!(!readable(&queue));
    }

    #[test]
    fn the_same_event_waits_once() {
        let queue = EventQueue::new(&FABRIC, 8).unwrap();
        queue.push_new(1);
        FABRIC.unsettled.settle();
        queue.push_new(1);
        FABRIC.unsettled.settle();
        assert_eq!(queue.take(|event| event), Ok(1));
        assert!(!readable(&queue));
    }

    #[test]
    fn more_events_than_there_is_room_for_tokens_are_kept() {
        let queue = EventQueue::new(&FABRIC, 16).unwrap();
        let count = 100_000;
        push(&queue, 0..count);
        assert!((0..count).all(|n| queue.take(|event| event) == Ok(n)));
        assert!(!readable(&queue));
    }

    /// The descriptor is a socket, and the program has it.
    #[test]
    fn a_descriptor_that_the_program_has_shut_down_stops_nobody() {
        let (deaf, other) =
            (EventQueue::new(&FABRIC, 8).unwrap(), EventQueue::new(&FABRIC, 8).unwrap());
        push(&deaf, 0..1);
        rustix::net::shutdown(deaf.tokens.file(), rustix::net::Shutdown::Both).unwrap();
        assert_eq!(deaf.take(|event| event), Ok(0), "what came before");
        for n in 1..3 {
            deaf.push(n);
            push(&other, n..n + 1);
            assert_eq!(other.take(|event| event), Ok(n));
            assert_eq!(deaf.take(|event| event), Err(Errno::IO));
        }
        deaf.discard(|_| true);
    }

    #[test]
    fn an_empty_queue_that_does_not_block_says_so() {
        let queue = EventQueue::<u32>::new(&FABRIC, 8).unwrap();
        rustix::fs::fcntl_setfl(queue.tokens.file(), OFlags::NONBLOCK).unwrap();
        assert_eq!(queue.take(|event| event), Err(Errno::AGAIN));
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
