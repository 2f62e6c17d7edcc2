//! Devices that lack features of others.

use rdma_soft::{Builder, GidPlace, Limits, Link};
use rdma_sys::{
    Errno, ibv_atomic_cap, ibv_cq_init_attr_ex, ibv_device_cap_flags as Cap, ibv_qp_attr,
    ibv_qp_create_send_ops_flags as Operation, ibv_qp_state, ibv_wc_status as Status,
    ibv_wr_opcode as Opcode,
};
use rdma_types::{Gid, GidType};

use crate::device::rig::connect::{
    Knobs, RTR, RTS, Side, attributes, connect, connect_sides, endpoint_with_gid, pair_with,
    to_init, to_rtr,
};
use crate::device::rig::device::{gid_table, query_gid, query_gid_ex};
use crate::device::rig::extended::{STANDARD, init};
use crate::device::rig::post::Wr;
use crate::device::rig::window::{TYPE_1, TYPE_2};
use crate::device::rig::{ALL_ACCESS, Context, LOCAL_WRITE, Mr, Size};

#[test]
fn a_gid_table_has_the_requested_entries() {
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
    // The table omits empty entries, and so needs space only for the others.
    let rows = gid_table(&context, 3, 0).unwrap();
    let found: Vec<_> = rows.iter().map(|row| (row.index, row.gid, row.kind)).collect();
    assert_eq!(found, [(1, gids[1], 2), (2, gids[2], 1), (4, gids[4], 77)]);
    assert_eq!(gid_table(&context, 2, 0).err(), Some(Errno::EINVAL));
}

#[test]
fn queue_pairs_connect_at_any_entry_of_a_table_except_an_empty_one() {
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
            // To an address that exists.
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

fn additions(wr_id: u64, result: &Mr, word: &Mr) -> [Wr; 2] {
    let wr = |opcode| Wr::new(wr_id, opcode, &[result.sge(0, 8)]).atomic(word, 0, 0, 9);
    [Opcode::IBV_WR_ATOMIC_FETCH_AND_ADD, Opcode::IBV_WR_ATOMIC_CMP_AND_SWP].map(wr)
}

#[test]
fn a_device_without_atomics_reports_posts_and_executes_none() {
    rdma_soft::install();
    Builder::new("no-atomics").without_atomics().install().unwrap();
    let none = ibv_atomic_cap::IBV_ATOMIC_NONE;
    assert_eq!(Context::open("no-atomics").query_device().atomic_cap, none);
    let (a, b) = pair_with("no-atomics", &Size::default(), &Knobs::default());
    let (result, word) = (a.pd.register(8, LOCAL_WRITE), b.pd.register(8, ALL_ACCESS));
    for wr in additions(1, &result, &word) {
        assert_eq!(a.qp.try_post(&wr), Errno::EINVAL.raw());
    }
    // Other operations and the connection still work.
    a.qp.post(&Wr::read(2, &[result.sge(0, 8)], &word, 0));
    a.send_cq.expect_success(2);
    // A device with atomics is connected to one without.
    for n in [0, 1] {
        let here = Side::new("soft0", &Size::default(), 8);
        let there = Side::new("no-atomics", &Size::default(), 8);
        connect_sides(&here, &there, &Knobs::default());
        let (result, word) = (here.pd.register(8, LOCAL_WRITE), there.pd.register(8, ALL_ACCESS));
        here.qp.post(&additions(3, &result, &word)[n]);
        here.send_cq.expect(3, Status::IBV_WC_REM_INV_REQ_ERR);
        there.qp.wait_for_error();
        word.assert_filled(0);
    }
}

#[test]
fn reads_are_as_deep_as_the_device_allows() {
    for depth in [0, 1, 3] {
        let name = format!("depth-{depth}");
        Builder::new(&name).limits(Limits::default().max_qp_rd_atom(depth)).install().unwrap();
        let attr = Context::open(&name).query_device();
        assert_eq!((attr.max_qp_rd_atom, attr.max_qp_init_rd_atom), (depth.into(), depth.into()));
        assert_eq!(attr.max_res_rd_atom, attr.max_qp * i32::from(depth));
        let side = Side::new(&name, &Size::default(), 8);
        let end = side.endpoint();
        let with = |rd_atomic| attributes(&end, &end, &Knobs { rd_atomic, ..Knobs::default() });
        to_init(&side.qp, &with(depth));
        let to = |qp_state, attr| ibv_qp_attr { qp_state, ..attr };
        let deeper = to(ibv_qp_state::IBV_QPS_RTR, with(depth + 1));
        assert_eq!(side.qp.modify(deeper, RTR), Errno::EINVAL.raw());
        to_rtr(&side.qp, &with(depth));
        let deeper = to(ibv_qp_state::IBV_QPS_RTS, with(depth + 1));
        assert_eq!(side.qp.modify(deeper, RTS), Errno::EINVAL.raw());
    }
}

#[test]
fn inline_data_and_elements_are_limited_as_the_device_was_built() {
    Builder::new("small-requests")
        .limits(Limits::default().max_inline_data(0).max_sge(1))
        .install()
        .unwrap();
    assert_eq!(Context::open("small-requests").query_device().max_sge, 1);
    let side = Side::new("small-requests", &Size { sge: 1, inline: 0, ..Size::default() }, 8);
    for size in [Size { sge: 2, inline: 0, ..Size::default() }, Size { sge: 1, ..Size::default() }]
    {
        let refused = side.pd.try_qp(&side.send_cq, &side.receive_cq, &size);
        assert_eq!(refused.err(), Some(Errno::EINVAL));
    }
    drop(side);
    let (a, b) = pair_with(
        "small-requests",
        &Size { sge: 1, inline: 0, ..Size::default() },
        &Knobs::default(),
    );
    let (from, to) = (a.pd.register(8, LOCAL_WRITE), b.pd.register(8, ALL_ACCESS));
    let inline = Wr::write(1, &[from.sge(0, 1)], &to, 0).inline();
    assert_eq!(a.qp.try_post(&inline), Errno::EINVAL.raw());
    let elements = [from.sge(0, 1), from.sge(1, 1)];
    assert_eq!(a.qp.try_post(&Wr::write(1, &elements, &to, 0)), Errno::EINVAL.raw());
    assert_eq!(a.qp.try_post_receive(1, &elements), Errno::EINVAL.raw());
}

#[test]
fn a_device_has_the_types_of_windows_that_it_was_built_with() {
    let (one, two) = (Cap::IBV_DEVICE_MEM_WINDOW.0, Cap::IBV_DEVICE_MEM_WINDOW_TYPE_2B.0);
    let builder = |name: &str| Builder::new(name).limits(Limits::default().max_mw(5));
    builder("windows-1").without_window_type_2().install().unwrap();
    builder("windows-2").without_window_type_1().install().unwrap();
    builder("windows-0").without_window_type_1().without_window_type_2().install().unwrap();
    for (name, flags, most) in [("windows-1", one, 5), ("windows-2", two, 5), ("windows-0", 0, 0)] {
        let context = Context::open(name);
        let attr = context.query_device();
        assert_eq!((attr.device_cap_flags & (one | two), attr.max_mw), (flags, most), "{name}");
        let pd = context.pd();
        for (kind, flag) in [(TYPE_1, one), (TYPE_2, two)] {
            let refused = (flags & flag == 0).then_some(Errno::EOPNOTSUPP);
            assert_eq!(pd.try_mw(kind).err(), refused, "{name}");
        }
        // Only a window of type 2 is bound by a request.
        let (send, receive) = (context.cq(8), context.cq(8));
        let binds = u64::from(Operation::IBV_QP_EX_WITH_BIND_MW.0);
        let attr = init(&pd, &send, &receive, &Size::default(), binds);
        let refused = (flags & two == 0).then_some(Errno::EOPNOTSUPP);
        assert_eq!(context.try_qp_ex(&attr).err(), refused, "{name}");
    }
}

#[test]
fn a_device_without_extensions_has_neither_their_functions_nor_timestamps() {
    Builder::new("not-extended").without_extended().install().unwrap();
    let context = Context::open("not-extended");
    let attr = context.query_device_ex();
    assert_eq!((attr.completion_timestamp_mask, attr.hca_core_clock), (0, 0));
    assert_ne!(
        crate::device::rig::open_default("soft0").query_device_ex().completion_timestamp_mask,
        0
    );
    let asked = ibv_cq_init_attr_ex { cqe: 8, wc_flags: STANDARD, ..Default::default() };
    assert_eq!(context.try_cq_ex(&asked).err(), Some(Errno::EOPNOTSUPP));
    assert_eq!(context.query_rt_values(1).0, Errno::EOPNOTSUPP.raw());
    let (pd, send, receive) = (context.pd(), context.cq(8), context.cq(8));
    let sends = u64::from(Operation::IBV_QP_EX_WITH_SEND.0);
    let attr = init(&pd, &send, &receive, &Size::default(), sends);
    assert_eq!(context.try_qp_ex(&attr).err(), Some(Errno::EOPNOTSUPP));
    // The classic functions work.
    let (a, b) = pair_with("not-extended", &Size::default(), &Knobs::default());
    b.qp.post_receive(1, &[]);
    a.qp.post(&Wr::send(1, &[]));
    b.receive_cq.expect_success(1);
}
