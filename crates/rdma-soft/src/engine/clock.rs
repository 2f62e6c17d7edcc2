//! The device's clock: the system's monotonic one.

use rustix::time::{ClockId, Timespec, clock_gettime};

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
