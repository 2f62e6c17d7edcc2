//! When nothing comes back.

use rdma_types::{AckTimeout, MaxAckRetries};

use crate::Time;
use crate::time::nanos;

/// The transport timer and the retry counter (IBTA sections 9.7.6.1.3 and 9.7.6.1.4).
#[derive(Debug)]
pub(super) struct Retry {
    /// In nanoseconds.
    timeout: Option<u64>,
    limit: u8,
    /// How often the oldest packet was sent again.
    tries: u8,
    /// When to send again, if something is under way.
    pub(super) deadline: Option<Time>,
    /// Whether the oldest packet has been sent again since it was found missing by what came behind it.
    /// All that is still under way from before would find the same: once per gap is enough.
    repaired: bool,
}

impl Retry {
    pub(super) fn new(timeout: AckTimeout, limit: MaxAckRetries) -> Self {
        let (timeout, limit) = (timeout.duration().map(nanos), limit.retries());
        Self { timeout, limit, tries: 0, deadline: None, repaired: false }
    }

    /// Something is under way: the timer runs, unless it does already.
    #[inline]
    pub(super) fn start(&mut self, now: Time) {
        if self.deadline.is_none() {
            self.deadline = self.timeout.map(|timeout| now.plus(timeout));
        }
    }

    /// The peer has taken something: all begins anew.
    #[inline]
    pub(super) fn progress(&mut self, now: Time, under_way: bool) {
        self.tries = 0;
        self.repaired = false;
        self.deadline = None;
        if under_way {
            self.start(now);
        }
    }

    /// The peer lives, although it took nothing.
    pub(super) fn alive(&mut self) {
        self.tries = 0;
        self.repaired = false;
    }

    /// Nothing came in time. Says whether to try again.
    pub(super) fn timed_out(&mut self) -> bool {
        self.repaired = false;
        self.once_more()
    }

    /// A packet is missing, as what came shows. Says whether to try again; `None` if that is done already.
    pub(super) fn missing(&mut self) -> Option<bool> {
        if self.repaired {
            return None;
        }
        self.repaired = true;
        Some(self.once_more())
    }

    /// Seven is seven here, unlike for "receiver not ready".
    fn once_more(&mut self) -> bool {
        self.deadline = None;
        let again = self.tries < self.limit;
        self.tries = self.tries.saturating_add(1);
        again
    }
}
