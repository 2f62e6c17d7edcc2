//! Property: both ends compute the same connection from each other's endpoint, for any ports.

use proptest::prelude::*;
use rdma_mem::{Gid, GidType, Lid, LinkLayer, Mtu};
use rdma_types::{Psn, Qpn};

use super::{ConnectAttributes, GidRule, HandshakeError, Own};
use crate::endpoint::{EndpointGid, QueuePairEndpoint};

/// Generates an entry of a GID table, of a known or an unknown type.
fn gid() -> impl Strategy<Value = EndpointGid> {
    let gid_type = prop_oneof![
        Just(GidType::IB),
        Just(GidType::ROCE_V1),
        Just(GidType::ROCE_V2),
        Just(GidType::from_raw(9)),
    ];
    let prefix = prop_oneof![
        Just(0xfe80_0000_0000_0000_0000_0000_0000_0000_u128), // link-local
        Just(0xffff_0000_0000),                               // mapped IPv4
        Just(0xffff_f000_0000),                               // likewise, reserved
        Just(0xfd00_0000_0000_0000_0000_0000_0000_0000),      // global
        Just(0x2001_0db8_0000_0000_0000_0000_0000_0000),      // for documentation
    ];
    (gid_type, prefix, 1..=u32::MAX).prop_map(|(gid_type, prefix, host)| {
        let gid = Gid::from_bytes((prefix | u128::from(host)).to_be_bytes());
        // Each network has only one address, because the choice by network has its own tests.
        EndpointGid::new(gid, gid_type).with_prefix_length(128)
    })
}

/// A port's endpoint, and its GIDs with their indices in the port's table.
#[derive(Clone, Debug)]
struct PortEndpoint {
    endpoint: QueuePairEndpoint,
    table: Vec<(EndpointGid, u8)>,
}

fn end() -> impl Strategy<Value = PortEndpoint> {
    let gids = prop::collection::vec((gid(), 1..15_u8), 0..=QueuePairEndpoint::MAX_GIDS);
    let link_layer = prop_oneof![Just(LinkLayer::ETHERNET), Just(LinkLayer::INFINIBAND)];
    let port = (link_layer, any::<u16>(), any::<bool>(), 1..=5_u8);
    let queue_pair = (2..0xff_ffff_u32, any::<u32>(), any::<u8>(), any::<u8>());
    (gids, port, queue_pair).prop_map(|(gids, port, (qpn, psn, reads, answers))| {
        let (link_layer, lid, grh_required, mtu) = port;
        let mut endpoint = QueuePairEndpoint::new(Qpn::masked(qpn), Psn::masked(psn))
            .with_mtu(Mtu::from_code(mtu).unwrap())
            .with_rd_atomic(reads, answers)
            .with_grh_required(grh_required);
        let (mut table, mut next) = (Vec::new(), 0);
        for (gid, gap) in gids {
            endpoint = endpoint.with_endpoint_gid(gid);
            next += gap;
            table.push((gid, next));
        }
        (endpoint.lid, endpoint.link_layer) = (Lid::new(lid), link_layer);
        PortEndpoint { endpoint, table }
    })
}

impl PortEndpoint {
    fn connect(&self, peer: &Self) -> Result<ConnectAttributes, HandshakeError> {
        let (endpoint, table) = (&self.endpoint, self.table.as_slice());
        let own = Own { endpoint, table, fixed_mtu: None, recv_psn: None };
        ConnectAttributes::compute(&own, &peer.endpoint)
    }

    /// Returns the entry at this index of the port's table.
    fn source(&self, index: u8) -> EndpointGid {
        let entry = self.table.iter().find(|&&(_, known)| known == index);
        entry.expect("an index of the table").0
    }
}

/// Returns the qualities of a GID: pairs of type and family, which sort in the order of preference. They are stated
/// independently of the code under test. A family that no host uses ranks lower, but can communicate with a related
/// family that hosts use.
fn qualities(gid: &EndpointGid) -> Vec<(u8, u8)> {
    let gid_type = match gid.gid_type {
        GidType::ROCE_V2 => 0,
        GidType::ROCE_V1 => 1,
        _ => 2,
    };
    let bytes = gid.gid.to_bytes();
    let families = match (bytes[0], bytes[10], bytes[12], bytes[13]) {
        (0xfe, ..) => vec![6],
        (0, 0xff, 169, 254) => vec![7],
        (0, 0xff, 127, 128..) => vec![8],
        (0, 0xff, 0xf0.., _) => vec![2, 4],
        (0, 0xff, ..) => vec![0, 4],
        (0x20, ..) => vec![3, 5],
        _ => vec![1, 5],
    };
    families.into_iter().map(|family| (gid_type, family)).collect()
}

/// Returns the qualities that two ports have in common, best first. An address that both have is counted only if they
/// are the same port. This is assumed if their tables are equal, or if one table is a part of the other and no other
/// pair exists.
fn common(a: &QueuePairEndpoint, b: &QueuePairEndpoint) -> Vec<(u8, u8)> {
    let holds = |all: &QueuePairEndpoint, some: &QueuePairEndpoint| {
        some.gids().iter().all(|gid| all.gids().contains(gid))
    };
    let has = |end: &QueuePairEndpoint, gid: Gid| end.gids().iter().any(|other| other.gid == gid);
    let (is_part, is_whole) = (holds(a, b), holds(b, a));
    if is_part && is_whole {
        return kinds(a, b, |_, _| true);
    }
    let apart = kinds(a, b, |one, other| !has(b, one.gid) && !has(a, other.gid));
    match apart.is_empty() && (is_part || is_whole) {
        true => kinds(a, b, |one, other| one.gid == other.gid),
        false => apart,
    }
}

/// Returns the qualities of the pairs that `counts` accepts, best first.
fn kinds(
    a: &QueuePairEndpoint,
    b: &QueuePairEndpoint,
    counts: impl Fn(&EndpointGid, &EndpointGid) -> bool,
) -> Vec<(u8, u8)> {
    let of_link = |gid: &&EndpointGid| match a.link_layer {
        LinkLayer::ETHERNET => [GidType::ROCE_V1, GidType::ROCE_V2].contains(&gid.gid_type),
        _ => gid.gid_type == GidType::IB,
    };
    let mut both = Vec::new();
    for one in a.gids().iter().filter(of_link) {
        for other in b.gids().iter().filter(of_link).filter(|other| counts(one, other)) {
            let theirs = qualities(other);
            both.extend(qualities(one).into_iter().filter(|kind| theirs.contains(kind)));
        }
    }
    both.sort_unstable();
    both
}

/// Generates two ends that can usually be connected.
fn ends() -> impl Strategy<Value = (PortEndpoint, PortEndpoint)> {
    (end(), end(), any::<u8>()).prop_map(|(a, mut b, differ)| {
        if differ > 16 {
            b.endpoint.link_layer = a.endpoint.link_layer;
        }
        (a, b)
    })
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(512))]

    #[test]
    fn the_source_of_each_end_is_the_destination_of_the_other((a, b) in ends()) {
        let (Ok(ab), Ok(ba)) = (a.connect(&b), b.connect(&a)) else { return Ok(()) };
        prop_assert_eq!((ab.route.is_some(), ab.gid_rule), (ba.route.is_some(), ba.gid_rule));
        let (Some(to_b), Some(to_a)) = (ab.route, ba.route) else { return Ok(()) };
        let (from_a, from_b) = (a.source(to_b.source_index), b.source(to_a.source_index));
        prop_assert_eq!(from_a.gid, to_a.destination);
        prop_assert_eq!(from_b.gid, to_b.destination);
        prop_assert_eq!(from_a.gid_type, from_b.gid_type);
        if ab.gid_rule != Some(GidRule::Class) {
            return Ok(());
        }
        let best = common(&a.endpoint, &b.endpoint)[0];
        for from in [from_a, from_b] {
            prop_assert!(qualities(&from).contains(&best), "{:?}", from);
        }
    }

    #[test]
    fn a_route_is_found_wherever_there_is_one((a, b) in ends()) {
        let ethernet = a.endpoint.link_layer == LinkLayer::ETHERNET;
        let has_common = !common(&a.endpoint, &b.endpoint).is_empty();
        let prefixes = |end: &PortEndpoint| -> Vec<_> {
            end.endpoint.gids().iter().map(|gid| gid.gid.subnet_prefix()).collect()
        };
        let theirs = prefixes(&b);
        let is_one_subnet = prefixes(&a).iter().any(|prefix| theirs.contains(prefix));
        let required = ethernet || a.endpoint.grh_required || b.endpoint.grh_required;
        let routed = required || (has_common && !is_one_subnet);
        let reachable = |end: &PortEndpoint| ethernet || end.endpoint.lid.is_unicast();
        let expected = a.endpoint.link_layer == b.endpoint.link_layer
            && (!required || has_common);
        for (one, other) in [(&a, &b), (&b, &a)] {
            match one.connect(other) {
                Ok(found) => prop_assert!(expected && found.route.is_some() == routed),
                Err(HandshakeError::LinkLayer { .. }) => {
                    prop_assert_ne!(a.endpoint.link_layer, b.endpoint.link_layer);
                }
                Err(HandshakeError::Lid { .. }) => prop_assert!(!reachable(other)),
                Err(error) => {
                    prop_assert!(matches!(error, HandshakeError::NoCommonGid { .. }), "{}", error);
                    prop_assert!(!expected);
                    let text = error.to_string();
                    for gid in one.endpoint.gids().iter().chain(other.endpoint.gids()) {
                        prop_assert!(text.contains(&gid.gid.to_string()), "{} in {}", gid.gid, text);
                    }
                }
            }
        }
    }

    #[test]
    fn both_ends_compute_the_same_connection((a, b) in ends()) {
        let (Ok(ab), Ok(ba)) = (a.connect(&b), b.connect(&a)) else { return Ok(()) };
        prop_assert_eq!(ab.mtu, ba.mtu);
        prop_assert!(ab.mtu <= a.endpoint.mtu && ab.mtu <= b.endpoint.mtu);
        prop_assert_eq!((ab.send_psn, ab.recv_psn), (ba.recv_psn, ba.send_psn));
        // Each end serves as many reads as the other starts, and no more than it supports.
        prop_assert_eq!((ab.max_rd_atomic, ab.max_dest_rd_atomic),
            (ba.max_dest_rd_atomic, ba.max_rd_atomic));
        prop_assert!(ab.max_rd_atomic <= a.endpoint.max_rd_atomic);
        prop_assert!(ab.max_dest_rd_atomic <= a.endpoint.max_dest_rd_atomic);
        prop_assert_eq!((ab.peer_qpn, ab.peer_lid), (b.endpoint.qpn, b.endpoint.lid));
    }

    #[test]
    fn no_endpoint_makes_the_handshake_panic(a in end(), bytes: [u8; QueuePairEndpoint::BYTES]) {
        let mut valid = a.endpoint.to_bytes();
        valid[5..=7].copy_from_slice(&[bytes[5], bytes[6] % 5 + 1, 16]);
        valid[9..12].copy_from_slice(&bytes[9..12]);
        valid[16..20].copy_from_slice(&bytes[16..20]);
        valid[20] = bytes[20] & 1 | 2;
        valid[24..].copy_from_slice(&bytes[24..]);
        (25..312).step_by(18).for_each(|at| valid[at] %= 129);
        let endpoint = QueuePairEndpoint::from_bytes(&valid).unwrap();
        let peer = PortEndpoint { endpoint, table: Vec::new() };
        if let Ok(found) = a.connect(&peer) {
            prop_assert!(found.to_string().contains("QPN"));
        }
    }
}
