//! Until when to wait.

use std::time::{Duration, Instant};

/// The end of a time that has begun; none if the clock cannot count so far.
#[derive(Clone, Copy, Debug)]
pub struct Until(Option<Instant>);

impl Until {
    /// The end of a time of this length that begins now.
    #[must_use]
    pub fn after(now: Instant, limit: Duration) -> Self {
        Self(now.checked_add(limit))
    }

    /// The time that is left; [`Duration::MAX`] if there is no end.
    #[must_use]
    pub fn left(self, now: Instant) -> Duration {
        self.0.map_or(Duration::MAX, |end| end.saturating_duration_since(now))
    }

    /// Returns true if the time is over.
    #[must_use]
    pub fn is_over(self, now: Instant) -> bool {
        self.left(now).is_zero()
    }
}
