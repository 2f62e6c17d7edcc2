//! Which of their addresses two ends use.

use rdma_mem::{Gid, GidType};

use crate::{EndpointGid, QueuePairEndpoint};

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

/// The place of a GID in the order; the lower the better. `None` for a type that is not known here.
pub(crate) fn rank(gid: &EndpointGid) -> Option<usize> {
    let kind = (gid.gid_type, Family::of(gid.gid));
    ORDER.iter().position(|&place| place == kind)
}

/// The GIDs that the two ends use, as places in their lists: the first of the own, and the first of
/// the peer's, of the best kind that both have.
///
/// The other end, which has the same two lists, finds the same pair.
pub(crate) fn common_gids(
    own: &QueuePairEndpoint,
    peer: &QueuePairEndpoint,
) -> Option<(usize, usize)> {
    let first = |endpoint: &QueuePairEndpoint, kind| {
        endpoint.gids().iter().position(|gid| rank(gid) == Some(kind))
    };
    (0..ORDER.len()).find_map(|kind| Some((first(own, kind)?, first(peer, kind)?)))
}

#[cfg(test)]
mod tests {
    use rdma_types::{Psn, Qpn};

    use super::*;

    const KINDS: [(&str, GidType); 8] = [
        ("::ffff:192.0.2.", GidType::ROCE_V2),
        ("2001:db8::", GidType::ROCE_V2),
        ("fe80::", GidType::ROCE_V2),
        ("::ffff:192.0.2.", GidType::ROCE_V1),
        ("2001:db8::", GidType::ROCE_V1),
        ("fe80::", GidType::ROCE_V1),
        ("2001:db8::", GidType::IB),
        ("fe80::", GidType::IB),
    ];

    /// An end with GIDs of these kinds, in this order; `host` tells the ends apart.
    fn end(kinds: &[usize], host: u8) -> QueuePairEndpoint {
        let none = QueuePairEndpoint::new(Qpn::masked(1), Psn::masked(1));
        kinds.iter().zip(1..).fold(none, |end, (&kind, n)| {
            let (prefix, gid_type) = KINDS[kind];
            end.with_gid(format!("{prefix}{}", n * 10 + host).parse().unwrap(), gid_type)
        })
    }

    #[test]
    fn each_end_names_what_the_other_names_for_every_shape_of_table() {
        // All tables of up to two kinds and a repeated one, against all such.
        let mut tables = vec![vec![]];
        for a in 0..8 {
            tables.push(vec![a]);
            tables.extend((0..8).map(|b| vec![a, b, a]));
        }
        let mut found = 0;
        for one in &tables {
            for other in &tables {
                let (a, b) = (end(one, 1), end(other, 2));
                let (ab, ba) = (common_gids(&a, &b), common_gids(&b, &a));
                assert_eq!(ab.map(|(own, peer)| (peer, own)), ba, "{one:?} {other:?}");
                let common = one.iter().any(|kind| other.contains(kind));
                assert_eq!(ab.is_some(), common, "{one:?} {other:?}");
                let Some((own, peer)) = ab else { continue };
                assert_eq!(rank(&a.gids()[own]), rank(&b.gids()[peer]));
                let better = one.iter().filter(|kind| other.contains(kind)).min();
                assert_eq!(better, Some(&one[own]), "the best that both have");
                found += 1;
            }
        }
        assert!(found > 1000, "{found}");
    }

    #[test]
    fn unknown_types_are_never_used() {
        let gid = EndpointGid { gid: Gid::from_bytes([1; 16]), gid_type: GidType::from_raw(9) };
        assert_eq!(rank(&gid), None);
    }
}
