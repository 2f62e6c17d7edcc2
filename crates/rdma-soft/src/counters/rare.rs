//! A counter of rare events.

use std::sync::atomic::{AtomicU64, Ordering};

/// A counter of events that are rare enough to afford an atomic addition.
#[derive(Debug, Default)]
pub(crate) struct Rare(AtomicU64);

impl Rare {
    pub(crate) const fn new() -> Self {
        Self(AtomicU64::new(0))
    }

    #[cold]
    pub(crate) fn count(&self) {
        self.add(1);
    }

    pub(crate) fn add(&self, count: u64) {
        self.0.fetch_add(count, Ordering::Relaxed);
    }

    pub(crate) fn get(&self) -> u64 {
        self.0.load(Ordering::Relaxed)
    }
}
