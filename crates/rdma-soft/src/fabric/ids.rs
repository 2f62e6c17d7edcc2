//! Numbers that distinguish objects.

use std::sync::atomic::{AtomicU64, Ordering};

#[derive(Debug)]
pub(crate) struct Ids {
    next: AtomicU64,
}

impl Ids {
    pub(super) const fn new() -> Self {
        Self { next: AtomicU64::new(1) }
    }

    /// Returns a number, never 0, that no other object of this fabric has.
    pub(crate) fn unique(&self) -> u64 {
        self.next.fetch_add(1, Ordering::Relaxed)
    }
}
