//! Work deferred until the lock is released: waking tasks, which runs foreign code, and releasing memory.

use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::Arc;
use std::task::Waker;

use super::BATCH;
use super::slots::Side;
use super::waiters::Waiters;
use crate::buffer::held::Held;

#[derive(Debug)]
pub(crate) enum After {
    Wake(Waker),
    /// Wakes a waiter, because a slot is free.
    SlotFree(Arc<Waiters>, Side),
    /// Wakes all waiters, because the connection was closed or its send queue has drained.
    Close(Arc<Waiters>),
    Drop(Held),
    DropWaker(Waker),
}

impl After {
    pub(crate) fn run(self) {
        let run = || match self {
            Self::Wake(waker) => waker.wake(),
            Self::SlotFree(waiters, side) => waiters.of(side).notify_one(),
            Self::Close(waiters) => waiters.close(),
            Self::Drop(held) => drop(held),
            Self::DropWaker(waker) => drop(waker),
        };
        contain_panic(run);
    }
}

/// Runs a waker. A panic does not propagate to the caller; the panic hook has already reported it.
pub(crate) fn contain_panic(run: impl FnOnce()) {
    if catch_unwind(AssertUnwindSafe(run)).is_err() {
        tracing::error!("a waker has panicked");
    }
}

/// The maximum amount of work that is deferred under one lock. Each completion of a batch defers up to three items, and
/// an operation that is taken or dropped defers up to two.
pub(crate) const MOST: usize = 3 * BATCH + 2;

/// Work deferred until the lock is released, and the number of requests that need an event.
#[derive(Debug)]
pub(crate) struct Afters {
    /// Empty whenever the lock is free.
    pub(crate) due: Vec<After>,
    /// An empty list that replaces `due` while its work is done.
    pub(crate) spare: Vec<After>,
    /// The number of requests in flight that a task awaits, or that were dropped and have memory to release. The
    /// completion queue is armed while this is not zero.
    pub(crate) awaited: usize,
    /// The number of these requests whose completions are solicited, or failures.
    pub(crate) solicited: usize,
}

impl Afters {
    pub(crate) fn new() -> Self {
        let [due, spare] = [(); 2].map(|()| Vec::with_capacity(MOST));
        Self { due, spare, awaited: 0, solicited: 0 }
    }

    pub(crate) fn push(&mut self, after: After) {
        self.due.push(after);
    }

    /// Subtracts a request that was counted as awaited, and whose completion has been reported.
    pub(crate) fn note_reported(&mut self, is_solicited: bool) {
        debug_assert!(self.awaited > 0, "it was awaited");
        self.awaited = self.awaited.saturating_sub(1);
        self.solicited = self.solicited.saturating_sub(usize::from(is_solicited));
        debug_assert!(self.solicited <= self.awaited, "solicited completions are awaited");
    }
}
