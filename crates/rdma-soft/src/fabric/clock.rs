//! The clock of a fabric. Devices of the fabric read no other clock.

use std::ops::Add;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use rustix::time::{ClockId, clock_gettime};

/// A source of time.
#[derive(Debug)]
pub(crate) enum Clock {
    /// The system's monotonic clock.
    #[cfg_attr(loom, allow(dead_code))]
    System,
    /// A clock that only a simulation, a model or a test advances. Loom does not explore it.
    Virtual(AtomicU64),
}

impl Clock {
    /// Creates a virtual clock that is at its [beginning](Time::BEGINNING).
    pub(super) const fn stopped() -> Self {
        Self::Virtual(AtomicU64::new(Time::BEGINNING.0))
    }

    /// Advances a virtual clock to `time`, unless the clock is already past it.
    pub(crate) fn advance_to(&self, time: Time) {
        if let Self::Virtual(now) = self {
            now.fetch_max(time.0, Ordering::Relaxed);
        }
    }

    pub(crate) fn now(&self) -> Time {
        match self {
            Self::System => Time(system_nanoseconds(ClockId::Monotonic)),
            Self::Virtual(now) => Time(now.load(Ordering::Relaxed)),
        }
    }

    /// Converts a time to nanoseconds since 1970, using the system's current clock. A virtual clock is treated as if it
    /// had begun in 1970.
    pub(crate) fn wallclock(&self, time: Time) -> u64 {
        match self {
            Self::System => {
                let ago = self.now().0.wrapping_sub(time.0);
                system_nanoseconds(ClockId::Realtime).wrapping_sub(ago)
            }
            Self::Virtual(_) => time.0,
        }
    }
}

/// A point in time, in nanoseconds since the clock's beginning.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) struct Time(u64);

impl Time {
    /// A time before all others.
    pub(crate) const AT_ONCE: Self = Self(0);
    /// The time at which virtual clocks begin.
    pub(crate) const BEGINNING: Self = Self(1);
    /// A time after all others.
    pub(crate) const END: Self = Self(u64::MAX);

    pub(crate) const fn from_nanoseconds(nanoseconds: u64) -> Self {
        Self(nanoseconds)
    }

    pub(crate) fn nanoseconds(self) -> u64 {
        self.0
    }

    /// Returns the duration from `earlier` to `self`, or zero if `self` is before `earlier`.
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

/// The rate of the clock in kHz. The clock counts nanoseconds.
pub(crate) const KILOHERTZ: u64 = 1_000_000;

/// Reads one of the system's clocks, in nanoseconds since its beginning.
#[expect(clippy::disallowed_methods, reason = "this is the clock")]
fn system_nanoseconds(clock: ClockId) -> u64 {
    let time = clock_gettime(clock);
    let seconds = time.tv_sec.unsigned_abs();
    seconds.wrapping_mul(1_000_000_000).wrapping_add(time.tv_nsec.unsigned_abs())
}
