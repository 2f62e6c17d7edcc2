//! Who has packets to send or to take, in a row: each gets a turn, and goes to the end of it with what is left.

use std::collections::VecDeque;
use std::sync::{Arc, Weak};

use crate::sync::{AtomicU32, Ordering};

/// How many turns a thread gives before it goes on with its own affairs: in models few.
pub(crate) const AT_ONCE: u32 = if cfg!(loom) { 4 } else { 64 };

/// Who gets turns.
pub(crate) trait Driven: Send + Sync + std::fmt::Debug {
    /// Whether it stands in the row.
    fn place(&self) -> &Place;

    /// Does a part of what it has to do, and says whether there is more. The caller holds no lock.
    fn take_turn(self: Arc<Self>) -> bool;

    /// Has somebody come for the row in a moment.
    fn call(&self);
}

/// Whether somebody stands in the row, where it stands once.
#[derive(Debug, Default)]
pub(crate) struct Place(AtomicU32);

impl Place {
    /// Says whether it was free.
    pub(super) fn take(&self) -> bool {
        self.0.swap(1, Ordering::AcqRel) == 0
    }

    /// What comes from now on needs another turn.
    pub(super) fn give_back(&self) {
        // It sees what was left by those who found it taken.
        self.0.swap(0, Ordering::AcqRel);
    }
}

/// The row.
#[derive(Debug)]
pub(super) struct Row {
    waiting: VecDeque<Weak<dyn Driven>>,
}

impl Row {
    pub(super) const fn new() -> Self {
        Self { waiting: VecDeque::new() }
    }

    pub(super) fn len(&self) -> usize {
        self.waiting.len()
    }

    pub(super) fn push(&mut self, driven: Weak<dyn Driven>) {
        self.waiting.push_back(driven);
    }

    pub(super) fn pop(&mut self) -> Option<Weak<dyn Driven>> {
        self.waiting.pop_front()
    }

    /// The first one that is still there.
    pub(super) fn first(&self) -> Option<Arc<dyn Driven>> {
        self.waiting.iter().find_map(Weak::upgrade)
    }
}
