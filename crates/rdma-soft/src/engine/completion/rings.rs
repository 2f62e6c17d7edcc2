//! The memory of a completion queue: one ring at a time, which a resize replaces.
//!
//! A poll of an empty queue looks at the ring without a lock, so each ring lives as long as its queue. There is at
//! most one ring of each size, and it is reused. So all rings together take at most twice the memory of the largest.
#![allow(unsafe_code)]

use std::sync::Arc;

use crate::engine::Refusal;
use crate::engine::completion::entry::CompletionEntry;
use crate::memory::room::Room;
use crate::sync::{AtomicPtr, Ordering, locked};

/// Slots for completions, indexed by number.
#[derive(Debug)]
pub(super) struct Ring {
    /// One less than the number of entries. That number is a power of two, so a mask selects a completion's slot.
    mask: u64,
    entries: Box<[CompletionEntry]>,
}

impl Ring {
    fn new(size: u64) -> Result<Arc<Self>, Refusal> {
        let count = usize::try_from(size).map_err(|_| Refusal::NoRoom)?;
        let entries = Room::new(count)?.filled(CompletionEntry::default);
        Ok(Arc::new(Self { mask: size - 1, entries }))
    }

    #[inline(always)]
    pub(super) fn entry(&self, number: u64) -> &CompletionEntry {
        // The mask is smaller than the number of entries in memory, so the result fits.
        &self.entries[usize::try_from(number & self.mask).unwrap_or(0)]
    }

    /// Empties the ring. A poller that looks for a completion before `number` [takes the
    /// lock](CompletionEntry::drop_number).
    pub(super) fn clear(&self, number: u64) {
        self.entries.iter().for_each(|entry| entry.drop_number(number));
    }
}

#[derive(Debug)]
pub(super) struct Rings {
    /// The current ring, one of `all`.
    current: AtomicPtr<Ring>,
    /// One ring of each size; none is ever removed.
    all: std::sync::Mutex<Vec<Arc<Ring>>>,
}

impl Rings {
    /// Creates the first ring, with at least `capacity` entries.
    pub(super) fn new(capacity: u32) -> Result<Self, Refusal> {
        let ring = Ring::new(u64::from(capacity).next_power_of_two())?;
        let current = AtomicPtr::new(Arc::as_ptr(&ring).cast_mut());
        Ok(Self { current, all: std::sync::Mutex::new(vec![ring]) })
    }

    /// Returns the current ring. A caller that holds neither of the queue's locks may get one that was current a moment
    /// ago.
    #[inline(always)]
    pub(super) fn current(&self) -> &Ring {
        let ring = self.current.load(Ordering::Acquire);
        // SAFETY: SAFETY.md F24: the ring is one of `all`, and `all` keeps it while `self` lives.
        unsafe { &*ring }
    }

    /// Returns the ring for `capacity` completions. Creates it if no ring has this size.
    pub(super) fn of(&self, capacity: u32) -> Result<Arc<Ring>, Refusal> {
        let size = u64::from(capacity).next_power_of_two();
        let mut all = locked(&self.all);
        if let Some(ring) = all.iter().find(|ring| ring.mask == size - 1) {
            return Ok(Arc::clone(ring));
        }
        all.try_reserve(1).map_err(|_| Refusal::NoRoom)?;
        let ring = Ring::new(size)?;
        all.push(Arc::clone(&ring));
        Ok(ring)
    }

    /// Returns true if this ring is current. The caller holds both of the queue's locks.
    pub(super) fn is_current(&self, ring: &Arc<Ring>) -> bool {
        std::ptr::eq(self.current(), &raw const **ring)
    }

    /// Makes a ring that [`of`](Self::of) returned the current one. The caller holds both of the queue's locks.
    pub(super) fn exchange(&self, ring: &Arc<Ring>) {
        self.current.store(Arc::as_ptr(ring).cast_mut(), Ordering::Release);
    }
}

#[cfg(all(test, not(loom)))]
mod tests {
    use super::*;

    #[test]
    fn a_queue_has_one_ring_of_each_size() {
        let rings = Rings::new(4).unwrap();
        assert!(rings.is_current(&rings.of(3).unwrap()));
        let larger = rings.of(5).unwrap();
        assert!(!rings.is_current(&larger) && Arc::ptr_eq(&larger, &rings.of(8).unwrap()));
        rings.exchange(&larger);
        assert!(rings.is_current(&larger) && !rings.is_current(&rings.of(4).unwrap()));
        assert_eq!(locked(&rings.all).len(), 2);
    }
}
