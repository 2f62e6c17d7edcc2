//! The attributes of a queue pair's connection.

use std::fmt::{self, Write as _};

use rdma_mem::{Lid, LinkLayer, Mtu};
use rdma_types::{Psn, QpType, Qpn};

use crate::ah::vector::GlobalRoute;

use crate::endpoint::pair::{self, GidRule, Pair};
use crate::endpoint::{EndpointGid, QueuePairEndpoint};

/// The attributes that [`handshake`](crate::PreparedQueuePair::handshake) computes from the two endpoints.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct ConnectAttributes {
    /// The peer's queue pair.
    pub peer_qpn: Qpn,
    /// The peer's LID; [`Lid::NONE`] on Ethernet.
    pub peer_lid: Lid,
    /// The GIDs of both ends; `None` within an InfiniBand subnet.
    pub route: Option<GlobalRoute>,
    /// The rule that both ends used to choose the GIDs. `None` if the program passed the route, and within an
    /// InfiniBand subnet.
    pub gid_rule: Option<GidRule>,
    /// The path MTU.
    pub mtu: Mtu,
    /// The PSN of the first packet that this end sends.
    pub send_psn: Psn,
    /// The PSN of the first packet from the peer.
    pub recv_psn: Psn,
    /// The maximum number of RDMA reads and atomics in flight from this end.
    pub max_rd_atomic: u8,
    /// The maximum number of RDMA reads and atomics from the peer that this end serves at a time.
    pub max_dest_rd_atomic: u8,
}

/// The reason that two endpoints do not match. Each variant names the field, with the values.
#[derive(Clone, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum HandshakeError {
    /// One port is InfiniBand, the other Ethernet.
    #[error(
        "the link layers differ: this port is {own}, but the peer's is {peer}; choose ports of the \
         same kind (another device, or the option `port`)"
    )]
    LinkLayer {
        /// This end's port.
        own: LinkLayer,
        /// The peer's port.
        peer: LinkLayer,
    },
    /// No GID of this end has the same type and family as a different GID of the peer.
    #[error(
        "GIDs: no address of this end has the same type and family as a different address of the \
         peer; an address that both ends have leads back to its own host{}{}",
        table("this end", .own), table("the peer", .peer)
    )]
    NoCommonGid {
        /// This end's GIDs.
        own: Vec<EndpointGid>,
        /// The peer's GIDs.
        peer: Vec<EndpointGid>,
    },
    /// The peer's InfiniBand port has no address.
    #[error(
        "LID: {lid} is not the address of a port; check that a subnet manager has configured the \
         peer's port"
    )]
    Lid {
        /// The peer's LID.
        lid: Lid,
    },
    /// The MTU that this end requests is larger than the peer's.
    #[error(
        "MTU: this end requests {own}, but the peer has {peer}: request at most that, or set no MTU"
    )]
    Mtu {
        /// The requested MTU.
        own: Mtu,
        /// The peer's MTU.
        peer: Mtu,
    },
    /// Queue pairs of the two types cannot communicate with each other.
    #[error("type: this queue pair is {own}, the peer's is {peer}")]
    QueuePairType {
        /// This queue pair's type.
        own: QpType,
        /// The peer's type.
        peer: QpType,
    },
    /// The QPN is reserved, so no program's queue pair has it.
    #[error("QPN: {qpn} is not a queue pair that can be connected to")]
    Qpn {
        /// The peer's QPN.
        qpn: Qpn,
    },
}

rdma_types::debug_messages!(enum HandshakeError {
    LinkLayer { own, peer }, NoCommonGid { own, peer }, Lid { lid }, Mtu { own, peer },
    QueuePairType { own, peer }, Qpn { qpn },
});

fn table(whose: &str, gids: &[EndpointGid]) -> String {
    let mut text = format!("; {whose} has");
    for EndpointGid { gid, gid_type, .. } in gids {
        let _ = write!(text, " {gid} ({gid_type})");
    }
    if gids.is_empty() { text + " none" } else { text }
}

/// The properties of this end that are needed to connect it.
pub(crate) struct Own<'a> {
    pub(crate) endpoint: &'a QueuePairEndpoint,
    /// The usable GIDs of the port, with their indices in the port's table. The GIDs of the endpoint come first.
    pub(crate) table: &'a [(EndpointGid, u8)],
    /// The requested MTU, if any.
    pub(crate) fixed_mtu: Option<Mtu>,
    /// The PSN of the peer's first packet, if the program overrides the one in the peer's endpoint.
    pub(crate) recv_psn: Option<Psn>,
}

impl ConnectAttributes {
    pub(crate) fn compute(own: &Own<'_>, peer: &QueuePairEndpoint) -> Result<Self, HandshakeError> {
        let end = own.endpoint;
        let (peer_lid, route, gid_rule) = Self::path_to(own, peer)?;
        if let Some(fixed) = own.fixed_mtu.filter(|&fixed| fixed > peer.mtu) {
            return Err(HandshakeError::Mtu { own: fixed, peer: peer.mtu });
        }
        Ok(Self {
            peer_qpn: peer.qpn,
            peer_lid,
            route,
            gid_rule,
            mtu: end.mtu.min(peer.mtu),
            send_psn: end.psn,
            recv_psn: own.recv_psn.unwrap_or(peer.psn),
            max_rd_atomic: end.max_rd_atomic.min(peer.max_dest_rd_atomic),
            max_dest_rd_atomic: end.max_dest_rd_atomic.min(peer.max_rd_atomic),
        })
    }

    /// Returns the route to the peer, or an error if the endpoints do not match. The MTU is not compared here.
    pub(crate) fn path_to(
        own: &Own<'_>,
        peer: &QueuePairEndpoint,
    ) -> Result<(Lid, Option<GlobalRoute>, Option<GidRule>), HandshakeError> {
        let end = own.endpoint;
        // QPNs 0 and 1 belong to subnet management.
        if peer.qpn.get() <= 1 || peer.qpn == Qpn::MULTICAST {
            return Err(HandshakeError::Qpn { qpn: peer.qpn });
        }
        if end.qp_type != peer.qp_type {
            let (own, peer) = (end.qp_type, peer.qp_type);
            return Err(HandshakeError::QueuePairType { own, peer });
        }
        let ethernet = |end: &QueuePairEndpoint| end.link_layer == LinkLayer::ETHERNET;
        if ethernet(end) != ethernet(peer) {
            let (own, peer) = (end.link_layer, peer.link_layer);
            return Err(HandshakeError::LinkLayer { own, peer });
        }
        let pair = pair::choose(end, peer);
        let routed = ethernet(end) || end.grh_required || peer.grh_required;
        let (route, rule) = match pair {
            Some(pair) if routed || are_of_two_subnets(end, peer) => {
                (Some(Self::route(own, peer, pair)?), Some(pair.rule))
            }
            None if routed => return Err(no_common_gid(end, peer)),
            _ => (None, None),
        };
        if !ethernet(peer) && !peer.lid.is_unicast() {
            return Err(HandshakeError::Lid { lid: peer.lid });
        }
        Ok((peer.lid, route, rule))
    }

    fn route(
        own: &Own<'_>,
        peer: &QueuePairEndpoint,
        pair: Pair,
    ) -> Result<GlobalRoute, HandshakeError> {
        let ends = (own.table.get(pair.own), peer.gids().get(pair.peer));
        let (Some(&(_, source_index)), Some(destination)) = ends else {
            return Err(no_common_gid(own.endpoint, peer));
        };
        Ok(GlobalRoute { destination: destination.gid, source_index })
    }
}

/// Returns true if packets between two InfiniBand ports must pass a router, because the ports have no subnet prefix in
/// common.
fn are_of_two_subnets(own: &QueuePairEndpoint, peer: &QueuePairEndpoint) -> bool {
    !own.gids()
        .iter()
        .any(|a| peer.gids().iter().any(|b| a.gid.subnet_prefix() == b.gid.subnet_prefix()))
}

fn no_common_gid(own: &QueuePairEndpoint, peer: &QueuePairEndpoint) -> HandshakeError {
    HandshakeError::NoCommonGid { own: own.gids().to_vec(), peer: peer.gids().to_vec() }
}

impl fmt::Display for ConnectAttributes {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { peer_qpn, peer_lid, mtu, .. } = self;
        match self.route {
            Some(GlobalRoute { destination, source_index }) => {
                write!(
                    f,
                    "QPN {peer_qpn} at GID {destination} from index {source_index}, MTU {mtu}"
                )
            }
            None => write!(f, "QPN {peer_qpn} at LID {peer_lid}, MTU {mtu}"),
        }
    }
}

#[cfg(test)]
mod properties;

#[cfg(test)]
mod tests {
    use rdma_mem::GidType;

    use super::*;

    fn end(qpn: u32) -> QueuePairEndpoint {
        QueuePairEndpoint::new(Qpn::masked(qpn), Psn::masked(qpn + 100))
    }

    fn roce(qpn: u32, gid: &str) -> QueuePairEndpoint {
        end(qpn).with_gid(gid.parse().unwrap(), GidType::ROCE_V2)
    }

    fn compute(
        endpoint: &QueuePairEndpoint,
        peer: &QueuePairEndpoint,
    ) -> Result<ConnectAttributes, HandshakeError> {
        let table: Vec<_> = endpoint.gids().iter().copied().zip(3..).collect();
        let own = Own { endpoint, table: &table, fixed_mtu: None, recv_psn: None };
        ConnectAttributes::compute(&own, peer)
    }

    #[test]
    fn the_smaller_of_both_ends_counts() {
        let own = roce(0x11, "::ffff:192.0.2.1").with_mtu(Mtu::MTU4096).with_rd_atomic(16, 4);
        let peer = roce(0x12, "::ffff:192.0.2.2").with_mtu(Mtu::MTU2048).with_rd_atomic(2, 8);
        let here = compute(&own, &peer).unwrap();
        let there = compute(&peer, &own).unwrap();
        assert_eq!((here.mtu, there.mtu), (Mtu::MTU2048, Mtu::MTU2048));
        assert_eq!((here.max_rd_atomic, here.max_dest_rd_atomic), (8, 2));
        assert_eq!(there.max_dest_rd_atomic, here.max_rd_atomic, "what is asked is answered");
        assert_eq!((here.send_psn, here.recv_psn), (there.recv_psn, there.send_psn));
        let route = here.route.unwrap();
        assert_eq!((route.source_index, route.destination), (3, peer.gids()[0].gid));
    }

    #[test]
    fn infiniband_goes_by_lid_unless_a_header_is_required() {
        let own = end(0x11).with_lid(Lid::new(1));
        let peer = end(0x12).with_lid(Lid::new(2));
        let attributes = compute(&own, &peer).unwrap();
        assert_eq!((attributes.route, attributes.peer_lid), (None, Lid::new(2)));
        let gid =
            |end: QueuePairEndpoint, gid: &str| end.with_gid(gid.parse().unwrap(), GidType::IB);
        let required = gid(peer.with_grh_required(true), "fe80::2");
        assert!(matches!(compute(&own, &required), Err(HandshakeError::NoCommonGid { .. })));
        let attributes = compute(&gid(own, "fe80::1"), &required).unwrap();
        assert_eq!(attributes.route.unwrap().destination, "fe80::2".parse().unwrap());
    }

    #[test]
    fn infiniband_ports_of_two_subnets_use_a_route() {
        let port = |lid, gids: &[&str]| {
            let end = end(0x11 + u32::from(lid)).with_lid(Lid::new(lid));
            gids.iter().fold(end, |end, gid| end.with_gid(gid.parse().unwrap(), GidType::IB))
        };
        let route = |own: &QueuePairEndpoint, peer: &QueuePairEndpoint| {
            compute(own, peer).unwrap().route.map(|route| route.destination)
        };
        let own = port(1, &["fec0:0:0:1::1"]);
        assert_eq!(route(&own, &port(2, &["fec0:0:0:1::2"])), None, "one subnet");
        let other = port(2, &["fec0:0:0:2::2"]);
        assert_eq!(route(&own, &other), Some("fec0:0:0:2::2".parse().unwrap()));
        assert_eq!(route(&own, &port(2, &["fe80::2"])), None, "no router passes this prefix on");
    }

    #[test]
    fn a_mismatch_is_named() {
        let own = roce(0x11, "::ffff:192.0.2.1");
        let text = compute(&own, &roce(0x12, "fe80::1")).unwrap_err().to_string();
        assert!(text.contains("::ffff:192.0.2.1 (RoCE v2)") && text.contains("fe80::1"), "{text}");
        let text = compute(&own, &end(0x12).with_lid(Lid::new(2))).unwrap_err().to_string();
        assert_eq!(
            text,
            "the link layers differ: this port is Ethernet, but the peer's is InfiniBand; choose \
             ports of the same kind (another device, or the option `port`)"
        );
        let lid = compute(&end(0x11).with_lid(Lid::new(1)), &end(0x12));
        assert_eq!(lid, Err(HandshakeError::Lid { lid: Lid::NONE }));
        for qpn in [0, 1, 0xff_ffff] {
            let peer = QueuePairEndpoint { qpn: Qpn::masked(qpn), ..own };
            assert!(matches!(compute(&own, &peer), Err(HandshakeError::Qpn { .. })));
        }
    }

    #[test]
    fn an_mtu_that_was_asked_for_is_never_lowered_silently() {
        let endpoint = &roce(0x11, "fe80::1").with_mtu(Mtu::MTU4096);
        let table = [(endpoint.gids()[0], 0)];
        let own = Own { endpoint, table: &table, fixed_mtu: Some(Mtu::MTU4096), recv_psn: None };
        let peer = roce(0x12, "fe80::2");
        let error = ConnectAttributes::compute(&own, &peer).unwrap_err();
        assert_eq!(error, HandshakeError::Mtu { own: Mtu::MTU4096, peer: Mtu::MTU1024 });
    }
}
