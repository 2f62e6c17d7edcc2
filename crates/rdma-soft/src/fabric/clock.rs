//! The device's clock: the system's monotonic one.

use std::ops::Add;
use std::time::Duration;

use rustix::time::{ClockId, Timespec, clock_gettime};

/// A moment of the clock.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) struct Time(u64);

impl Time {
    /// Before every other moment.
    pub(crate) const AT_ONCE: Self = Self(0);

    pub(crate) fn now() -> Self {
        Self(ticks())
    }

    pub(crate) fn from_nanoseconds(nanoseconds: u64) -> Self {
        Self(nanoseconds)
    }

    pub(crate) fn nanoseconds(self) -> u64 {
        self.0
    }

    /// How long after `earlier` this is; nothing, if it is before.
    pub(crate) fn since(self, earlier: Self) -> Duration {
        Duration::from_nanos(self.0.saturating_sub(earlier.0))
    }
}

impl Add<Duration> for Time {
    type Output = Self;
    fn add(self, later: Duration) -> Self {
        Self(self.0.saturating_add(u64::try_from(later.as_nanos()).unwrap_or(u64::MAX)))
    }
}

/// What the clock ticks at: it counts nanoseconds.
pub(crate) const KILOHERTZ: u64 = 1_000_000;

/// What the clock says.
pub(crate) fn ticks() -> u64 {
    nanoseconds(clock_gettime(ClockId::Monotonic))
}

/// That time of the clock in nanoseconds since 1970, as the system has it now.
pub(crate) fn wallclock(ticks: u64) -> u64 {
    let ago = self::ticks().wrapping_sub(ticks);
    nanoseconds(clock_gettime(ClockId::Realtime)).wrapping_sub(ago)
}

/// Of a time after its clock's beginning.
fn nanoseconds(time: Timespec) -> u64 {
    let seconds = time.tv_sec.unsigned_abs();
    seconds.wrapping_mul(1_000_000_000).wrapping_add(time.tv_nsec.unsigned_abs())
}
