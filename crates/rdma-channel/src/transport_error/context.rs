//! What errors say of an operation beside its cause.

use std::fmt;
use std::ops::Deref;

use rdma_qp::{
    AsyncEventKind, ConnectAttributes, PostError, Qpn, QueuePair, WorkError, WorkErrorClass,
};
use rdma_types::{Gid, Lid};

use crate::operation::Operation;

/// The peer of a connection, as errors name it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct PeerAddress {
    /// The peer's queue pair.
    pub qpn: Qpn,
    /// The GID of the peer's port; `None` within an InfiniBand subnet.
    pub gid: Option<Gid>,
    /// The LID of the peer's port; none on Ethernet.
    pub lid: Lid,
}

impl From<ConnectAttributes> for PeerAddress {
    fn from(attributes: ConnectAttributes) -> Self {
        let gid = attributes.route.map(|route| route.destination);
        Self { qpn: attributes.peer_qpn, gid, lid: attributes.peer_lid }
    }
}

impl fmt::Display for PeerAddress {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { qpn, gid, lid } = self;
        match gid {
            Some(gid) => write!(f, "QPN {qpn} at GID {gid}"),
            None => write!(f, "QPN {qpn} at LID {lid}"),
        }
    }
}

/// An operation that completed with a failure. It derefs to how it failed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct FailedWork {
    /// The kind of the operation.
    pub operation: Operation,
    /// Whom it was with. `None` if a queue pair of the program's own does not know.
    pub peer: Option<PeerAddress>,
    /// How it failed, and what to check first.
    pub error: WorkError,
    /// The asynchronous event of the queue pair that tells the cause, if the request was flushed and the device has
    /// told one, such as [`QP_ACCESS_ERR`](AsyncEventKind::QP_ACCESS_ERR). SoftRoCE tells none where it refuses a
    /// request of the peer.
    ///
    /// To find it, the error looks at the asynchronous events of the context: that makes the context's `async_fd`
    /// non-blocking, and takes the events from who reads them by raw `ibv_get_async_event`. Who reads them by
    /// [`Context::async_events`](rdma_mem::Context::async_events) still gets all.
    pub event: Option<AsyncEventKind>,
}

impl FailedWork {
    /// Of a request to this queue pair, which is asked for the cause if the request was flushed. For crates above, too.
    #[doc(hidden)]
    #[must_use]
    pub fn of(
        operation: Operation,
        peer: Option<PeerAddress>,
        error: WorkError,
        qp: Option<&QueuePair>,
    ) -> Self {
        let event = qp.filter(|_| error.class() == WorkErrorClass::Flushed).and_then(cause);
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
        write!(f, "the {operation}{} failed: {error}{}", With(*peer), Says(*event))
    }
}

impl std::error::Error for FailedWork {}

/// An operation that was not posted. It derefs to why not.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct RefusedWork {
    /// The kind of the operation.
    pub operation: Operation,
    /// Whom it was to be with. `None` if a queue pair of the program's own does not know.
    pub peer: Option<PeerAddress>,
    /// Why it was not posted. Of a batch, also which of its requests.
    pub error: PostError,
}

impl RefusedWork {
    /// For crates above.
    #[doc(hidden)]
    #[must_use]
    pub const fn of(operation: Operation, peer: Option<PeerAddress>, error: PostError) -> Self {
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

/// Behind the name of an operation: whom it was with, if that is known.
pub(super) struct With(pub(super) Option<PeerAddress>);

impl fmt::Display for With {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.0.map_or(Ok(()), |peer| write!(f, " with {peer}"))
    }
}

/// Behind what goes to a peer: to whom, if that is known.
pub(super) struct To(pub(super) Option<PeerAddress>);

impl fmt::Display for To {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.0.map_or(Ok(()), |peer| write!(f, " to {peer}"))
    }
}

/// What the device has said of a queue pair whose requests were flushed, if that is a cause: the first, since it has
/// closed the queue pair.
#[cold]
pub(crate) fn cause(qp: &QueuePair) -> Option<AsyncEventKind> {
    let said = qp.async_events().ok()?;
    said.into_iter().find(|&kind| hint(kind).is_some())
}

/// What an event says that tells why a queue pair has failed.
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

/// Behind why a request failed: what the device said of the queue pair.
pub(crate) struct Says(pub(crate) Option<AsyncEventKind>);

impl fmt::Display for Says {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Some(kind) = self.0 else { return Ok(()) };
        write!(f, "; the device says: {kind}")?;
        hint(kind).map_or(Ok(()), |hint| write!(f, " ({hint})"))
    }
}
