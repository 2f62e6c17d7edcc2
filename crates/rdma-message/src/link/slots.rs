//! The send slots.

use alloc::vec::Vec;

/// The use of a send slot.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Use {
    /// A hello, a credit frame, or an acknowledgement.
    Control,
    /// A close frame.
    Close,
    /// A frame with data that belongs to no operation.
    Data,
    /// A frame with data of the operation at this index.
    Operation(u32),
}

#[derive(Debug)]
pub(super) struct SendSlots {
    free: Vec<u32>,
    uses: Vec<Option<Use>>,
}

impl SendSlots {
    pub(super) fn new(count: u32) -> Self {
        Self { free: (0..count).rev().collect(), uses: (0..count).map(|_| None).collect() }
    }

    /// Returns the number of free slots.
    pub(super) fn free(&self) -> u32 {
        u32::try_from(self.free.len()).unwrap_or(u32::MAX)
    }

    pub(super) fn take(&mut self, by: Use) -> Option<u32> {
        let slot = self.free.pop()?;
        *self.uses.get_mut(usize::try_from(slot).ok()?)? = Some(by);
        Some(slot)
    }

    /// Frees a slot. Returns its use, or `None` if it was free.
    pub(super) fn release(&mut self, slot: u32) -> Option<Use> {
        let by = self.uses.get_mut(usize::try_from(slot).ok()?)?.take()?;
        self.free.push(slot);
        Some(by)
    }
}
