//! The wait for a receiver that is not ready (RNR).

use rdma_types::{MaxRnrRetries, MinRnrTimer};

use crate::time::Time;

/// The wait that an RNR NAK requests, and the RNR retry counter (IBTA section 9.7.5.2.8).
#[derive(Debug)]
pub(super) struct NotReady {
    limit: MaxRnrRetries,
    /// The number of waits so far.
    tries: u8,
    /// The time at which sending may resume.
    pub(super) until: Option<Time>,
}

impl NotReady {
    pub(super) fn new(limit: MaxRnrRetries) -> Self {
        Self { limit, tries: 0, until: None }
    }

    pub(super) fn set_limit(&mut self, limit: MaxRnrRetries) {
        *self = Self { until: self.until, ..Self::new(limit) };
    }

    /// Resets the counter, because the peer has accepted a packet.
    pub(super) fn progress(&mut self) {
        self.tries = 0;
        self.until = None;
    }

    /// Begins the wait that the peer requests. Returns true if the request may be retried
    /// afterwards.
    pub(super) fn wait(&mut self, now: Time, timer: MinRnrTimer) -> bool {
        if self.limit.retries().is_some_and(|limit| self.tries >= limit) {
            return false;
        }
        self.tries = self.tries.saturating_add(1);
        self.until = Some(now.after(timer.duration()));
        true
    }

    /// Returns true if the wait is not over at the time `now`.
    pub(super) fn waits(&mut self, now: Time) -> bool {
        if self.until.is_some_and(|until| until <= now) {
            self.until = None;
        }
        self.until.is_some()
    }
}
