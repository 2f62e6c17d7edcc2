//! A pool's large region and its free ranges.
#![allow(unsafe_code)]

use std::collections::HashMap;
use std::collections::hash_map::Entry;
use std::fmt;
use std::sync::{Mutex, MutexGuard, PoisonError};

use offset_allocator::{Allocation, Allocator};

use rdma_types::AccessFlags;

use crate::device::protection_domain::ProtectionDomain;
use crate::error::Error;
use crate::region::memory::RegionMemory;
use crate::region::registration::Registration;
use crate::region::relaxed;

/// The unit of ranges, in bytes. It is the size of a cache line, so two ranges never share a line.
pub(crate) const UNIT: usize = 64;

/// A registered region that is divided into buffers.
pub(crate) struct PoolRegion {
    registration: Registration<RegionMemory>,
    /// Whether windows may only give peers the right to read.
    is_read_only: bool,
    ranges: Mutex<Ranges>,
}

struct Ranges {
    free: Allocator,
    /// For each range that several buffers share, the number of those buffers, keyed by the range's
    /// start.
    shared: HashMap<usize, usize>,
    buffers: usize,
    units: usize,
}

/// A range of a region that is in use.
#[derive(Clone, Copy)]
pub(crate) struct Range {
    allocation: Allocation,
    /// The start of the requested bytes, in units. It lies after the start of the allocation if the
    /// allocation itself is not aligned as requested.
    start: u32,
    units: u32,
}

impl Range {
    /// Returns the byte offset of the requested range within the region.
    #[inline]
    pub(crate) fn offset(&self) -> usize {
        self.start as usize * UNIT
    }
}

/// The number of buffers in a region, and the number of bytes that they use.
#[derive(Clone, Copy)]
pub(crate) struct RegionUse {
    pub(crate) buffers: usize,
    pub(crate) bytes: usize,
}

/// The maximum number of units in a region.
const MOST: u32 = 1 << 31;

impl Ranges {
    /// Counts `range` as in use.
    #[inline]
    fn taken(&mut self, range: Range) -> Range {
        self.buffers += 1;
        self.units += range.units as usize;
        range
    }
}

/// Returns the number of units for `length` bytes; `None` if that is more than [`MOST`].
fn units(length: usize) -> Option<u32> {
    u32::try_from(length.div_ceil(UNIT).max(1)).ok().filter(|&units| units <= MOST)
}

/// Rounds up to a number that has its own size class in the allocator: one with at most four
/// significant bits. The allocator then finds a free range of exactly this size.
fn class(units: u32) -> u32 {
    let shift = units.ilog2().saturating_sub(3);
    units.div_ceil(1 << shift) << shift
}

/// Returns the length of a region that can hold a buffer of `length` bytes; `None` if no region
/// can.
pub(crate) fn region_length(length: usize) -> Option<usize> {
    Some(class(units(length)?) as usize * UNIT)
}

/// Returns the longest valid region length that is at most `bytes`. `bytes` must be at least 64.
pub(crate) fn longest_region(bytes: usize) -> usize {
    let units = u32::try_from(bytes / UNIT).map_or(MOST, |units| units.min(MOST));
    let shift = units.ilog2().saturating_sub(3);
    (units >> shift << shift) as usize * UNIT
}

impl PoolRegion {
    /// Registers `length` bytes, which must be a valid region length, and gives peers no right to
    /// them. The bytes begin at a multiple of `alignment`. If `is_read_only` is set, windows cannot
    /// give peers the right to write either.
    pub(crate) fn new(
        pd: &ProtectionDomain,
        access: AccessFlags,
        is_read_only: bool,
        length: usize,
        alignment: usize,
    ) -> Result<Self, Error> {
        let units = units(length).ok_or(Error::OutOfMemory { length })?;
        let memory = RegionMemory::allocate_aligned(length, alignment)?;
        let access =
            if is_read_only { relaxed::relax_read_only(access) } else { relaxed::relax(access) }?;
        // SAFETY: SAFETY.md F8: `access` gives peers no right, so the rkey is useless.
        let registration = unsafe { Registration::owning(pd, memory, access) };
        let registration = registration.map_err(|(_, error)| error)?;
        // Range records use memory too, so their number is limited. In a region of up to 64 MiB,
        // they are enough for buffers of 512 bytes on average.
        let records = (units / 8 + 64).min(128 * 1024);
        let free = Allocator::with_max_allocs(units, records);
        Ok(Self {
            registration,
            is_read_only,
            ranges: Mutex::new(Ranges { free, shared: HashMap::new(), buffers: 0, units: 0 }),
        })
    }

    #[inline]
    pub(crate) fn registration(&self) -> &Registration<RegionMemory> {
        &self.registration
    }

    /// Returns true if windows may only give peers the right to read.
    pub(crate) const fn is_read_only(&self) -> bool {
        self.is_read_only
    }

    /// Takes a range of at least `length` bytes, if one is free.
    pub(crate) fn take(&self, length: usize) -> Option<Range> {
        let units = units(length)?;
        let mut ranges = self.ranges();
        let allocation = ranges.free.allocate(units)?;
        Some(ranges.taken(Range { allocation, start: allocation.offset, units }))
    }

    /// Takes a range with at least `length` bytes that begin at a multiple of `alignment`, if one
    /// is free. `alignment` is a power of two.
    pub(crate) fn take_aligned(&self, length: usize, alignment: usize) -> Option<Range> {
        if alignment <= UNIT {
            return self.take(length);
        }
        let units = units(length)?;
        let mut ranges = self.ranges();
        let allocation = ranges.free.allocate(units)?;
        if self.units_to_alignment(allocation, alignment) == 0 {
            return Some(ranges.taken(Range { allocation, start: allocation.offset, units }));
        }
        ranges.free.free(allocation);
        // With this many additional units, `units` units follow the first aligned one, wherever the
        // allocation starts.
        let more = u32::try_from(alignment / UNIT - 1).ok()?;
        let units = units.checked_add(more).filter(|&units| units <= MOST)?;
        let allocation = ranges.free.allocate(units)?;
        // The result is at most `more`.
        let early = u32::try_from(self.units_to_alignment(allocation, alignment)).ok()?;
        let start = allocation.offset + early;
        Some(ranges.taken(Range { allocation, start, units }))
    }

    /// Returns the number of units from the start of the allocation to the next multiple of
    /// `alignment`.
    fn units_to_alignment(&self, allocation: Allocation, alignment: usize) -> usize {
        let address = self.registration.base().as_ptr().addr() + allocation.offset as usize * UNIT;
        address.wrapping_neg() % alignment / UNIT
    }

    /// Counts another buffer that shares the range.
    pub(crate) fn share(&self, range: Range) {
        // In a forked child, ranges are never returned, so their buffers need no count.
        if self.registration.check_process().is_ok() {
            *self.ranges().shared.entry(range.offset()).or_insert(1) += 1;
        }
    }

    /// Returns a dropped buffer's range to the allocator, unless another buffer shares it. Does
    /// nothing in a forked child, where it might wait forever for the lock.
    pub(crate) fn give_back(&self, range: Range) {
        if self.registration.check_process().is_err() {
            return;
        }
        let mut ranges = self.ranges();
        if !ranges.shared.is_empty()
            && let Entry::Occupied(mut buffers) = ranges.shared.entry(range.offset())
        {
            *buffers.get_mut() -= 1;
            if *buffers.get() > 0 {
                return;
            }
            buffers.remove();
        }
        ranges.free.free(range.allocation);
        ranges.buffers -= 1;
        ranges.units -= range.units as usize;
    }

    pub(crate) fn in_use(&self) -> RegionUse {
        let ranges = self.ranges();
        RegionUse { buffers: ranges.buffers, bytes: ranges.units * UNIT }
    }

    fn ranges(&self) -> MutexGuard<'_, Ranges> {
        self.ranges.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl fmt::Debug for PoolRegion {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.registration.fmt(f)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_region_of_a_class_can_be_one_buffer() {
        let small = if cfg!(miri) { 70 } else { 5000 }; // Miri is slow
        for asked in (1..small).chain([65_537, (1 << 20) + 1, (1 << 31) - 1, 1 << 31]) {
            let size = class(asked);
            assert!(size >= asked && u64::from(size) * 8 <= u64::from(asked) * 9 + 8, "{asked}");
            let mut free: Allocator = Allocator::with_max_allocs(size, 64);
            assert!(free.allocate(size).is_some(), "{asked} as {size}");
        }
    }

    #[test]
    fn the_longest_region_is_of_a_class_and_the_next_one_too_long() {
        for bytes in (UNIT..100_000).step_by(31).chain([usize::MAX, UNIT << 31, (UNIT << 31) - 1]) {
            let longest = longest_region(bytes);
            assert!(longest <= bytes && region_length(longest) == Some(longest), "{bytes}");
            let next = region_length(longest + 1);
            assert!(next.is_none_or(|next| next > bytes), "{bytes}: {next:?}");
        }
    }

    #[test]
    fn lengths_are_whole_units_and_not_too_many() {
        assert_eq!([0, 1, 64, 65].map(units), [Some(1), Some(1), Some(1), Some(2)]);
        assert_eq!(units(UNIT << 31), Some(1 << 31));
        assert_eq!((units((UNIT << 31) + 1), units(usize::MAX)), (None, None));
    }
}
