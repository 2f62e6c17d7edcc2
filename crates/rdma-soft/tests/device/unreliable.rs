//! Unreliable connections: nobody acknowledges, so that whatever becomes of a message, it was sent.

use rdma_sys::{
    Errno, ibv_event_type, ibv_qp_attr, ibv_qp_attr_mask as Mask, ibv_qp_state as State,
    ibv_qp_type, ibv_send_flags, ibv_wc_flags, ibv_wc_opcode as Opcode, ibv_wc_status as Status,
};

use crate::rig::connect::{
    INIT, Knobs, Side, UC_RTR, UNRELIABLE_RTS, attributes, connect, connect_unreliably, endpoint,
};
use crate::rig::post::Wr;
use crate::rig::{
    ALL_ACCESS, LOCAL_WRITE, Mr, Size, imm_of, on_each_device, on_each_held_device, soft,
};

const REFUSED: i32 = Errno::EINVAL.raw();
const BYTES: usize = 64;

fn size() -> Size {
    Size { qp_type: ibv_qp_type::IBV_QPT_UC, ..Size::default() }
}

/// Two connected ends with memory of 64 bytes: a's are 0xaa, b's 0xbb.
struct Pair {
    at_a: Mr,
    at_b: Mr,
    a: Side,
    b: Side,
}

impl Pair {
    fn new(device: &str) -> Self {
        Self::with(device, &Knobs::default())
    }

    fn with(device: &str, knobs: &Knobs) -> Self {
        let (a, b) = (Side::new(device, &size(), 256), Side::new(device, &size(), 256));
        connect_unreliably(&a.qp, &a.endpoint(), &b.endpoint(), knobs);
        connect_unreliably(&b.qp, &b.endpoint(), &a.endpoint(), knobs);
        let at_a = a.pd.register_filled(vec![0xaa; BYTES], ALL_ACCESS);
        let at_b = b.pd.register_filled(vec![0xbb; BYTES], ALL_ACCESS);
        Self { at_a, at_b, a, b }
    }

    fn send(&self, wr_id: u64) -> Wr {
        Wr::send(wr_id, &[self.at_a.sge(0, 16)])
    }

    fn write(&self, wr_id: u64) -> Wr {
        Wr::write(wr_id, &[self.at_a.sge(0, 16)], &self.at_b, 8)
    }

    /// Posts what gets lost: the sender is done, and B as it was.
    #[track_caller]
    fn expect_lost(&self, wr: &Wr) {
        self.a.qp.post(wr);
        self.a.send_cq.expect_success(wr.wr.wr_id);
        assert!(self.b.receive_cq.is_empty());
        self.at_b.assert_filled(0xbb);
        self.a.qp.assert_ready();
    }

    /// Posts what arrives.
    #[track_caller]
    fn expect_sent(&self, wr_id: u64, receive: u64) {
        self.a.qp.post(&self.send(wr_id));
        self.a.send_cq.expect_success(wr_id);
        assert_eq!(self.b.receive_cq.expect_success(receive).byte_len, 16);
    }

    fn receive(&self, wr_id: u64, length: usize) {
        self.b.qp.post_receive(wr_id, &[self.at_b.sge(0, length)]);
    }
}

#[test]
fn sends_and_writes_arrive() {
    on_each_device("uc-arrive", |device| {
        let pair = Pair::new(device);
        let Pair { at_a, at_b, a, b } = &pair;
        pair.receive(10, 32);
        b.qp.post_receive(11, &[]);
        let short = |id| Wr::send(id, &[at_a.sge(0, 16)]);
        a.qp.post(&short(1));
        let sent = a.send_cq.expect_success(1);
        assert_eq!((sent.opcode, sent.qp_num), (Opcode::IBV_WC_SEND, a.qp.number()));
        let got = b.receive_cq.expect_success(10);
        assert_eq!((got.opcode, got.byte_len), (Opcode::IBV_WC_RECV, 16));
        assert_eq!((got.wc_flags, got.qp_num), (0, b.qp.number()));
        assert_eq!(at_b.bytes()[..16], [0xaa; 16]);

        a.qp.post(&Wr::write(2, &[at_a.sge(0, 8)], at_b, 40));
        assert_eq!(a.send_cq.expect_success(2).opcode, Opcode::IBV_WC_RDMA_WRITE);
        assert_eq!(at_b.bytes()[40..48], [0xaa; 8]);
        assert!(b.receive_cq.is_empty(), "a write alone is not heard of");

        a.qp.post(&Wr::write(3, &[at_a.sge(0, 8)], at_b, 50).with_imm(77));
        a.send_cq.expect_success(3);
        let got = b.receive_cq.expect_success(11);
        assert_eq!((got.opcode, got.byte_len), (Opcode::IBV_WC_RECV_RDMA_WITH_IMM, 8));
        assert_eq!((got.wc_flags, imm_of(&got)), (ibv_wc_flags::IBV_WC_WITH_IMM.0, 77));
        assert_eq!(at_b.bytes()[50..58], [0xaa; 8]);

        pair.receive(12, 32);
        a.qp.post(&short(4).with_imm(78).flags(ibv_send_flags::IBV_SEND_FENCE));
        a.send_cq.expect_success(4);
        assert_eq!(imm_of(&b.receive_cq.expect_success(12)), 78);
    });
}

#[test]
fn reads_and_atomics_are_refused_at_once() {
    on_each_device("uc-fetch", |device| {
        let pair = Pair::new(device);
        let local = [pair.at_a.sge(0, 8)];
        let read = Wr::read(1, &local, &pair.at_b, 0);
        for opcode in [
            rdma_sys::ibv_wr_opcode::IBV_WR_RDMA_READ,
            rdma_sys::ibv_wr_opcode::IBV_WR_ATOMIC_CMP_AND_SWP,
            rdma_sys::ibv_wr_opcode::IBV_WR_ATOMIC_FETCH_AND_ADD,
            rdma_sys::ibv_wr_opcode::IBV_WR_SEND_WITH_INV,
        ] {
            let mut wr = read.clone();
            wr.wr.opcode = opcode;
            assert_eq!(pair.a.qp.try_post(&wr), REFUSED, "{opcode:?}");
        }
        assert!(pair.a.send_cq.is_empty());
        pair.a.qp.assert_ready();
    });
}

#[test]
fn messages_to_nobody_are_sent() {
    on_each_device("uc-nobody", |device| {
        let mut pair = Pair::new(device);
        pair.b.qp.destroy();
        pair.expect_lost(&pair.send(1));
        pair.expect_lost(&pair.write(2));
        pair.expect_lost(&pair.write(3).with_imm(5));
    });
}

#[test]
fn messages_to_a_peer_that_is_not_ready_are_lost_and_later_ones_are_not() {
    on_each_device("uc-not-ready", |device| {
        let pair = Pair::new(device);
        pair.b.qp.to_reset();
        pair.expect_lost(&pair.send(1));
        let (at_a, at_b) = (pair.a.endpoint(), pair.b.endpoint());
        let attr = attributes(&at_b, &at_a, &Knobs::default());
        let init = ibv_qp_attr { qp_state: State::IBV_QPS_INIT, ..attr };
        assert_eq!(pair.b.qp.modify(init, INIT), 0);
        pair.receive(10, 32);
        pair.expect_lost(&pair.send(2));
        pair.expect_lost(&pair.write(3));
        let rtr = ibv_qp_attr { qp_state: State::IBV_QPS_RTR, ..attr };
        assert_eq!(pair.b.qp.modify(rtr, UC_RTR), 0);
        pair.expect_sent(4, 10);
        let events = pair.b.context.async_events();
        assert_eq!(events.first().map(|event| event.0), Some(ibv_event_type::IBV_EVENT_COMM_EST));
        pair.b.qp.to_error();
        pair.b.receive_cq.expect_flushed([]);
        pair.a.qp.post(&pair.send(5));
        pair.a.send_cq.expect_success(5);
    });
}

#[test]
fn messages_without_a_receive_are_lost_and_later_ones_are_not() {
    on_each_device("uc-no-receive", |device| {
        let pair = Pair::new(device);
        pair.expect_lost(&pair.send(1));
        pair.expect_lost(&pair.write(2).with_imm(5));
        assert_eq!(soft(device).in_flight(pair.a.qp.qpn()), 0, "nothing waits");
        pair.receive(10, 32);
        assert!(pair.b.receive_cq.is_empty(), "what was lost stays lost");
        pair.expect_sent(3, 10);
    });
}

#[test]
fn writes_that_the_peer_does_not_allow_are_lost() {
    on_each_device("uc-not-allowed", |device| {
        let pair = Pair::new(device);
        pair.b.qp.post_receive(10, &[]);
        let local = [pair.at_a.sge(0, 16)];
        let (address, key) = (pair.at_b.address(), pair.at_b.key());
        let unwritable = pair.b.pd.register_filled(vec![0xbb; BYTES], LOCAL_WRITE);
        let foreign = pair.a.pd.register_filled(vec![0xbb; BYTES], ALL_ACCESS);
        let places = [
            (address, key ^ 1),
            (address + 49, key),
            (u64::MAX - 7, key),
            (unwritable.address(), unwritable.key()),
            (foreign.address(), foreign.key()),
        ];
        for (address, key) in places {
            let write = Wr::write(1, &local, &pair.at_b, 0).remote(address, key);
            pair.expect_lost(&write);
            pair.expect_lost(&write.with_imm(9));
        }
        unwritable.assert_filled(0xbb);
        foreign.assert_filled(0xbb);
        pair.b.qp.assert_ready();
        // The receive that the immediates would have taken is there for the next.
        let write = Wr::write(2, &local, &pair.at_b, 0).with_imm(9);
        pair.a.qp.post(&write);
        pair.b.receive_cq.expect_success(10);
        assert!(pair.b.context.async_events().is_empty(), "nothing happened there");
    });
}

#[test]
fn a_queue_pair_without_the_right_loses_writes() {
    on_each_device("uc-no-right", |device| {
        let pair = Pair::with(device, &Knobs { access: 0, ..Knobs::default() });
        pair.expect_lost(&pair.write(1));
        pair.receive(10, 32);
        pair.expect_sent(2, 10);
    });
}

#[test]
fn a_receive_that_is_too_short_stays_for_a_message_that_fits() {
    on_each_device("uc-short", |device| {
        let pair = Pair::new(device);
        pair.receive(10, 15);
        pair.receive(11, 16);
        pair.expect_lost(&pair.send(1));
        pair.expect_lost(&pair.send(2));
        pair.a.qp.post(&Wr::send(3, &[pair.at_a.sge(0, 15)]));
        assert_eq!(pair.b.receive_cq.expect_success(10).byte_len, 15);
        pair.a.send_cq.expect_success(3);
        pair.expect_sent(4, 11);
    });
}

#[test]
fn a_receive_with_a_bad_element_fails_the_receiver_alone() {
    on_each_device("uc-bad-receive", |device| {
        let pair = Pair::new(device);
        let mut bad = pair.at_b.sge(0, 16);
        bad.lkey ^= 1;
        pair.b.qp.post_receive(10, &[bad]);
        pair.receive(11, 32);
        pair.b.qp.post(&Wr::send(20, &[]));
        pair.b.send_cq.expect_success(20);
        let wrs = [pair.send(1), pair.send(2)];
        pair.a.qp.try_post_list(&wrs).unwrap();
        pair.a.send_cq.expect_success(1);
        pair.a.send_cq.expect_success(2);
        pair.b.receive_cq.expect(10, Status::IBV_WC_LOC_PROT_ERR);
        pair.b.receive_cq.expect_flushed([11]);
        pair.b.qp.wait_for_error();
        pair.a.qp.assert_ready();
        let event = (ibv_event_type::IBV_EVENT_QP_FATAL, pair.b.qp.0.addr());
        assert!(pair.b.context.async_events().contains(&event));
        pair.at_b.assert_filled(0xbb);
    });
}

#[test]
fn any_sequence_number_is_taken() {
    on_each_device("uc-psn", |device| {
        let (a, b) = (Side::new(device, &size(), 256), Side::new(device, &size(), 256));
        let with = |psn| Knobs { psn, ..Knobs::default() };
        connect_unreliably(&a.qp, &a.endpoint(), &b.endpoint(), &with(100));
        connect_unreliably(&b.qp, &b.endpoint(), &a.endpoint(), &with(9999));
        b.qp.post_receive(10, &[]);
        a.qp.post(&Wr::send(1, &[]));
        b.receive_cq.expect_success(10);
        assert_eq!((a.qp.query().sq_psn, b.qp.query().rq_psn), (101, 101));
        // One that is lost takes its numbers with it.
        a.qp.post(&Wr::send(2, &[]));
        a.send_cq.expect_success(1);
        a.send_cq.expect_success(2);
        b.qp.post_receive(11, &[]);
        a.qp.post(&Wr::send(3, &[]));
        b.receive_cq.expect_success(11);
        assert_eq!((a.qp.query().sq_psn, b.qp.query().rq_psn), (103, 103));
    });
}

#[test]
fn queue_pairs_of_other_types_are_not_heard() {
    on_each_device("uc-and-rc", |device| {
        let reliable = Side::new(device, &Size::default(), 256);
        let unreliable = Side::new(device, &size(), 256);
        let knobs = Knobs::default();
        let (at_r, at_u) = (reliable.endpoint(), unreliable.endpoint());
        connect(&reliable.qp, &at_r, &at_u, &knobs);
        connect_unreliably(&unreliable.qp, &at_u, &at_r, &knobs);
        for side in [&reliable, &unreliable] {
            side.qp.post_receive(10, &[]);
            side.qp.post(&Wr::send(1, &[]));
        }
        unreliable.send_cq.expect_success(1);
        reliable.send_cq.expect(1, Status::IBV_WC_RETRY_EXC_ERR);
        reliable.receive_cq.expect_flushed([10]);
        assert!(unreliable.receive_cq.is_empty());
    });
}

#[test]
fn a_request_that_fails_stops_the_send_queue_alone() {
    on_each_device("uc-sqe", |device| {
        let pair = Pair::new(device);
        let Pair { at_a, a, b, .. } = &pair;
        let mut bad = at_a.sge(0, 16);
        bad.lkey ^= 1;
        a.qp.post_receive(20, &[at_a.sge(32, 16)]);
        let wrs = [
            pair.write(1),
            Wr::send(2, &[bad]).unsignaled(),
            pair.write(3),
            Wr::send(4, &[]).unsignaled(),
        ];
        a.qp.try_post_list(&wrs).unwrap();
        a.send_cq.expect_success(1);
        a.send_cq.expect(2, Status::IBV_WC_LOC_PROT_ERR);
        a.send_cq.expect_flushed([3, 4]);
        assert_eq!(a.qp.state(), State::IBV_QPS_SQE);
        assert!(a.context.async_events().is_empty());

        // What is posted now is flushed, and what comes in arrives.
        a.qp.post(&pair.write(5));
        a.send_cq.expect_flushed([5]);
        b.qp.post(&Wr::send(30, &[pair.at_b.sge(0, 4)]));
        b.send_cq.expect_success(30);
        assert_eq!(a.receive_cq.expect_success(20).byte_len, 4);
        assert!(a.send_cq.is_empty());

        assert_eq!(a.qp.to_state(State::IBV_QPS_RTS), 0);
        a.qp.assert_ready();
        pair.receive(10, 32);
        pair.expect_sent(6, 10);
    });
}

#[test]
fn a_send_queue_in_error_goes_on_or_ends() {
    on_each_device("uc-sqe-ways", |device| {
        let pair = Pair::new(device);
        let a = &pair.a;
        let mut bad = pair.at_a.sge(0, 16);
        bad.lkey ^= 1;
        let stop = || {
            a.qp.post(&Wr::send(1, &[bad]));
            a.send_cq.expect(1, Status::IBV_WC_LOC_PROT_ERR);
            assert_eq!(a.qp.state(), State::IBV_QPS_SQE);
        };
        stop();
        for state in [State::IBV_QPS_INIT, State::IBV_QPS_RTR, State::IBV_QPS_SQD] {
            assert_eq!(a.qp.to_state(state), REFUSED);
        }
        assert_eq!(a.qp.to_state(State::IBV_QPS_SQE), REFUSED);
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
        assert!(a.send_cq.is_empty());
        a.qp.to_reset();
        assert_eq!(a.qp.state(), State::IBV_QPS_RESET);
    });
}

#[test]
fn each_step_needs_its_attributes_and_takes_no_others() {
    let state = Mask::IBV_QP_STATE.0;
    let migration = Mask::IBV_QP_ALT_PATH.0 | Mask::IBV_QP_PATH_MIG_STATE.0;
    let rtr_more = migration | Mask::IBV_QP_ACCESS_FLAGS.0 | Mask::IBV_QP_PKEY_INDEX.0;
    let rts_more = migration | Mask::IBV_QP_ACCESS_FLAGS.0 | Mask::IBV_QP_CUR_STATE.0;
    let steps = [
        (State::IBV_QPS_INIT, INIT, 0),
        (State::IBV_QPS_RTR, UC_RTR, rtr_more & !Mask::IBV_QP_PATH_MIG_STATE.0),
        (State::IBV_QPS_RTS, UNRELIABLE_RTS, rts_more),
    ];
    on_each_device("uc-steps", |device| {
        let side = Side::new(device, &size(), 16);
        let at = side.endpoint();
        let mut good = attributes(&at, &at, &Knobs::default());
        for (to, needed, optional) in steps {
            let from = side.qp.state();
            good.qp_state = to;
            for bit in (0..26).map(|n| 1 << n).filter(|bit| bit & state == 0) {
                let given = if needed & bit != 0 { needed & !bit } else { needed | bit };
                let refused = needed & bit != 0 || optional & bit == 0;
                if refused {
                    assert_eq!(side.qp.modify(good, given), REFUSED, "{to:?} {bit:#x}");
                    assert_eq!(side.qp.state(), from);
                }
            }
            assert_eq!(side.qp.modify(good, needed), 0);
            assert_eq!(side.qp.state(), to);
        }
    });
}

#[test]
fn nothing_is_sent_before_it_is_released_and_half_begins_again() {
    on_each_held_device("uc-held", |device| {
        let pair = Pair::new(device.name());
        let qpn = pair.a.qp.qpn();
        pair.a.qp.post(&pair.write(1));
        pair.a.qp.post(&pair.send(2));
        assert_eq!(device.in_flight(qpn), 2);
        assert!(pair.a.send_cq.is_empty());
        pair.at_b.assert_filled(0xbb);
        assert!(device.release_half(qpn));
        assert_eq!(device.half_copied(qpn), 8);
        assert_eq!(pair.at_b.bytes()[8..24], [[0xaa; 8], [0xbb; 8]].concat());
        // Whatever happened to the first half meanwhile, the message is whole in the end.
        pair.at_b.fill(0xbb);
        assert_eq!(device.release(qpn, 1), 1);
        assert_eq!(pair.at_b.bytes()[8..24], [0xaa; 16]);
        pair.a.send_cq.expect_success(1);
        assert_eq!(device.release(qpn, 9), 1, "without a receive it is lost, and does not wait");
        pair.a.send_cq.expect_success(2);
        assert!(pair.b.receive_cq.is_empty());
    });
}

#[test]
fn messages_that_are_held_are_lost_with_their_receiver() {
    on_each_held_device("uc-held-lost", |device| {
        let mut pair = Pair::new(device.name());
        let qpn = pair.a.qp.qpn();
        pair.a.qp.post(&pair.write(1));
        assert!(device.release_half(qpn));
        pair.b.qp.destroy();
        pair.at_b.fill(0xbb);
        assert_eq!(device.release_all(), 1);
        pair.at_b.assert_filled(0xbb);
        pair.a.send_cq.expect_success(1);
    });
}

#[test]
fn held_requests_behind_one_that_fails_are_flushed() {
    on_each_held_device("uc-held-flush", |device| {
        let Pair { a, b: _b, at_a, at_b } = Pair::new(device.name());
        let local = [at_a.sge(0, 16)];
        for id in 1..=3 {
            a.qp.post(&Wr::write(id, &local, &at_b, 0));
        }
        assert_eq!(device.release(a.qp.qpn(), 1), 1);
        a.send_cq.expect_success(1);
        at_a.deregister();
        assert_eq!(device.release(a.qp.qpn(), 1), 1);
        a.send_cq.expect(2, Status::IBV_WC_LOC_PROT_ERR);
        a.send_cq.expect_flushed([3]);
        assert_eq!((device.in_flight(a.qp.qpn()), a.qp.state()), (0, State::IBV_QPS_SQE));
    });
}

#[test]
fn a_port_that_is_down_loses_messages() {
    on_each_device("uc-port", |device| {
        let pair = Pair::new(device);
        pair.receive(10, 32);
        pair.a.qp.post(&Wr::send(1, &[]));
        pair.b.receive_cq.expect_success(10);
        pair.a.send_cq.expect_success(1);
        pair.receive(11, 32);
        soft(device).set_port_up(false);
        pair.expect_lost(&pair.send(2));
        soft(device).set_port_up(true);
        pair.expect_sent(3, 11);
    });
}

#[test]
fn receives_of_a_shared_queue_that_a_lost_message_took_end_in_error() {
    on_each_device("uc-srq", |device| {
        let (a, b) = (Side::new(device, &size(), 64), Side::new(device, &size(), 64));
        let pool = b.pd.srq(8, 2);
        let qp = b.pd.qp_with_srq(&b.send_cq, &b.receive_cq, &size(), &pool);
        let (at_a, at_b) = (a.endpoint(), endpoint(&b.context, &qp));
        connect_unreliably(&a.qp, &at_a, &at_b, &Knobs::default());
        connect_unreliably(&qp, &at_b, &at_a, &Knobs::default());
        let source = a.pd.register(16, 0);
        let sink = b.pd.register_filled(vec![0xbb; 16], ALL_ACCESS);
        for wr_id in 10..13 {
            pool.post(wr_id, &[sink.sge(0, 8)]);
        }
        let write = Wr::write(1, &[source.sge(0, 16)], &sink, 0).with_imm(4);
        a.qp.post(&write.clone().remote(sink.address(), sink.key() ^ 1));
        b.receive_cq.expect(10, Status::IBV_WC_REM_ACCESS_ERR);
        a.qp.post(&Wr::send(2, &[source.sge(0, 9)]));
        b.receive_cq.expect(11, Status::IBV_WC_LOC_LEN_ERR);
        sink.assert_filled(0xbb);
        a.qp.post(&write);
        b.receive_cq.expect_success(12);
        for wr_id in [1, 2, 1] {
            a.send_cq.expect_success(wr_id);
        }
        drop(qp);
    });
}

#[test]
fn windows_are_bound_but_keys_are_not_invalidated_from_afar() {
    on_each_device("uc-windows", |device| {
        let pair = Pair::new(device);
        let mut invalidate = Wr::new(1, rdma_sys::ibv_wr_opcode::IBV_WR_LOCAL_INV, &[]);
        invalidate.wr.__bindgen_anon_1.imm_data = 0x1234;
        pair.a.qp.post(&invalidate);
        pair.a.send_cq.expect(1, Status::IBV_WC_MW_BIND_ERR);
        assert_eq!(pair.a.qp.state(), State::IBV_QPS_SQE, "it was taken, but there is no such key");
    });
}

#[test]
fn a_connection_follows_its_path_and_its_peer() {
    rdma_soft::Builder::new("uc-path-1").install().unwrap();
    rdma_soft::Builder::new("uc-path-2").install().unwrap();
    let side = |device| Side::new(device, &size(), 64);
    let (a, b) = (side("uc-path-1"), side("uc-path-2"));
    let (at_a, at_b) = (a.endpoint(), b.endpoint());
    connect_unreliably(&a.qp, &at_a, &at_b, &Knobs::default());
    connect_unreliably(&b.qp, &at_b, &at_a, &Knobs::default());
    for wr_id in 10..12 {
        b.qp.post_receive(wr_id, &[]);
    }
    let send = |wr_id| {
        a.qp.post(&Wr::send(wr_id, &[]));
        a.send_cq.expect_success(wr_id);
    };
    send(1);
    b.receive_cq.expect_success(10);
    let towards = |to| {
        assert_eq!(a.qp.to_state(State::IBV_QPS_SQD), 0);
        let attr = attributes(&at_a, to, &Knobs::default());
        assert_eq!(a.qp.modify(attr, Mask::IBV_QP_AV.0), 0);
        assert_eq!(a.qp.to_state(State::IBV_QPS_RTS), 0);
    };
    // To another device now, where nobody has that number.
    towards(&at_a);
    send(2);
    assert!(b.receive_cq.is_empty());
    towards(&at_b);
    send(3);
    b.receive_cq.expect_success(11);
}

#[test]
fn the_second_half_is_the_whole_message() {
    on_each_held_device("uc-halves", |device| {
        let pair = Pair::new(device.name());
        let qpn = pair.a.qp.qpn();
        pair.a.qp.post(&pair.write(1));
        assert!(device.release_half(qpn));
        pair.at_b.fill(0xbb);
        assert!(!device.release_half(qpn), "it ends now");
        assert_eq!(pair.at_b.bytes()[8..24], [0xaa; 16]);
        pair.a.send_cq.expect_success(1);
    });
}

#[test]
fn messages_to_another_device_count_and_need_both_ports() {
    let names = ["uc-far-a", "uc-far-b"];
    let devices = names.map(|name| rdma_soft::Builder::new(name).install().unwrap());
    let [a, b] = names.map(|name| Side::new(name, &size(), 64));
    let (at_a, at_b) = (a.endpoint(), b.endpoint());
    connect_unreliably(&a.qp, &at_a, &at_b, &Knobs::default());
    connect_unreliably(&b.qp, &at_b, &at_a, &Knobs::default());
    let send = |wr_id| {
        a.qp.post(&Wr::send(wr_id, &[]));
        a.send_cq.expect_success(wr_id);
    };
    for wr_id in 10..13 {
        b.qp.post_receive(wr_id, &[]);
    }
    send(1);
    b.receive_cq.expect_success(10);
    for device in &devices {
        device.set_port_up(false);
        send(2);
        assert!(b.receive_cq.is_empty(), "{device:?}");
        device.set_port_up(true);
    }
    for wr_id in 11..13 {
        send(3);
        b.receive_cq.expect_success(wr_id);
    }
    let [sent, received] = devices.map(|device| device.counters());
    assert_eq!((sent.sent_pkts, sent.rdma_sends), (5, 5), "two were lost");
    assert_eq!((received.rcvd_pkts, received.rdma_recvs), (3, 3));
}
