//! Queue pairs that are destroyed with outstanding work: their requests are dropped, and no other
//! queue pair is affected.

use rdma_sys::{ibv_qp_state as State, ibv_wc_status as Status};
use test_support::rig::connect::{
    Knobs, Side, attributes, connect_sides, expect_nothing_under_way, pair, to_init, to_rtr, to_rts,
};
use test_support::rig::post::Wr;
use test_support::rig::{ALL_ACCESS, Size};

use crate::case::cases;
use crate::device::Device;

cases![
    queue_pair_is_destroyed_in_any_state,
    queue_pair_is_destroyed_with_work_outstanding,
    requests_of_a_destroyed_queue_pair_move_no_bytes,
    memory_is_free_once_its_queue_pair_is_destroyed,
    destroyed_queue_pair_takes_no_receive_from_others,
    peer_of_a_destroyed_queue_pair_keeps_its_own_requests,
    connection_is_used_again_after_both_ends_were_reset,
    queue_pairs_come_and_go,
];

fn side(device: &Device) -> Side {
    Side::new(device, &Size::default(), 64)
}

fn queue_pair_is_destroyed_in_any_state(device: &Device) {
    for steps in 0..6 {
        let mut a = side(device);
        let at_a = a.endpoint();
        let attr = attributes(&at_a, &at_a, &Knobs::default());
        let walk: [&dyn Fn(); 5] = [
            &|| to_init(&a.qp, &attr),
            &|| to_rtr(&a.qp, &attr),
            &|| to_rts(&a.qp, &attr),
            &|| assert_eq!(a.qp.to_state(State::IBV_QPS_SQD), 0),
            &|| a.qp.to_error(),
        ];
        walk[..steps].iter().for_each(|step| step());
        a.qp.destroy();
        assert!(a.send_cq.is_empty() && a.receive_cq.is_empty());
    }
}

fn queue_pair_is_destroyed_with_work_outstanding(device: &Device) {
    for _ in 0..5 {
        let (mut a, b) = pair(device);
        for n in 0..10 {
            // No receive is posted for this message.
            a.qp.post(&Wr::send(n, &[]));
            a.qp.post_receive(n, &[]);
        }
        a.qp.destroy();
        b.qp.assert_ready();
    }
}

fn requests_of_a_destroyed_queue_pair_move_no_bytes(device: &Device) {
    let (mut a, b) = pair(device);
    let source = a.pd.register_filled(vec![7; 8], 0);
    let sink = b.pd.register(8, ALL_ACCESS);
    a.qp.post(&Wr::send(1, &[source.sge(0, 8)]));
    a.qp.post(&Wr::write(2, &[source.sge(0, 8)], &sink, 0));
    a.qp.destroy();
    // Packets sent before the destruction may still arrive now, and find no receive.
    expect_nothing_under_way(device);
    b.qp.post_receive(3, &[sink.sge(0, 8)]);
    expect_nothing_under_way(device);
    sink.assert_filled(0);
    assert!(b.receive_cq.is_empty());
    b.qp.to_error();
    b.receive_cq.expect_flushed([3]);
}

fn memory_is_free_once_its_queue_pair_is_destroyed(device: &Device) {
    let (mut a, b) = pair(device);
    let (source, sink) = (a.pd.register(8, 0), b.pd.register(8, ALL_ACCESS));
    let own = a.pd.register(8, ALL_ACCESS);
    a.qp.post(&Wr::send(1, &[source.sge(0, 8)]));
    a.qp.post(&Wr::read(2, &[own.sge(0, 8)], &sink, 0));
    a.qp.post_receive(3, &[own.sge(0, 8)]);
    a.qp.destroy();
    assert_eq!((source.deregister(), own.deregister()), (vec![0; 8], vec![0; 8]));
}

fn destroyed_queue_pair_takes_no_receive_from_others(device: &Device) {
    let (mut a, b) = pair(device);
    b.qp.post_receive(1, &[]);
    b.qp.post_receive(2, &[]);
    a.qp.post(&Wr::send(5, &[]));
    a.send_cq.expect_success(5);
    b.receive_cq.expect_success(1);
    a.qp.destroy();
    expect_nothing_under_way(device);
    assert!(b.receive_cq.is_empty());
    b.qp.assert_ready();
    b.qp.to_error();
    b.receive_cq.expect_flushed([2]);
}

fn peer_of_a_destroyed_queue_pair_keeps_its_own_requests(device: &Device) {
    let (a, b) = (side(device), side(device));
    let knobs = Knobs { timeout: 12, retries: 2, ..Knobs::default() };
    connect_sides(&a, &b, &knobs);
    drop(a);
    b.qp.post_receive(1, &[]);
    b.qp.post(&Wr::send(2, &[]));
    b.qp.post(&Wr::send(3, &[]).unsignaled());
    b.send_cq.expect(2, Status::IBV_WC_RETRY_EXC_ERR);
    b.send_cq.expect_flushed([3]);
    b.receive_cq.expect_flushed([1]);
}

fn connection_is_used_again_after_both_ends_were_reset(device: &Device) {
    let (a, b) = (side(device), side(device));
    for round in 0..5u32 {
        let knobs = Knobs { psn: (0x00ff_fff0 + 8 * round) & 0x00ff_ffff, ..Knobs::default() };
        connect_sides(&a, &b, &knobs);
        for n in 0..20 {
            b.qp.post_receive(n, &[]);
            a.qp.post(&Wr::send(n, &[]));
            a.send_cq.expect_success(n);
            b.receive_cq.expect_success(n);
        }
        a.qp.to_reset();
        b.qp.to_reset();
    }
}

fn queue_pairs_come_and_go(device: &Device) {
    for n in 0..50 {
        let (a, b) = pair(device);
        let own = a.pd.register_filled(vec![n], 0);
        let there = b.pd.register(1, ALL_ACCESS);
        a.qp.post(&Wr::write(1, &[own.sge(0, 1)], &there, 0));
        a.send_cq.expect_success(1);
        there.assert_filled(n);
    }
}
