//! How long operations may take, and how they are waited for.

use std::time::Duration;

use crate::deadline::{NO_LIMIT, Wait};
use crate::operation::Operation;

/// The default limits of a channel, by kind.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Limits {
    pub(crate) send: Duration,
    pub(crate) receive: Duration,
    pub(crate) write: Duration,
    pub(crate) read: Duration,
    pub(crate) atomic: Duration,
    /// For what is in flight when a scope is left, and once more for its flushes.
    pub(crate) drain: Duration,
    pub(crate) wait: Wait,
}

impl Limits {
    const USUAL: Duration = Duration::from_secs(30);

    pub(crate) const DEFAULT: Self = Self {
        send: Self::USUAL,
        receive: NO_LIMIT,
        write: Self::USUAL,
        read: Self::USUAL,
        atomic: Self::USUAL,
        drain: Duration::from_secs(5),
        wait: Wait::SpinThenSleep,
    };

    /// The same with one limit for each kind of operation.
    pub(crate) const fn all(self, limit: Duration) -> Self {
        Self { send: limit, receive: limit, write: limit, read: limit, atomic: limit, ..self }
    }

    /// As long as any of these may take.
    pub(crate) fn longest(&self, operations: impl Iterator<Item = Operation>) -> Duration {
        operations.map(|operation| self.of(operation)).max().unwrap_or_default()
    }

    #[inline]
    pub(crate) const fn of(&self, operation: Operation) -> Duration {
        match operation {
            Operation::Send => self.send,
            Operation::Receive => self.receive,
            Operation::Write => self.write,
            Operation::Read => self.read,
            Operation::Atomic => self.atomic,
        }
    }
}
