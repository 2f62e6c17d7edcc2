//! Errors of operations.

use std::time::Duration;

use rdma_mem::{Recovery, ScatterGatherElementError};
use rdma_qp::{AsyncEventKind, PollError, PostErrorKind};

use crate::error::close_reason::CloseReason;
use crate::error::lease_end::LeaseEnd;
use crate::error::operation::Operation;
use crate::error::peer::{PeerAddress, PeerId, To, With};
use crate::error::work::{FailedWork, RefusedWork, Reported, WorkId};

/// The error of an operation of a channel, or of a connection of rdma-async.
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
/// // A blocking call that ran out has closed the channel.
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
    /// The request was not posted. The channel is as it was.
    #[error(transparent)]
    PostError(Box<RefusedWork>),
    /// Inline data is longer than an element can be, so that there was no request to post. The channel is as it
    /// was.
    #[error(transparent)]
    ElementError(#[from] ScatterGatherElementError),
    /// The operation completed with a failure, which has closed the channel.
    #[error(transparent)]
    WorkError(FailedWork),
    /// The completion queue failed, so that the operations in flight have an unknown outcome. The channel is closed.
    #[error(transparent)]
    PollError(#[from] PollError),
    /// The operation was not done in time. A blocking call has closed the channel by it; the `wait`
    /// of a handle, and a post that waited for a free slot, have changed nothing. An operation of rdma-async leaves its
    /// request with the device, which may still execute it, and the connection open.
    #[error(
        "the {operation}{} was not done within {timeout:?}: is the peer there, and does it do its part?",
        With(*.peer)
    )]
    Timeout {
        /// The kind of the operation.
        operation: Operation,
        /// The time that the call has waited.
        timeout: Duration,
        /// Whom it was with. `None` if a queue pair of the program's own does not know.
        peer: Option<PeerAddress>,
    },
    /// The peer has gone, as the watched stream shows, before the operation was done. The channel is closed:
    /// operations in flight end with the call, or with the scope.
    #[error("the {operation}{} was not done: {reason}", With(*.peer))]
    PeerGone {
        /// The kind of the operation.
        operation: Operation,
        /// The reason for which the peer has gone.
        reason: CloseReason,
        /// Whom it was with. `None` if a queue pair of the program's own does not know.
        peer: Option<PeerAddress>,
    },
    /// The queue has no free slot for the request now; nothing has changed. Poll for completions first: an operation
    /// keeps its slot until its handle has reported it, or is dropped.
    #[error(
        "the queue is full: wait for earlier operations, and drop the handles of what is done (of a server: \
        wait for `Sent` or `Room`); or build the channel with a larger `max_send_wr` or `max_recv_wr`"
    )]
    WouldBlock,
    /// The batch is larger than the queue.
    #[error(
        "a batch of {requests} does not fit into a queue for {capacity}: build the channel with a larger \
        `max_send_wr` or `max_recv_wr`"
    )]
    BatchTooLarge {
        /// The number of requests.
        requests: usize,
        /// The number of requests that the queue holds.
        capacity: u32,
    },
    /// An earlier operation has closed the channel.
    #[error("the channel{} is closed, since {reason}{}: connect a new one", To(*.peer), Reported::from(*.event))]
    Closed {
        /// The reason.
        reason: CloseReason,
        /// Whom the channel was to. `None` if a queue pair of the program's own does not know, and in a forked child of
        /// channels to several peers.
        peer: Option<PeerAddress>,
        /// The asynchronous event of the queue pair that names the cause, if the request that has closed the channel
        /// was flushed and the device has reported one. See [`FailedWork::event`].
        event: Option<AsyncEventKind>,
    },
    /// The operation never completed: the queue pair was destroyed under it. It may have been done.
    #[error(
        "the {operation}{} never completed, and the queue pair was destroyed: it may have been done or not",
        With(*.peer)
    )]
    Lost {
        /// The kind of the operation.
        operation: Operation,
        /// Whom it was with. `None` if a queue pair of the program's own does not know.
        peer: Option<PeerAddress>,
    },
    /// The index is out of range. For an index in range without a peer, the error is [`Closed`](Self::Closed), with
    /// [`CloseReason::Absent`].
    #[error("there is no peer {peer}: the channels go to {count} peers, counted from 0")]
    NoSuchPeer {
        /// The index.
        peer: usize,
        /// How many there can be.
        count: usize,
    },
    /// Channels to several peers have as many as there can be, those included that are prepared.
    #[error(
        "there are {most} peers, with those that are prepared: remove one, or build the channels with a larger \
        `max_channels`"
    )]
    TooManyPeers {
        /// How many there can be.
        most: usize,
    },
    /// The peer was prepared by other channels.
    #[error(
        "the peer was prepared by other channels: have it prepared by those that it is added to"
    )]
    ForeignPeer,
    /// The client of a server has left.
    #[error("{0} has left: what is sent to it would reach nobody")]
    PeerLeft(PeerId),
    /// The buffer is shorter than the bytes to send.
    #[error("the first {length} bytes were to be sent of a buffer that has {most}")]
    TooLong {
        /// The number of bytes to send.
        length: usize,
        /// The length of the buffer.
        most: usize,
    },
    /// Some operations of a collective failed, or were not done in time. The connections to their peers are closed.
    #[error("{} of the operations failed; first: {}", .0.len(), first(.0))]
    Collective(Vec<OperationError>),
    /// The lease of the peer's memory is over. The request was not posted, and the connection goes on: request memory
    /// again.
    #[error(
        "the {operation} was not posted, since the peer's memory is not open to it any more: {reason}"
    )]
    LeaseOver {
        /// The kind of the operation.
        operation: Operation,
        /// The reason.
        reason: LeaseEnd,
    },
    /// Channels to several peers were given too few endpoints, or too many.
    #[error(
        "there are {channels} channels and {}: give one for each, in order",
        count_endpoints(*.endpoints, *.channels)
    )]
    EndpointCount {
        /// The number of channels.
        channels: usize,
        /// The number of endpoints; one too many stands for any larger number.
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
    /// The action that may help.
    ///
    /// After a [`LeaseOver`](Self::LeaseOver) the connection goes on, and the program requests another lease.
    ///
    /// After a [`Timeout`](Self::Timeout) of a handle, or of a post, the program may try again. A blocking call that
    /// has timed out has closed the channel, and the next call fails with [`Closed`](Self::Closed). An operation of
    /// rdma-async that has timed out may still be executed, so that a program that tries again may have it done twice.
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
            // The first, which may be why the others failed.
            Self::Collective(errors) => {
                errors.first().map_or(Recovery::Reconnect, |first| first.error.recovery())
            }
        }
    }
}

/// Errors are returned by value, on paths that have few instructions.
const _: () = assert!(size_of::<TransportError>() <= 56);

fn count_endpoints(endpoints: usize, channels: usize) -> String {
    if endpoints > channels {
        "more endpoints".into()
    } else {
        format!("only {endpoints} endpoints")
    }
}

/// The first of several.
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

/// An operation that failed, or was lost, and whose handle was not asked.
#[derive(Clone, thiserror::Error)]
#[error("{error} ({operation}, {id}{})", of_peer(*peer))]
#[non_exhaustive]
pub struct OperationError {
    /// The kind of the operation.
    pub operation: Operation,
    /// The ID that its handle has.
    pub id: WorkId,
    /// The index of the peer, if the channels are to several.
    pub peer: Option<usize>,
    /// The error of the operation.
    pub error: TransportError,
}

rdma_types::debug_messages!(struct OperationError { operation, id, peer, error });

impl OperationError {
    /// The failure of one operation among several.
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
