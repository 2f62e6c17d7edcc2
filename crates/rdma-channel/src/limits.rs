//! The time limits of operations, and how to wait for operations.

use std::time::Duration;

use rdma_connect::Operation;

use crate::deadline::{Bound, NO_LIMIT, Wait};

/// A channel's default time limits, by kind of operation.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Limits {
    /// Replaces the limits of all kinds of operations, if set.
    pub(crate) within: Option<Duration>,
    pub(crate) send: Duration,
    pub(crate) receive: Duration,
    pub(crate) write: Duration,
    pub(crate) read: Duration,
    pub(crate) atomic: Duration,
    /// The limit for requests that are in flight when a scope ends.
    pub(crate) drain: Duration,
    /// The limit for flushing requests, for example those that are still in flight when `drain` expires.
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

    /// Returns the longest limit of these operations.
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
