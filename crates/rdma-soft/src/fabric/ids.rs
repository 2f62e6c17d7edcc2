//! Numbers by which objects are told apart.

use std::sync::atomic::{AtomicU64, Ordering};

/// A number that no other object of this process has; never 0.
pub(crate) fn unique_id() -> u64 {
    static NEXT: AtomicU64 = AtomicU64::new(1);
    NEXT.fetch_add(1, Ordering::Relaxed)
}
