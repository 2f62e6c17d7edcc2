//! A context's events, kept until every reader has read them.

use std::collections::VecDeque;
use std::fmt;
use std::os::fd::OwnedFd;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use rdma_types::AsyncEventKind;
use rustix::event::{EventfdFlags, eventfd};

use crate::error::verb::VerbError;
use crate::event::file::failed;
use crate::event::value::{AsyncEvent, AsyncEventSource};

/// The number of events that are kept even after every taker has read them.
const KEPT: usize = 256;

/// The events of one context.
#[derive(Default)]
pub(crate) struct EventLog(Mutex<Events>);

/// Omits the events: a log can hold many, and reading them requires the lock.
impl fmt::Debug for EventLog {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("EventLog").finish_non_exhaustive()
    }
}

/// The kept events, and the counts that give their positions in the sequence of all events.
#[derive(Debug, Default)]
pub(crate) struct Events {
    kept: VecDeque<AsyncEvent>,
    /// The number of events that precede the kept ones.
    dropped: u64,
    /// The highest position that a taker has reached: a new taker starts there, or at the first
    /// kept event if that is later.
    read: u64,
    takers: Vec<Taker>,
}

#[derive(Debug)]
struct Taker {
    /// The position of this taker's next event in the sequence of all events, counted from 0.
    position: u64,
    /// An eventfd that identifies the taker. It is readable if and only if the taker has an unread
    /// event.
    wake: Arc<OwnedFd>,
}

impl EventLog {
    /// Locks the log. Must not be called in a forked child: if another thread held the lock during
    /// the fork, nothing releases it in the child.
    pub(crate) fn lock(&self) -> MutexGuard<'_, Events> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Events {
    fn total(&self) -> u64 {
        self.dropped + self.kept.len() as u64
    }

    /// Adds a taker, which starts with the kept events that no other taker has read. Returns its
    /// file, which is readable while the taker has an unread event.
    pub(crate) fn join(&mut self) -> Result<Arc<OwnedFd>, VerbError> {
        let flags = EventfdFlags::CLOEXEC | EventfdFlags::NONBLOCK;
        let wake = Arc::new(eventfd(0, flags).map_err(failed("eventfd"))?);
        let taker = Taker { position: self.read.max(self.dropped), wake: Arc::clone(&wake) };
        if taker.position < self.total() {
            taker.signal();
        }
        self.takers.push(taker);
        Ok(wake)
    }

    pub(crate) fn leave(&mut self, wake: &Arc<OwnedFd>) {
        self.takers.retain(|taker| !Arc::ptr_eq(&taker.wake, wake));
        self.forget();
    }

    /// Adds an event for all takers.
    pub(crate) fn push(&mut self, event: AsyncEvent) {
        let total = self.total();
        self.takers.iter().filter(|taker| taker.position == total).for_each(Taker::signal);
        self.kept.push_back(event);
        self.forget();
    }

    /// Returns the taker's next event, if any.
    pub(crate) fn next(&mut self, wake: &Arc<OwnedFd>) -> Option<AsyncEvent> {
        let total = self.total();
        let taker = self.takers.iter_mut().find(|taker| Arc::ptr_eq(&taker.wake, wake))?;
        let place = usize::try_from(taker.position - self.dropped).ok()?;
        let event = *self.kept.get(place)?;
        taker.position += 1;
        if taker.position == total {
            taker.clear();
        }
        self.read = self.read.max(taker.position);
        self.forget();
        Some(event)
    }

    /// Returns the kept events about an object, a port or the device, oldest first.
    pub(crate) fn of(&self, source: AsyncEventSource) -> Vec<AsyncEventKind> {
        let own = self.kept.iter().filter(|event| event.source == source);
        own.map(|event| event.kind).collect()
    }

    /// Drops the oldest events in excess of [`KEPT`], except events that some taker has not read
    /// yet.
    fn forget(&mut self) {
        let all_have = self.takers.iter().map(|taker| taker.position).min().unwrap_or(u64::MAX);
        while self.kept.len() > KEPT && self.dropped < all_have {
            self.kept.pop_front();
            self.dropped += 1;
        }
    }
}

/// The eventfd's counter is only ever 0 or 1, and no other code reads or writes the file, so
/// neither call can fail or block.
impl Taker {
    fn signal(&self) {
        let _ = rustix::io::write(&*self.wake, &1_u64.to_ne_bytes());
    }

    fn clear(&self) {
        let _ = rustix::io::read(&*self.wake, &mut [0; 8]);
    }
}

#[cfg(all(test, not(miri)))] // Miri does not support ppoll
mod tests {
    use rustix::event::{PollFd, PollFlags, Timespec, poll};

    use super::*;

    fn event(n: usize) -> AsyncEvent {
        let [port, ..] = n.to_le_bytes();
        AsyncEvent { kind: AsyncEventKind::GID_CHANGE, source: AsyncEventSource::Port(port) }
    }

    fn is_readable(wake: &OwnedFd) -> bool {
        let mut files = [PollFd::new(wake, PollFlags::IN)];
        poll(&mut files, Some(&Timespec { tv_sec: 0, tv_nsec: 0 })) == Ok(1)
    }

    fn rest(events: &mut Events, wake: &Arc<OwnedFd>) -> Vec<AsyncEvent> {
        let all = std::iter::from_fn(|| {
            let readable = is_readable(wake);
            let next = events.next(wake);
            assert_eq!(readable, next.is_some());
            next
        });
        all.collect()
    }

    #[test]
    fn each_taker_reads_each_event_in_order_and_its_file_is_readable() {
        let mut events = Events::default();
        let (a, b) = (events.join().unwrap(), events.join().unwrap());
        for n in 0..3 {
            events.push(event(n));
        }
        assert_eq!(events.next(&a), Some(event(0)));
        assert_eq!(rest(&mut events, &b), [0, 1, 2].map(event));
        events.push(event(3));
        assert_eq!(rest(&mut events, &a), [1, 2, 3].map(event));
        assert_eq!(rest(&mut events, &b), [event(3)]);
    }

    #[test]
    fn a_taker_begins_with_what_no_other_had() {
        let mut events = Events::default();
        events.push(event(0));
        let first = events.join().unwrap();
        events.push(event(1));
        assert_eq!(events.next(&first), Some(event(0)));
        let second = events.join().unwrap();
        assert_eq!(rest(&mut events, &second), [event(1)]);
        assert_eq!(rest(&mut events, &first), [event(1)]);
        events.leave(&first);
        events.leave(&second);
        events.push(event(2));
        let third = events.join().unwrap();
        assert_eq!(rest(&mut events, &third), [event(2)]);
        assert_eq!(events.next(&first), None, "it has left");
    }

    #[test]
    fn nothing_is_forgotten_that_a_taker_has_not_and_little_else_is_kept() {
        let mut events = Events::default();
        let slow = events.join().unwrap();
        let fast = events.join().unwrap();
        for n in 0..3 * KEPT {
            events.push(event(n));
            assert_eq!(rest(&mut events, &fast).len(), 1);
        }
        assert_eq!(rest(&mut events, &slow), (0..3 * KEPT).map(event).collect::<Vec<_>>());
        assert_eq!(events.kept.len(), KEPT);
        // `of` finds the kept events, including those that all takers have read.
        let of_port = events.of(event(3 * KEPT - 1).source);
        assert!(!of_port.is_empty() && of_port.iter().all(|&kind| kind == event(0).kind));
        events.leave(&slow);
        events.leave(&fast);
        for n in 0..2 * KEPT {
            events.push(event(n));
        }
        assert_eq!(events.kept.len(), KEPT, "there are no takers");
        let late = events.join().unwrap();
        assert_eq!(rest(&mut events, &late), (KEPT..2 * KEPT).map(event).collect::<Vec<_>>());
    }
}
