//! Deadlines.

use std::time::{Duration, Instant};

/// A deadline; none if the clock cannot represent it.
#[derive(Clone, Copy, Debug)]
pub struct Until(Option<Instant>);

impl Until {
    /// The deadline after this time.
    #[must_use]
    pub fn after(now: Instant, limit: Duration) -> Self {
        Self(now.checked_add(limit))
    }

    /// The time that is left; [`Duration::MAX`] if it never ends.
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
