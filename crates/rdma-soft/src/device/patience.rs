//! How long a peer that answers nothing is waited for, beside what queue pairs say of it.

use std::time::Duration;

/// Two durations, which the environment or a builder sets.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Patience {
    /// How long a process of this host may be there and answer nothing.
    pub(crate) process: Duration,
    /// How long a request to another host is retried at least.
    pub(crate) host: Duration,
}

impl Patience {
    /// Those that neither sets.
    pub(crate) const USUAL: Self =
        Self { process: Duration::from_secs(60), host: Duration::from_secs(2) };

    /// What the environment says.
    pub(crate) fn of_environment() -> Self {
        let usual = Self::USUAL;
        Self {
            process: variable("RDMA_SOFT_PEER_LIMIT").unwrap_or(usual.process),
            host: variable("RDMA_SOFT_RETRY_TIME").unwrap_or(usual.host),
        }
    }
}

/// The seconds that a variable says, if it is set.
fn variable(name: &str) -> Option<Duration> {
    let text = std::env::var_os(name)?;
    let duration = seconds(&text.to_string_lossy());
    if duration.is_none() {
        tracing::warn!(
            variable = name,
            value = ?text,
            "the variable is ignored: it is a number of seconds, such as `60` or `0.5`"
        );
    }
    duration
}

fn seconds(text: &str) -> Option<Duration> {
    Duration::try_from_secs_f64(text.trim().parse().ok()?).ok()
}

#[cfg(all(test, not(loom)))]
mod tests {
    use super::*;

    #[test]
    fn a_duration_is_a_number_of_seconds() {
        assert_eq!(seconds("60"), Some(Duration::from_secs(60)));
        assert_eq!(seconds(" 0.25 "), Some(Duration::from_millis(250)));
        assert_eq!(seconds("0"), Some(Duration::ZERO));
        for text in ["", "1s", "-1", "inf", "NaN", "1e30"] {
            assert_eq!(seconds(text), None, "{text:?}");
        }
    }
}
