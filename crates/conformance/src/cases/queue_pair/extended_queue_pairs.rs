//! Queue pairs from `ibv_create_qp_ex`: which features they have, and which attributes are refused
//! (man `ibv_create_qp_ex`).

use rdma_sys::{
    ibv_qp_create_send_ops_flags as Op, ibv_qp_init_attr_ex, ibv_qp_state, ibv_qp_type,
};
use test_support::rig::batch::Scene;
use test_support::rig::connect::{Knobs, Side, connect, endpoint};
use test_support::rig::extended::{init, operations};
use test_support::rig::post::Wr;
use test_support::rig::transition::SERVICES;
use test_support::rig::{LOCAL_WRITE, Size, usual_inline};

use crate::case::cases;
use crate::cases::request::extended_posts::needs_calls;
use crate::device::Device;

cases![
    the_sizes_are_at_least_those_that_were_asked_for,
    it_begins_in_reset_whatever_its_service,
    a_queue_pair_with_only_a_domain_is_a_classic_one,
    classic_and_extended_queue_pairs_speak_to_each_other,
    classic_and_extended_queue_pairs_complete_into_one_queue,
    it_takes_receives_from_a_shared_queue,
    operations_that_nobody_has_defined_are_refused,
    operations_that_the_service_does_not_have_are_refused,
    attributes_that_nobody_has_defined_are_refused,
    creation_flags_that_nobody_has_defined_are_refused,
    no_domain_is_refused,
    sizes_above_the_devices_are_refused,
];

/// Checks that the changed attributes are refused, and that the unchanged ones are accepted.
#[track_caller]
fn expect_refusal(device: &Device, change: impl Fn(&mut ibv_qp_init_attr_ex)) {
    needs_calls(device);
    let context = device.open();
    let (cq, pd) = (context.cq(16), context.pd());
    let mut attr = init(&pd, &cq, &cq, &Size::default(), operations());
    assert!(context.try_qp_ex(&attr).is_ok());
    change(&mut attr);
    assert!(context.try_qp_ex(&attr).is_err());
}

fn the_sizes_are_at_least_those_that_were_asked_for(device: &Device) {
    needs_calls(device);
    let context = device.open();
    let (cq, pd) = (context.cq(16), context.pd());
    for (send_wr, receive_wr, sge, inline) in [(1, 1, 1, 0), (5, 9, 3, 7), (63, 33, 4, 64)] {
        let inline = usual_inline().min(inline);
        let size = Size { send_wr, receive_wr, sge, inline, ..Size::default() };
        let qp = context.try_qp_ex(&init(&pd, &cq, &cq, &size, operations())).unwrap();
        let cap = qp.capacity();
        assert!(cap.max_send_wr >= send_wr && cap.max_recv_wr >= receive_wr, "{cap:?}");
        assert!(cap.max_send_sge >= sge && cap.max_recv_sge >= sge, "{cap:?}");
        assert!(cap.max_inline_data >= inline, "{cap:?}");
    }
}

fn it_begins_in_reset_whatever_its_service(device: &Device) {
    needs_calls(device);
    let context = device.open();
    let (cq, pd) = (context.cq(16), context.pd());
    let operations = u64::from(Op::IBV_QP_EX_WITH_SEND.0);
    for qp_type in device.types(&SERVICES) {
        let size = Size { qp_type, ..Size::default() };
        let qp = context.try_qp_ex(&init(&pd, &cq, &cq, &size, operations)).unwrap();
        assert_eq!(qp.state(), ibv_qp_state::IBV_QPS_RESET);
        assert!(!qp.as_ex().is_null());
    }
}

fn a_queue_pair_with_only_a_domain_is_a_classic_one(device: &Device) {
    needs_calls(device);
    let context = device.open();
    let (cq, pd) = (context.cq(16), context.pd());
    let attr = init(&pd, &cq, &cq, &Size::default(), operations());
    assert!(!context.try_qp_ex(&attr).unwrap().as_ex().is_null());
    let only_a_domain = ibv_qp_init_attr_ex { comp_mask: 1, ..attr };
    for qp in [context.try_qp_ex(&only_a_domain), pd.try_qp(&cq, &cq, &Size::default())] {
        assert!(qp.unwrap().as_ex().is_null());
    }
}

fn classic_and_extended_queue_pairs_speak_to_each_other(device: &Device) {
    needs_calls(device);
    let scene = Scene::new(device);
    let (a, b) = (&scene.a, &scene.b);
    let back = a.pd.register(8, LOCAL_WRITE);
    let there = b.pd.register_filled((1..=8).collect(), LOCAL_WRITE);
    b.qp.post_receive(1, &[scene.at_b.sge(0, 8)]);
    a.qp.post_receive(2, &[back.sge(0, 8)]);
    assert_eq!(a.qp.try_call(&[Wr::send(3, &[scene.at_a.sge(8, 8)])]), 0);
    b.receive_cq.expect_success(1);
    b.qp.post(&Wr::send(4, &[there.sge(0, 8)]));
    a.receive_cq.expect_success(2);
    a.send_cq.expect_success(3);
    b.send_cq.expect_success(4);
    assert_eq!(scene.at_b.bytes()[..8], scene.at_a.bytes()[8..16]);
    assert_eq!(back.bytes(), there.bytes());
}

fn classic_and_extended_queue_pairs_complete_into_one_queue(device: &Device) {
    needs_calls(device);
    let context = device.open();
    let (cq, pd) = (context.cq(64), context.pd());
    let classic = pd.qp(&cq, &cq, &Size::default());
    let extended = context.try_qp_ex(&init(&pd, &cq, &cq, &Size::default(), operations())).unwrap();
    let (here, there) = (endpoint(&context, &classic), endpoint(&context, &extended));
    connect(&classic, &here, &there, &Knobs::default());
    connect(&extended, &there, &here, &Knobs::default());
    classic.post_receive(1, &[]);
    extended.post_receive(2, &[]);
    classic.post(&Wr::send(3, &[]));
    assert_eq!(extended.try_call(&[Wr::send(4, &[])]), 0);
    let mut done: Vec<_> = (0..4).map(|_| cq.next()).map(|wc| (wc.wr_id, wc.qp_num)).collect();
    done.sort_unstable();
    let (classic, extended) = (classic.number(), extended.number());
    assert_eq!(done, [(1, classic), (2, extended), (3, classic), (4, extended)]);
}

fn it_takes_receives_from_a_shared_queue(device: &Device) {
    needs_calls(device);
    device.needs(device.attributes().max_srq > 0, "the device has no shared receive queues");
    let context = device.open();
    let (cq, pd) = (context.cq(16), context.pd());
    let (srq, _) = pd.try_srq(4, 1).unwrap();
    let mut attr = init(&pd, &cq, &cq, &Size::default(), operations());
    attr.srq = srq.0;
    let extended = context.try_qp_ex(&attr).unwrap();
    let client = Side::new(device, &Size::default(), 16);
    let (here, there) = (endpoint(&context, &extended), client.endpoint());
    connect(&extended, &here, &there, &Knobs::default());
    connect(&client.qp, &there, &here, &Knobs::default());
    srq.post(7, &[]);
    client.qp.post(&Wr::send(1, &[]));
    cq.expect_success(7);
    client.send_cq.expect_success(1);
}

fn operations_that_nobody_has_defined_are_refused(device: &Device) {
    expect_refusal(device, |attr| attr.send_ops_flags |= 1 << 63);
}

fn operations_that_the_service_does_not_have_are_refused(device: &Device) {
    needs_calls(device);
    let context = device.open();
    let (cq, pd) = (context.cq(16), context.pd());
    let (uc, ud) = (ibv_qp_type::IBV_QPT_UC, ibv_qp_type::IBV_QPT_UD);
    let one_sided = [
        Op::IBV_QP_EX_WITH_RDMA_READ,
        Op::IBV_QP_EX_WITH_ATOMIC_CMP_AND_SWP,
        Op::IBV_QP_EX_WITH_ATOMIC_FETCH_AND_ADD,
    ];
    let connected = [
        Op::IBV_QP_EX_WITH_RDMA_WRITE,
        Op::IBV_QP_EX_WITH_RDMA_WRITE_WITH_IMM,
        Op::IBV_QP_EX_WITH_SEND_WITH_INV,
        Op::IBV_QP_EX_WITH_BIND_MW,
        Op::IBV_QP_EX_WITH_LOCAL_INV,
    ];
    let of_uc = one_sided.map(|op| (uc, op));
    let of_ud = one_sided.iter().chain(&connected).map(|&op| (ud, op));
    let types = device.types(&[uc, ud]);
    for (qp_type, op) in of_uc.into_iter().chain(of_ud).filter(|(own, _)| types.contains(own)) {
        let size = Size { qp_type, ..Size::default() };
        let send = u64::from(Op::IBV_QP_EX_WITH_SEND.0);
        let try_qp = |ops| context.try_qp_ex(&init(&pd, &cq, &cq, &size, ops));
        assert!(try_qp(send).is_ok());
        assert!(try_qp(send | u64::from(op.0)).is_err(), "{qp_type:?} {op:?}");
    }
}

fn attributes_that_nobody_has_defined_are_refused(device: &Device) {
    expect_refusal(device, |attr| attr.comp_mask |= 1 << 31);
}

fn creation_flags_that_nobody_has_defined_are_refused(device: &Device) {
    expect_refusal(device, |attr| {
        attr.comp_mask |= 4;
        attr.create_flags = 1 << 31;
    });
}

fn no_domain_is_refused(device: &Device) {
    expect_refusal(device, |attr| {
        attr.comp_mask &= !1;
        attr.pd = std::ptr::null_mut();
    });
}

fn sizes_above_the_devices_are_refused(device: &Device) {
    let limits = device.attributes();
    let too_many = u32::try_from(limits.max_qp_wr).unwrap() + 1;
    let too_many_sges = u32::try_from(limits.max_sge).unwrap() + 1;
    expect_refusal(device, |attr| attr.cap.max_send_wr = too_many);
    expect_refusal(device, |attr| attr.cap.max_recv_wr = too_many);
    expect_refusal(device, |attr| attr.cap.max_send_sge = too_many_sges);
    expect_refusal(device, |attr| attr.cap.max_recv_sge = too_many_sges);
}
