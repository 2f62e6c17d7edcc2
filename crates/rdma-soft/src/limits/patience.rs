//! Time limits for unresponsive peers, in addition to each queue pair's own timeout settings.

use std::time::Duration;

use rdma_types::AckTimeout;

use crate::environment::variable::{Mistake, variable};

/// The two time limits, which the environment or a builder can set.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Patience {
    /// The longest time that a live process on this host may be silent.
    pub(crate) process: Duration,
    /// A request to another host is retried for at least this long.
    pub(crate) host: Duration,
}

impl Patience {
    /// The default durations.
    pub(crate) const USUAL: Self =
        Self { process: Duration::from_secs(60), host: Duration::from_secs(2) };

    /// Returns the limits that the environment sets, or their defaults.
    ///
    /// # Errors
    /// Fails if a variable has another value than a number of seconds.
    pub(crate) fn of_environment() -> Result<Self, Mistake> {
        let usual = Self::USUAL;
        Ok(Self {
            process: duration("RDMA_SOFT_PEER_LIMIT")?.unwrap_or(usual.process),
            host: duration("RDMA_SOFT_RETRY_TIME")?.unwrap_or(usual.host),
        })
    }
}

/// The maximum number of seconds that a variable can set: a year.
const MOST_SECONDS: f64 = 31_536_000.0;

/// Returns the duration that an environment variable sets.
fn duration(name: &'static str) -> Result<Option<Duration>, Mistake> {
    let Some(text) = variable(name) else { return Ok(None) };
    let duration = seconds(&text).ok_or_else(|| {
        let reason =
            format!("`{text}` is not a number of seconds from 0 to {MOST_SECONDS}, such as 0.5");
        Mistake { variable: name, reason }
    })?;
    Ok(Some(duration))
}

fn seconds(text: &str) -> Option<Duration> {
    let seconds = text.trim().parse().ok()?;
    let is_allowed = (0.0..=MOST_SECONDS).contains(&seconds);
    is_allowed.then(|| Duration::from_secs_f64(seconds))
}

/// Returns `timeout` if it is unlimited or at least `least`. Otherwise returns the shortest timeout that is at least
/// `least`, or the longest one if all are shorter.
pub(crate) fn at_least(timeout: AckTimeout, least: Duration) -> AckTimeout {
    let is_short = |timeout: &AckTimeout| timeout.duration().is_some_and(|short| short < least);
    let longer = |timeout: &AckTimeout| AckTimeout::limited(timeout.code() + 1);
    let all = std::iter::successors(Some(timeout), longer);
    let last = all.take_while(is_short).last();
    last.map_or(timeout, |last| longer(&last).unwrap_or(last))
}

#[cfg(all(test, not(loom)))]
mod tests {
    use super::*;

    #[test]
    fn a_duration_is_a_number_of_seconds() {
        assert_eq!(seconds("60"), Some(Duration::from_secs(60)));
        assert_eq!(seconds(" 0.25 "), Some(Duration::from_millis(250)));
        assert_eq!(seconds("0"), Some(Duration::ZERO));
        for text in ["", "1s", "-1", "inf", "NaN", "31536001"] {
            assert_eq!(seconds(text), None, "{text:?}");
        }
    }

    #[test]
    fn a_timeout_that_is_too_short_is_raised_to_the_next_longer_one() {
        let code = |code, least| {
            let timeout = AckTimeout::from_code(code).unwrap();
            at_least(timeout, Duration::from_nanos(least)).code()
        };
        // 4.096 us times two to the power of the code.
        assert_eq!((code(1, 0), code(1, 8_192), code(1, 8_193), code(1, 16_385)), (1, 1, 2, 3));
        assert_eq!(code(14, 2_000_000_000 / 8), 16);
        assert_eq!((code(20, 1), code(31, u64::MAX), code(1, u64::MAX)), (20, 31, 31));
        assert_eq!(code(0, u64::MAX), 0, "it has no end");
    }
}
