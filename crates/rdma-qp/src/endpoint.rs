//! Queue pair endpoints: what a peer needs to know in order to connect.

pub(crate) mod bytes;
pub(crate) mod class;
pub(crate) mod connect;
pub(crate) mod pair;
#[cfg(feature = "serde")]
mod parts;

use std::fmt;
use std::net::IpAddr;

use rdma_mem::{Gid, GidType, Lid, LinkLayer, Mtu};
use rdma_types::{Psn, QpType, Qpn};

use crate::endpoint::pair::GidRule;
use crate::gid_network::gid_of;

/// A GID of an endpoint, with its packet type.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[cfg_attr(feature = "serde", derive(serde::Serialize, serde::Deserialize))]
#[non_exhaustive]
pub struct EndpointGid {
    /// The GID.
    pub gid: Gid,
    /// The type of packets that use this GID.
    pub gid_type: GidType,
    /// The number of leading bits that identify the GID's network, from the netmask of its interface; 0 if unknown.
    #[cfg_attr(feature = "serde", serde(default))]
    pub prefix_length: u8,
}

impl EndpointGid {
    /// The value of unused slots.
    pub(crate) const NONE: Self = Self::new(Gid::ZERO, GidType::IB);

    /// Creates a GID whose network is unknown.
    #[must_use]
    pub const fn new(gid: Gid, gid_type: GidType) -> Self {
        Self { gid, gid_type, prefix_length: 0 }
    }

    /// Sets the number of leading bits that identify the GID's network. For an IPv4 address, add 96 to the prefix
    /// length.
    #[must_use]
    pub const fn with_prefix_length(mut self, prefix_length: u8) -> Self {
        self.prefix_length = prefix_length;
        self
    }
}

/// One end of a connection, as seen by the other end. Both ends exchange their endpoints, by any
/// means, before [`handshake`](crate::PreparedQueuePair::handshake).
///
/// An endpoint is transferred in [a fixed format](Self::to_bytes), or through serde (feature `serde`). If the peer's
/// program reports only some of the fields, as `ibv_rc_pingpong` does, create the endpoint from parts:
///
/// ```
/// use rdma_qp::QueuePairEndpoint;
/// use rdma_types::{Gid, GidType, Psn, Qpn};
///
/// // remote address:  LID 0x0000, QPN 0x000011, PSN 0x3a1b2c, GID ::ffff:192.0.2.7
/// let gid: Gid = "::ffff:192.0.2.7".parse()?;
/// let endpoint = QueuePairEndpoint::new(Qpn::masked(0x11), Psn::masked(0x3a1b2c))
///     .with_gid(gid, GidType::ROCE_V2);
/// let bytes = endpoint.to_bytes();
/// assert_eq!(QueuePairEndpoint::from_bytes(&bytes)?, endpoint);
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
#[derive(Clone, Copy, PartialEq, Eq)]
#[cfg_attr(feature = "serde", derive(serde::Serialize, serde::Deserialize))]
#[cfg_attr(
    feature = "serde",
    serde(try_from = "crate::endpoint::parts::Parts", into = "crate::endpoint::parts::Parts")
)]
pub struct QueuePairEndpoint {
    pub(crate) qp_type: QpType,
    pub(crate) qpn: Qpn,
    /// The PSN of the first packet that this end sends; 0 for datagrams.
    pub(crate) psn: Psn,
    /// The key that datagrams must carry; 0 for connections.
    pub(crate) qkey: u32,
    pub(crate) lid: Lid,
    pub(crate) link_layer: LinkLayer,
    pub(crate) grh_required: bool,
    pub(crate) mtu: Mtu,
    pub(crate) max_rd_atomic: u8,
    pub(crate) max_dest_rd_atomic: u8,
    pub(crate) gids: [EndpointGid; Self::MAX_GIDS],
    pub(crate) gid_count: u8,
    /// The addresses of the stream over which the ends exchange their endpoints, as this end sees them: this end's
    /// first, then the peer's.
    pub(crate) stream: Option<(Gid, Gid)>,
}

/// Prints one line, with all GIDs.
impl fmt::Debug for QueuePairEndpoint {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { qp_type, qpn, psn, lid, link_layer, mtu, .. } = self;
        write!(
            f,
            "QueuePairEndpoint({qp_type}, QPN {qpn}, PSN {psn}, LID {lid}, {link_layer}, MTU {mtu}"
        )?;
        for EndpointGid { gid, gid_type, .. } in self.gids() {
            write!(f, ", GID {gid} {gid_type}")?;
        }
        f.write_str(")")
    }
}

impl QueuePairEndpoint {
    /// The version of the format that [`to_bytes`](Self::to_bytes) writes. [`from_bytes`](Self::from_bytes) also reads
    /// version 1.
    pub const VERSION: u8 = 2;

    /// The maximum number of GIDs that an endpoint carries. If the port has more, the endpoint carries those that are
    /// likely to be chosen. These are the GID of the stream's address, the GIDs in the peer's network, and the best
    /// GIDs by type and class.
    pub const MAX_GIDS: usize = 16;

    /// Creates an endpoint for a reliable connection (RC), with an MTU of 1024 bytes and one RDMA read at a time. It
    /// has no address yet: add a LID or GIDs.
    #[must_use]
    pub const fn new(qpn: Qpn, psn: Psn) -> Self {
        Self {
            qp_type: QpType::RC,
            qpn,
            psn,
            qkey: 0,
            lid: Lid::NONE,
            link_layer: LinkLayer::UNSPECIFIED,
            grh_required: false,
            mtu: Mtu::MTU1024,
            max_rd_atomic: 1,
            max_dest_rd_atomic: 1,
            gids: [EndpointGid::NONE; Self::MAX_GIDS],
            gid_count: 0,
            stream: None,
        }
    }

    /// Sets the type to an unreliable connection (UC).
    #[must_use]
    pub const fn with_unreliable_connection(mut self) -> Self {
        self.qp_type = QpType::UC;
        self
    }

    /// Sets the type to datagrams (UD). Datagrams to this endpoint must carry this key to be accepted. The endpoint has
    /// no PSN.
    #[must_use]
    pub const fn with_qkey(mut self, qkey: u32) -> Self {
        self.qp_type = QpType::UD;
        self.qkey = qkey;
        self.psn = Psn::masked(0);
        self
    }

    /// Sets the port's LID, which makes the port an InfiniBand port.
    #[must_use]
    pub const fn with_lid(mut self, lid: Lid) -> Self {
        self.lid = lid;
        self.link_layer = LinkLayer::INFINIBAND;
        self
    }

    /// Adds a GID whose network is unknown. A RoCE type makes the port an Ethernet port. Only the first 16 GIDs are
    /// kept.
    #[must_use]
    pub fn with_gid(self, gid: Gid, gid_type: GidType) -> Self {
        self.with_endpoint_gid(EndpointGid::new(gid, gid_type))
    }

    /// Adds a GID like [`with_gid`](Self::with_gid), but with the prefix length of its network.
    #[must_use]
    pub fn with_endpoint_gid(mut self, gid: EndpointGid) -> Self {
        if gid.gid_type != GidType::IB {
            self.link_layer = LinkLayer::ETHERNET;
        }
        if let Some(place) = self.gids.get_mut(usize::from(self.gid_count)) {
            *place = gid;
            self.gid_count += 1;
        }
        self
    }

    /// Sets the addresses of the stream over which the ends exchange their endpoints, as this end
    /// sees them.
    #[must_use]
    pub fn with_stream_addresses(mut self, own: IpAddr, peer: IpAddr) -> Self {
        self.stream = Some((gid_of(own), gid_of(peer)));
        self
    }

    /// Sets the MTU of this end.
    #[must_use]
    pub const fn with_mtu(mut self, mtu: Mtu) -> Self {
        self.mtu = mtu;
        self
    }

    /// Sets the maximum numbers of RDMA reads and atomics that this end starts, and that it serves, at a time.
    #[must_use]
    pub const fn with_rd_atomic(mut self, max_rd_atomic: u8, max_dest_rd_atomic: u8) -> Self {
        self.max_rd_atomic = max_rd_atomic;
        self.max_dest_rd_atomic = max_dest_rd_atomic;
        self
    }

    /// Sets whether packets to this end need a global route header.
    #[must_use]
    pub const fn with_grh_required(mut self, grh_required: bool) -> Self {
        self.grh_required = grh_required;
        self
    }

    /// Returns the queue pair's type.
    #[must_use]
    pub const fn qp_type(&self) -> QpType {
        self.qp_type
    }

    /// Returns the QPN (queue pair number).
    #[doc(alias = "qp_num")]
    #[must_use]
    pub const fn qpn(&self) -> Qpn {
        self.qpn
    }

    /// Returns the key that datagrams must carry to be accepted; 0 for a connected queue pair.
    #[must_use]
    pub const fn qkey(&self) -> u32 {
        self.qkey
    }

    /// Returns the PSN of the first packet that this end sends; 0 for datagrams.
    #[must_use]
    pub const fn psn(&self) -> Psn {
        self.psn
    }

    /// Returns the port's LID; [`Lid::NONE`] on Ethernet.
    #[must_use]
    pub const fn lid(&self) -> Lid {
        self.lid
    }

    /// Returns the link layer of the port.
    #[must_use]
    pub const fn link_layer(&self) -> LinkLayer {
        self.link_layer
    }

    /// Returns true if packets to this end need a global route header.
    #[must_use]
    pub const fn grh_required(&self) -> bool {
        self.grh_required
    }

    /// Returns the largest MTU of this end.
    #[must_use]
    pub const fn mtu(&self) -> Mtu {
        self.mtu
    }

    /// Returns the maximum number of RDMA reads and atomics that this end starts at a time.
    #[must_use]
    pub const fn max_rd_atomic(&self) -> u8 {
        self.max_rd_atomic
    }

    /// Returns the maximum number of RDMA reads and atomics that this end serves at a time.
    #[must_use]
    pub const fn max_dest_rd_atomic(&self) -> u8 {
        self.max_dest_rd_atomic
    }

    /// Returns the GIDs that the endpoint carries.
    #[must_use]
    pub fn gids(&self) -> &[EndpointGid] {
        self.gids.get(..usize::from(self.gid_count)).unwrap_or(&self.gids)
    }

    /// Returns the GIDs that this end and `peer` would use to connect, this end's first, and the rule that selects
    /// them; see [`GidChoice::ByPeer`](crate::GidChoice::ByPeer). `None` if no GID of one end matches a GID of the
    /// other.
    ///
    /// # Examples
    /// ```
    /// use rdma_qp::{EndpointGid, GidRule, QueuePairEndpoint};
    /// use rdma_types::{GidType, Psn, Qpn};
    ///
    /// let end = || QueuePairEndpoint::new(Qpn::masked(0x11), Psn::masked(1));
    /// let gid = |text: &str| text.parse().map(|gid| EndpointGid::new(gid, GidType::ROCE_V2));
    /// let own = end()
    ///     .with_endpoint_gid(gid("::ffff:192.168.1.1")?.with_prefix_length(120))
    ///     .with_endpoint_gid(gid("::ffff:10.0.0.1")?.with_prefix_length(120));
    /// let peer = end().with_endpoint_gid(gid("::ffff:10.0.0.2")?);
    /// let (here, there, rule) = own.choose_gids(&peer).expect("two addresses of one network");
    /// assert_eq!((here, there), (own.gids()[1], peer.gids()[0]));
    /// assert_eq!(rule, GidRule::Network);
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    #[must_use]
    pub fn choose_gids(&self, peer: &Self) -> Option<(EndpointGid, EndpointGid, GidRule)> {
        let chosen = pair::choose(self, peer)?;
        Some((*self.gids().get(chosen.own)?, *peer.gids().get(chosen.peer)?, chosen.rule))
    }
}
