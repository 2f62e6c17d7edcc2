//! Errors of operations.

use std::time::Duration;

use rdma_mem::{Recovery, ScatterGatherElementError};
use rdma_qp::{AsyncEventKind, PollError, PostErrorKind};

use crate::error::close_reason::CloseReason;
use crate::error::lease_end::LeaseEnd;
use crate::error::operation::Operation;
use crate::error::peer::{PeerAddress, PeerId, To, With};
use crate::error::work::{FailedWork, RefusedWork, Reported, WorkId};

/// The error of an operation on a channel, or on a connection of `rdma-async`.
///
/// # Examples
/// ```
/// use std::time::Duration;
/// use rdma_channel::{CloseReason, TransportError, prelude::*};
///
/// # rdma_soft::install();
/// # let pd = rdma_mem::open_device("soft0")?.allocate_pd()?;
/// # let (a, b) = (pd.create_channel().max_inline_data(64).build()?, pd.create_channel().max_inline_data(64).build()?);
/// # let end = a.endpoint();
/// # let (mut channel, _peer) = (a.handshake(b.endpoint())?, b.handshake(end)?);
/// let mut region = pd.allocate_region(64)?;
/// match channel.within(Duration::from_millis(5)).receive_into(&mut region) {
///     Ok(length) => println!("{length} bytes"),
///     Err(TransportError::Timeout { timeout, .. }) => println!("nothing came in {timeout:?}"),
///     Err(error) => return Err(error),
/// }
/// // A blocking call that timed out has closed the channel.
/// let next = channel.send_inline(b"too late");
/// assert!(matches!(next, Err(TransportError::Closed { reason: CloseReason::Timeout { .. }, .. })), "{next:?}");
/// # Ok::<(), TransportError>(())
/// ```
#[derive(Clone, thiserror::Error)]
#[non_exhaustive]
pub enum TransportError {
    /// A verb failed.
    #[error(transparent)]
    IbvError(Box<rdma_qp::Error>),
    /// The request was refused. If it was a list, the requests before the refused one may have been
    /// [posted](rdma_qp::PostError::posted).
    #[error(transparent)]
    PostError(Box<RefusedWork>),
    /// Inline data is longer than the limit of an element, so no request was posted. The channel is unchanged.
    #[error(transparent)]
    ElementError(#[from] ScatterGatherElementError),
    /// The operation completed with an error, which closed the channel.
    #[error(transparent)]
    WorkError(FailedWork),
    /// The completion queue failed, so the outcome of operations in flight is unknown. The channel is closed.
    #[error(transparent)]
    PollError(#[from] PollError),
    /// The operation did not complete in time. If it was a blocking call, the channel is now closed. If it was the
    /// `wait` of a handle, or a post that waited for a free slot, nothing has changed. If it was an operation of
    /// `rdma-async`, the connection stays open. If the operation was posted, the device keeps the request and may still
    /// execute it.
    #[error(
        "the {operation}{} did not complete within {timeout:?}: check that the peer is running \
         and has reached the same step",
        With(*.peer)
    )]
    Timeout {
        /// The kind of the operation.
        operation: Operation,
        /// The time that the call waited.
        timeout: Duration,
        /// The peer of the operation, or `None` if the program supplied the queue pair and its peer is unknown.
        peer: Option<PeerAddress>,
    },
    /// The watched stream shows that the peer left before the operation completed. The channel is closed. Operations in
    /// flight end with the call or with the scope.
    #[error("the {operation}{} did not complete: {reason}", With(*.peer))]
    PeerGone {
        /// The kind of the operation.
        operation: Operation,
        /// The reason why the peer is gone.
        reason: CloseReason,
        /// The peer of the operation, or `None` if the program supplied the queue pair and its peer is unknown.
        peer: Option<PeerAddress>,
    },
    /// The queue has no free slot for the request now; nothing has changed. Poll for completions first, because an
    /// operation keeps its slot until its handle has reported the result or is dropped.
    #[error(
        "the queue is full: wait for earlier operations, and drop the handles of completed \
         operations (with a server, wait for `Sent` or `Room`); or build the channel with a \
         larger `max_send_wr` or `max_recv_wr`"
    )]
    WouldBlock,
    /// The batch is larger than the queue.
    #[error(
        "a batch of {requests} does not fit into a queue of {capacity}: build the channel with a \
         larger `max_send_wr` or `max_recv_wr`"
    )]
    BatchTooLarge {
        /// The number of requests.
        requests: usize,
        /// The number of requests that the queue holds.
        capacity: u32,
    },
    /// An earlier operation closed the channel.
    #[error("the channel{} is closed, since {reason}{}: connect a new one", To(*.peer), Reported::from(*.event))]
    Closed {
        /// The reason.
        reason: CloseReason,
        /// The peer of the channel. `None` if the program supplied the queue pair and its peer is unknown, and in a
        /// forked child for channels to several peers.
        peer: Option<PeerAddress>,
        /// The asynchronous event of the queue pair that explains the cause. Present if the request that closed the
        /// channel was flushed and the device reported an event. See [`FailedWork::event`].
        event: Option<AsyncEventKind>,
    },
    /// The operation never completed, because the queue pair was destroyed in the meantime. It may have been executed.
    #[error(
        "the {operation}{} never completed, and the queue pair was destroyed: it may or may not \
         have been carried out",
        With(*.peer)
    )]
    Lost {
        /// The kind of the operation.
        operation: Operation,
        /// The peer of the operation, or `None` if the program supplied the queue pair and its peer is unknown.
        peer: Option<PeerAddress>,
    },
    /// The index is out of range. If the index is in range but there is no peer, the error is [`Closed`](Self::Closed)
    /// with [`CloseReason::Absent`].
    #[error("there is no peer {peer}: the channels have {count} peers, counted from 0")]
    NoSuchPeer {
        /// The index.
        peer: usize,
        /// The maximum number of peers.
        count: usize,
    },
    /// The channels already have the maximum number of peers, including prepared ones.
    #[error(
        "there are already {most} peers, including prepared ones: remove one, or build the \
         channels with a larger `max_channels`"
    )]
    TooManyPeers {
        /// The maximum number of peers.
        most: usize,
    },
    /// The peer was prepared by other channels.
    #[error(
        "the peer was prepared by other channels: prepare it with the channels that it is added \
         to"
    )]
    ForeignPeer,
    /// The client of a server has left.
    #[error("{0} has left: messages to it would not arrive")]
    PeerLeft(PeerId),
    /// The buffer is shorter than the bytes to send.
    #[error("cannot send {length} bytes of a buffer of {most} bytes: send at most its length")]
    TooLong {
        /// The number of bytes to send.
        length: usize,
        /// The length of the buffer.
        most: usize,
    },
    /// Some operations of a collective failed or did not complete in time. The connections to their peers are closed.
    #[error("{} of the operations failed; first: {}", .0.len(), first(.0))]
    Collective(Vec<OperationError>),
    /// The lease of the peer's memory has ended. The request was not posted, and the connection continues. Request
    /// memory again.
    #[error(
        "the {operation} was not posted, because the lease on the peer's memory has ended: \
         {reason}"
    )]
    LeaseOver {
        /// The kind of the operation.
        operation: Operation,
        /// The reason.
        reason: LeaseEnd,
    },
    /// The number of endpoints does not match the number of channels to several peers.
    #[error(
        "there are {channels} channels and {}: give one endpoint for each channel, in order",
        count_endpoints(*.endpoints, *.channels)
    )]
    EndpointCount {
        /// The number of channels.
        channels: usize,
        /// The number of endpoints. One more than the number of channels means any larger number.
        endpoints: usize,
    },
}

rdma_types::debug_messages!(enum TransportError {
    IbvError(it), PostError(it), ElementError(it), WorkError(it), PollError(it),
    Timeout { operation, timeout, peer }, PeerGone { operation, reason, peer }, WouldBlock,
    BatchTooLarge { requests, capacity }, Closed { reason, peer, event }, Lost { operation, peer },
    NoSuchPeer { peer, count }, TooManyPeers { most }, ForeignPeer, PeerLeft(it),
    TooLong { length, most }, Collective(it), LeaseOver { operation, reason },
    EndpointCount { channels, endpoints },
});

impl TransportError {
    /// Returns the action that may help after this error.
    ///
    /// After [`LeaseOver`](Self::LeaseOver), the connection continues and the program can request another lease.
    ///
    /// After a [`Timeout`](Self::Timeout) of a handle or a post, the program may retry. After a timeout of a blocking
    /// call, the channel is closed, and the next call fails with [`Closed`](Self::Closed). After a timeout of an
    /// operation of `rdma-async`, the device may still execute the operation, so a retry may execute it twice.
    ///
    /// ```
    /// use rdma_channel::{CloseReason, Recovery, TransportError};
    ///
    /// assert_eq!(TransportError::WouldBlock.recovery(), Recovery::Retry);
    /// let closed = TransportError::Closed { reason: CloseReason::Poll, peer: None, event: None };
    /// assert_eq!(closed.recovery(), Recovery::Reconnect);
    /// ```
    #[must_use]
    pub fn recovery(&self) -> Recovery {
        match self {
            Self::IbvError(error) => error.recovery(),
            Self::PostError(error) => error.recovery(),
            Self::WorkError(work) => work.recovery(),
            Self::Timeout { .. } | Self::WouldBlock => Recovery::Retry,
            Self::PollError(_)
            | Self::PeerGone { .. }
            | Self::Closed { .. }
            | Self::LeaseOver { .. }
            | Self::Lost { .. } => Recovery::Reconnect,
            Self::TooManyPeers { .. } => Recovery::Resource,
            Self::ElementError(_)
            | Self::ForeignPeer
            | Self::BatchTooLarge { .. }
            | Self::NoSuchPeer { .. }
            | Self::PeerLeft(_)
            | Self::TooLong { .. }
            | Self::EndpointCount { .. } => Recovery::Programming,
            // The first error may be the cause of the others.
            Self::Collective(errors) => {
                errors.first().map_or(Recovery::Reconnect, |first| first.error.recovery())
            }
        }
    }
}

/// Keeps errors small, because they are returned by value on paths with few instructions.
const _: () = assert!(size_of::<TransportError>() <= 56);

fn count_endpoints(endpoints: usize, channels: usize) -> String {
    if endpoints > channels {
        "more endpoints".into()
    } else {
        format!("only {endpoints} endpoints")
    }
}

/// Returns the message of the first error.
fn first(errors: &[OperationError]) -> String {
    errors.first().map(ToString::to_string).unwrap_or_default()
}

impl From<rdma_qp::Error> for TransportError {
    fn from(error: rdma_qp::Error) -> Self {
        Self::IbvError(Box::new(error))
    }
}

impl From<rdma_mem::Error> for TransportError {
    fn from(error: rdma_mem::Error) -> Self {
        rdma_qp::Error::from(error).into()
    }
}

impl From<RefusedWork> for TransportError {
    #[cold]
    fn from(refused: RefusedWork) -> Self {
        match refused.kind() {
            PostErrorKind::WouldBlock if refused.posted() == 0 => Self::WouldBlock,
            _ => Self::PostError(Box::new(refused)),
        }
    }
}

/// An operation that failed or was lost, as reported by a scope or a collective.
#[derive(Clone, thiserror::Error)]
#[error("{error} ({operation}, {id}{})", of_peer(*peer))]
#[non_exhaustive]
pub struct OperationError {
    /// The kind of operation.
    pub operation: Operation,
    /// The id of its handle.
    pub id: WorkId,
    /// The index of the peer, for channels to several peers.
    pub peer: Option<usize>,
    /// The error of the operation.
    pub error: TransportError,
}

rdma_types::debug_messages!(struct OperationError { operation, id, peer, error });

impl OperationError {
    /// Creates the error of one operation among several.
    #[must_use]
    pub const fn new(
        operation: Operation,
        id: WorkId,
        peer: Option<usize>,
        error: TransportError,
    ) -> Self {
        Self { operation, id, peer, error }
    }
}

fn of_peer(peer: Option<usize>) -> String {
    peer.map(|peer| format!(", peer {peer}")).unwrap_or_default()
}
