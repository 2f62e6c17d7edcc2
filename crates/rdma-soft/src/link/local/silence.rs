//! The time since a process began to owe a sign of life.

use std::time::Duration;

use crate::fabric::clock::Time;

/// The time since a process began to owe a sign of life.
#[derive(Debug, Default)]
pub(super) struct Silence {
    /// The time at which the ring became full. Used for datagrams, which are dropped after a while.
    pub(super) stalled: Option<Time>,
    /// The time at which the ring became full or a question was asked.
    since: Option<Time>,
    /// Whether half of the limit has passed.
    noticed: bool,
    /// Whether the whole limit has passed.
    expired: bool,
}

/// The parts of the limit that have passed since the last check.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub(super) struct Passed {
    pub(super) half: bool,
    pub(super) all: bool,
}

impl Silence {
    /// Records that the process owes a sign of life from now on.
    pub(super) fn begin(&mut self, now: Time) {
        self.since.get_or_insert(now);
    }

    /// Records that the process no longer owes a sign of life.
    pub(super) fn end(&mut self) {
        *self = Self::default();
    }

    /// Returns true if the limit has passed.
    pub(super) fn is_expired(&self) -> bool {
        self.expired
    }

    /// Returns the parts of the limit that have passed, reporting each part once.
    pub(super) fn take_passed(&mut self, now: Time, limit: Duration) -> Passed {
        let Some(since) = self.since else { return Passed::default() };
        let half = !self.noticed && since + limit / 2 <= now;
        let all = !self.expired && since + limit <= now;
        self.noticed |= half;
        self.expired |= all;
        Passed { half, all }
    }

    /// Returns the time at which the next part passes.
    pub(super) fn next(&self, limit: Duration) -> Option<Time> {
        let since = self.since.filter(|_| !self.expired)?;
        Some(since + if self.noticed { limit } else { limit / 2 })
    }
}
