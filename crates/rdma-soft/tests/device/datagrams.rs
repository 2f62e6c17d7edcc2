//! Datagrams: from anybody to anybody with the right key, one packet each, and nobody hears of those
//! that get lost.

use rdma_sys::{
    Errno, ibv_event_type, ibv_qp_attr, ibv_qp_attr_mask as Mask, ibv_qp_state as State,
    ibv_qp_type, ibv_sge, ibv_wc_flags, ibv_wc_opcode as Opcode, ibv_wc_status as Status,
    ibv_wr_opcode,
};

use crate::rig::connect::{Knobs, Side, UNRELIABLE_RTS, connect, connect_unreliably};
use crate::rig::datagram::{HEADER, MTU, Pair, QKEY, UD_INIT, activate, changed, side, size, step};
use crate::rig::post::Wr;
use crate::rig::{LOCAL_WRITE, Size, imm_of, on_each_device, on_each_held_device, soft};

const REFUSED: i32 = Errno::EINVAL.raw();
const GRH: u32 = ibv_wc_flags::IBV_WC_GRH.0;

#[test]
fn datagrams_arrive_behind_forty_bytes() {
    on_each_device("ud-arrive", |device| {
        let pair = Pair::new(device);
        let (from, ah) = (pair.a.endpoint(), pair.ah());
        pair.receive(10, HEADER + 100);
        let sent = pair.good(&ah, 1, 100).with_imm(77);
        let got = pair.expect_sent(&sent, 10);
        assert_eq!((got.opcode, got.byte_len as usize), (Opcode::IBV_WC_RECV, HEADER + 100));
        assert_eq!((got.qp_num, got.src_qp), (pair.b.qp.number(), pair.a.qp.number()));
        let flags = if from.ethernet { GRH } else { 0 };
        assert_eq!((got.wc_flags, imm_of(&got)), (flags | ibv_wc_flags::IBV_WC_WITH_IMM.0, 77));
        assert_eq!((got.slid, got.sl, got.dlid_path_bits), (from.lid, 3, 0));
        let bytes = pair.at_b.bytes();
        assert_eq!(bytes[HEADER..HEADER + 100], [0xaa; 100]);
        assert!(bytes[HEADER + 100..].iter().all(|&byte| byte == 0xbb));
        // Without a header its place is left alone.
        assert_eq!(bytes[..HEADER] == [0xbb; HEADER], !from.ethernet);
    });
}

#[test]
fn datagrams_come_from_anybody_and_from_itself() {
    on_each_device("ud-anybody", |device| {
        let receiver = side(device);
        let sink = receiver.pd.register(HEADER + 8, LOCAL_WRITE);
        let others = [side(device), side(device)];
        for sender in others.iter().chain([&receiver]) {
            let ah = sender.pd.ah_to(&sender.endpoint(), &receiver.endpoint());
            receiver.qp.post_receive(10, &[sink.sge(0, HEADER + 8)]);
            sender.qp.post(&Wr::send(1, &[]).to(&ah, receiver.qp.number(), QKEY));
            sender.send_cq.expect_success(1);
            let got = receiver.receive_cq.expect_success(10);
            assert_eq!((got.src_qp, got.byte_len), (sender.qp.number(), 40));
        }
        // And one sender reaches all.
        let sender = &others[0];
        for receiver in [&others[1], &receiver, &others[1]] {
            let sink = receiver.pd.register(HEADER, LOCAL_WRITE);
            receiver.qp.post_receive(11, &[sink.sge(0, HEADER)]);
            let ah = sender.pd.ah_to(&sender.endpoint(), &receiver.endpoint());
            sender.qp.post(&Wr::send(2, &[]).to(&ah, receiver.qp.number(), QKEY));
            sender.send_cq.expect_success(2);
            receiver.receive_cq.expect_success(11);
        }
    });
}

#[test]
fn datagrams_reach_other_devices_of_the_link() {
    rdma_soft::Builder::new("ud-far-1").install().unwrap();
    rdma_soft::Builder::new("ud-far-2").install().unwrap();
    let (a, b) = (side("ud-far-1"), side("ud-far-2"));
    let sink = b.pd.register(HEADER, LOCAL_WRITE);
    let ah = a.pd.ah_to(&a.endpoint(), &b.endpoint());
    for round in 0..3 {
        b.qp.post_receive(10, &[sink.sge(0, HEADER)]);
        b.qp.post_receive(11, &[sink.sge(0, HEADER)]);
        a.qp.post(&Wr::send(1, &[]).to(&ah, b.qp.number(), QKEY));
        a.send_cq.expect_success(1);
        b.receive_cq.expect_success(if round == 0 { 10 } else { 11 });
        if round > 0 {
            a.qp.post(&Wr::send(1, &[]).to(&ah, b.qp.number(), QKEY));
            a.send_cq.expect_success(1);
            b.receive_cq.expect_success(10);
        }
        // The receiver's port counts as well as the sender's.
        for down in [&a, &b] {
            let port = soft(down.context.name());
            port.set_port_up(false);
            a.qp.post(&Wr::send(2, &[]).to(&ah, b.qp.number(), QKEY));
            a.send_cq.expect_success(2);
            port.set_port_up(true);
            assert!(b.receive_cq.is_empty(), "round {round}");
        }
    }
}

#[test]
fn wrong_keys_are_lost_and_counted() {
    on_each_device("ud-qkey", |device| {
        let pair = Pair::new(device);
        let violations = || pair.b.context.query_port().qkey_viol_cntr;
        pair.receive(10, HEADER);
        let (ah, b) = (pair.ah(), pair.b.qp.number());
        assert_eq!(violations(), 0);
        pair.expect_lost(&pair.send(1, 0).to(&ah, b, QKEY + 1));
        pair.expect_lost(&pair.send(2, 0).to(&ah, b, 0));
        assert_eq!(violations(), 2);
        pair.expect_sent(&pair.good(&ah, 3, 0), 10);
        // With the high bit the key is the sender's own, whatever the rest of it says.
        pair.receive(11, HEADER);
        pair.expect_sent(&pair.send(4, 0).to(&ah, b, 0x8000_1234), 11);
        assert_eq!(violations(), 2);
    });
}

#[test]
fn a_key_with_the_high_bit_is_only_sent_by_those_who_have_it() {
    on_each_device("ud-privileged", |device| {
        let (a, b) = (side(device), Side::new(device, &size(), 16));
        activate(&b.qp, 0x8001_0000);
        let sink = b.pd.register(HEADER, LOCAL_WRITE);
        b.qp.post_receive(10, &[sink.sge(0, HEADER)]);
        let ah = a.pd.ah_to(&a.endpoint(), &b.endpoint());
        let wr = Wr::send(1, &[]).to(&ah, b.qp.number(), 0x8001_0000);
        a.qp.post(&wr);
        a.send_cq.expect_success(1);
        assert!(b.receive_cq.is_empty(), "its own key went instead");
        let attr = ibv_qp_attr { qkey: 0x8001_0000, ..Default::default() };
        assert_eq!(a.qp.modify(attr, Mask::IBV_QP_QKEY.0), 0);
        assert_eq!(a.qp.query().qkey, 0x8001_0000);
        a.qp.post(&wr);
        b.receive_cq.expect_success(10);
    });
}

#[test]
fn datagrams_to_nobody_are_sent() {
    on_each_device("ud-nobody", |device| {
        let mut pair = Pair::new(device);
        let (ah, b) = (pair.ah(), pair.b.qp.number());
        for qpn in [0, 1, 0x00ff_ffff, b ^ 0x0080_0000] {
            pair.expect_lost(&pair.send(1, 8).to(&ah, qpn, QKEY));
        }
        pair.receive(10, HEADER);
        pair.expect_sent(&pair.good(&ah, 2, 0), 10);
        let (wr, mut nowhere) = (pair.good(&ah, 3, 0), pair.b.endpoint());
        pair.b.qp.destroy();
        pair.at_b.fill(0xbb);
        pair.expect_lost(&wr);
        (nowhere.lid, nowhere.gid) = (nowhere.lid ^ 1, changed(&nowhere.gid));
        let ah = pair.a.pd.ah_to(&pair.a.endpoint(), &nowhere);
        pair.expect_lost(&pair.send(4, 8).to(&ah, b, QKEY));
    });
}

#[test]
fn queue_pairs_that_are_not_ready_or_of_another_type_hear_nothing() {
    on_each_device("ud-not-ready", |device| {
        let pair = Pair::new(device);
        let ah = pair.ah();
        let wr = pair.good(&ah, 1, 0);
        pair.b.qp.to_reset();
        pair.expect_lost(&wr);
        step(&pair.b.qp, State::IBV_QPS_INIT, QKEY);
        pair.receive(10, HEADER);
        pair.expect_lost(&wr);
        step(&pair.b.qp, State::IBV_QPS_RTR, QKEY);
        pair.expect_sent(&wr, 10);
        pair.b.qp.to_error();
        pair.at_b.fill(0xbb);
        pair.expect_lost(&wr);

        for qp_type in [ibv_qp_type::IBV_QPT_RC, ibv_qp_type::IBV_QPT_UC] {
            let other = Side::new(device, &Size { qp_type, ..Size::default() }, 16);
            let (at_other, at_a) = (other.endpoint(), pair.a.endpoint());
            let reliable = qp_type == ibv_qp_type::IBV_QPT_RC;
            let connect = if reliable { connect } else { connect_unreliably };
            connect(&other.qp, &at_other, &at_a, &Knobs::default());
            let room = other.pd.register(HEADER, LOCAL_WRITE);
            other.qp.post_receive(20, &[room.sge(0, HEADER)]);
            pair.expect_lost(&pair.send(2, 0).to(&ah, other.qp.number(), QKEY));
            pair.expect_lost(&pair.send(3, 0).to(&ah, other.qp.number(), 0));
            assert!(other.receive_cq.is_empty());
            // Nor does A hear them.
            other.qp.post(&Wr::send(4, &[]));
            let lost = if reliable { Status::IBV_WC_RETRY_EXC_ERR } else { Status::IBV_WC_SUCCESS };
            other.send_cq.expect(4, lost);
            assert!(pair.a.receive_cq.is_empty());
        }
    });
}

#[test]
fn without_a_receive_that_fits_a_datagram_is_lost() {
    on_each_device("ud-no-room", |device| {
        let pair = Pair::new(device);
        let ah = pair.ah();
        pair.expect_lost(&pair.good(&ah, 1, 8));
        assert_eq!(soft(device).in_flight(pair.a.qp.qpn()), 0, "nothing waits");
        pair.receive(10, HEADER + 7);
        assert!(pair.b.receive_cq.is_empty(), "what was lost stays lost");
        pair.expect_lost(&pair.good(&ah, 2, 8));
        pair.b.qp.assert_ready();
        let got = pair.expect_sent(&pair.good(&ah, 3, 7), 10);
        assert_eq!(got.byte_len, 47, "the receive was there for one that fits");
        pair.at_b.fill(0xbb);
        pair.receive(11, HEADER - 1);
        pair.expect_lost(&pair.good(&ah, 4, 0));
    });
}

#[test]
fn a_receive_with_a_bad_element_fails_its_own_queue_pair() {
    on_each_device("ud-bad-receive", |device| {
        let pair = Pair::new(device);
        let ah = pair.ah();
        let mut bad = pair.at_b.sge(0, HEADER);
        bad.lkey ^= 1;
        pair.b.qp.post_receive(10, &[bad]);
        pair.receive(11, HEADER);
        let wrs = [pair.good(&ah, 1, 0), pair.good(&ah, 2, 0)];
        pair.a.qp.try_post_list(&wrs).unwrap();
        pair.a.send_cq.expect_success(1);
        pair.a.send_cq.expect_success(2);
        pair.b.receive_cq.expect(10, Status::IBV_WC_LOC_PROT_ERR);
        pair.b.receive_cq.expect_flushed([11]);
        pair.b.qp.wait_for_error();
        pair.a.qp.assert_ready();
        let event = (ibv_event_type::IBV_EVENT_QP_FATAL, pair.b.qp.0.addr());
        assert_eq!(pair.b.context.async_events(), [event]);
        pair.at_b.assert_filled(0xbb);
    });
}

#[test]
fn two_receivers_with_bad_elements_fail_by_two_calls_at_the_latest() {
    on_each_device("ud-bad-receives", |device| {
        let (a, b, c) = (side(device), side(device), side(device));
        let wrs = [&b, &c].map(|receiver| {
            let bad = ibv_sge { addr: 8, length: 64, lkey: 1 };
            receiver.qp.post_receive(10, &[bad]);
            let ah = a.pd.ah_to(&a.endpoint(), &receiver.endpoint());
            (Wr::send(1, &[]).to(&ah, receiver.qp.number(), QKEY), ah)
        });
        for _ in 0..2 {
            a.qp.try_post_list(&[wrs[0].0.clone(), wrs[1].0.clone()]).unwrap();
            a.send_cq.expect_success(1);
            a.send_cq.expect_success(1);
        }
        for receiver in [&b, &c] {
            receiver.receive_cq.expect(10, Status::IBV_WC_LOC_PROT_ERR);
            receiver.qp.wait_for_error();
            let event = (ibv_event_type::IBV_EVENT_QP_FATAL, receiver.qp.0.addr());
            assert_eq!(receiver.context.async_events(), [event]);
        }
        a.qp.assert_ready();
    });
}

#[test]
fn a_datagram_longer_than_the_mtu_fails_here() {
    on_each_device("ud-long", |device| {
        let pair = Pair::new(device);
        let ah = pair.ah();
        pair.receive(10, HEADER + MTU);
        let got = pair.expect_sent(&pair.good(&ah, 1, MTU), 10);
        assert_eq!(got.byte_len as usize, HEADER + MTU);
        assert_eq!(pair.at_b.bytes()[HEADER..], [0xaa; MTU]);
        pair.receive(11, HEADER + MTU);
        pair.a.qp.post(&pair.good(&ah, 2, MTU + 1));
        pair.a.send_cq.expect(2, Status::IBV_WC_LOC_LEN_ERR);
        assert_eq!(pair.a.qp.state(), State::IBV_QPS_SQE);
        assert!(pair.b.receive_cq.is_empty());
    });
}

#[test]
fn only_addressed_sends_can_be_posted() {
    on_each_device("ud-opcodes", |device| {
        let pair = Pair::new(device);
        let ah = pair.ah();
        let good = pair.good(&ah, 1, 8);
        for opcode in [
            ibv_wr_opcode::IBV_WR_RDMA_WRITE,
            ibv_wr_opcode::IBV_WR_RDMA_WRITE_WITH_IMM,
            ibv_wr_opcode::IBV_WR_RDMA_READ,
            ibv_wr_opcode::IBV_WR_ATOMIC_CMP_AND_SWP,
            ibv_wr_opcode::IBV_WR_ATOMIC_FETCH_AND_ADD,
            ibv_wr_opcode::IBV_WR_SEND_WITH_INV,
            ibv_wr_opcode::IBV_WR_LOCAL_INV,
            ibv_wr_opcode::IBV_WR_BIND_MW,
        ] {
            let mut wr = good.clone();
            wr.wr.opcode = opcode;
            assert_eq!(pair.a.qp.try_post(&wr), REFUSED, "{opcode:?}");
        }
        assert_eq!(pair.a.qp.try_post(&pair.send(1, 8)), REFUSED, "no address handle");
        let list = [good.clone(), pair.send(2, 8), good];
        assert_eq!(pair.a.qp.try_post_list(&list), Err((1, REFUSED)));
        pair.a.send_cq.expect_success(1);
        assert!(pair.a.send_cq.is_empty());
        pair.a.qp.assert_ready();
    });
}

#[test]
fn a_failed_datagram_stops_the_send_queue_alone() {
    on_each_device("ud-sqe", |device| {
        let pair = Pair::new(device);
        let Pair { at_a, a, .. } = &pair;
        let ah = pair.ah();
        let back = pair.b.pd.ah_to(&pair.b.endpoint(), &a.endpoint());
        let mut bad = at_a.sge(0, 8);
        bad.lkey ^= 1;
        a.qp.post_receive(20, &[at_a.sge(0, HEADER)]);
        pair.receive(10, HEADER);
        let wrs = [
            Wr::send(1, &[bad]).to(&ah, pair.b.qp.number(), QKEY).unsignaled(),
            pair.good(&ah, 2, 0).unsignaled(),
        ];
        a.qp.try_post_list(&wrs).unwrap();
        a.send_cq.expect(1, Status::IBV_WC_LOC_PROT_ERR);
        a.send_cq.expect_flushed([2]);
        assert_eq!(a.qp.state(), State::IBV_QPS_SQE);
        a.qp.post(&pair.good(&ah, 3, 0));
        a.send_cq.expect_flushed([3]);
        pair.b.qp.post(&Wr::send(30, &[]).to(&back, a.qp.number(), QKEY));
        a.receive_cq.expect_success(20);
        let attr = ibv_qp_attr { qp_state: State::IBV_QPS_RTS, qkey: QKEY, ..Default::default() };
        assert_eq!(a.qp.modify(attr, Mask::IBV_QP_STATE.0 | Mask::IBV_QP_QKEY.0), 0);
        assert!(pair.b.receive_cq.is_empty());
        pair.expect_sent(&pair.good(&ah, 4, 0), 10);
    });
}

#[test]
fn elements_are_joined_and_filled_in_order() {
    on_each_device("ud-elements", |device| {
        let (a, b) = (side(device), side(device));
        let source = a.pd.register_filled((0..60).collect(), 0);
        let sink = b.pd.register_filled(vec![0xee; 100], LOCAL_WRITE);
        let ah = a.pd.ah_to(&a.endpoint(), &b.endpoint());
        let room = [sink.sge(50, 30), sink.sge(0, 0), sink.sge(0, 15), sink.sge(20, 20)];
        b.qp.post_receive(10, &room);
        let data = [source.sge(10, 5), source.sge(30, 3), source.sge(0, 0), source.sge(40, 10)];
        a.qp.post(&Wr::send(1, &data).to(&ah, b.qp.number(), QKEY));
        assert_eq!(b.receive_cq.expect_success(10).byte_len, 58);
        let bytes = sink.bytes();
        // 30 bytes of the header, 10 more and 5 of the message, the rest of it.
        let message: Vec<u8> = (10..15).chain(30..33).chain(40..50).collect();
        assert_eq!(bytes[10..15], message[..5]);
        assert_eq!(bytes[20..33], message[5..]);
        assert_eq!(bytes[33..50], [0xee; 17]);
        assert_eq!(bytes[15..20], [0xee; 5]);

        let mut inline = [7_u8; 20];
        let addr = inline.as_mut_ptr().expose_provenance() as u64;
        b.qp.post_receive(11, &[sink.sge(0, 100)]);
        let sge = ibv_sge { addr, length: 20, lkey: 0 };
        a.qp.post(&Wr::send(2, &[sge]).inline().to(&ah, b.qp.number(), QKEY));
        inline.fill(8);
        assert_eq!(std::hint::black_box(inline), [8; 20]);
        assert_eq!(b.receive_cq.expect_success(11).byte_len, 60);
        assert_eq!(sink.bytes()[HEADER..60], [7; 20]);
    });
}

#[test]
fn half_a_datagram_begins_again() {
    on_each_held_device("ud-half", |device| {
        let pair = Pair::new(device.name());
        let other = side(device.name());
        let from_other = other.pd.ah_to(&other.endpoint(), &pair.b.endpoint());
        let (ah, qpn) = (pair.ah(), pair.a.qp.qpn());
        pair.receive(10, HEADER + 16);
        pair.b.qp.post_receive(11, &[pair.at_b.sge(100, HEADER + 16)]);
        pair.a.qp.post(&pair.good(&ah, 1, 16));
        assert!(device.release_half(qpn));
        assert_eq!(device.half_copied(qpn), 8);
        assert!(pair.a.send_cq.is_empty());
        assert_eq!(pair.at_b.bytes()[HEADER..HEADER + 16], [[0xaa; 8], [0xbb; 8]].concat());
        assert!(pair.b.receive_cq.is_empty());
        // Another one comes in between and takes the receive.
        other.qp.post(&Wr::send(2, &[]).to(&from_other, pair.b.qp.number(), QKEY));
        assert_eq!(device.release(other.qp.qpn(), 1), 1);
        assert_eq!(pair.b.receive_cq.expect_success(10).byte_len, 40);
        assert_eq!(device.release(qpn, 1), 1);
        assert_eq!(pair.b.receive_cq.expect_success(11).byte_len, 56);
        assert_eq!(pair.at_b.bytes()[140..156], [0xaa; 16], "all of it");
        pair.a.send_cq.expect_success(1);
    });
}

#[test]
fn datagrams_that_are_held_are_cancelled_or_lost() {
    on_each_held_device("ud-held", |device| {
        let mut pair = Pair::new(device.name());
        let (ah, qpn) = (pair.ah(), pair.a.qp.qpn());
        pair.receive(10, HEADER + 16);
        pair.a.qp.post(&pair.good(&ah, 1, 16));
        pair.a.qp.post(&pair.good(&ah, 2, 16));
        assert!(device.release_half(qpn));
        pair.a.qp.to_error();
        pair.a.send_cq.expect_flushed([1, 2]);
        assert_eq!(device.release_all(), 0);
        assert!(pair.b.receive_cq.is_empty());
        pair.a.qp.to_reset();
        activate(&pair.a.qp, QKEY);
        pair.a.qp.post(&pair.good(&ah, 3, 16));
        pair.at_b.fill(0xbb);
        pair.b.qp.destroy();
        assert_eq!(device.release_all(), 1);
        pair.a.send_cq.expect_success(3);
        pair.at_b.assert_filled(0xbb);
    });
}

#[test]
fn each_step_needs_its_attributes_and_takes_no_others() {
    let (state, qkey) = (Mask::IBV_QP_STATE.0, Mask::IBV_QP_QKEY.0);
    let steps = [
        (State::IBV_QPS_INIT, UD_INIT, 0),
        (State::IBV_QPS_RTR, state, qkey | Mask::IBV_QP_PKEY_INDEX.0),
        (State::IBV_QPS_RTS, UNRELIABLE_RTS, qkey | Mask::IBV_QP_CUR_STATE.0),
    ];
    on_each_device("ud-steps", |device| {
        let side = Side::new(device, &size(), 16);
        let mut good = ibv_qp_attr { port_num: 1, qkey: QKEY, ..Default::default() };
        for (to, needed, optional) in steps {
            let from = side.qp.state();
            good.qp_state = to;
            for bit in (0..26).map(|n| 1 << n).filter(|bit| bit & state == 0) {
                let given = if needed & bit != 0 { needed & !bit } else { needed | bit };
                if needed & bit != 0 || optional & bit == 0 {
                    assert_eq!(side.qp.modify(good, given), REFUSED, "{to:?} {bit:#x}");
                    assert_eq!(side.qp.state(), from);
                }
            }
            assert_eq!(side.qp.modify(good, needed), 0);
            assert_eq!((side.qp.state(), side.qp.query().qkey), (to, QKEY));
        }
    });
}

#[test]
fn other_types_are_not_supported() {
    let side = side("soft0");
    for qp_type in [
        ibv_qp_type::IBV_QPT_RAW_PACKET,
        ibv_qp_type::IBV_QPT_XRC_SEND,
        ibv_qp_type::IBV_QPT_XRC_RECV,
        ibv_qp_type::IBV_QPT_DRIVER,
        ibv_qp_type(0),
        ibv_qp_type(99),
    ] {
        let size = Size { qp_type, ..Size::default() };
        let made = side.pd.try_qp(&side.send_cq, &side.receive_cq, &size);
        assert_eq!(made.err(), Some(Errno::EOPNOTSUPP), "{qp_type:?}");
    }
}

#[test]
fn receives_of_a_shared_queue_serve_datagrams_and_those_too_short_end() {
    on_each_device("ud-srq", |device| {
        let (a, b) = (side(device), Side::new(device, &size(), 64));
        let pool = b.pd.srq(8, 2);
        let qp = b.pd.qp_with_srq(&b.send_cq, &b.receive_cq, &size(), &pool);
        activate(&qp, QKEY);
        let (source, sink) = (a.pd.register(8, 0), b.pd.register(64, LOCAL_WRITE));
        let ah = a.pd.ah_to(&a.endpoint(), &b.endpoint());
        let send = |wr_id| {
            a.qp.post(&Wr::send(wr_id, &[source.sge(0, 8)]).to(&ah, qp.number(), QKEY));
            a.send_cq.expect_success(wr_id);
        };
        send(1);
        assert!(b.receive_cq.is_empty(), "nobody waits");
        pool.post(10, &[sink.sge(0, HEADER + 7)]);
        pool.post(11, &[sink.sge(0, HEADER + 8)]);
        send(2);
        b.receive_cq.expect(10, Status::IBV_WC_LOC_LEN_ERR);
        assert_eq!(qp.state(), State::IBV_QPS_RTS);
        send(3);
        assert_eq!(b.receive_cq.expect_success(11).byte_len, 48);
        drop(qp);
    });
}

#[test]
fn datagrams_are_counted_as_requests_are() {
    let names = ["ud-count-a", "ud-count-b"];
    let devices = names.map(|name| rdma_soft::Builder::new(name).install().unwrap());
    let [a, b] = names.map(side);
    let sink = b.pd.register(HEADER, LOCAL_WRITE);
    let ah = a.pd.ah_to(&a.endpoint(), &b.endpoint());
    b.qp.post_receive(10, &[sink.sge(0, HEADER)]);
    for wr_id in 0..2 {
        a.qp.post(&Wr::send(wr_id, &[]).to(&ah, b.qp.number(), QKEY));
        a.send_cq.expect_success(wr_id);
    }
    let [sent, received] = devices.map(|device| device.counters());
    assert_eq!((sent.sent_pkts, sent.rdma_sends), (2, 2), "nobody hears that one was lost");
    assert_eq!((received.rcvd_pkts, received.rdma_recvs, received.send_rnr_err), (1, 1, 0));
}

#[test]
fn datagrams_are_posted_by_calls_all_or_none() {
    use rdma_sys::ibv_qp_create_send_ops_flags as Op;
    let sends = u64::from(Op::IBV_QP_EX_WITH_SEND.0 | Op::IBV_QP_EX_WITH_SEND_WITH_IMM.0);
    on_each_device("ud-calls", |device| {
        let (a, b) = (Side::extended(device, &size(), sends), side(device));
        activate(&a.qp, QKEY);
        let (source, sink) = (a.pd.register(8, 0), b.pd.register(64, LOCAL_WRITE));
        let ah = a.pd.ah_to(&a.endpoint(), &b.endpoint());
        b.qp.post_receive(10, &[sink.sge(0, 64)]);
        let wr = Wr::send(1, &[source.sge(0, 8)]).with_imm(6);
        let build = |address: bool| {
            a.qp.build(&wr);
            if address {
                a.qp.set_address(ah.0, b.qp.number(), QKEY);
            }
        };
        a.qp.start();
        build(true);
        build(false);
        assert_eq!(a.qp.complete(), REFUSED, "the second goes nowhere");
        assert!(a.send_cq.is_empty() && b.receive_cq.is_empty());
        a.qp.start();
        build(true);
        assert_eq!(a.qp.complete(), 0);
        a.send_cq.expect_success(1);
        let got = b.receive_cq.expect_success(10);
        assert_eq!((got.byte_len, got.src_qp, imm_of(&got)), (48, a.qp.number(), 6));
    });
}
