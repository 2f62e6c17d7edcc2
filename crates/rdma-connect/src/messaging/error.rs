//! Errors of messages.

use std::time::Duration;

use rdma_mem::Forked;
use rdma_message::{ConnectionError, OperationError, SendError};

#[cfg(feature = "serde")]
use crate::value::ValueError;

/// An error from sending or receiving messages.
#[derive(thiserror::Error)]
#[non_exhaustive]
pub enum MessageError {
    /// Nothing was sent.
    #[error(transparent)]
    NotSent(#[from] SendError),
    /// A message, a call or a reply has begun and failed.
    #[error("{error}")]
    Operation {
        /// Whether the peer may have received the message.
        error: OperationError,
        /// The reason, if the connection has ended with an error.
        #[source]
        ended: Option<ConnectionError>,
    },
    /// The connection has ended.
    #[error(transparent)]
    Ended(#[from] ConnectionError),
    /// The time limit of a blocking call has expired. The connection stays usable.
    #[error(
        "the call has not ended within its limit of {limit:?}: the peer is slow, or the limit is short"
    )]
    TimedOut {
        /// The time limit.
        limit: Duration,
    },
    /// This is a forked child, and the connection belongs to its parent. Only blocking calls return this.
    #[error(transparent)]
    Forked(#[from] Forked),
    /// The value cannot be encoded.
    #[cfg(feature = "serde")]
    #[error(transparent)]
    Value(#[from] ValueError),
}

#[cfg(feature = "serde")]
rdma_types::debug_messages!(
    enum MessageError {
        NotSent(it),
        Operation { error, ended },
        Ended(it),
        TimedOut { limit },
        Forked(it),
        Value(it),
    }
);

#[cfg(not(feature = "serde"))]
rdma_types::debug_messages!(
    enum MessageError {
        NotSent(it),
        Operation { error, ended },
        Ended(it),
        TimedOut { limit },
        Forked(it),
    }
);
