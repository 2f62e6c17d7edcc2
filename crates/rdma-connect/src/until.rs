//! Deadlines.

use std::time::{Duration, Instant};

/// A deadline, or none if the clock cannot represent it.
#[derive(Clone, Copy, Debug)]
pub struct Until(Option<Instant>);

impl Until {
    /// Returns the deadline this long after `now`.
    #[must_use]
    pub fn after(now: Instant, limit: Duration) -> Self {
        Self(now.checked_add(limit))
    }

    /// Returns the time left, or [`Duration::MAX`] if there is no deadline.
    #[must_use]
    pub fn left(self, now: Instant) -> Duration {
        self.0.map_or(Duration::MAX, |end| end.saturating_duration_since(now))
    }

    /// Returns true if the deadline has passed.
    #[must_use]
    pub fn is_over(self, now: Instant) -> bool {
        self.left(now).is_zero()
    }
}
