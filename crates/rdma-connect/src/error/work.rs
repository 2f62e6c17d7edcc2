//! Failed and refused operations, for error messages.

use std::fmt;
use std::ops::Deref;

use rdma_qp::{AsyncEventKind, PostError, QueuePair, WorkError, WorkErrorClass};

use crate::error::operation::Operation;
use crate::error::peer::{PeerAddress, With};

/// An operation that completed with an error, to which it derefs.
#[derive(Clone, Copy, PartialEq, Eq)]
#[non_exhaustive]
pub struct FailedWork {
    /// The kind of the operation.
    pub operation: Operation,
    /// The peer of the operation. `None` if the program's own queue pair does not know it.
    pub peer: Option<PeerAddress>,
    /// The error of the completion, with a hint about the first things to check.
    pub error: WorkError,
    /// The asynchronous event of the queue pair that names the cause, for example
    /// [`QP_ACCESS_ERR`](AsyncEventKind::QP_ACCESS_ERR), if the request was flushed and the device has reported one.
    /// SoftRoCE reports none when it refuses a request of the peer.
    ///
    /// To find it, the error reads the asynchronous events of the context. That makes the context's `async_fd`
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

    /// Creates a failure of this queue pair. If the request was flushed, the queue pair's asynchronous events are
    /// searched for the cause.
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

/// An operation that was not posted. It derefs to the reason.
#[derive(Clone, Copy, PartialEq, Eq)]
#[non_exhaustive]
pub struct RefusedWork {
    /// The kind of the operation.
    pub operation: Operation,
    /// The peer of the operation. `None` if the program's own queue pair does not know it.
    pub peer: Option<PeerAddress>,
    /// The reason; for a batch, it also has the index of the refused request.
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

/// Returns the first asynchronous event of a queue pair that explains why its requests are flushed; `None` if the
/// device reported none.
#[cold]
#[must_use]
pub fn cause_of(qp: &QueuePair) -> Option<AsyncEventKind> {
    let said = qp.async_events().ok()?;
    said.into_iter().find(|&kind| hint(kind).is_some())
}

/// Returns the hint for an event that names the cause of a queue pair's failure.
const fn hint(kind: AsyncEventKind) -> Option<&'static str> {
    Some(match kind {
        AsyncEventKind::QP_ACCESS_ERR => {
            "a request of the peer was refused here: check the rkey, address and length that the peer used, and that \
             this end's region and queue pair have the access (`ChannelBuilder::access`)"
        }
        AsyncEventKind::QP_REQ_ERR => {
            "a request of the peer was refused here: it was longer than the receive for it, or of a kind that this end \
             does not take (`ChannelBuilder::access`)"
        }
        AsyncEventKind::QP_FATAL => "the queue pair failed, as when its completion queue overflows",
        _ => return None,
    })
}

/// The asynchronous event that explains a failure, as a suffix of an error message; empty if there is none.
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

/// The id of an operation in error messages.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct WorkId(u64);

impl WorkId {
    /// The number of low bits of a WR ID that are the index of a slot. The higher bits count the earlier uses of the
    /// slot.
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
