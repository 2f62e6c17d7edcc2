//! The memory budget of a device, which its protection domains share: a region table, and the limits on it.

use std::sync::atomic::{AtomicU64, Ordering};

use crate::engine::Refusal;
use crate::fabric::ids::Ids;
use crate::fabric::random::Random;
use crate::limits::{Limits, Quota};
use crate::memory::region::RegionTable;

/// The memory that a device can register.
#[derive(Debug)]
pub(crate) struct Budget {
    /// The source of numbers for domains and windows.
    pub(super) ids: &'static Ids,
    pub(super) limits: Limits,
    pub(crate) regions: RegionTable,
    pub(super) memory_regions: Quota,
    pub(super) memory_windows: Quota,
    locked_bytes: AtomicU64,
}

impl Budget {
    pub(crate) fn new(ids: &'static Ids, limits: Limits, keys: Random) -> Self {
        Self {
            ids,
            limits,
            regions: RegionTable::new(limits.max_mr.saturating_add(limits.max_mw), keys),
            memory_regions: Quota::default(),
            memory_windows: Quota::default(),
            locked_bytes: AtomicU64::new(0),
        }
    }

    /// Counts registered memory against the device's configured limit, as if it were pinned.
    pub(super) fn lock_memory(&self, bytes: u64) -> Result<(), Refusal> {
        let limit = self.limits.memlock;
        let add = |locked: u64| locked.checked_add(bytes).filter(|&locked| locked <= limit);
        let added = self.locked_bytes.fetch_update(Ordering::Relaxed, Ordering::Relaxed, add);
        added.map(drop).map_err(|_| Refusal::NoRoom)
    }

    pub(super) fn unlock_memory(&self, bytes: u64) {
        self.locked_bytes.fetch_sub(bytes, Ordering::Relaxed);
    }
}
