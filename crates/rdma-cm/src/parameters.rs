//! The contents of messages, and the addresses of their ends.

use std::net::SocketAddr;

use rdma_mem::{GidType, Mtu};
use rdma_proto::cm::Address;
use rdma_proto::cm::wire::{Answer, Resolution, SidrStatus};
use rdma_qp::{PreparedQueuePair, QueuePairType};
use rdma_types::{AckTimeout, Psn, Qpn};

/// The parameters of one end in a REQ or REP.
#[doc(alias = "rdma_conn_param")]
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Parameters {
    /// The number of the end's queue pair.
    pub qpn: Qpn,
    /// The PSN of the first packet that the end receives.
    pub psn: Psn,
    /// The number of RDMA reads and atomics that the end serves at a time.
    pub responder_resources: u8,
    /// The number of RDMA reads and atomics that the end starts at a time.
    pub initiator_depth: u8,
    /// The number of retries of unacknowledged packets, 0 to 7. A REP has none.
    pub retry_count: u8,
    /// The number of times that the other end retries a send after this end had no receive request, 0 to 7. 7 is no
    /// limit, which queue pairs of this crate's root request.
    pub rnr_retry_count: u8,
    /// Whether the end implements flow control.
    pub flow_control: bool,
    /// Whether the queue pair has a shared receive queue.
    pub srq: bool,
    /// Whether the queue pairs are of type UC. A REP does not contain this.
    pub is_unreliable: bool,
}

impl Parameters {
    /// Returns the parameters of an end with the maximum retries, which serves and starts no RDMA reads.
    #[must_use]
    pub const fn new(qpn: Qpn, psn: Psn) -> Self {
        Self {
            qpn,
            psn,
            responder_resources: 0,
            initiator_depth: 0,
            retry_count: 7,
            rnr_retry_count: 7,
            flow_control: true,
            srq: false,
            is_unreliable: false,
        }
    }

    /// Returns the parameters of a queue pair.
    pub(crate) fn of(queue_pair: &PreparedQueuePair) -> Self {
        let end = queue_pair.endpoint();
        Self {
            responder_resources: end.max_dest_rd_atomic(),
            initiator_depth: end.max_rd_atomic(),
            retry_count: queue_pair.max_ack_retries().retries(),
            srq: queue_pair.has_srq(),
            is_unreliable: end.qp_type() == QueuePairType::UC,
            ..Self::new(end.qpn(), end.psn())
        }
    }

    /// Returns these parameters with at most the RDMA reads and atomics that the peer serves and starts.
    pub(crate) fn within(self, peer: &Self) -> Self {
        Self {
            responder_resources: self.responder_resources.min(peer.initiator_depth),
            initiator_depth: self.initiator_depth.min(peer.responder_resources),
            ..self
        }
    }

    /// Returns the contents of a REP.
    pub(crate) fn answer(self, private_data: &[u8]) -> Answer<'_> {
        Answer {
            qpn: self.qpn,
            psn: self.psn,
            responder_resources: self.responder_resources,
            initiator_depth: self.initiator_depth,
            flow_control: self.flow_control,
            rnr_retry_count: self.rnr_retry_count,
            srq: self.srq,
            private_data,
            ..Answer::default()
        }
    }
}

/// The addresses of a connection's two ends.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Route {
    /// The address of this end's port. Queue pairs send from it.
    pub local: Address,
    /// The address of the other end's port.
    pub remote: Address,
    /// The type of packets between two GIDs.
    pub gid_type: GidType,
    /// The MTU of the path.
    pub mtu: Mtu,
    /// The traffic class of the path (`RDMA_OPTION_ID_TOS`). For RoCE v2, it is the byte with DSCP and ECN.
    pub traffic_class: u8,
    /// The time for an acknowledgement that the active end offers (`RDMA_OPTION_ID_ACK_TIMEOUT`), at least the shortest
    /// one and at most 17 s.
    pub ack_timeout: AckTimeout,
    /// The IP address and port of this end.
    pub source: SocketAddr,
    /// The IP address and port of the other end.
    pub destination: SocketAddr,
    /// Whether the other end is on another host.
    pub is_outside: bool,
}

/// The answer to a query.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Answered {
    /// The result. The queue pair and its key are valid only with [`SidrStatus::VALID`].
    pub status: SidrStatus,
    /// The service's queue pair.
    pub qpn: Qpn,
    /// The Q_Key of that queue pair.
    pub qkey: u32,
    /// The private data of the passive end, padded with zeros.
    pub private_data: Vec<u8>,
}

/// The Q_Key of the UDP port space (`RDMA_UDP_QKEY`). The kernel's rdma_cm answers queries only with this key.
pub const QKEY: u32 = 0x0123_4567;

/// The answer to a query that the program rejects.
pub(crate) const NO_ANSWER: Resolution<'static> = Resolution {
    status: SidrStatus::REJECTED,
    qpn: Qpn::masked(0),
    qkey: 0,
    info: &[],
    private_data: &[],
};
