//! The contents of events.

use std::net::{IpAddr, SocketAddr};

use rdma_mem::Gid;
use rdma_qp::QueuePairEndpoint;

use crate::error::{End, Error};
use crate::group::Group;
use crate::parameters::{Answered, Parameters, Route};

/// The contents of an event.
pub(crate) enum Happening {
    Requested(Box<Requested>),
    Replied(Box<Replying>),
    Established { private_data: Vec<u8> },
    Queried(Box<Queried>),
    Answered(Box<Answered>),
    Joined(Box<Group>),
    Resolved(Box<Result<Way, Error>>),
    Ended(End),
}

impl Happening {
    /// Returns the new connection of a request, or the new query.
    pub(crate) fn requester(&self) -> Option<u64> {
        match self {
            Self::Requested(requested) => Some(requested.peer),
            Self::Queried(queried) => Some(queried.peer),
            _ => None,
        }
    }

    /// Returns true for the request of this connection.
    pub(crate) fn is_request_of(&self, peer: u64) -> bool {
        self.requester() == Some(peer)
    }
}

/// The way to an address that was resolved.
#[derive(Clone, Copy)]
pub(crate) struct Way {
    pub(crate) to: SocketAddr,
    /// The number of the device's port that leads there.
    pub(crate) port: u8,
    /// The local address, if a software device reaches the address on another host.
    pub(crate) source: Option<Gid>,
    /// The source address from which the device reaches it, if the kernel does not choose this one.
    pub(crate) chosen: Option<IpAddr>,
}

/// A REQ that a listener received.
#[derive(Debug)]
pub(crate) struct Requested {
    /// The new connection.
    pub(crate) peer: u64,
    pub(crate) endpoint: QueuePairEndpoint,
    /// The local and the remote address, if the peer is on another host.
    pub(crate) ends: Option<(IpAddr, IpAddr)>,
    pub(crate) parameters: Parameters,
    pub(crate) route: Route,
    pub(crate) private_data: Vec<u8>,
}

/// A SIDR_REQ that a listener received.
pub(crate) struct Queried {
    /// The new query.
    pub(crate) peer: u64,
    pub(crate) route: Route,
    pub(crate) private_data: Vec<u8>,
}

/// A REP.
pub(crate) struct Replying {
    pub(crate) endpoint: QueuePairEndpoint,
    pub(crate) parameters: Parameters,
    pub(crate) private_data: Vec<u8>,
}
