//! Which QPNs of a host are in use or rest.

use std::time::Duration;

use rdma_cm::{End as Cause, Reason};

use super::end::{End, Phase};

/// The state of a QPN.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Rest {
    /// A connection has the QPN, so no other can.
    InUse,
    /// The QPN rests from this time on, for the length of TimeWait.
    Since(Duration),
    /// The messages of a dropped connection may still be repeated, or it may rest.
    Unknown,
    /// Any connection may have the QPN.
    Free,
}

impl Rest {
    /// Returns the state of the QPN of an end that has ended now.
    pub(super) fn after(end: &End, cause: &Cause, now: Duration) -> Self {
        match (end.phase, cause) {
            (Phase::Connecting, Cause::Rejected { reason: Reason::STALE_CONNECTION, .. }) => {
                Self::Since(now)
            }
            // Before a REP, the queue pairs of a connection cannot send.
            (Phase::Connecting | Phase::Asked, _) => Self::Free,
            _ => Self::Since(now),
        }
    }

    /// Returns whether a new connection with the QPN is refused, if that is certain.
    pub(super) fn is_refused(self, now: Duration, time_wait: Duration) -> Option<bool> {
        match self {
            Self::InUse => Some(true),
            Self::Free => Some(false),
            Self::Unknown => None,
            Self::Since(since) if now < since + time_wait => Some(true),
            // At the very end, the timer may not have expired yet.
            Self::Since(since) => (now > since + time_wait).then_some(false),
        }
    }
}
