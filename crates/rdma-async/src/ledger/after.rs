//! What is done when the lock is free again: foreign code runs then, and memory is given back.

use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::Arc;
use std::task::Waker;

use super::BATCH;
use super::entry::Rooms;
use super::slots::Side;
use crate::buffer::held::Held;

#[derive(Debug)]
pub(crate) enum After {
    Wake(Waker),
    /// A slot is free, and somebody waits for one.
    Room(Arc<Rooms>, Side),
    /// There will be no more room.
    Close(Arc<Rooms>),
    Drop(Held),
    DropWaker(Waker),
}

impl After {
    pub(crate) fn run(self) {
        let run = || match self {
            Self::Wake(waker) => waker.wake(),
            Self::Room(rooms, side) => rooms.of(side).notify_one(),
            Self::Close(rooms) => rooms.close(),
            Self::Drop(held) => drop(held),
            Self::DropWaker(waker) => drop(waker),
        };
        apart(run);
    }
}

/// Runs what wakes others. A panic of a waker is nobody else's: the hook for panics has said it.
pub(crate) fn apart(run: impl FnOnce()) {
    if catch_unwind(AssertUnwindSafe(run)).is_err() {
        tracing::error!("a waker has panicked");
    }
}

/// How much there is after one batch of completions, of each at most three, and two ends.
pub(crate) const MOST: usize = 3 * BATCH + 2;

/// What is due when the lock is free, and how many requests somebody has to be told of.
#[derive(Debug)]
pub(crate) struct Afters {
    /// Empty whenever the lock is free.
    pub(crate) due: Vec<After>,
    /// So many requests are in flight that a task waits for, or that nobody waits for and whose memory is to come back:
    /// as long as there is one, the completion queue is asked for an event.
    pub(crate) awaited: usize,
}

impl Afters {
    pub(crate) fn push(&mut self, after: After) {
        self.due.push(after);
    }

    /// Subtracts awaited requests that were reported.
    pub(crate) fn note_reported(&mut self, count: usize) {
        debug_assert!(self.awaited >= count, "they were awaited");
        self.awaited = self.awaited.saturating_sub(count);
    }
}
