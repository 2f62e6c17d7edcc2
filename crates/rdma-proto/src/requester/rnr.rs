//! When the receiver is not ready.

use rdma_types::{MaxRnrRetries, MinRnrTimer};

use crate::time::Time;

/// The wait that an RNR NAK asks for, and its counter (IBTA section 9.7.5.2.8).
#[derive(Debug)]
pub(super) struct NotReady {
    limit: MaxRnrRetries,
    /// How often that was waited for.
    tries: u8,
    /// Nothing is sent before that.
    pub(super) until: Option<Time>,
}

impl NotReady {
    pub(super) fn new(limit: MaxRnrRetries) -> Self {
        Self { limit, tries: 0, until: None }
    }

    pub(super) fn set_limit(&mut self, limit: MaxRnrRetries) {
        *self = Self { until: self.until, ..Self::new(limit) };
    }

    /// The peer has taken something.
    pub(super) fn progress(&mut self) {
        self.tries = 0;
        self.until = None;
    }

    /// The peer asks to be left alone for a while. Says whether to try again then.
    pub(super) fn wait(&mut self, now: Time, timer: MinRnrTimer) -> bool {
        if self.limit.retries().is_some_and(|limit| self.tries >= limit) {
            return false;
        }
        self.tries = self.tries.saturating_add(1);
        self.until = Some(now.after(timer.duration()));
        true
    }

    /// Whether it is still too early.
    pub(super) fn waits(&mut self, now: Time) -> bool {
        if self.until.is_some_and(|until| until <= now) {
            self.until = None;
        }
        self.until.is_some()
    }
}
