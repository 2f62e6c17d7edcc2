//! Errors from lending memory.

use std::time::Duration;

use rdma_connect::CloseReason;
use rdma_mem::{AccessFlags, Error, Recovery};

use crate::region::memory::Region;

/// An error from lending or borrowing memory.
#[derive(thiserror::Error)]
#[non_exhaustive]
pub enum LeaseError {
    /// This connection has no control connection, or the other end is a channel.
    #[error(
        "leases need a control connection to a peer that uses this crate, and this connection has \
         none: create one with `Driver::connect` and `Driver::listen`"
    )]
    NoControl,
    /// The connection has ended, for this reason if it is known. If `receive_lease` or `receive_region` returns this,
    /// nothing more will arrive, usually because the peer has disconnected.
    #[error("the connection has ended{}", since(*.0))]
    Closed(Option<CloseReason>),
    /// The peer does not lend the requested memory.
    #[error("the peer does not lend the memory: {0}")]
    Denied(LeaseDenial),
    /// The peer did not answer in time, or earlier requests of this end still wait for answers. Memory that the peer
    /// grants later returns to the peer automatically, so the request can be repeated.
    #[error("the peer has not answered within {limit:?}: check that its program is running")]
    Timeout {
        /// The time that this end waited.
        limit: Duration,
    },
    /// The connection does not give its peer these rights.
    #[error(
        "the connection grants its peer {granted}, not {asked}: create its options from \
        `pd.create_qp().access(…)` with these rights"
    )]
    NotGranted {
        /// The rights of the lease.
        asked: AccessFlags,
        /// The rights that the queue pair allows.
        granted: AccessFlags,
    },
    /// The memory cannot be opened to the peer. Borrowing 0 bytes also fails with this error.
    #[error("the memory was not opened to the peer: {0}")]
    NotOpened(Box<Error>),
    /// The connection ended before the lease was made, and the provider refuses to close the memory, which is never
    /// used again. Peers may still reach the memory through the connections of its protection domain, until these are
    /// closed.
    #[error(
        "the memory could not be closed ({0}): close the connections of its domain, through which \
         peers may still reach it"
    )]
    NotRevoked(Box<Error>),
    /// The runtime has shut down, and with it the threads that call the provider. The memory is closed and freed.
    #[error("the runtime ended before the memory was opened: keep it running until then")]
    RuntimeEnded,
}

rdma_types::debug_messages!(enum LeaseError {
    NoControl, Closed(it), Denied(it), Timeout { limit }, NotGranted { asked, granted },
    NotOpened(it), NotRevoked(it), RuntimeEnded,
});

impl LeaseError {
    /// Returns how a program can recover from the error. After [`NotRevoked`](Self::NotRevoked), close *all*
    /// connections of the protection domain, because peers can reach the memory through them.
    ///
    /// ```
    /// use rdma_async::{LeaseDenial, LeaseError};
    /// use rdma_mem::Recovery;
    ///
    /// let full = LeaseError::Denied(LeaseDenial::Full { left: 4096 });
    /// assert_eq!(full.recovery(), Recovery::Retry);
    /// assert_eq!(LeaseError::Closed(None).recovery(), Recovery::Reconnect);
    /// ```
    #[must_use]
    pub const fn recovery(&self) -> Recovery {
        match self {
            Self::Denied(denial) => denial.recovery(),
            Self::Timeout { .. } => Recovery::Retry,
            Self::Closed(_) | Self::NotRevoked(_) => Recovery::Reconnect,
            Self::NotOpened(error) => error.recovery(),
            Self::NoControl | Self::NotGranted { .. } | Self::RuntimeEnded => Recovery::Programming,
        }
    }
}

fn since(reason: Option<CloseReason>) -> String {
    reason.map_or_else(String::new, |reason| format!(", since {reason}"))
}

/// The reason why a peer does not lend memory. The limits are documented at [`LeaseLimits`](crate::LeaseLimits).
#[derive(Clone, Copy, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum LeaseDenial {
    /// The peer lends no memory on request.
    #[error("it lends nothing on request (set `ConnectionOptions::lease_limits` at the peer)")]
    NotOffered,
    /// The peer does not lend with these rights: its limits or its queue pair do not allow them, or none were
    /// requested.
    #[error(
        "it lends with at most {allowed}: ask for only these rights, or allow more at the peer \
         (`LeaseLimits::new`, and the `access` of the queue pair)"
    )]
    Access {
        /// The rights that the peer allows.
        allowed: AccessFlags,
    },
    /// The peer never lends this much memory with this alignment.
    #[error(
        "it lends at most {most} bytes: request less, or raise `per_peer` and `in_total` at the \
         peer"
    )]
    TooLong {
        /// The most bytes that the peer lends with the requested alignment.
        most: u64,
    },
    /// The peer has reached its limit of lent memory, for this end or in total: request what is left, or try later.
    #[error("it has {left} bytes left to lend: return some memory, or try again later")]
    Full {
        /// The number of bytes left, in whole pages.
        left: u64,
    },
    /// The peer has reached its limit of regions lent to this end.
    #[error("it lends at most {most} regions at a time: return one, or try again later")]
    TooMany {
        /// The maximum number of regions at a time.
        most: u64,
    },
    /// The peer does not lend memory for this long.
    #[error("it lends for at most {longest:?}: request less, or raise `longest` at the peer")]
    Time {
        /// The longest time that the peer allows.
        longest: Duration,
    },
    /// The peer does not support this alignment.
    #[error("an alignment must be a power of two, and at most {most}")]
    Alignment {
        /// The largest supported alignment.
        most: u64,
    },
    /// The peer has no memory left, or its device refuses to open the memory. The limit reached may be the machine's
    /// memory, `ulimit -l`, or a limit of the device.
    #[error("it could not allocate or register the memory: try again later, or request less")]
    Failed,
    /// The queue pair has ended at the peer, and this end will soon be notified. Connect again.
    #[error("the queue pair that the memory was for has ended at the peer: connect again")]
    Ended,
    /// The number of a reason that this release does not know: use the same release at both ends.
    #[error(
        "for reason {0}, which only another release defines: use the same release at both ends"
    )]
    Other(u32),
}

rdma_types::debug_messages!(enum LeaseDenial {
    NotOffered, Access { allowed }, TooLong { most }, Full { left }, TooMany { most }, Time { longest },
    Alignment { most }, Failed, Ended, Other(it),
});

impl LeaseDenial {
    /// Returns how the requesting program can recover. If a limit of the peer is used up, this is
    /// [`Retry`](Recovery::Retry), because memory will become available again.
    ///
    /// ```
    /// use rdma_async::LeaseDenial;
    /// use rdma_mem::Recovery;
    ///
    /// assert_eq!(LeaseDenial::TooLong { most: 4096 }.recovery(), Recovery::Programming);
    /// ```
    #[must_use]
    pub const fn recovery(&self) -> Recovery {
        match self {
            Self::Full { .. } | Self::TooMany { .. } | Self::Failed => Recovery::Retry,
            Self::Ended => Recovery::Reconnect,
            Self::NotOffered
            | Self::Access { .. }
            | Self::TooLong { .. }
            | Self::Time { .. }
            | Self::Alignment { .. }
            | Self::Other(_) => Recovery::Programming,
        }
    }

    /// Returns the denial as numbers: the reason and the limit.
    pub(crate) fn to_numbers(self) -> (u32, u64) {
        match self {
            Self::NotOffered => (1, 0),
            Self::Access { allowed } => (2, allowed.bits().into()),
            Self::TooLong { most } => (3, most),
            Self::Full { left } => (4, left),
            Self::TooMany { most } => (5, most),
            Self::Time { longest } => (6, u64::try_from(longest.as_micros()).unwrap_or(u64::MAX)),
            Self::Alignment { most } => (7, most),
            Self::Failed => (8, 0),
            Self::Ended => (9, 0),
            Self::Other(why) => (why, 0),
        }
    }

    #[allow(clippy::cast_possible_truncation)] // the known flags
    pub(crate) const fn from_numbers(why: u32, limit: u64) -> Self {
        match why {
            1 => Self::NotOffered,
            2 => Self::Access { allowed: AccessFlags::from_bits_retain(limit as u32) },
            3 => Self::TooLong { most: limit },
            4 => Self::Full { left: limit },
            5 => Self::TooMany { most: limit },
            6 => Self::Time { longest: Duration::from_micros(limit) },
            7 => Self::Alignment { most: limit },
            8 => Self::Failed,
            9 => Self::Ended,
            other => Self::Other(other),
        }
    }
}

/// An error from lending memory, together with the memory. It implements [`Error`](std::error::Error), and `?` converts
/// it to a [`LeaseError`].
#[non_exhaustive]
pub struct LendError {
    /// The memory, or `None` if it was freed when the runtime ended, or could not be closed
    /// ([`LeaseError::NotRevoked`]).
    pub region: Option<Region>,
    /// The error.
    pub error: LeaseError,
}

rdma_types::debug_messages!(struct LendError { region, error });

impl std::fmt::Display for LendError {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        self.error.fmt(f)
    }
}

impl std::error::Error for LendError {
    fn source(&self) -> Option<&(dyn std::error::Error + 'static)> {
        self.error.source()
    }
}

impl From<LendError> for LeaseError {
    fn from(failed: LendError) -> Self {
        failed.error
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_denial_survives_a_round_trip() {
        let allowed = AccessFlags::new().with_remote_read();
        for denial in [
            LeaseDenial::NotOffered,
            LeaseDenial::Access { allowed },
            LeaseDenial::TooLong { most: 1 },
            LeaseDenial::Full { left: 2 },
            LeaseDenial::TooMany { most: 3 },
            LeaseDenial::Time { longest: Duration::from_micros(4) },
            LeaseDenial::Alignment { most: 5 },
            LeaseDenial::Failed,
            LeaseDenial::Ended,
            LeaseDenial::Other(77),
        ] {
            let (why, limit) = denial.to_numbers();
            assert_eq!(LeaseDenial::from_numbers(why, limit), denial);
            assert!(!denial.to_string().is_empty());
        }
    }
}
