//! Failed and refused operations, as they appear in error messages.

use std::fmt;
use std::ops::Deref;

use rdma_qp::{AsyncEventKind, PostError, QueuePair, WorkError, WorkErrorClass};

use crate::error::operation::Operation;
use crate::error::peer::{PeerAddress, With};

/// An operation that completed with an error. Dereferences to that error.
#[derive(Clone, Copy, PartialEq, Eq)]
#[non_exhaustive]
pub struct FailedWork {
    /// The kind of the operation.
    pub operation: Operation,
    /// The peer of the operation, or `None` if the program supplied the queue pair and its peer is unknown.
    pub peer: Option<PeerAddress>,
    /// The error of the completion, with a hint about what to check first.
    pub error: WorkError,
    /// The asynchronous event of the queue pair that explains the cause, for example
    /// [`QP_ACCESS_ERR`](AsyncEventKind::QP_ACCESS_ERR). Present if the request was flushed and the device reported an
    /// event. SoftRoCE reports none when it refuses a request of the peer.
    ///
    /// To find the event, the library reads the asynchronous events of the context. This makes the context's `async_fd`
    /// non-blocking, and a program that calls `ibv_get_async_event` itself misses these events. A program that uses
    /// [`Context::async_events`](rdma_mem::Context::async_events) still gets all of them.
    pub event: Option<AsyncEventKind>,
}

rdma_types::debug_messages!(struct FailedWork { operation, peer, error, event });

impl FailedWork {
    /// Creates a failure with the asynchronous event that explains it, if there is one.
    #[must_use]
    pub const fn new(
        operation: Operation,
        peer: Option<PeerAddress>,
        error: WorkError,
        event: Option<AsyncEventKind>,
    ) -> Self {
        Self { operation, peer, error, event }
    }

    /// Creates a failure on this queue pair. If the request was flushed, looks for the cause in the queue pair's
    /// asynchronous events.
    #[must_use]
    pub fn of_qp(
        operation: Operation,
        peer: Option<PeerAddress>,
        error: WorkError,
        qp: Option<&QueuePair>,
    ) -> Self {
        let event = qp.filter(|_| error.class() == WorkErrorClass::Flushed).and_then(cause_of);
        Self { operation, peer, error, event }
    }
}

impl Deref for FailedWork {
    type Target = WorkError;

    fn deref(&self) -> &WorkError {
        &self.error
    }
}

impl fmt::Display for FailedWork {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { operation, peer, error, event } = self;
        write!(f, "the {operation}{} failed: {error}{}", With(*peer), Reported(*event))
    }
}

impl std::error::Error for FailedWork {}

/// An operation that was not posted. Dereferences to the reason.
#[derive(Clone, Copy, PartialEq, Eq)]
#[non_exhaustive]
pub struct RefusedWork {
    /// The kind of the operation.
    pub operation: Operation,
    /// The peer of the operation, or `None` if the program supplied the queue pair and its peer is unknown.
    pub peer: Option<PeerAddress>,
    /// The reason. For a batch, it also contains the index of the refused request.
    pub error: PostError,
}

rdma_types::debug_messages!(struct RefusedWork { operation, peer, error });

impl RefusedWork {
    /// Creates the refusal of an operation.
    #[must_use]
    pub const fn new(operation: Operation, peer: Option<PeerAddress>, error: PostError) -> Self {
        Self { operation, peer, error }
    }
}

impl Deref for RefusedWork {
    type Target = PostError;

    fn deref(&self) -> &PostError {
        &self.error
    }
}

impl fmt::Display for RefusedWork {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { operation, peer, error } = self;
        write!(f, "the {operation}{} was refused: {error}", With(*peer))
    }
}

impl std::error::Error for RefusedWork {}

/// Returns the first asynchronous event that explains why a queue pair's requests are flushed, or `None` if the device
/// reported none.
#[cold]
#[must_use]
pub fn cause_of(qp: &QueuePair) -> Option<AsyncEventKind> {
    let said = qp.async_events().ok()?;
    said.into_iter().find(|&kind| hint(kind).is_some())
}

/// Returns a hint for an event that explains why a queue pair failed.
const fn hint(kind: AsyncEventKind) -> Option<&'static str> {
    Some(match kind {
        AsyncEventKind::QP_ACCESS_ERR => {
            "a request of the peer was refused here: check the rkey, address and length that the \
             peer used, and that this end's region and queue pair grant this access \
             (`ChannelBuilder::access`)"
        }
        AsyncEventKind::QP_REQ_ERR => {
            "a request of the peer was refused here: it was longer than the receive for it, or of \
             a kind that this end does not accept (`ChannelBuilder::access`)"
        }
        AsyncEventKind::QP_FATAL => {
            "the queue pair failed, for example because its completion queue overflowed"
        }
        _ => return None,
    })
}

/// The asynchronous event that explains a failure, as a suffix of an error message. Empty if there is no event.
#[derive(Clone, Copy, Debug)]
pub struct Reported(Option<AsyncEventKind>);

impl From<Option<AsyncEventKind>> for Reported {
    fn from(event: Option<AsyncEventKind>) -> Self {
        Self(event)
    }
}

impl fmt::Display for Reported {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Some(kind) = self.0 else { return Ok(()) };
        write!(f, "; the device reports: {kind}")?;
        hint(kind).map_or(Ok(()), |hint| write!(f, " ({hint})"))
    }
}

/// The id of an operation, as shown in error messages.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct WorkId(u64);

impl WorkId {
    /// The number of low bits of a WR ID that contain the index of a slot. The higher bits count how often the slot was
    /// used before.
    pub const INDEX_BITS: u32 = 30;

    /// Returns the id of the operation with this WR ID.
    #[must_use]
    pub const fn from_wr_id(wr_id: u64) -> Self {
        Self(wr_id)
    }

    /// Returns the WR ID of the operation.
    #[must_use]
    pub const fn wr_id(self) -> u64 {
        self.0
    }
}

impl fmt::Display for WorkId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let index = self.0 & ((1 << Self::INDEX_BITS) - 1);
        write!(f, "work {index}.{}", self.0 >> Self::INDEX_BITS)
    }
}
