//! The types and classes of GIDs, best first.

use rdma_mem::{Gid, GidType};

use crate::endpoint::EndpointGid;

/// A group of GIDs that can communicate with each other if their types also match.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Family {
    Ipv4Mapped,
    Global,
    /// Addresses in 240.0.0.0/4 (RFC 1112), which no real host uses. Software devices use them in addition to their
    /// host's addresses.
    Ipv4Reserved,
    /// Addresses in 2001:db8::/32 (RFC 3849), also used only by software devices.
    Documentation,
    LinkLocal,
    /// Addresses in 169.254.0.0/16 (RFC 3927).
    Ipv4LinkLocal,
    /// Addresses in 127.128.0.0/9, on which no device listens. With such an address, programs treat a software device
    /// as a device of the interface `lo`.
    LoopbackAlias,
}

impl Family {
    const fn of(gid: Gid) -> Self {
        match gid.to_ipv4() {
            Some(address) => match address.octets() {
                [240..=255, ..] => Self::Ipv4Reserved,
                [169, 254, ..] => Self::Ipv4LinkLocal,
                [127, 128..=255, ..] => Self::LoopbackAlias,
                _ => Self::Ipv4Mapped,
            },
            None if gid.is_link_local() => Self::LinkLocal,
            None if gid.subnet_prefix() >> 32 == 0x2001_0db8 => Self::Documentation,
            None => Self::Global,
        }
    }
}

/// A set of GIDs that can communicate with each other: one family, or two related ones.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Class {
    Of(Family),
    /// IPv4 addresses of real hosts, and those in the reserved range.
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

/// The types in order of preference. Any class of an earlier type is preferred to all classes of a later type.
const TYPES: [GidType; 3] = [GidType::ROCE_V2, GidType::ROCE_V1, GidType::IB];
const CLASSES: [Class; 9] = [
    Class::Of(Family::Ipv4Mapped),
    Class::Of(Family::Global),
    Class::Of(Family::Ipv4Reserved),
    Class::Of(Family::Documentation),
    Class::AnyIpv4,
    Class::AnyGlobal,
    Class::Of(Family::LinkLocal),
    Class::Of(Family::Ipv4LinkLocal),
    Class::Of(Family::LoopbackAlias),
];

fn kinds() -> impl Iterator<Item = (GidType, Class)> {
    TYPES.into_iter().flat_map(|gid_type| CLASSES.map(|class| (gid_type, class)))
}

fn is_of(gid: &EndpointGid, (gid_type, class): (GidType, Class)) -> bool {
    !gid.gid.is_zero() && gid.gid_type == gid_type && class.has(Family::of(gid.gid))
}

/// Returns the rank of a GID by type and class; lower is better. `None` for an unknown type, and for an empty table
/// entry.
pub(crate) fn rank(gid: &EndpointGid) -> Option<usize> {
    kinds().position(|kind| is_of(gid, kind))
}

/// Returns the rank of a pair of GIDs: the best type and class that both belong to. `None` if they have none in common.
pub(crate) fn common_rank(own: &EndpointGid, peer: &EndpointGid) -> Option<usize> {
    kinds().position(|kind| is_of(own, kind) && is_of(peer, kind))
}

/// Returns true if the prefix of the GID's interface identifies a network. It does not for link-local addresses (the
/// prefix is the same on every link) and loopback addresses (every host has them). Nor does it for addresses that only
/// software devices use.
pub(crate) fn names_a_network(gid: Gid) -> bool {
    let is_loopback = gid.to_ipv4().is_some_and(|address| address.is_loopback());
    !is_loopback && matches!(Family::of(gid), Family::Ipv4Mapped | Family::Global)
}

/// Returns true if the GID serves only to mark a software device as a device of the interface `lo`.
pub(crate) fn is_loopback_alias(gid: Gid) -> bool {
    Family::of(gid) == Family::LoopbackAlias
}

#[cfg(test)]
mod tests {
    use super::*;

    fn gid(text: &str, gid_type: GidType) -> EndpointGid {
        EndpointGid::new(text.parse().unwrap(), gid_type)
    }

    #[test]
    fn unknown_types_are_never_used() {
        assert_eq!(rank(&gid("::1:1", GidType::from_raw(9))), None);
    }

    #[test]
    fn addresses_that_no_host_has_rank_below_those_of_hosts() {
        let rank = |text: &str| rank(&gid(text, GidType::ROCE_V2)).unwrap();
        let order = [
            "::ffff:10.0.0.1",
            "fd00::1",
            "::ffff:240.0.0.1",
            "2001:db8::1",
            "fe80::1",
            "::ffff:169.254.1.1",
            "::ffff:127.200.8.7",
        ];
        assert!(order.map(rank).is_sorted());
        assert_ne!(rank("::ffff:239.0.0.1"), rank("::ffff:247.0.0.1"));
        assert_eq!(rank("::ffff:127.0.0.2"), rank("::ffff:10.0.0.1"), "a device may listen there");
    }

    #[test]
    fn an_empty_entry_has_no_rank() {
        for gid_type in [GidType::IB, GidType::ROCE_V1, GidType::ROCE_V2] {
            assert_eq!(rank(&gid("::", gid_type)), None);
            assert!(rank(&gid("::1:1", gid_type)).is_some());
        }
    }
}
