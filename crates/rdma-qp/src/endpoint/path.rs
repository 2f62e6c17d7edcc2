//! Which of their addresses two ends use.

use rdma_mem::{Gid, GidType, LinkLayer};

use crate::endpoint::{EndpointGid, QueuePairEndpoint};

/// Which GIDs can talk to each other, apart from their type.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Family {
    Ipv4Mapped,
    Global,
    LinkLocal,
}

impl Family {
    const fn of(gid: Gid) -> Self {
        if gid.is_ipv4_mapped() {
            Self::Ipv4Mapped
        } else if gid.is_link_local() {
            Self::LinkLocal
        } else {
            Self::Global
        }
    }
}

/// Type and family, the best first: what both ends go through in this order.
const ORDER: [(GidType, Family); 9] = [
    (GidType::ROCE_V2, Family::Ipv4Mapped),
    (GidType::ROCE_V2, Family::Global),
    (GidType::ROCE_V2, Family::LinkLocal),
    (GidType::ROCE_V1, Family::Ipv4Mapped),
    (GidType::ROCE_V1, Family::Global),
    (GidType::ROCE_V1, Family::LinkLocal),
    (GidType::IB, Family::Ipv4Mapped),
    (GidType::IB, Family::Global),
    (GidType::IB, Family::LinkLocal),
];

/// The index of a GID in the order; the lower the better. `None` for a type that is not known here,
/// and for the GID of an empty entry.
pub(crate) fn rank(gid: &EndpointGid) -> Option<usize> {
    if gid.gid.is_zero() {
        return None;
    }
    let kind = (gid.gid_type, Family::of(gid.gid));
    ORDER.iter().position(|&place| place == kind)
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
    let of_link = |kind: &usize| {
        ORDER.get(*kind).is_some_and(|&(gid_type, _)| (gid_type != GidType::IB) == ethernet)
    };
    let first = |endpoint: &QueuePairEndpoint, kind| {
        endpoint.gids().iter().position(|gid| rank(gid) == Some(kind))
    };
    (0..ORDER.len()).filter(of_link).find_map(|kind| Some((first(own, kind)?, first(peer, kind)?)))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn unknown_types_are_never_used() {
        let gid = EndpointGid { gid: Gid::from_bytes([1; 16]), gid_type: GidType::from_raw(9) };
        assert_eq!(rank(&gid), None);
    }

    #[test]
    fn an_empty_place_is_no_address() {
        for gid_type in [GidType::IB, GidType::ROCE_V1, GidType::ROCE_V2] {
            assert_eq!(rank(&EndpointGid { gid: Gid::ZERO, gid_type }), None);
            assert!(rank(&EndpointGid { gid: Gid::from_bytes([1; 16]), gid_type }).is_some());
        }
    }
}
