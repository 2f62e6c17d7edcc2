//! Devices that lack what others have.

use rdma_soft::{Builder, GidPlace, Link};
use rdma_sys::{Errno, ibv_qp_attr, ibv_qp_state};
use rdma_types::{Gid, GidType};

use crate::rig::connect::{
    Knobs, RTR, Side, attributes, connect, connect_sides, endpoint_with_gid, to_init,
};
use crate::rig::device::{gid_table, query_gid, query_gid_ex};
use crate::rig::post::Wr;
use crate::rig::{ALL_ACCESS, Context, Size};

#[test]
fn a_gid_table_has_the_places_that_were_asked_for() {
    let (v1, v2, odd) = (GidType::ROCE_V1, GidType::ROCE_V2, GidType::from_raw(77));
    let places = [
        GidPlace::Empty,
        GidPlace::Global(v2),
        GidPlace::Ipv4Mapped(v1),
        GidPlace::Empty,
        GidPlace::LinkLocal(odd),
    ];
    let device = Builder::new("gid-places").gids(places).install().unwrap();
    let context = Context::open("gid-places");
    assert_eq!(context.query_port().gid_tbl_len, 5);
    let gids = device.gids();
    assert!(!gids[1].is_link_local() && !gids[1].is_ipv4_mapped() && !gids[1].is_zero());
    assert!(gids[2].is_ipv4_mapped() && gids[4].is_link_local());
    for empty in [0, 3] {
        assert_eq!(query_gid(&context, 1, empty), Ok(Gid::ZERO));
        let refused = query_gid_ex(&context, 1, empty.cast_unsigned(), 0);
        assert_eq!(refused.err(), Some(Errno::ENODATA));
    }
    // The table leaves empty places out, and so needs room for the others only.
    let rows = gid_table(&context, 3, 0).unwrap();
    let found: Vec<_> = rows.iter().map(|row| (row.index, row.gid, row.kind)).collect();
    assert_eq!(found, [(1, gids[1], 2), (2, gids[2], 1), (4, gids[4], 77)]);
    assert_eq!(gid_table(&context, 2, 0).err(), Some(Errno::EINVAL));
}

#[test]
fn queue_pairs_meet_at_any_place_of_a_table_but_an_empty_one() {
    let mut places = vec![GidPlace::Empty];
    for kind in [GidType::ROCE_V1, GidType::ROCE_V2] {
        places.extend(
            [GidPlace::Global, GidPlace::LinkLocal, GidPlace::Ipv4Mapped].map(|of| of(kind)),
        );
    }
    let last = u8::try_from(places.len()).unwrap() - 1;
    for name in ["gid-meet-a", "gid-meet-b"] {
        Builder::new(name).gids(places.clone()).install().unwrap();
    }
    for index in 0..=last {
        let (a, b) = (
            Side::new("gid-meet-a", &Size::default(), 8),
            Side::new("gid-meet-b", &Size::default(), 8),
        );
        let at_a = endpoint_with_gid(&a.context, &a.qp, index);
        let at_b = endpoint_with_gid(&b.context, &b.qp, index);
        if index == 0 {
            // To an address that there is.
            let at_b = endpoint_with_gid(&b.context, &b.qp, 1);
            let attr = attributes(&at_a, &at_b, &Knobs::default());
            to_init(&a.qp, &attr);
            let rtr = ibv_qp_attr { qp_state: ibv_qp_state::IBV_QPS_RTR, ..attr };
            assert_eq!(a.qp.modify(rtr, RTR), Errno::EINVAL.raw());
            continue;
        }
        connect(&a.qp, &at_a, &at_b, &Knobs::default());
        connect(&b.qp, &at_b, &at_a, &Knobs::default());
        let (from, to) = (a.pd.register(8, ALL_ACCESS), b.pd.register(8, ALL_ACCESS));
        a.qp.post(&Wr::write(1, &[from.sge(0, 8)], &to, 0));
        a.send_cq.expect_success(1);
    }
}

#[test]
fn a_port_without_gids_has_none_and_an_infiniband_port_can_do_without() {
    Builder::new("gidless-roce").gids([]).install().unwrap();
    let context = Context::open("gidless-roce");
    assert_eq!(context.query_port().gid_tbl_len, 0);
    assert_eq!(gid_table(&context, 0, 0).unwrap(), []);
    assert_eq!(query_gid(&context, 1, 0), Err(Errno::EINVAL));
    let ib = Builder::new("gidless-ib").link(Link::InfiniBand).gids([GidPlace::Empty]);
    ib.install().unwrap();
    let (a, b) = (
        Side::new("gidless-ib", &Size::default(), 8),
        Side::new("gidless-ib", &Size::default(), 8),
    );
    connect_sides(&a, &b, &Knobs::default());
    let (from, to) = (a.pd.register(8, ALL_ACCESS), b.pd.register(8, ALL_ACCESS));
    a.qp.post(&Wr::write(1, &[from.sge(0, 8)], &to, 0));
    a.send_cq.expect_success(1);
}
