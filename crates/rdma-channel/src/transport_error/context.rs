//! What errors say of an operation beside its cause.

use std::fmt;
use std::ops::Deref;

use rdma_qp::{ConnectAttributes, PostError, Qpn, WorkError};
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
}

impl Deref for FailedWork {
    type Target = WorkError;

    fn deref(&self) -> &WorkError {
        &self.error
    }
}

impl fmt::Display for FailedWork {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { operation, peer, error } = self;
        write!(f, "the {operation}{} failed: {error}", With(*peer))
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
