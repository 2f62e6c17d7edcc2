//! Peers that do not answer: the requester retries as often as its attributes specify and then
//! gives up, and no other queue pair is affected.

use std::time::{Duration, Instant};

use rdma_sys::{ibv_atomic_cap, ibv_gid, ibv_gid_type, ibv_wc_status as Status};
use rdma_types::AckTimeout;
use test_support::rig::connect::{
    Endpoint, Knobs, Side, acquaint, attributes, connect, connect_sides, endpoint_with_gid, pair,
    to_init, to_rtr,
};
use test_support::rig::datagram::gid_of;
use test_support::rig::device::gid_table;
use test_support::rig::post::Wr;
use test_support::rig::{ALL_ACCESS, Size};

use crate::case::cases;
use crate::device::Device;

cases![
    requester_tries_as_often_as_it_was_told_to_and_not_less,
    each_operation_fails_when_nobody_answers,
    unreachable_peer_is_given_up_also_when_nobody_polls,
    requester_that_gives_up_flushes_what_is_behind,
    peer_that_is_not_ready_yet_is_unreachable,
    peer_that_becomes_ready_in_time_gets_the_message,
    requests_that_are_tried_again_are_executed_once,
    peer_that_was_destroyed_is_unreachable,
    peer_that_was_reset_is_unreachable,
    peer_in_error_is_unreachable,
    queue_pair_number_that_nobody_has_is_unreachable,
    address_that_nobody_has_is_unreachable,
    address_that_the_peer_does_not_expect_is_unreachable,
    every_gid_of_a_port_reaches_itself,
    roce_v1_and_v2_do_not_reach_each_other,
    timeout_0_waits_for_ever_and_ends_with_the_error_state,
    requester_that_gives_up_leaves_other_queue_pairs_alone,
];

/// Options for three attempts of 17 ms each.
fn impatient() -> Knobs {
    Knobs { timeout: 12, retries: 2, ..Knobs::default() }
}

fn side(device: &Device) -> Side {
    Side::new(device, &Size::default(), 32)
}

fn sides(device: &Device) -> (Side, Side) {
    (side(device), side(device))
}

/// Returns a connected pair. A has sent a message, so it knows its peer. A gives up after seven
/// attempts of 67 ms each.
fn acquainted(device: &Device) -> (Side, Side) {
    let (a, b) = sides(device);
    let knobs = Knobs { timeout: 14, retries: 6, ..Knobs::default() };
    connect_sides(&a, &b, &knobs);
    acquaint(&a, &b);
    (a, b)
}

/// Returns the address of a queue pair that no longer exists. Its number is not reused soon.
fn nobody(device: &Device, at: &Endpoint) -> Endpoint {
    Endpoint { qpn: side(device).endpoint().qpn, ..*at }
}

fn requester_tries_as_often_as_it_was_told_to_and_not_less(device: &Device) {
    // The code for 67 ms. A requester's clock may tick only every 4 ms.
    let timeout = 14;
    let wait = AckTimeout::from_code(timeout).unwrap().duration().unwrap();
    for retries in [0, 1, 3] {
        let a = side(device);
        let at_a = a.endpoint();
        connect(
            &a.qp,
            &at_a,
            &nobody(device, &at_a),
            &Knobs { timeout, retries, ..Knobs::default() },
        );
        let start = Instant::now();
        a.expect_unreachable();
        let least = (wait - 2 * Duration::from_millis(4)) * (u32::from(retries) + 1);
        assert!(start.elapsed() >= least, "{:?} of {least:?}", start.elapsed());
    }
}

fn each_operation_fails_when_nobody_answers(device: &Device) {
    let memory = side(device);
    let memory = memory.pd.register(8, ALL_ACCESS);
    for n in 0..5 {
        let a = side(device);
        let at_a = a.endpoint();
        connect(&a.qp, &at_a, &nobody(device, &at_a), &impatient());
        let own = a.pd.register(8, ALL_ACCESS);
        let sges = [own.sge(0, 8)];
        let (send, write) = (Wr::send(n, &sges), Wr::write(n, &sges, &memory, 0));
        let read = Wr::read(n, &sges, &memory, 0);
        let requests = [send.clone(), send.with_imm(1), write.clone(), write.with_imm(1), read];
        a.qp.post(&requests[n as usize]);
        a.send_cq.expect(n, Status::IBV_WC_RETRY_EXC_ERR);
    }
}

fn unreachable_peer_is_given_up_also_when_nobody_polls(device: &Device) {
    let a = side(device);
    let at_a = a.endpoint();
    connect(&a.qp, &at_a, &nobody(device, &at_a), &impatient());
    a.qp.post(&Wr::send(0, &[]).unsignaled());
    a.qp.wait_for_error();
    a.send_cq.expect(0, Status::IBV_WC_RETRY_EXC_ERR);
}

fn requester_that_gives_up_flushes_what_is_behind(device: &Device) {
    let a = side(device);
    let at_a = a.endpoint();
    connect(&a.qp, &at_a, &nobody(device, &at_a), &impatient());
    a.qp.post_receive(9, &[]);
    for n in 0..3 {
        a.qp.post(&Wr::send(n, &[]).unsignaled());
    }
    a.send_cq.expect(0, Status::IBV_WC_RETRY_EXC_ERR);
    a.send_cq.expect_flushed([1, 2]);
    a.receive_cq.expect_flushed([9]);
}

fn peer_that_is_not_ready_yet_is_unreachable(device: &Device) {
    for initialised in [false, true] {
        let (a, b) = sides(device);
        let (at_a, at_b) = (a.endpoint(), b.endpoint());
        connect(&a.qp, &at_a, &at_b, &impatient());
        if initialised {
            to_init(&b.qp, &attributes(&at_b, &at_a, &impatient()));
            b.qp.post_receive(1, &[]);
        }
        a.expect_unreachable();
        assert!(b.receive_cq.is_empty());
    }
}

fn peer_that_becomes_ready_in_time_gets_the_message(device: &Device) {
    let (a, b) = sides(device);
    let (at_a, at_b) = (a.endpoint(), b.endpoint());
    // The first retry is sent after 134 ms, and the last one after a second.
    let knobs = Knobs { timeout: 15, retries: 7, ..Knobs::default() };
    connect(&a.qp, &at_a, &at_b, &knobs);
    a.qp.post(&Wr::send(1, &[]));
    let attr = attributes(&at_b, &at_a, &knobs);
    to_init(&b.qp, &attr);
    b.qp.post_receive(2, &[]);
    to_rtr(&b.qp, &attr);
    a.send_cq.expect_success(1);
    b.receive_cq.expect_success(2);
}

fn requests_that_are_tried_again_are_executed_once(device: &Device) {
    let has = device.attributes().atomic_cap != ibv_atomic_cap::IBV_ATOMIC_NONE;
    device.needs(has, "the device has no atomic operations");
    // The eight attempts take 0.27 s each. The peer becomes ready in that time, even on a slow
    // machine.
    let knobs = Knobs { timeout: 16, retries: 7, ..Knobs::default() };
    let (a, b) = sides(device);
    let (at_a, at_b) = (a.endpoint(), b.endpoint());
    let (own, counter) = (a.pd.register(80, ALL_ACCESS), b.pd.register(8, ALL_ACCESS));
    connect(&a.qp, &at_a, &at_b, &knobs);
    for n in 0..10 {
        a.qp.post(&Wr::fetch_add(n, &[own.sge(8 * n as usize, 8)], &counter, 0, 1));
        a.qp.post(&Wr::send(n, &[]));
    }
    let attr = attributes(&at_b, &at_a, &knobs);
    to_init(&b.qp, &attr);
    for n in 0..20 {
        b.qp.post_receive(n, &[]);
    }
    // While another pair is created and sends a message, A begins its first attempt, which B does
    // not answer.
    let (c, _d) = acquainted(device);
    c.qp.assert_ready();
    to_rtr(&b.qp, &attr);
    for n in 0..10 {
        a.send_cq.expect_success(n);
        a.send_cq.expect_success(n);
        b.receive_cq.expect_success(n);
    }
    assert!(b.receive_cq.is_empty());
    assert_eq!(counter.bytes(), 10_u64.to_ne_bytes());
    let found: Vec<_> = own.bytes().chunks(8).map(|word| word[0]).collect();
    assert_eq!(found, (0..10).collect::<Vec<u8>>());
}

fn peer_that_was_destroyed_is_unreachable(device: &Device) {
    let (a, b) = acquainted(device);
    drop(b);
    a.expect_unreachable();
}

fn peer_that_was_reset_is_unreachable(device: &Device) {
    let (a, b) = acquainted(device);
    b.qp.to_reset();
    a.expect_unreachable();
}

fn peer_in_error_is_unreachable(device: &Device) {
    let (a, b) = acquainted(device);
    b.qp.post_receive(1, &[]);
    b.qp.to_error();
    a.expect_unreachable();
    b.receive_cq.expect_flushed([1]);
    // A write needs no receive. If it has a single element, it may be executed on a fast path.
    let (a, b) = acquainted(device);
    let (source, sink) = (a.pd.register_filled(vec![1; 8], 0), b.pd.register(8, ALL_ACCESS));
    b.qp.to_error();
    a.qp.post(&Wr::write(2, &[source.sge(0, 8)], &sink, 0));
    a.send_cq.expect(2, Status::IBV_WC_RETRY_EXC_ERR);
    sink.assert_filled(0);
}

fn queue_pair_number_that_nobody_has_is_unreachable(device: &Device) {
    let (a, b) = sides(device);
    let (at_a, at_b) = (a.endpoint(), b.endpoint());
    connect(&a.qp, &at_a, &nobody(device, &at_b), &impatient());
    connect(&b.qp, &at_b, &at_a, &impatient());
    b.qp.post_receive(1, &[]);
    a.expect_unreachable();
    assert!(b.receive_cq.is_empty());
}

/// Returns the address of the same queue pair at a GID and LID that no device has.
fn elsewhere(at: &Endpoint) -> Endpoint {
    let mut raw = gid_of(&at.gid).to_bytes();
    raw[15] ^= 2;
    Endpoint { gid: ibv_gid { raw }, lid: at.lid % 0xbffe + 1, ..*at }
}

fn address_that_nobody_has_is_unreachable(device: &Device) {
    let (a, b) = sides(device);
    let (at_a, at_b) = (a.endpoint(), b.endpoint());
    connect(&a.qp, &at_a, &elsewhere(&at_b), &impatient());
    connect(&b.qp, &at_b, &at_a, &impatient());
    b.qp.post_receive(1, &[]);
    a.expect_unreachable();
    assert!(b.receive_cq.is_empty());
}

fn address_that_the_peer_does_not_expect_is_unreachable(device: &Device) {
    let (a, b) = sides(device);
    let (at_a, at_b) = (a.endpoint(), b.endpoint());
    connect(&a.qp, &at_a, &at_b, &impatient());
    // B expects a queue pair with A's number at another address.
    connect(&b.qp, &at_b, &elsewhere(&at_a), &impatient());
    b.qp.post_receive(1, &[]);
    a.expect_unreachable();
    assert!(b.receive_cq.is_empty());
}

/// Connects A's GID `at_a` to B's GID `at_b`. Returns the status of a SEND.
fn over_gids(device: &Device, at_a: u8, at_b: u8, knobs: &Knobs) -> Status {
    let (a, b) = sides(device);
    let at_a = endpoint_with_gid(&a.context, &a.qp, at_a);
    let at_b = endpoint_with_gid(&b.context, &b.qp, at_b);
    connect(&a.qp, &at_a, &at_b, knobs);
    connect(&b.qp, &at_b, &at_a, knobs);
    b.qp.post_receive(1, &[]);
    a.qp.post(&Wr::send(2, &[]));
    a.send_cq.next().status
}

/// Returns the indices and types of the GIDs.
fn gids(device: &Device) -> Vec<(u8, u32)> {
    let rows = gid_table(&device.open(), 256, 0).unwrap();
    rows.iter().map(|row| (row.index.try_into().unwrap(), row.kind)).collect()
}

fn every_gid_of_a_port_reaches_itself(device: &Device) {
    for (gid, _) in gids(device) {
        assert_eq!(
            over_gids(device, gid, gid, &Knobs::default()),
            Status::IBV_WC_SUCCESS,
            "GID {gid}"
        );
    }
}

fn roce_v1_and_v2_do_not_reach_each_other(device: &Device) {
    let gids = gids(device);
    let of = |kind: ibv_gid_type| gids.iter().find(|row| row.1 == kind.0).map(|row| row.0);
    let v1 = of(ibv_gid_type::IBV_GID_TYPE_ROCE_V1);
    let (Some(v1), Some(v2)) = (v1, of(ibv_gid_type::IBV_GID_TYPE_ROCE_V2)) else {
        device.skip("the port has no GIDs of both versions of RoCE");
    };
    for (from, to) in [(v1, v2), (v2, v1)] {
        let status = over_gids(device, from, to, &impatient());
        assert_eq!(status, Status::IBV_WC_RETRY_EXC_ERR, "GID {from} to {to}");
    }
}

fn timeout_0_waits_for_ever_and_ends_with_the_error_state(device: &Device) {
    let (a, limited) = sides(device);
    let at_a = a.endpoint();
    connect(
        &a.qp,
        &at_a,
        &nobody(device, &at_a),
        &Knobs { timeout: 0, retries: 0, ..Knobs::default() },
    );
    a.qp.post(&Wr::send(1, &[]));
    a.qp.post(&Wr::send(2, &[]));
    // In the meantime, another queue pair gives up after three attempts of 17 ms each. If code 0
    // stood for a timeout as short as this, A would have given up too.
    let at_limited = limited.endpoint();
    connect(&limited.qp, &at_limited, &nobody(device, &at_limited), &impatient());
    limited.expect_unreachable();
    a.qp.assert_ready();
    assert!(a.send_cq.is_empty());
    a.qp.to_error();
    a.send_cq.expect_flushed([1, 2]);
}

fn requester_that_gives_up_leaves_other_queue_pairs_alone(device: &Device) {
    let a = side(device);
    let at_a = a.endpoint();
    let (c, d) = pair(device);
    connect(&a.qp, &at_a, &nobody(device, &at_a), &impatient());
    a.expect_unreachable();
    d.qp.post_receive(1, &[]);
    c.qp.post(&Wr::send(2, &[]));
    c.send_cq.expect_success(2);
    d.receive_cq.expect_success(1);
}
