//! Peers in error messages.

use std::fmt;

use rdma_qp::{ConnectAttributes, Qpn};
use rdma_types::{Gid, Lid};

/// The peer of a connection, for error messages.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct PeerAddress {
    /// The peer's queue pair.
    pub qpn: Qpn,
    /// The GID of the peer's port, or `None` within an InfiniBand subnet.
    pub gid: Option<Gid>,
    /// The LID of the peer's port, or none on Ethernet.
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

/// A suffix for the name of an operation, which names the peer if it is known.
pub(crate) struct With(pub(crate) Option<PeerAddress>);

impl fmt::Display for With {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.0.map_or(Ok(()), |peer| write!(f, " with {peer}"))
    }
}

/// A suffix for a message, which names the peer if it is known.
pub(crate) struct To(pub(crate) Option<PeerAddress>);

impl fmt::Display for To {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.0.map_or(Ok(()), |peer| write!(f, " to {peer}"))
    }
}

/// The ID of a server's client. It is valid from the client's `Joined` event until its `Left` event.
///
/// An id belongs to one server. A client that joins later may have the same [index](Self::index), but never the same
/// `PeerId`. So a message to a client that has left cannot reach another client.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct PeerId {
    index: usize,
    generation: u32,
}

impl PeerId {
    /// Creates the id of the `generation`th client with this index.
    #[must_use]
    pub const fn new(index: usize, generation: u32) -> Self {
        Self { index, generation }
    }

    /// Returns the index of this client, which is less than the server's maximum number of clients. No two current
    /// clients have the same index, so a program can keep the state of its clients in an array.
    #[must_use]
    pub const fn index(self) -> usize {
        self.index
    }
}

impl fmt::Display for PeerId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.generation {
            0 => write!(f, "client {}", self.index),
            later => write!(f, "client {} (generation {later})", self.index),
        }
    }
}
