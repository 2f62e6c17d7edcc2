//! The completion table: the slots of all queues, which stay where they are.
#![allow(unsafe_code)]

use std::fmt;
use std::ops::Deref;
use std::ptr::NonNull;

use crate::slot::Slot;

/// Where a slot of a table is: each post needs it, and an index would have to be looked up.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct At(NonNull<Slot>);

// SAFETY: SAFETY.md F23: an address, which is followed with the table at hand.
unsafe impl Send for At {}

impl At {
    /// Of a slot that is not in a table yet.
    pub(crate) const NOWHERE: Self = Self(NonNull::dangling());

    /// The slot.
    ///
    /// # Safety
    /// It is of a table, and not [`NOWHERE`](Self::NOWHERE); the table, and with it the slot, is live for `'t`.
    #[inline(always)]
    pub(crate) const unsafe fn slot<'t>(self) -> &'t Slot {
        // SAFETY: SAFETY.md F23: the slot is live by this function's contract, is where it was when this was made, and
        // is only ever shared.
        unsafe { self.0.as_ref() }
    }
}

/// All slots. The first one is dead: no request is ever in it.
pub(crate) struct Table(NonNull<[Slot]>);

// SAFETY: SAFETY.md F23: it owns its slots, which can be sent.
unsafe impl Send for Table {}

impl Table {
    /// With the dead slot in front of these.
    pub(crate) fn new(slots: impl IntoIterator<Item = Slot>) -> Self {
        let all: Box<[Slot]> = [Slot::dead()].into_iter().chain(slots).collect();
        let table = Self(NonNull::from(Box::leak(all)));
        // Until something else is behind it, each is behind itself.
        (0..table.len()).for_each(|index| table.link(index, index));
        table
    }

    /// Where the slot of this index is.
    pub(crate) fn at(&self, index: usize) -> At {
        At(NonNull::from(&self[index]))
    }

    /// Puts the slot `next` behind another in a ring.
    pub(crate) fn link(&self, index: usize, next: usize) {
        self[index].next.set(self.at(next));
    }
}

impl Deref for Table {
    type Target = [Slot];

    #[inline(always)]
    fn deref(&self) -> &[Slot] {
        // SAFETY: SAFETY.md F23: leaked in `new`, freed in `drop`, and only ever shared in between.
        unsafe { self.0.as_ref() }
    }
}

impl Drop for Table {
    fn drop(&mut self) {
        // SAFETY: SAFETY.md F23: it was leaked in `new`, and this is its end.
        drop(unsafe { Box::from_raw(self.0.as_ptr()) });
    }
}

impl fmt::Debug for Table {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Table").field("slots", &self.len()).finish_non_exhaustive()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn slots_stay_where_they_are_while_their_table_moves() {
        let table = Table::new((1..=3).map(|index| Slot::new(index, 0)));
        let places: Vec<_> = (0..table.len()).map(|index| table.at(index)).collect();
        let moved = std::thread::spawn(move || Box::new(table)).join().unwrap();
        for (slot, at) in moved.iter().zip(places) {
            // SAFETY: SAFETY.md F23: of the table that lives to the end of the test.
            assert!(std::ptr::eq(slot, unsafe { at.slot() }));
        }
        assert_eq!(moved.len(), 4);
    }
}
