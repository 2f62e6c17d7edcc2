//! The clock of a fabric: its devices read no other.

use std::ops::Add;
use std::time::Duration;

use rustix::time::{ClockId, clock_gettime};

/// A clock.
#[derive(Debug)]
pub(crate) enum Clock {
    /// The system's monotonic one.
    #[cfg_attr(loom, allow(dead_code))]
    System,
    /// One that stands still but where a model or a test has it go on. The model checker does not see it.
    #[cfg(any(test, loom))]
    OfModel(std::sync::atomic::AtomicU64),
}

impl Clock {
    #[cfg(any(test, loom))]
    pub(super) fn of_model() -> Self {
        // Later than `Time::AT_ONCE`.
        Self::OfModel(std::sync::atomic::AtomicU64::new(1))
    }

    /// So much time passes.
    #[cfg(any(test, loom))]
    pub(crate) fn go_on(&self, by: Duration) {
        if let Self::OfModel(time) = self {
            let later = self.now() + by;
            time.store(later.0, std::sync::atomic::Ordering::Relaxed);
        }
    }

    pub(crate) fn now(&self) -> Time {
        match self {
            Self::System => Time(system_nanoseconds(ClockId::Monotonic)),
            #[cfg(any(test, loom))]
            Self::OfModel(time) => Time(time.load(std::sync::atomic::Ordering::Relaxed)),
        }
    }

    /// That time in nanoseconds since 1970, as the system has it now.
    pub(crate) fn wallclock(&self, time: Time) -> u64 {
        match self {
            Self::System => {
                let ago = self.now().0.wrapping_sub(time.0);
                system_nanoseconds(ClockId::Realtime).wrapping_sub(ago)
            }
            #[cfg(any(test, loom))]
            Self::OfModel(_) => time.0,
        }
    }
}

/// A moment of a clock, in nanoseconds since its beginning.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) struct Time(u64);

impl Time {
    /// Before every other moment.
    pub(crate) const AT_ONCE: Self = Self(0);

    pub(crate) const fn from_nanoseconds(nanoseconds: u64) -> Self {
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

/// What a clock ticks at: it counts nanoseconds.
pub(crate) const KILOHERTZ: u64 = 1_000_000;

/// What one of the system's clocks says, since its beginning.
#[expect(clippy::disallowed_methods, reason = "this is the clock")]
fn system_nanoseconds(clock: ClockId) -> u64 {
    let time = clock_gettime(clock);
    let seconds = time.tv_sec.unsigned_abs();
    seconds.wrapping_mul(1_000_000_000).wrapping_add(time.tv_nsec.unsigned_abs())
}
