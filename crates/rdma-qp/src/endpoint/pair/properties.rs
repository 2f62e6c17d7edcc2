//! Property: both ends find the same pair for any tables, in any order of their entries.

use proptest::prelude::*;
use rdma_mem::{Gid, GidType, LinkLayer};
use rdma_types::{Psn, Qpn};

use super::{GidRule, choose};
use crate::endpoint::{EndpointGid, QueuePairEndpoint};

/// Generates addresses from few networks and hosts, to make duplicates, virtual addresses and common networks frequent.
fn gid() -> impl Strategy<Value = EndpointGid> {
    let prefix = prop_oneof![
        Just((0xffff_0a00_0000_u128, 120_u8)),
        Just((0xffff_0a00_0100, 120)),
        Just((0xffff_ac11_0000, 112)),
        Just((0xffff_f000_0000, 0)),
        Just((0xfd00_0001_0000_0000_0000_0000_0000_0000, 64)),
        Just((0xfd00_0002_0000_0000_0000_0000_0000_0000, 64)),
        Just((0xfe80_0000_0000_0000_0000_0000_0000_0000, 64)),
    ];
    let gid_type = prop_oneof![Just(GidType::ROCE_V2), Just(GidType::ROCE_V1), Just(GidType::IB)];
    let length = prop_oneof![3 => Just(None), 1 => prop_oneof![Just(0), Just(128)].prop_map(Some)];
    (prefix, 1..6_u128, gid_type, length).prop_map(|((prefix, known), host, gid_type, length)| {
        let gid = Gid::from_bytes((prefix | host).to_be_bytes());
        EndpointGid::new(gid, gid_type).with_prefix_length(length.unwrap_or(known))
    })
}

fn end(gids: &[EndpointGid]) -> QueuePairEndpoint {
    let mut end = QueuePairEndpoint::new(Qpn::masked(0x11), Psn::masked(1));
    end = gids.iter().fold(end, |end, &gid| end.with_endpoint_gid(gid));
    end.link_layer = LinkLayer::ETHERNET;
    end
}

/// The stream between the ends: the address of each end, and whether one end sees a translated address of the other.
#[derive(Clone, Debug)]
struct Met {
    here: prop::sample::Index,
    there: prop::sample::Index,
    is_translated: bool,
}

fn met() -> impl Strategy<Value = Option<Met>> {
    let met = (any::<prop::sample::Index>(), any::<prop::sample::Index>(), any::<bool>());
    prop::option::of(met.prop_map(|(here, there, is_translated)| Met {
        here,
        there,
        is_translated,
    }))
}

/// Generates a table, and the same table in another order with a duplicate entry.
fn table() -> impl Strategy<Value = (Vec<EndpointGid>, Vec<EndpointGid>)> {
    prop::collection::vec(gid(), 1..8).prop_flat_map(|table| {
        let mut again = table.clone();
        again.extend(table.first().copied());
        (Just(table), Just(again).prop_shuffle())
    })
}

fn ends(
    a: &[EndpointGid],
    b: &[EndpointGid],
    stream: Option<(Gid, Gid, bool)>,
) -> (QueuePairEndpoint, QueuePairEndpoint) {
    let (mut a, mut b) = (end(a), end(b));
    if let Some((here, there, is_translated)) = stream {
        let translated = "::ffff:203.0.113.1".parse().unwrap();
        a.stream = Some((here, there));
        b.stream = Some((there, if is_translated { translated } else { here }));
    }
    (a, b)
}

fn gids(
    (own, peer): (&QueuePairEndpoint, &QueuePairEndpoint),
) -> Option<(EndpointGid, EndpointGid, GidRule)> {
    let pair = choose(own, peer)?;
    Some((own.gids()[pair.own], peer.gids()[pair.peer], pair.rule))
}

fn has(table: &[EndpointGid], gid: Gid) -> bool {
    table.iter().any(|other| other.gid == gid)
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(2048))]

    #[test]
    fn both_ends_find_one_pair_in_every_order_of_their_tables(
        (a, a_again) in table(), (b, b_again) in table(), met in met(),
    ) {
        let stream = met.map(|met| {
            (met.here.get(&a).gid, met.there.get(&b).gid, met.is_translated)
        });
        let (one, other) = ends(&a, &b, stream);
        let (one_again, other_again) = ends(&a_again, &b_again, stream);
        let found = gids((&one, &other));
        let back = gids((&other, &one)).map(|(own, peer, rule)| (peer, own, rule));
        let address = |(own, peer, rule): (EndpointGid, EndpointGid, GidRule)| {
            ((own.gid, own.gid_type), (peer.gid, peer.gid_type), rule)
        };
        prop_assert_eq!(found.map(address), back.map(address));
        prop_assert_eq!(found.map(address), gids((&one_again, &other_again)).map(address));
    }

    #[test]
    fn an_address_of_both_ends_is_chosen_only_within_one_port(
        (a, again) in table(), (b, _) in table(),
    ) {
        let contains = |all: &[EndpointGid], gid: &EndpointGid| {
            all.iter().any(|other| (other.gid, other.gid_type) == (gid.gid, gid.gid_type))
        };
        let is_part = a.iter().all(|gid| contains(&b, gid)) || b.iter().all(|gid| contains(&a, gid));
        let (one, other) = ends(&a, &b, None);
        if let Some((own, peer, _)) = gids((&one, &other)) {
            let is_shared = has(&b, own.gid) || has(&a, peer.gid);
            prop_assert!(!is_shared || is_part, "{} and {}", own.gid, peer.gid);
        }
        let (one, other) = ends(&a, &again, None);
        if let Some((own, peer, _)) = gids((&one, &other)) {
            prop_assert_eq!(own.gid, peer.gid, "it is one port");
        }
    }

    #[test]
    fn the_rule_is_the_first_that_fits((a, _) in table(), (b, _) in table(), met in met()) {
        let stream = met.map(|met| {
            (met.here.get(&a).gid, met.there.get(&b).gid, met.is_translated)
        });
        let (one, other) = ends(&a, &b, stream);
        let Some((own, peer, rule)) = gids((&one, &other)) else { return Ok(()) };
        let is_of_stream = matches!(stream, Some((here, there, false)) if (here, there) == (own.gid, peer.gid));
        prop_assert_eq!(rule == GidRule::Stream, is_of_stream);
        if rule == GidRule::Class {
            // No two different usable addresses in the same /24 network are left.
            let of = |gid: &EndpointGid, gid_type| gid.gid_type == gid_type && gid.prefix_length == 120;
            for gid_type in [GidType::ROCE_V2, GidType::ROCE_V1] {
                for x in a.iter().filter(|gid| of(gid, gid_type) && !has(&b, gid.gid)) {
                    for y in b.iter().filter(|gid| of(gid, gid_type) && !has(&a, gid.gid)) {
                        let bytes = [x, y].map(|gid| gid.gid.to_bytes());
                        prop_assert_ne!(&bytes[0][..15], &bytes[1][..15]);
                    }
                }
            }
        }
    }
}
