//! On real connections, ports with any GID tables find each other, or report why not.
#![allow(unsafe_code)]

use std::sync::atomic::{AtomicU32, Ordering};

use crate::common::{TestPeer, parts, try_connect};
use proptest::prelude::*;
use rdma_mem::GidType;
use rdma_qp::{
    Error, GidChoice, GidRule, GlobalRoute, HandshakeError, PreparedQueuePair, QueuePair,
    ReceiveWorkRequest, SendWorkRequest, prelude::*,
};
use rdma_soft::{Builder, GidPlace};

fn place() -> impl Strategy<Value = GidPlace> {
    // A GID that no link has, and an unknown type.
    let unfit = prop_oneof![Just(GidType::IB), Just(GidType::from_raw(9))];
    let roce = prop_oneof![Just(GidType::ROCE_V1), Just(GidType::ROCE_V2)];
    let gid_type = prop_oneof![roce, unfit];
    prop_oneof![
        1 => Just(GidPlace::Empty),
        3 => gid_type.clone().prop_map(GidPlace::LinkLocal),
        3 => gid_type.clone().prop_map(GidPlace::Ipv4Mapped),
        3 => gid_type.prop_map(GidPlace::Global),
    ]
}

/// Installs a device with this table, under a new name.
fn device(places: Vec<GidPlace>) -> String {
    static NEXT: AtomicU32 = AtomicU32::new(0);
    let name = format!("gids{}", NEXT.fetch_add(1, Ordering::Relaxed));
    Builder::new(&name).gids(places).install().unwrap();
    name
}

fn route(end: &TestPeer) -> GlobalRoute {
    end.qp.peer().unwrap().route.unwrap()
}

/// Checks that `to` sends to the source GID of `from`, and returns the type of this GID.
fn meets(from: &TestPeer, to: &TestPeer) -> GidType {
    let table = from.pd.context().gid_table().unwrap();
    let index = u32::from(route(from).source_index);
    let source = table.iter().find(|entry| entry.index == index).unwrap();
    assert_eq!(source.gid, route(to).destination);
    source.gid_type
}

/// Checks that a number sent from one end arrives at the other.
fn arrives(from: &TestPeer, to: &TestPeer, number: u32) {
    // SAFETY: SAFETY.md F8: no memory.
    unsafe { to.qp.post_receive(ReceiveWorkRequest::only_immediate(), 1) }.unwrap();
    // SAFETY: SAFETY.md F8: no memory.
    unsafe { from.qp.post_send(SendWorkRequest::only_immediate(number), 2) }.unwrap();
    assert_eq!(to.next().result().unwrap().immediate_data(), Some(number));
    from.next().result().unwrap();
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(64))]

    #[test]
    fn ports_with_any_two_tables_connect_or_report_why_not(
        a in prop::collection::vec(place(), 0..6), b in prop::collection::vec(place(), 0..6),
    ) {
        let of_link = |place: &&GidPlace| match place {
            GidPlace::LinkLocal(kind) | GidPlace::Ipv4Mapped(kind) | GidPlace::Global(kind) =>
                [GidType::ROCE_V1, GidType::ROCE_V2].contains(kind),
            _ => false,
        };
        let common = a.iter().filter(of_link).any(|place| b.contains(place));
        match try_connect(parts(&device(a)), parts(&device(b)), |builder| builder) {
            Ok((a, b)) => {
                assert!(common, "they had nothing in common");
                assert_eq!(meets(&a, &b), meets(&b, &a));
                arrives(&a, &b, 7);
                arrives(&b, &a, 8);
            }
            Err(Error::Handshake(error)) => {
                assert!(matches!(*error, HandshakeError::NoCommonGid { .. }), "{error}");
                assert!(!common, "{error}");
            }
            Err(error) => panic!("{error}"),
        }
    }
}

/// Each end has one device with two networks, in different orders. They meet in the common network.
#[test]
fn the_network_of_a_choice_decides() {
    let roce = GidType::ROCE_V2;
    let name =
        device(vec![GidPlace::LinkLocal(roce), GidPlace::Ipv4Mapped(roce), GidPlace::Global(roce)]);
    let gids = |choice: GidChoice| {
        let (pd, cq) = parts(&name);
        let prepared = pd.create_qp().send_cq(&cq).recv_cq(&cq).gid_choice(choice).build()?;
        Ok::<_, Error>(prepared.endpoint().gids().iter().map(|own| own.gid).collect::<Vec<_>>())
    };
    let all = gids(GidChoice::ByPeer).unwrap();
    assert_eq!(all.len(), 3);
    let network = |text: &str| GidChoice::Network(text.parse().unwrap());
    assert_eq!(gids(network("fe80::/10")).unwrap(), [all[2]]);
    assert_eq!(gids(network("0.0.0.0/0")).unwrap(), [all[0]]);
    assert_eq!(gids(GidChoice::Index(0)).unwrap(), [all[2]], "the table's order");
    let error = gids(network("192.0.2.0/24")).unwrap_err();
    let text = error.to_string();
    assert!(matches!(error, Error::NoGidInNetwork { port: 1, .. }), "{text}");
    assert!(text.contains("192.0.2.0/24") && all.iter().all(|gid| text.contains(&gid.to_string())));
}

/// The addresses of the stream have priority over a pair of a better class.
#[test]
fn the_addresses_of_the_stream_decide() {
    let roce = GidType::ROCE_V2;
    let [mut a, mut b] = [(); 2].map(|()| {
        let name = device(vec![GidPlace::Ipv4Mapped(roce), GidPlace::Global(roce)]);
        let (pd, cq) = parts(&name);
        pd.create_qp().send_cq(&cq).recv_cq(&cq).build().unwrap()
    });
    let rule = |own: &PreparedQueuePair, peer: &PreparedQueuePair| {
        own.connect_attributes(&peer.endpoint()).unwrap().gid_rule
    };
    let [(first_of_a, at_a), (_, at_b)] = [&a, &b].map(|end| {
        let gids = end.endpoint().gids().to_vec();
        (gids[0].gid, gids[1].gid)
    });
    assert_ne!(rule(&a, &b), Some(GidRule::Stream));
    // With network address translation, an end sees other addresses.
    a.set_stream_addresses(at_a.to_ipv6().into(), at_b.to_ipv6().into());
    b.set_stream_addresses(at_b.to_ipv6().into(), first_of_a.to_ipv6().into());
    assert_ne!(rule(&a, &b), Some(GidRule::Stream));
    b.set_stream_addresses(at_b.to_ipv6().into(), at_a.to_ipv6().into());
    assert_eq!((rule(&a, &b), rule(&b, &a)), (Some(GidRule::Stream), Some(GidRule::Stream)));
    let (to_a, to_b) = (a.endpoint(), b.endpoint());
    let (a, b) = (a.handshake(to_b).unwrap(), b.handshake(to_a).unwrap());
    let destination = |qp: &QueuePair| qp.peer().unwrap().route.unwrap().destination;
    assert_eq!((destination(&a), destination(&b)), (at_b, at_a));
}
