//! When the receiver is not ready.

use rdma_types::{MaxRnrRetries, MinRnrTimer};

use crate::Time;

/// The wait that an RNR NAK asks for, and its counter (IBTA section 9.7.5.2.8).
#[derive(Debug)]
pub(super) struct NotReady {
    limit: MaxRnrRetries,
    left: Option<u8>,
    /// Nothing is sent before that.
    pub(super) until: Option<Time>,
}

impl NotReady {
    pub(super) fn new(limit: MaxRnrRetries) -> Self {
        Self { limit, left: limit.retries(), until: None }
    }

    /// The peer has taken something.
    pub(super) fn progress(&mut self) {
        self.left = self.limit.retries();
        self.until = None;
    }

    /// The peer asks to be left alone for a while. Says whether to try again then.
    pub(super) fn wait(&mut self, now: Time, timer: MinRnrTimer) -> bool {
        if let Some(left) = &mut self.left {
            match left.checked_sub(1) {
                Some(less) => *left = less,
                None => return false,
            }
        }
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
