//! Time, which the caller supplies.

use core::time::Duration;

/// A point in time, in nanoseconds of the caller's clock. This crate reads no clock.
///
/// # Examples
///
/// ```
/// use std::time::Duration;
/// use rdma_proto::Time;
///
/// let start = Time::from_nanos(1_000);
/// assert_eq!(start.after(Duration::from_micros(2)).as_nanos(), 3_000);
/// assert_eq!(Time::from_nanos(u64::MAX).after(Duration::MAX).as_nanos(), u64::MAX);
/// ```
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Time(u64);

impl Time {
    /// Returns the time `nanos` nanoseconds after the clock's zero.
    #[must_use]
    pub const fn from_nanos(nanos: u64) -> Self {
        Self(nanos)
    }

    /// Returns the nanoseconds since the clock's zero.
    #[must_use]
    pub const fn as_nanos(self) -> u64 {
        self.0
    }

    /// Returns the time `nanos` nanoseconds later.
    #[must_use]
    #[inline]
    pub(crate) const fn plus(self, nanos: u64) -> Self {
        Self(self.0.saturating_add(nanos))
    }

    /// Returns the nanoseconds since `earlier`.
    #[must_use]
    #[inline]
    pub(crate) const fn since(self, earlier: Self) -> u64 {
        self.0.saturating_sub(earlier.0)
    }

    /// Returns the time `duration` later, but at most the last representable time.
    #[must_use]
    pub fn after(self, duration: Duration) -> Self {
        self.plus(nanos(duration))
    }
}

/// Converts a duration to nanoseconds; one that is too long becomes `u64::MAX`.
pub(crate) fn nanos(duration: Duration) -> u64 {
    u64::try_from(duration.as_nanos()).unwrap_or(u64::MAX)
}
