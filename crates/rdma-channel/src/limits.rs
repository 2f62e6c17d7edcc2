//! The time limits of operations, and the way to wait for them.

use std::time::Duration;

use rdma_connect::Operation;

use crate::deadline::{Bound, NO_LIMIT, Wait};

/// The default limits of a channel, by kind.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Limits {
    /// Replaces the limit of each kind of operation, if set.
    pub(crate) within: Option<Duration>,
    pub(crate) send: Duration,
    pub(crate) receive: Duration,
    pub(crate) write: Duration,
    pub(crate) read: Duration,
    pub(crate) atomic: Duration,
    /// The limit for requests in flight when a scope is left.
    pub(crate) drain: Duration,
    /// The limit for the flushed completions after that.
    pub(crate) flush: Duration,
    /// The deadline of all waits of the current scope, with its limit.
    pub(crate) bound: Option<Bound>,
    pub(crate) wait: Wait,
}

impl Limits {
    const USUAL: Duration = Duration::from_secs(30);
    const DRAIN: Duration = Duration::from_secs(5);

    pub(crate) const DEFAULT: Self = Self {
        within: None,
        send: Self::USUAL,
        receive: NO_LIMIT,
        write: Self::USUAL,
        read: Self::USUAL,
        atomic: Self::USUAL,
        drain: Self::DRAIN,
        flush: Self::DRAIN,
        bound: None,
        wait: Wait::SpinThenSleep,
    };

    /// The longest limit of these operations.
    pub(crate) fn longest(&self, operations: impl Iterator<Item = Operation>) -> Duration {
        operations.map(|operation| self.of(operation)).max().unwrap_or_default()
    }

    #[inline]
    pub(crate) const fn of(&self, operation: Operation) -> Duration {
        if let Some(within) = self.within {
            return within;
        }
        match operation {
            Operation::Receive => self.receive,
            Operation::Write => self.write,
            Operation::Read => self.read,
            Operation::Atomic => self.atomic,
            _ => self.send,
        }
    }
}
