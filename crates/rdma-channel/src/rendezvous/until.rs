//! Until when to wait.

use std::time::{Duration, Instant};

/// The end of a time that has begun; none if the clock cannot count so far.
#[derive(Clone, Copy, Debug)]
pub struct Until(Option<Instant>);

impl Until {
    /// So long from now.
    pub fn after(limit: Duration) -> Self {
        Self(Instant::now().checked_add(limit))
    }

    /// [`Duration::MAX`] if there is no end.
    pub fn left(&self) -> Duration {
        self.0.map_or(Duration::MAX, |end| end.saturating_duration_since(Instant::now()))
    }

    /// The end, if there is one.
    pub(super) const fn end(&self) -> Option<Instant> {
        self.0
    }

    /// Returns true if it is over at that time.
    pub(super) fn is_over_at(&self, now: Instant) -> bool {
        self.0.is_some_and(|end| end <= now)
    }

    /// Whether it is over.
    pub fn is_over(&self) -> bool {
        self.left().is_zero()
    }
}
