//! Which of their addresses two ends use.

use rdma_mem::{Gid, GidType, LinkLayer};

use crate::endpoint::{EndpointGid, QueuePairEndpoint};

/// Which GIDs can talk to each other, apart from their type.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Family {
    Ipv4Mapped,
    Global,
    /// From 240.0.0.0/4 (RFC 1112), which no real host has, but software devices, beside those of their host.
    Ipv4Reserved,
    /// From 2001:db8::/32 (RFC 3849), likewise.
    Documentation,
    LinkLocal,
}

impl Family {
    const fn of(gid: Gid) -> Self {
        match gid.to_ipv4() {
            Some(address) if address.octets()[0] >= 240 => Self::Ipv4Reserved,
            Some(_) => Self::Ipv4Mapped,
            None if gid.is_link_local() => Self::LinkLocal,
            None if gid.subnet_prefix() >> 32 == 0x2001_0db8 => Self::Documentation,
            None => Self::Global,
        }
    }
}

/// What the GIDs of two ends can be so that they can talk to each other.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Class {
    Of(Family),
    /// One of a host, and one that no host has.
    AnyIpv4,
    AnyGlobal,
}

impl Class {
    fn has(self, family: Family) -> bool {
        match self {
            Self::Of(own) => own == family,
            Self::AnyIpv4 => matches!(family, Family::Ipv4Mapped | Family::Ipv4Reserved),
            Self::AnyGlobal => matches!(family, Family::Global | Family::Documentation),
        }
    }
}

/// The types and the classes, the best first: what both ends go through in this order, all classes of a type before the
/// next type.
const TYPES: [GidType; 3] = [GidType::ROCE_V2, GidType::ROCE_V1, GidType::IB];
const CLASSES: [Class; 7] = [
    Class::Of(Family::Ipv4Mapped),
    Class::Of(Family::Global),
    Class::Of(Family::Ipv4Reserved),
    Class::Of(Family::Documentation),
    Class::AnyIpv4,
    Class::AnyGlobal,
    Class::Of(Family::LinkLocal),
];

fn is_of(gid: &EndpointGid, (gid_type, class): (GidType, Class)) -> bool {
    !gid.gid.is_zero() && gid.gid_type == gid_type && class.has(Family::of(gid.gid))
}

fn kinds() -> impl Iterator<Item = (GidType, Class)> {
    TYPES.into_iter().flat_map(|gid_type| CLASSES.map(|class| (gid_type, class)))
}

/// The index of a GID in the order; the lower the better. `None` for a type that is not known here,
/// and for the GID of an empty entry.
pub(crate) fn rank(gid: &EndpointGid) -> Option<usize> {
    kinds().position(|kind| is_of(gid, kind))
}

/// The GIDs that the two ends use, as positions in their lists: the first of this end's, and the
/// first of the peer's, of the best kind that both have and that their link layer, which is the same, has.
///
/// The other end, which has the same two lists, finds the same pair.
pub(crate) fn common_gids(
    own: &QueuePairEndpoint,
    peer: &QueuePairEndpoint,
) -> Option<(usize, usize)> {
    let ethernet = own.link_layer() == LinkLayer::ETHERNET;
    let first = |endpoint: &QueuePairEndpoint, kind| {
        endpoint.gids().iter().position(|gid| is_of(gid, kind))
    };
    kinds()
        .filter(|(gid_type, _)| (*gid_type != GidType::IB) == ethernet)
        .find_map(|kind| Some((first(own, kind)?, first(peer, kind)?)))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn unknown_types_are_never_used() {
        let gid = EndpointGid { gid: Gid::from_bytes([1; 16]), gid_type: GidType::from_raw(9) };
        assert_eq!(rank(&gid), None);
    }

    /// Two software devices that listen have such addresses beside those of their hosts.
    #[test]
    fn addresses_that_no_host_has_come_after_those_of_hosts() {
        let gid_type = GidType::ROCE_V2;
        let rank = |text: &str| rank(&EndpointGid { gid: text.parse().unwrap(), gid_type });
        let order = ["::ffff:10.0.0.1", "fd00::1", "::ffff:240.0.0.1", "2001:db8::1", "fe80::1"];
        assert!(order.map(rank).is_sorted());
        assert_ne!(rank("::ffff:239.0.0.1"), rank("::ffff:247.0.0.1"));
    }

    #[test]
    fn an_empty_place_is_no_address() {
        for gid_type in [GidType::IB, GidType::ROCE_V1, GidType::ROCE_V2] {
            assert_eq!(rank(&EndpointGid { gid: Gid::ZERO, gid_type }), None);
            assert!(rank(&EndpointGid { gid: Gid::from_bytes([1; 16]), gid_type }).is_some());
        }
    }
}
