//! The timers of a reliable connection: codes that stand for durations.

use core::fmt;
use core::time::Duration;

use crate::macros::code;

/// The time that a requester waits for an acknowledgement before it retransmits
/// (`ibv_qp_attr.timeout`, 5 bits). The time is 4.096 µs * 2^code; code 0 means no limit.
///
/// The time is a lower bound: a device may wait up to four times as long (IBTA vol 1, section
/// 9.7.6.1.3). Many devices have their own minimum.
///
/// # Examples
///
/// ```
/// use std::time::Duration;
/// use rdma_types::AckTimeout;
///
/// let timeout = AckTimeout::min_duration_greater_than(Duration::from_millis(50)).unwrap();
/// assert_eq!(timeout.code(), 14);
/// assert_eq!(timeout.duration(), Some(Duration::from_nanos(67_108_864)));
/// assert_eq!(AckTimeout::unlimited().duration(), None);
/// ```
#[derive(Clone, Copy, PartialEq, Eq, Hash)]
#[cfg_attr(feature = "serde", derive(serde::Serialize, serde::Deserialize))]
#[cfg_attr(feature = "serde", serde(try_from = "u8", into = "u8"))]
pub struct AckTimeout(u8);

code!(AckTimeout, "ack timeout code", 0..=31);

impl AckTimeout {
    /// Creates the timeout with this code; returns `None` unless the code is in `1..=31`. Code 0
    /// means no timeout; see [`unlimited`](Self::unlimited).
    #[inline]
    pub const fn limited(code: u8) -> Option<Self> {
        if code == 0 { None } else { Self::from_code(code) }
    }

    /// Returns the infinite timeout: nothing is ever retransmitted, and the loss of the peer is
    /// never detected.
    #[inline]
    pub const fn unlimited() -> Self {
        Self(0)
    }

    /// Returns the shortest timeout that is at least this long. The shortest of all is 8.192 µs.
    /// Returns `None` if the duration exceeds the longest timeout, about 2 hours 26 minutes.
    pub fn min_duration_greater_than(duration: Duration) -> Option<Self> {
        (1..=31).map(Self).find(|timeout| timeout.duration() >= Some(duration))
    }

    /// Returns the duration, or `None` if it is unlimited.
    #[inline]
    pub const fn duration(self) -> Option<Duration> {
        match self.0 {
            0 => None,
            code => Some(Duration::from_nanos(4096 << code)),
        }
    }
}

/// Returns 67 ms (code 14), which most programs choose: long enough for a busy network.
impl Default for AckTimeout {
    fn default() -> Self {
        Self(14)
    }
}

impl fmt::Debug for AckTimeout {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.duration() {
            Some(duration) => write!(f, "AckTimeout({}: {duration:?})", self.0),
            None => f.write_str("AckTimeout(0: unlimited)"),
        }
    }
}

/// The time that a requester waits after a "receiver not ready" (RNR) response before it retries
/// (`ibv_qp_attr.min_rnr_timer`, 5 bits). The receiving side sets this for its peer.
///
/// IBTA vol 1, table 45, defines the 32 durations. Code 1 is 10 µs, code 31 is 491.52 ms, and code
/// 0 is the longest, 655.36 ms.
///
/// # Examples
///
/// ```
/// use std::time::Duration;
/// use rdma_types::MinRnrTimer;
///
/// let timer = MinRnrTimer::min_duration_greater_than(Duration::from_micros(500));
/// assert_eq!((timer.code(), timer.duration()), (12, Duration::from_micros(640)));
/// ```
#[derive(Clone, Copy, PartialEq, Eq, Hash)]
#[cfg_attr(feature = "serde", derive(serde::Serialize, serde::Deserialize))]
#[cfg_attr(feature = "serde", serde(try_from = "u8", into = "u8"))]
pub struct MinRnrTimer(u8);

code!(MinRnrTimer, "min RNR timer code", 0..=31);

/// Durations in units of 10 µs, by code.
const RNR_TENS_OF_MICROS: [u32; 32] = [
    65536, 1, 2, 3, 4, 6, 8, 12, 16, 24, 32, 48, 64, 96, 128, 192, 256, 384, 512, 768, 1024, 1536,
    2048, 3072, 4096, 6144, 8192, 12288, 16384, 24576, 32768, 49152,
];

impl MinRnrTimer {
    /// Creates the timer with this code; returns `None` unless the code is in `1..=31`. The
    /// durations increase with the code. For code 0, see [`longest`](Self::longest).
    #[inline]
    pub const fn limited(code: u8) -> Option<Self> {
        if code == 0 { None } else { Self::from_code(code) }
    }

    /// Returns the longest timer, 655.36 ms (code 0).
    #[inline]
    pub const fn longest() -> Self {
        Self(0)
    }

    /// Returns the shortest timer that is at least this long, or the [`longest`](Self::longest) if
    /// there is none.
    pub fn min_duration_greater_than(duration: Duration) -> Self {
        (1..=31).map(Self).find(|timer| timer.duration() >= duration).unwrap_or(Self::longest())
    }

    /// Returns the duration.
    #[inline]
    pub const fn duration(self) -> Duration {
        Duration::from_micros(RNR_TENS_OF_MICROS[self.0 as usize] as u64 * 10)
    }
}

/// Returns 0.64 ms (code 12), the default in rdma-core's programs. A request that found no receive
/// is retried soon.
impl Default for MinRnrTimer {
    fn default() -> Self {
        Self(12)
    }
}

impl fmt::Debug for MinRnrTimer {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "MinRnrTimer({}: {:?})", self.0, self.duration())
    }
}

#[cfg(test)]
mod tests {
    use std::format;

    use super::*;

    fn micros(duration: u64) -> Duration {
        Duration::from_micros(duration)
    }

    #[test]
    fn ack_timeout_doubles_with_each_code() {
        assert_eq!(AckTimeout::limited(1).unwrap().duration(), Some(Duration::from_nanos(8192)));
        let longest = AckTimeout::limited(31).unwrap().duration().unwrap();
        assert_eq!(longest, Duration::from_nanos(8_796_093_022_208));
    }

    #[test]
    fn ack_timeout_is_never_shorter_than_asked_for() {
        let code = |nanos| {
            AckTimeout::min_duration_greater_than(Duration::from_nanos(nanos)).map(AckTimeout::code)
        };
        assert_eq!(code(0), Some(1));
        assert_eq!(code(8192), Some(1));
        assert_eq!(code(8193), Some(2));
        assert_eq!(code(4096 << 31), Some(31));
        assert_eq!(code((4096 << 31) + 1), None);
        assert_eq!(AckTimeout::min_duration_greater_than(Duration::MAX), None);
    }

    #[test]
    fn illegal_codes_are_refused() {
        assert_eq!((AckTimeout::limited(0), AckTimeout::limited(32)), (None, None));
        assert_eq!((MinRnrTimer::limited(0), MinRnrTimer::limited(32)), (None, None));
        assert_eq!(AckTimeout::from_code(0), Some(AckTimeout::unlimited()));
        assert_eq!(MinRnrTimer::from_code(0), Some(MinRnrTimer::longest()));
        assert!(AckTimeout::try_from(32).is_err() && MinRnrTimer::try_from(255).is_err());
    }

    #[test]
    fn rnr_timer_matches_the_table_of_the_specification() {
        let spots = [(0, 655_360), (1, 10), (5, 60), (12, 640), (14, 1_280), (16, 2_560)];
        let more = [(20, 10_240), (25, 61_440), (28, 163_840), (31, 491_520)];
        for (code, expected) in spots.into_iter().chain(more) {
            assert_eq!(
                MinRnrTimer::from_code(code).unwrap().duration(),
                micros(expected),
                "{code}"
            );
        }
    }

    #[test]
    fn rnr_timer_grows_with_the_code_and_zero_is_longest() {
        let durations =
            (1..=31).chain([0]).map(|code| MinRnrTimer::from_code(code).unwrap().duration());
        assert!(durations.is_sorted_by(|a, b| a < b));
    }

    #[test]
    fn rnr_timer_is_never_shorter_than_asked_for_while_one_is_long_enough() {
        let code = |asked| MinRnrTimer::min_duration_greater_than(micros(asked)).code();
        assert_eq!([code(0), code(10), code(11), code(491_520)], [1, 1, 2, 31]);
        assert_eq!([code(491_521), code(655_360), code(9_000_000)], [0, 0, 0]);
    }

    #[test]
    fn debug_shows_code_and_duration() {
        let shown = format!("{:?} {:?}", AckTimeout::default(), AckTimeout::unlimited());
        assert_eq!(shown, "AckTimeout(14: 67.108864ms) AckTimeout(0: unlimited)");
        assert_eq!(format!("{:?}", MinRnrTimer::default()), "MinRnrTimer(12: 640µs)");
    }
}
