//! Unreliable connections with invalid requests or receives.

use rdma_sys::{
    Errno, ibv_event_type, ibv_qp_attr, ibv_qp_attr_mask as Mask, ibv_qp_state as State,
    ibv_wc_status as Status, ibv_wr_opcode,
};

use test_support::rig::connect::{Knobs, Side, connect_unreliably, endpoint};
use test_support::rig::post::Wr;
use test_support::rig::srq::Srq;
use test_support::rig::{ALL_ACCESS, LOCAL_WRITE, Mr, Qp, imm_of, until};

use super::unreliable::{MARK, Pair, size};
use crate::case::cases;
use crate::device::Device;

const REFUSED: i32 = Errno::EINVAL.raw();

cases![
    reads_and_atomics_are_refused_at_once,
    operations_that_need_an_answer_move_nothing,
    a_receive_that_is_too_short_stays_for_a_message_that_fits,
    a_receive_with_a_bad_element_fails_the_receiver_alone,
    a_receiver_that_fails_says_so_by_an_event,
    a_request_that_fails_comes_behind_those_before_it,
    a_request_that_fails_stops_the_send_queue_alone,
    a_send_queue_in_error_goes_on_or_ends,
    receives_of_a_shared_queue_serve_messages,
    a_receive_of_a_shared_queue_that_a_refused_write_took_ends_in_error,
    a_receive_of_a_shared_queue_that_is_too_short_ends_in_error,
];

const NEED_AN_ANSWER: [ibv_wr_opcode; 4] = [
    ibv_wr_opcode::IBV_WR_RDMA_READ,
    ibv_wr_opcode::IBV_WR_ATOMIC_CMP_AND_SWP,
    ibv_wr_opcode::IBV_WR_ATOMIC_FETCH_AND_ADD,
    ibv_wr_opcode::IBV_WR_SEND_WITH_INV,
];

fn of_opcode(pair: &Pair, opcode: ibv_wr_opcode) -> Wr {
    let mut wr = Wr::read(1, &[pair.at_a.sge(0, 8)], &pair.at_b, 0);
    wr.wr.opcode = opcode;
    wr
}

fn reads_and_atomics_are_refused_at_once(device: &Device) {
    for opcode in NEED_AN_ANSWER {
        let pair = Pair::new(device);
        let wr = of_opcode(&pair, opcode);
        if device.differs("operations-of-other-types") {
            pair.a.qp.post(&wr);
            pair.a.send_cq.expect(1, Status::IBV_WC_LOC_QP_OP_ERR);
            pair.a.qp.wait_for_error();
            continue;
        }
        assert_eq!(pair.a.qp.try_post(&wr), REFUSED, "{opcode:?}");
        assert!(pair.a.send_cq.is_empty());
        pair.a.qp.assert_ready();
    }
}

fn operations_that_need_an_answer_move_nothing(device: &Device) {
    for opcode in NEED_AN_ANSWER {
        let pair = Pair::new(device);
        if pair.a.qp.try_post(&of_opcode(&pair, opcode)) == 0 {
            assert_ne!(pair.a.send_cq.next().status, Status::IBV_WC_SUCCESS, "{opcode:?}");
        }
        pair.at_a.assert_filled(0xaa);
        pair.at_b.assert_filled(0xbb);
        pair.b.qp.assert_ready();
    }
}

fn a_receive_that_is_too_short_stays_for_a_message_that_fits(device: &Device) {
    let pair = Pair::new(device);
    pair.receive(10, 15);
    pair.receive(11, 16);
    pair.a.qp.post(&pair.send(1));
    pair.a.send_cq.expect_success(1);
    if device.differs("unreliable-receive-too-short") {
        pair.b.receive_cq.expect(10, Status::IBV_WC_LOC_QP_OP_ERR);
        return pair.b.qp.wait_for_error();
    }
    pair.expect_sent(&Wr::send(3, &[pair.at_a.sge(0, 15)]));
    assert_eq!(pair.b.receive_cq.expect_success(10).byte_len, 15);
    pair.expect_sent(&pair.send(4));
    assert_eq!(pair.b.receive_cq.expect_success(11).byte_len, 16);
}

/// Sends two messages to B, whose first receive has a wrong key and whose second is valid.
fn fail_receiver(pair: &Pair) {
    let mut bad = pair.at_b.sge(0, 16);
    bad.lkey ^= 1;
    pair.b.qp.post_receive(10, &[bad]);
    pair.receive(11, 32);
    pair.a.qp.try_post_list(&[pair.send(1), pair.send(2)]).unwrap();
    pair.a.send_cq.expect_success(1);
    pair.a.send_cq.expect_success(2);
}

fn a_receive_with_a_bad_element_fails_the_receiver_alone(device: &Device) {
    let pair = Pair::new(device);
    fail_receiver(&pair);
    let (contract, rxe) = (Status::IBV_WC_LOC_PROT_ERR, Status::IBV_WC_LOC_QP_OP_ERR);
    pair.b.receive_cq.expect(10, device.expected(contract, "receive-with-a-bad-element", rxe));
    pair.b.receive_cq.expect_flushed([11]);
    pair.b.qp.wait_for_error();
    pair.a.qp.assert_ready();
    pair.at_b.assert_filled(0xbb);
}

fn a_receiver_that_fails_says_so_by_an_event(device: &Device) {
    let pair = Pair::new(device);
    fail_receiver(&pair);
    pair.b.receive_cq.next();
    pair.b.receive_cq.expect_flushed([11]);
    let event = (ibv_event_type::IBV_EVENT_QP_FATAL, pair.b.qp.0.addr());
    let expected = device.expected(true, "failed-receivers-are-no-events", false);
    // The device may report the event shortly after the completions.
    let context = &pair.b.context;
    until("the event", || !expected || context.has_async_events());
    assert_eq!(context.async_events().contains(&event), expected);
}

fn a_request_that_fails_comes_behind_those_before_it(device: &Device) {
    let pair = Pair::new(device);
    let a = &pair.a;
    let wrs =
        [pair.write(1), pair.bad(2).unsignaled(), pair.write(3), Wr::send(4, &[]).unsignaled()];
    a.qp.try_post_list(&wrs).unwrap();
    a.send_cq.expect_success(1);
    let (contract, rxe) = (Status::IBV_WC_LOC_PROT_ERR, Status::IBV_WC_LOC_QP_OP_ERR);
    a.send_cq.expect(2, device.expected(contract, "status-of-a-bad-lkey", rxe));
    a.send_cq.expect_flushed([3, 4]);
    a.qp.post(&pair.write(5));
    a.send_cq.expect_flushed([5]);
}

fn a_request_that_fails_stops_the_send_queue_alone(device: &Device) {
    let pair = Pair::new(device);
    let Pair { at_a, a, b, .. } = &pair;
    a.qp.post_receive(20, &[at_a.sge(32, 16)]);
    a.qp.post(&pair.bad(1));
    assert_eq!(a.send_cq.next().wr_id, 1);
    if device.differs("no-send-queue-error-state") {
        a.qp.wait_for_error();
        return a.receive_cq.expect_flushed([20]);
    }
    assert_eq!(a.qp.state(), State::IBV_QPS_SQE);
    assert!(a.context.async_events().is_empty());
    b.qp.post(&Wr::send(30, &[pair.at_b.sge(0, 4)]));
    b.send_cq.expect_success(30);
    assert_eq!(a.receive_cq.expect_success(20).byte_len, 4);
    assert_eq!(a.qp.to_state(State::IBV_QPS_RTS), 0);
    pair.receive(10, 32);
    pair.expect_mark(10);
}

fn a_send_queue_in_error_goes_on_or_ends(device: &Device) {
    let pair = Pair::new(device);
    let a = &pair.a;
    let stop = || {
        a.qp.post(&pair.bad(1));
        assert_eq!(a.send_cq.next().wr_id, 1);
    };
    stop();
    if device.differs("no-send-queue-error-state") {
        a.qp.wait_for_error();
        return assert_ne!(a.qp.to_state(State::IBV_QPS_RTS), 0);
    }
    assert_eq!(a.qp.state(), State::IBV_QPS_SQE);
    for state in [State::IBV_QPS_INIT, State::IBV_QPS_RTR, State::IBV_QPS_SQD, State::IBV_QPS_SQE] {
        assert_eq!(a.qp.to_state(state), REFUSED);
    }
    let state = Mask::IBV_QP_STATE.0;
    let mut attr = ibv_qp_attr { qp_state: State::IBV_QPS_RTS, ..Default::default() };
    assert_eq!(a.qp.modify(attr, state | Mask::IBV_QP_SQ_PSN.0), REFUSED);
    attr.cur_qp_state = State::IBV_QPS_RTS;
    assert_eq!(a.qp.modify(attr, state | Mask::IBV_QP_CUR_STATE.0), REFUSED);
    attr.cur_qp_state = State::IBV_QPS_SQE;
    attr.qp_access_flags = LOCAL_WRITE;
    let mask = state | Mask::IBV_QP_CUR_STATE.0 | Mask::IBV_QP_ACCESS_FLAGS.0;
    assert_eq!(a.qp.modify(attr, mask), 0);
    stop();
    a.qp.post_receive(20, &[]);
    a.qp.to_error();
    a.receive_cq.expect_flushed([20]);
    a.qp.to_reset();
    assert_eq!(a.qp.state(), State::IBV_QPS_RESET);
}

/// A sender with sixteen bytes of data, and a receiver with a shared receive queue.
struct Shared {
    source: Mr,
    sink: Mr,
    qp: Qp,
    pool: Srq,
    a: Side,
    b: Side,
}

impl Shared {
    fn new(device: &Device) -> Self {
        let (a, b) = (Side::new(device, &size(), 64), Side::new(device, &size(), 64));
        let pool = b.pd.srq(8, 2);
        let qp = b.pd.qp_with_srq(&b.send_cq, &b.receive_cq, &size(), &pool);
        let (at_a, at_b) = (a.endpoint(), endpoint(&b.context, &qp));
        connect_unreliably(&a.qp, &at_a, &at_b, &Knobs::default());
        connect_unreliably(&qp, &at_b, &at_a, &Knobs::default());
        let source = a.pd.register(16, 0);
        let sink = b.pd.register_filled(vec![0xbb; 16], ALL_ACCESS);
        for wr_id in 10..12 {
            pool.post(wr_id, &[sink.sge(0, 8)]);
        }
        Self { source, sink, qp, pool, a, b }
    }

    fn expect_sent(&self, wr: &Wr) {
        self.a.qp.post(wr);
        self.a.send_cq.expect_success(wr.wr.wr_id);
    }
}

fn receives_of_a_shared_queue_serve_messages(device: &Device) {
    let shared = Shared::new(device);
    shared.expect_sent(&Wr::send(1, &[shared.source.sge(0, 8)]));
    let got = shared.b.receive_cq.expect_success(10);
    assert_eq!((got.byte_len, got.qp_num), (8, shared.qp.number()));
    shared.expect_sent(&Wr::write(2, &[shared.source.sge(0, 16)], &shared.sink, 0).with_imm(4));
    assert_eq!(shared.b.receive_cq.expect_success(11).byte_len, 16);
    // An unreliable message does not wait for a receive.
    shared.expect_sent(&Wr::send(3, &[]));
    device.let_arrive();
    shared.pool.post(12, &[]);
    shared.expect_sent(&Wr::send(4, &[]).with_imm(MARK));
    assert_eq!(imm_of(&shared.b.receive_cq.expect_success(12)), MARK);
}

fn a_receive_of_a_shared_queue_that_a_refused_write_took_ends_in_error(device: &Device) {
    let shared = Shared::new(device);
    let write = Wr::write(1, &[shared.source.sge(0, 16)], &shared.sink, 0).with_imm(4);
    shared.expect_sent(&write.clone().remote(shared.sink.address(), shared.sink.key() ^ 1));
    let taken = !device.differs_by_packets("refused-write-takes-no-receive");
    if taken {
        shared.b.receive_cq.expect(10, Status::IBV_WC_REM_ACCESS_ERR);
    }
    shared.sink.assert_filled(0xbb);
    shared.expect_sent(&write);
    shared.b.receive_cq.expect_success(if taken { 11 } else { 10 });
}

fn a_receive_of_a_shared_queue_that_is_too_short_ends_in_error(device: &Device) {
    let shared = Shared::new(device);
    shared.expect_sent(&Wr::send(1, &[shared.source.sge(0, 9)]));
    if device.differs("unreliable-receive-too-short") {
        shared.b.receive_cq.expect(10, Status::IBV_WC_LOC_QP_OP_ERR);
        return shared.qp.wait_for_error();
    }
    shared.b.receive_cq.expect(10, Status::IBV_WC_LOC_LEN_ERR);
    shared.expect_sent(&Wr::send(2, &[shared.source.sge(0, 8)]));
    shared.b.receive_cq.expect_success(11);
}
