//! Datagrams that cannot be sent, or that do not fit.

use rdma_sys::{
    Errno, ibv_event_type, ibv_mw_type, ibv_qp_attr, ibv_qp_attr_mask as Mask,
    ibv_qp_state as State, ibv_wc_status as Status, ibv_wr_opcode,
};

use test_support::rig::connect::Side;
use test_support::rig::datagram::{Ah, HEADER, MTU, Pair, QKEY, activate, side, size};
use test_support::rig::post::Wr;
use test_support::rig::srq::Srq;
use test_support::rig::{LOCAL_WRITE, Mr, Qp, REMOTE_READ, until};

use super::datagrams::{Scene, mtu};
use crate::case::cases;
use crate::device::Device;

cases![
    without_a_receive_a_datagram_is_lost,
    a_receive_that_is_too_short_stays_for_a_datagram_that_fits,
    a_receive_shorter_than_the_header_takes_nothing,
    a_receive_with_a_bad_element_fails_its_own_queue_pair,
    a_receiver_that_fails_says_so_by_an_event,
    a_datagram_longer_than_the_mtu_never_arrives,
    only_sends_can_be_posted,
    operations_that_datagrams_lack_move_nothing,
    datagram_queue_pairs_bind_no_windows,
    a_datagram_with_a_bad_element_fails_and_those_behind_it_are_flushed,
    a_failed_datagram_stops_the_send_queue_alone,
    receives_of_a_shared_queue_serve_datagrams,
    receives_of_a_shared_queue_that_are_too_short_end_in_error,
];

fn without_a_receive_a_datagram_is_lost(device: &Device) {
    let scene = Scene::new(device);
    scene.send(&scene.good(1, 8));
    scene.send(&scene.good(2, 8));
    device.let_arrive();
    scene.receive_mark(10);
    scene.expect_mark(10);
    scene.pair.at_b.assert_filled(0xbb);
    scene.pair.b.qp.assert_ready();
}

/// Checks that the receiver fails, as SoftRoCE's does when a receive is too short.
#[track_caller]
fn expect_failed_receiver(scene: &Scene, receive: u64) {
    scene.pair.b.receive_cq.expect(receive, Status::IBV_WC_LOC_QP_OP_ERR);
    scene.pair.b.qp.wait_for_error();
}

fn a_receive_that_is_too_short_stays_for_a_datagram_that_fits(device: &Device) {
    let scene = Scene::new(device);
    scene.pair.receive(10, HEADER + 7);
    scene.send(&scene.good(1, 8));
    if device.differs("unreliable-receive-too-short") {
        return expect_failed_receiver(&scene, 10);
    }
    let got = scene.pair.expect_sent(&scene.good(2, 7), 10);
    assert_eq!(got.byte_len, 47);
    scene.pair.b.qp.assert_ready();
}

fn a_receive_shorter_than_the_header_takes_nothing(device: &Device) {
    let scene = Scene::new(device);
    scene.pair.receive(10, HEADER - 1);
    scene.send(&scene.good(1, 0));
    if device.differs("unreliable-receive-too-short") {
        return expect_failed_receiver(&scene, 10);
    }
    device.let_arrive();
    scene.pair.b.qp.assert_ready();
    assert!(scene.pair.b.receive_cq.is_empty());
    scene.pair.at_b.assert_filled(0xbb);
}

/// Sends two datagrams to B, whose first receive has a wrong key and whose second is valid.
fn fail_receiver(scene: &Scene) {
    let mut bad = scene.pair.at_b.sge(0, HEADER);
    bad.lkey ^= 1;
    scene.pair.b.qp.post_receive(10, &[bad]);
    scene.pair.receive(11, HEADER);
    scene.pair.a.qp.try_post_list(&[scene.good(1, 0), scene.good(2, 0)]).unwrap();
    scene.pair.a.send_cq.expect_success(1);
    scene.pair.a.send_cq.expect_success(2);
}

fn a_receive_with_a_bad_element_fails_its_own_queue_pair(device: &Device) {
    let scene = Scene::new(device);
    fail_receiver(&scene);
    let status = device.expected(
        Status::IBV_WC_LOC_PROT_ERR,
        "receive-with-a-bad-element",
        Status::IBV_WC_LOC_QP_OP_ERR,
    );
    scene.pair.b.receive_cq.expect(10, status);
    scene.pair.b.receive_cq.expect_flushed([11]);
    scene.pair.b.qp.wait_for_error();
    scene.pair.a.qp.assert_ready();
    scene.pair.at_b.assert_filled(0xbb);
}

fn a_receiver_that_fails_says_so_by_an_event(device: &Device) {
    let scene = Scene::new(device);
    fail_receiver(&scene);
    scene.pair.b.qp.wait_for_error();
    let event = (ibv_event_type::IBV_EVENT_QP_FATAL, scene.pair.b.qp.0.addr());
    scene.pair.b.receive_cq.next();
    scene.pair.b.receive_cq.expect_flushed([11]);
    let expected = device.expected(vec![event], "failed-receivers-are-no-events", vec![]);
    // The device may report the event shortly after the completions.
    let context = &scene.pair.b.context;
    until("the event", || expected.is_empty() || context.has_async_events());
    assert_eq!(context.async_events(), expected);
}

fn a_datagram_longer_than_the_mtu_never_arrives(device: &Device) {
    let scene = Scene::new(device);
    let Pair { b, .. } = &scene.pair;
    let longest = mtu(&scene.pair.a);
    let at_b = b.pd.register_filled(vec![0xbb; HEADER + longest + 1], LOCAL_WRITE);
    b.qp.post_receive(10, &[at_b.sge(0, HEADER + longest + 1)]);
    if scene.pair.a.qp.try_post(&scene.good(1, longest + 1)) == 0 {
        // The specification requires such a datagram to be dropped silently, but some devices stop
        // their send queue.
        let ended = scene.pair.a.send_cq.next();
        assert_eq!(ended.wr_id, 1);
        if ended.status != Status::IBV_WC_SUCCESS {
            assert_eq!(ended.status, Status::IBV_WC_LOC_LEN_ERR);
            assert_eq!(scene.pair.a.qp.to_state(State::IBV_QPS_RTS), 0);
        }
    }
    scene.expect_mark(10);
    assert!(at_b.bytes()[HEADER..].iter().all(|&byte| byte == 0xbb));
}

const NOT_FOR_DATAGRAMS: [ibv_wr_opcode; 7] = [
    ibv_wr_opcode::IBV_WR_RDMA_WRITE,
    ibv_wr_opcode::IBV_WR_RDMA_WRITE_WITH_IMM,
    ibv_wr_opcode::IBV_WR_RDMA_READ,
    ibv_wr_opcode::IBV_WR_ATOMIC_CMP_AND_SWP,
    ibv_wr_opcode::IBV_WR_ATOMIC_FETCH_AND_ADD,
    ibv_wr_opcode::IBV_WR_SEND_WITH_INV,
    ibv_wr_opcode::IBV_WR_LOCAL_INV,
];

/// Returns a request that is valid except for its opcode. A memory operation finds the datagram's
/// address handle in place of its remote address, because both are in one C union.
fn of_opcode(scene: &Scene, opcode: ibv_wr_opcode) -> Wr {
    let mut wr = scene.good(1, 8);
    wr.wr.opcode = opcode;
    wr
}

fn only_sends_can_be_posted(device: &Device) {
    for opcode in NOT_FOR_DATAGRAMS {
        let scene = Scene::new(device);
        let (a, wr) = (&scene.pair.a, of_opcode(&scene, opcode));
        if device.differs("operations-of-other-types") {
            a.qp.post(&wr);
            a.send_cq.expect(1, Status::IBV_WC_LOC_QP_OP_ERR);
            a.qp.wait_for_error();
            continue;
        }
        assert_eq!(a.qp.try_post(&wr), Errno::EINVAL.raw(), "{opcode:?}");
        let list = [scene.good(2, 0), wr, scene.good(3, 0)];
        assert_eq!(a.qp.try_post_list(&list), Err((1, Errno::EINVAL.raw())));
        a.send_cq.expect_success(2);
        assert!(a.send_cq.is_empty());
        a.qp.assert_ready();
    }
}

fn operations_that_datagrams_lack_move_nothing(device: &Device) {
    for opcode in NOT_FOR_DATAGRAMS {
        let scene = Scene::new(device);
        scene.pair.receive(10, HEADER + 8);
        if scene.pair.a.qp.try_post(&of_opcode(&scene, opcode)) == 0 {
            let ended = scene.pair.a.send_cq.next();
            assert_ne!(ended.status, Status::IBV_WC_SUCCESS, "{opcode:?}");
        }
        // A datagram from another sender shows that nothing arrived before it.
        let other = side(device);
        let ah = other.pd.ah_to(&other.endpoint(), &scene.pair.b.endpoint());
        other.qp.post(&Wr::send(2, &[]).to(&ah, scene.pair.b.qp.number(), QKEY));
        let got = scene.pair.b.receive_cq.expect_success(10);
        assert_eq!(got.src_qp, other.qp.number(), "{opcode:?}");
        other.send_cq.expect_success(2);
        assert_eq!(scene.pair.at_b.bytes()[HEADER..], [0xbb; MTU]);
        scene.pair.at_a.assert_filled(0xaa);
    }
}

fn datagram_queue_pairs_bind_no_windows(device: &Device) {
    let scene = Scene::new(device);
    let Ok(window) = scene.pair.a.pd.try_mw(ibv_mw_type::IBV_MW_TYPE_2) else {
        device.skip("the device has no memory windows of type 2");
    };
    let part = scene.pair.at_a.part(0, 8, REMOTE_READ);
    let wr = Wr::bind(1, &window, window.key_with(7), part);
    assert_eq!(scene.pair.a.qp.try_post(&wr), Errno::EINVAL.raw());
    scene.pair.a.qp.assert_ready();
}

/// Returns a datagram whose element has a wrong key.
fn bad(scene: &Scene, wr_id: u64) -> Wr {
    let mut sge = scene.pair.at_a.sge(0, 8);
    sge.lkey ^= 1;
    scene.to(Wr::send(wr_id, &[sge]), scene.pair.b.qp.number(), QKEY)
}

fn a_datagram_with_a_bad_element_fails_and_those_behind_it_are_flushed(device: &Device) {
    let scene = Scene::new(device);
    let a = &scene.pair.a;
    scene.pair.receive(10, HEADER);
    let wrs = [bad(&scene, 1).unsignaled(), scene.good(2, 0).unsignaled(), scene.good(3, 0)];
    a.qp.try_post_list(&wrs).unwrap();
    let status = device.expected(
        Status::IBV_WC_LOC_PROT_ERR,
        "status-of-a-bad-lkey",
        Status::IBV_WC_LOC_QP_OP_ERR,
    );
    a.send_cq.expect(1, status);
    a.send_cq.expect_flushed([2, 3]);
    a.qp.post(&scene.good(4, 0));
    a.send_cq.expect_flushed([4]);
    assert!(scene.pair.b.receive_cq.is_empty());
}

fn a_failed_datagram_stops_the_send_queue_alone(device: &Device) {
    let scene = Scene::new(device);
    let Pair { at_a, a, b, .. } = &scene.pair;
    a.qp.post_receive(20, &[at_a.sge(0, HEADER)]);
    a.qp.post(&bad(&scene, 1));
    assert_eq!(a.send_cq.next().wr_id, 1);
    if device.differs("no-send-queue-error-state") {
        a.qp.wait_for_error();
        return a.receive_cq.expect_flushed([20]);
    }
    assert_eq!(a.qp.state(), State::IBV_QPS_SQE);
    let back = b.pd.ah_to(&b.endpoint(), &a.endpoint());
    b.qp.post(&Wr::send(30, &[]).to(&back, a.qp.number(), QKEY));
    a.receive_cq.expect_success(20);
    let attr = ibv_qp_attr { qp_state: State::IBV_QPS_RTS, qkey: QKEY, ..Default::default() };
    assert_eq!(a.qp.modify(attr, Mask::IBV_QP_STATE.0 | Mask::IBV_QP_QKEY.0), 0);
    scene.receive_mark(10);
    scene.expect_mark(10);
}

/// A sender, and a receiver with a shared receive queue.
struct Shared {
    ah: Ah,
    source: Mr,
    sink: Mr,
    qp: Qp,
    pool: Srq,
    a: Side,
    b: Side,
}

impl Shared {
    fn new(device: &Device) -> Self {
        device.needs(device.attributes().max_srq > 0, "the device has no shared receive queues");
        let (a, b) = (side(device), Side::new(device, &size(), 64));
        let pool = b.pd.srq(8, 2);
        let qp = b.pd.qp_with_srq(&b.send_cq, &b.receive_cq, &size(), &pool);
        activate(&qp, QKEY);
        let ah = a.pd.ah_to(&a.endpoint(), &b.endpoint());
        let (source, sink) = (a.pd.register(8, 0), b.pd.register(64, LOCAL_WRITE));
        Self { ah, source, sink, qp, pool, a, b }
    }

    /// Sends eight bytes.
    fn send(&self, wr_id: u64) {
        let wr = Wr::send(wr_id, &[self.source.sge(0, 8)]);
        self.a.qp.post(&wr.to(&self.ah, self.qp.number(), QKEY));
        self.a.send_cq.expect_success(wr_id);
    }
}

fn receives_of_a_shared_queue_serve_datagrams(device: &Device) {
    let shared = Shared::new(device);
    // A datagram does not wait for a receive.
    shared.send(1);
    device.let_arrive();
    for wr_id in [10, 11] {
        shared.pool.post(wr_id, &[shared.sink.sge(0, HEADER + 8)]);
    }
    for (wr_id, receive) in [(2, 10), (3, 11)] {
        shared.send(wr_id);
        let got = shared.b.receive_cq.expect_success(receive);
        assert_eq!((got.byte_len, got.src_qp), (48, shared.a.qp.number()));
        assert_eq!(got.qp_num, shared.qp.number());
    }
}

fn receives_of_a_shared_queue_that_are_too_short_end_in_error(device: &Device) {
    let shared = Shared::new(device);
    shared.pool.post(10, &[shared.sink.sge(0, HEADER + 7)]);
    shared.pool.post(11, &[shared.sink.sge(0, HEADER + 8)]);
    shared.send(1);
    if device.differs("unreliable-receive-too-short") {
        shared.b.receive_cq.expect(10, Status::IBV_WC_LOC_QP_OP_ERR);
        return shared.qp.wait_for_error();
    }
    shared.b.receive_cq.expect(10, Status::IBV_WC_LOC_LEN_ERR);
    assert_eq!(shared.qp.state(), State::IBV_QPS_RTS);
    shared.send(2);
    assert_eq!(shared.b.receive_cq.expect_success(11).byte_len, 48);
}
