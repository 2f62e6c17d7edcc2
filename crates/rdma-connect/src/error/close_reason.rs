//! Reasons why a connection closed.

use std::io::{self, ErrorKind};
use std::time::Duration;

use rdma_qp::WorkError;

use crate::error::operation::Operation;

/// The reason why a channel or connection closed.
#[derive(Clone, Copy, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum CloseReason {
    /// An operation did not complete in time.
    #[error("{} did not complete in time", .operation.with_article())]
    Timeout {
        /// The kind of the operation.
        operation: Operation,
    },
    /// The peer's program ended its side: it disconnected, or it closed or dropped its connection.
    #[error("the peer has disconnected")]
    Disconnected,
    /// The stream to the peer ended without a farewell: the peer's process ended or closed its stream.
    #[error("the peer's process has ended without disconnecting: check its output")]
    Died,
    /// The iWARP connection has ended. iWARP does not report whether the peer's program disconnected, its process
    /// ended, or a message arrived before its receive was posted.
    #[error(
        "the iWARP connection has ended: the peer has disconnected, its process has ended, or a \
         message arrived before its receive was posted, which iWARP does not repeat"
    )]
    IwarpEnded,
    /// Within the limit, no data arrived from the peer's machine or, if the peer's program is also checked, from that
    /// program.
    #[error(
        "nothing arrived from the peer for {} s: check that its machine is up and its program is \
         running",
        f64::from(*.limit_ms) / 1e3
    )]
    Silent {
        /// The limit.
        limit_ms: u32,
    },
    /// The network reports that the peer's machine is unreachable.
    #[error("the peer's machine can no longer be reached: check its network")]
    Unreachable,
    /// The peer's end failed, or violated the protocol of the control connection.
    #[error("the peer's end has failed: check its program's output")]
    PeerFailed,
    /// The device failed.
    #[error("the device has failed")]
    Device,
    /// The port went down.
    #[error("port {port} went down")]
    Port {
        /// The port's number.
        port: u8,
    },
    /// An operation failed.
    #[error("{} failed: {error}", .operation.with_article())]
    Work {
        /// The kind of the operation.
        operation: Operation,
        /// The error of the completion.
        error: WorkError,
    },
    /// The completion queue failed.
    #[error("its completion queue failed")]
    Poll,
    /// The provider refused a request without reporting whether the request was posted.
    #[error(
        "{} was refused by a provider that does not report whether it posted it",
        .operation.with_article()
    )]
    Doubtful {
        /// The kind of the operation.
        operation: Operation,
    },
    /// The device refused a request after the receive for its answer was posted, as in an exchange of a request and its
    /// answer. Closing the connection ended the receive.
    #[error("{} was refused after the receive of its answer had been posted", .operation.with_article())]
    Refused {
        /// The kind of the operation.
        operation: Operation,
    },
    /// The last request of a scope was unsignaled, so no completion reports whether it succeeded.
    #[error(
        "a scope ended with an unsignaled {operation}, whose completion only a later signaled \
         request would have shown: make the last request of a scope signaled"
    )]
    Unsignaled {
        /// The kind of the operation.
        operation: Operation,
    },
    /// The program closed this end, for example by closing a scope.
    #[error("this end has closed it")]
    Asked,
    /// The program closed the channels, or removed the peer, but a queue pair could not be destroyed. With
    /// `rdma-async`, the driver has ended or the program dropped the connection.
    #[error("the program destroyed it")]
    Destroyed,
    /// The peer with this index was removed, or has not been added yet.
    #[error("no peer has that index: it was removed, or none was added yet")]
    Absent,
    /// This is a forked child, and the channel belongs to its parent.
    #[error("it belongs to the process that this one was forked from")]
    Forked,
}

rdma_types::debug_messages!(enum CloseReason {
    Timeout { operation }, Disconnected, Died, IwarpEnded, Silent { limit_ms }, Unreachable, PeerFailed,
    Device, Port { port }, Work { operation, error }, Poll, Doubtful { operation },
    Refused { operation }, Unsignaled { operation }, Asked, Destroyed, Absent, Forked,
});

impl CloseReason {
    /// Returns the reason why a stream to the peer ended, either without a farewell or with this error. If the error is
    /// a timeout, the peer was silent for `limit`.
    #[must_use]
    pub fn of_stream(error: Option<&io::Error>, limit: Duration) -> Self {
        match error.map(io::Error::kind) {
            Some(ErrorKind::TimedOut) => Self::silent(limit),
            Some(
                ErrorKind::HostUnreachable | ErrorKind::NetworkUnreachable | ErrorKind::NetworkDown,
            ) => Self::Unreachable,
            Some(ErrorKind::InvalidData) => Self::PeerFailed,
            _ => Self::Died,
        }
    }

    /// Returns the reason when no data has arrived from the peer within this limit.
    #[must_use]
    pub fn silent(limit: Duration) -> Self {
        Self::Silent { limit_ms: u32::try_from(limit.as_millis()).unwrap_or(u32::MAX) }
    }

    /// Returns true if the peer, or the network to the peer, ended the connection.
    #[must_use]
    pub const fn is_of_peer(self) -> bool {
        matches!(
            self,
            Self::Disconnected
                | Self::Died
                | Self::IwarpEnded
                | Self::Silent { .. }
                | Self::Unreachable
                | Self::PeerFailed
        )
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_error_of_a_stream_decides_how_the_peer_has_gone() {
        let limit = Duration::from_millis(2500);
        let of = |kind: ErrorKind| CloseReason::of_stream(Some(&kind.into()), limit);
        assert_eq!(CloseReason::of_stream(None, limit), CloseReason::Died);
        assert_eq!(of(ErrorKind::UnexpectedEof), CloseReason::Died);
        assert_eq!(of(ErrorKind::ConnectionReset), CloseReason::Died);
        assert_eq!(of(ErrorKind::TimedOut), CloseReason::Silent { limit_ms: 2500 });
        assert_eq!(of(ErrorKind::HostUnreachable), CloseReason::Unreachable);
        assert_eq!(of(ErrorKind::InvalidData), CloseReason::PeerFailed);
        assert!(of(ErrorKind::TimedOut).to_string().contains("2.5 s"));
        assert!(CloseReason::Died.is_of_peer() && !CloseReason::Asked.is_of_peer());
    }
}
