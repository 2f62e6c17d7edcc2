//! GID tables from bug reports about other libraries that chose the wrong pair, each with the pair that works.

use rdma_mem::{Gid, GidType};
use rdma_types::{Psn, Qpn};

use super::{GidRule, choose};
use crate::endpoint::{EndpointGid, QueuePairEndpoint, class};

/// One entry of a table: the version of RoCE (1 or 2), the GID, and the prefix length of the GID's interface. The
/// length is 0 if no interface in the network namespace has the GID.
type Entry = (u8, &'static str, u8);

struct Fixture {
    from: &'static str,
    own: &'static [Entry],
    peer: &'static [Entry],
    /// The GIDs of the pair that works: this end's, then the peer's.
    works: [&'static str; 2],
    rule: GidRule,
}

const FIXTURES: &[Fixture] = &[
    Fixture {
        from: "NVIDIA/nccl#769: index 1 is link-local and connects to nothing",
        own: &[
            (1, "fe80::ac0:ebff:feda:1cfb", 64),
            (2, "fe80::ac0:ebff:feda:1cfb", 64),
            (1, "::ffff:200.0.209.6", 120),
            (2, "::ffff:200.0.209.6", 120),
        ],
        peer: &[
            (1, "fe80::ac0:ebff:feda:1d02", 64),
            (2, "fe80::ac0:ebff:feda:1d02", 64),
            (1, "::ffff:200.0.210.6", 120),
            (2, "::ffff:200.0.210.6", 120),
        ],
        works: ["::ffff:200.0.209.6", "::ffff:200.0.210.6"],
        rule: GidRule::Class,
    },
    Fixture {
        from: "NVIDIA/nccl#1573: macvlan interfaces of pods; the tables have gaps and differ in their indices",
        own: &[
            (1, "fe80::a4ed:ccff:fe8b:1994", 64),
            (2, "fe80::a4ed:ccff:fe8b:1994", 64),
            (1, "::ffff:10.152.0.12", 118),
            (2, "::ffff:10.152.0.12", 118),
        ],
        peer: &[
            (2, "::ffff:10.152.0.11", 118),
            (1, "::ffff:10.152.0.11", 118),
            (2, "fe80::a4ed:ccff:fe8b:1993", 64),
        ],
        works: ["::ffff:10.152.0.12", "::ffff:10.152.0.11"],
        rule: GidRule::Network,
    },
    Fixture {
        from: "uccl-project/uccl#803: a NIC with IPv6 addresses alone",
        own: &[(2, "fe80::1234:56ff:fe78:9abc", 64), (2, "fd93:16d3:59b6:12::1", 64)],
        peer: &[(2, "fe80::1234:56ff:fe78:9abd", 64), (2, "fd93:16d3:59b6:12::2", 64)],
        works: ["fd93:16d3:59b6:12::1", "fd93:16d3:59b6:12::2"],
        rule: GidRule::Network,
    },
    Fixture {
        from: "ROCm/ATOM#1748: link-local at index 0, the address that is routed at index 1",
        own: &[(2, "fe80::690:81ff:fe37:1", 64), (2, "fd00:1::1", 64)],
        peer: &[(2, "fe80::690:81ff:fe37:2", 64), (2, "fd00:2::1", 64)],
        works: ["fd00:1::1", "fd00:2::1"],
        rule: GidRule::Class,
    },
    Fixture {
        from: "kvcache-ai/Mooncake#946: index 3 is an address of no interface of this host",
        own: &[(2, "::ffff:26.208.8.250", 0), (2, "::ffff:26.208.8.252", 120)],
        peer: &[(2, "::ffff:26.208.8.240", 0), (2, "::ffff:26.208.8.242", 120)],
        works: ["::ffff:26.208.8.252", "::ffff:26.208.8.242"],
        rule: GidRule::Network,
    },
    Fixture {
        from: "kvcache-ai/Mooncake#2729: a routed fabric in 10.0.0.0/8, whose addresses looked like an overlay's",
        own: &[
            (1, "fe80::ba59:9fff:fe00:1", 64),
            (2, "fe80::ba59:9fff:fe00:1", 64),
            (1, "::ffff:10.14.2.72", 122),
            (2, "::ffff:10.14.2.72", 122),
        ],
        peer: &[
            (1, "fe80::ba59:9fff:fe00:2", 64),
            (2, "fe80::ba59:9fff:fe00:2", 64),
            (1, "::ffff:10.14.1.8", 122),
            (2, "::ffff:10.14.1.8", 122),
        ],
        works: ["::ffff:10.14.2.72", "::ffff:10.14.1.8"],
        rule: GidRule::Class,
    },
    Fixture {
        from: "kvcache-ai/Mooncake#113: RoCE v1 comes first, and is not routable",
        own: &[(1, "::ffff:10.0.1.5", 120), (2, "::ffff:10.0.1.5", 120)],
        peer: &[(1, "::ffff:10.0.2.5", 120), (2, "::ffff:10.0.2.5", 120)],
        works: ["::ffff:10.0.1.5", "::ffff:10.0.2.5"],
        rule: GidRule::Class,
    },
    Fixture {
        from: "ml-explore/mlx#3467: link-local addresses alone",
        own: &[(2, "fe80::10:1", 64)],
        peer: &[(2, "fe80::10:2", 64)],
        works: ["fe80::10:1", "fe80::10:2"],
        rule: GidRule::Class,
    },
    Fixture {
        from: "meta-pytorch/torchcomms#2945: an address that the host gave itself (169.254.0.0/16)",
        own: &[(2, "::ffff:169.254.7.1", 112), (2, "::ffff:10.9.0.1", 120)],
        peer: &[(2, "::ffff:169.254.7.2", 112), (2, "::ffff:10.9.1.1", 120)],
        works: ["::ffff:10.9.0.1", "::ffff:10.9.1.1"],
        rule: GidRule::Class,
    },
];

fn end(table: &[Entry]) -> QueuePairEndpoint {
    let mut gids: Vec<_> = table
        .iter()
        .map(|&(version, text, length)| {
            let gid_type = if version == 2 { GidType::ROCE_V2 } else { GidType::ROCE_V1 };
            EndpointGid::new(text.parse().unwrap(), gid_type).with_prefix_length(length)
        })
        .collect();
    gids.sort_by_key(class::rank);
    let end = QueuePairEndpoint::new(Qpn::masked(0x11), Psn::masked(1));
    gids.into_iter().fold(end, QueuePairEndpoint::with_endpoint_gid)
}

#[test]
fn tables_that_other_libraries_chose_wrong_from_give_the_pair_that_works() {
    for Fixture { from, own, peer, works, rule } in FIXTURES {
        let (own, peer) = (end(own), end(peer));
        let pair = choose(&own, &peer).unwrap();
        let found = [own.gids()[pair.own], peer.gids()[pair.peer]];
        let works = works.map(|text| text.parse::<Gid>().unwrap());
        assert_eq!(found.map(|gid| gid.gid), works, "{from}");
        assert_eq!(found.map(|gid| gid.gid_type), [GidType::ROCE_V2; 2], "{from}");
        assert_eq!(pair.rule, *rule, "{from}");
        let back = choose(&peer, &own).unwrap();
        assert_eq!((back.own, back.peer, back.rule), (pair.peer, pair.own, pair.rule), "{from}");
    }
}
