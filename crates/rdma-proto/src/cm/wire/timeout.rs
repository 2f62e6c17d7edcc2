//! Times in messages of the communication manager.

use core::fmt;
use core::time::Duration;

use crate::time::nanos;

/// A time as a 5-bit code: 4.096 µs times two to the power of the code.
///
/// Unlike in [`AckTimeout`](rdma_types::AckTimeout), code 0 is a time like any other.
///
/// # Examples
///
/// ```
/// use std::time::Duration;
/// use rdma_proto::cm::wire::Timeout;
///
/// let second = Timeout::from_code(18).unwrap();
/// assert_eq!(second.duration(), Duration::from_nanos(1_073_741_824));
/// assert_eq!(Timeout::from_code(32), None);
/// ```
#[derive(Clone, Copy, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Timeout(u8);

impl Timeout {
    /// The longest time: about 2 hours 26 minutes.
    pub const LONGEST: Self = Self(31);

    /// Returns the time with this code, or `None` if the code has more than 5 bits.
    #[must_use]
    pub const fn from_code(code: u8) -> Option<Self> {
        if code <= Self::LONGEST.0 { Some(Self(code)) } else { None }
    }

    /// Returns the time whose code is in the upper 5 bits.
    pub(super) const fn upper(byte: u8) -> Self {
        Self(byte >> 3)
    }

    /// Returns the code.
    #[must_use]
    pub const fn code(self) -> u8 {
        self.0
    }

    /// Returns the time.
    #[must_use]
    pub const fn duration(self) -> Duration {
        Duration::from_nanos(4096 << self.0)
    }

    /// Returns the time in nanoseconds.
    pub(crate) fn nanos(self) -> u64 {
        nanos(self.duration())
    }
}

impl fmt::Debug for Timeout {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Timeout({}: {:?})", self.0, self.duration())
    }
}
