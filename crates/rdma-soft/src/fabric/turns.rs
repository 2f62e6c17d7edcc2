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

/// Whether somebody stands in the row, where it stands once, or waits for a moment at which it comes to stand there.
#[derive(Debug, Default)]
pub(crate) struct Place(AtomicU32);

/// It stands in the row.
const IN_ROW: u32 = 1;
/// What it has to send can wait.
const WAITS: u32 = 2;
/// It is in the list of a [`Later`](crate::fabric::later::Later), also if it waits no more.
const LISTED: u32 = 4;
/// It has had a turn while it waited.
const PASSED: u32 = 8;

impl Place {
    /// Says whether it was free.
    pub(super) fn take(&self) -> bool {
        self.0.fetch_or(IN_ROW, Ordering::AcqRel) & IN_ROW == 0
    }

    /// What comes from now on needs another turn.
    pub(super) fn give_back(&self) {
        self.0.fetch_and(!IN_ROW, Ordering::AcqRel);
    }

    /// It waits. Says whether it is not in the list yet.
    pub(super) fn wait(&self) -> bool {
        self.0.fetch_or(WAITS | LISTED, Ordering::AcqRel) & LISTED == 0
    }

    pub(crate) fn waits(&self) -> bool {
        self.0.load(Ordering::Acquire) & WAITS != 0
    }

    /// A turn leaves what waits where it is. Says whether it is the first to do so; the next one has to take it.
    pub(crate) fn pass(&self) -> bool {
        self.0.fetch_or(PASSED, Ordering::AcqRel) & PASSED == 0
    }

    /// What waits is for this turn, or for one that comes now. Says whether something waited.
    pub(crate) fn stop_waiting(&self) -> bool {
        self.0.fetch_and(!(WAITS | PASSED), Ordering::AcqRel) & WAITS != 0
    }

    /// It was taken out of the list. Says whether it still waited.
    pub(super) fn leave_list(&self) -> bool {
        self.0.fetch_and(!(WAITS | LISTED | PASSED), Ordering::AcqRel) & WAITS != 0
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

#[cfg(all(test, not(loom)))]
mod tests {
    use super::*;

    /// One turn leaves what waits to a later one, and the next takes it.
    #[test]
    fn what_waits_is_passed_once() {
        let place = Place::default();
        for listed in [false, true] {
            assert_eq!(place.wait(), !listed, "it is in the list still, though it waits no more");
            assert!(!place.wait() && place.waits());
            // A turn comes for another reason.
            assert!(place.take());
            place.give_back();
            assert!(place.waits() && place.pass() && !place.pass());
            assert!(place.stop_waiting() && !place.waits() && !place.stop_waiting());
        }
        assert!(!place.leave_list());
        // The moment comes for which it waits, after one turn has passed it.
        assert!(place.wait() && place.pass() && place.leave_list());
        assert!(!place.waits() && place.wait() && place.pass());
    }
}
