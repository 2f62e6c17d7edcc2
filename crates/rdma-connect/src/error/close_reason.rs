//! Why a connection is closed.

use rdma_qp::WorkError;

use crate::error::operation::Operation;

/// What has closed a channel.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum CloseReason {
    /// An operation was not done in time.
    #[error("{} was not done in time", .operation.with_article())]
    Timeout {
        /// The kind of the operation.
        operation: Operation,
    },
    /// The peer of a watched stream is gone.
    #[error("the peer was gone before {} was done", .operation.with_article())]
    PeerGone {
        /// The kind of the operation.
        operation: Operation,
    },
    /// The peer's end is gone: it was closed or has failed, its process has ended, or its machine has been silent for too
    /// long.
    #[error("the peer is gone: its end was closed or has failed, or its machine is silent")]
    Gone,
    /// The device has failed.
    #[error("the device has failed")]
    Device,
    /// The port went down.
    #[error("port {port} went down")]
    Port {
        /// Its number.
        port: u8,
    },
    /// An operation failed.
    #[error("{} failed: {error}", .operation.with_article())]
    Work {
        /// The kind of the operation.
        operation: Operation,
        /// How it failed.
        error: WorkError,
    },
    /// The completion queue failed.
    #[error("its completion queue failed")]
    Poll,
    /// The provider refused a request, and did not say whether it had posted it.
    #[error(
        "{} was refused by a provider that does not say whether it had posted it",
        .operation.with_article()
    )]
    Doubtful {
        /// The kind of the operation.
        operation: Operation,
    },
    /// The device refused a request after the receive of its answer had been posted, as in an
    /// exchange of a request and its answer: closing has ended the receive.
    #[error("{} was refused when the receive of its answer had been posted", .operation.with_article())]
    Refused {
        /// The kind of the operation.
        operation: Operation,
    },
    /// The last request of a scope was unsignaled, so that nothing tells when it is done.
    #[error(
        "a scope ended with an unsignaled {operation}, which only a later signaled request would have \
         shown to be done: have the last request of a scope signaled"
    )]
    Unsignaled {
        /// The kind of the operation.
        operation: Operation,
    },
    /// This end was closed by the program, as by closing a scope.
    #[error("this end has closed it")]
    Asked,
    /// The channel was to be destroyed, and of several queue pairs not all could be; or the peer was to be
    /// removed, and its queue pair could not be destroyed.
    #[error("it was to be destroyed")]
    Destroyed,
    /// There is no peer of that index now: it was removed, or none was added yet.
    #[error("there is no peer of that index: it was removed, or none was added yet")]
    Absent,
    /// This is a forked child, and the channel is its parent's.
    #[error("it belongs to the process that this one was forked from")]
    Forked,
}
