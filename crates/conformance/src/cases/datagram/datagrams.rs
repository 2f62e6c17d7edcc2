//! Datagrams: single packets between any two queue pairs. A datagram must carry the receiver's
//! Q_Key.
//!
//! A lost datagram is not reported. To detect a loss, a case sends another datagram, the mark. If
//! the first one was lost, the mark arrives in the receive that was posted for it.

use rdma_sys::{
    ibv_qp_attr, ibv_qp_attr_mask as Mask, ibv_qp_state as State, ibv_qp_type, ibv_sge, ibv_wc,
    ibv_wc_flags, ibv_wc_opcode as Opcode,
};

use test_support::rig::connect::{Knobs, Side, UNRELIABLE_RTS, connect, connect_unreliably};
use test_support::rig::datagram::{
    Ah, HEADER, MTU, Pair, QKEY, UD_INIT, activate, changed, side, size, step, vector,
};
use test_support::rig::post::Wr;
use test_support::rig::{LOCAL_WRITE, Mr, Size, imm_of, until};

use crate::case::cases;
use crate::cases::request::extended_posts::needs_calls;
use crate::device::Device;

cases![
    datagrams_arrive_behind_forty_bytes,
    the_receiver_learns_who_sent,
    immediate_data_arrives_and_nothing_else_is_taken_for_it,
    completions_say_whether_a_header_came,
    service_levels_arrive_where_the_link_has_them,
    datagrams_arrive_once_and_in_the_order_of_the_receives,
    datagrams_come_from_anybody_and_from_itself,
    one_queue_pair_reaches_many,
    elements_are_joined_and_filled_in_order,
    inline_data_may_change_after_the_post,
    unsignaled_datagrams_complete_silently,
    datagrams_are_posted_by_calls,
    datagrams_with_a_wrong_key_are_lost,
    wrong_keys_are_counted,
    a_receivers_key_can_be_changed,
    with_the_high_bit_the_senders_own_key_goes,
    a_key_with_the_high_bit_is_only_sent_by_those_who_have_it,
    datagrams_that_are_lost_are_no_events,
    sequence_numbers_count_datagrams,
    datagrams_to_nobody_are_sent,
    datagrams_to_a_queue_pair_that_is_gone_are_sent,
    an_address_that_nobody_has_gets_nothing,
    queue_pairs_that_are_not_ready_hear_nothing,
    a_queue_pair_hears_before_it_may_send,
    queue_pairs_of_other_types_hear_nothing,
    each_step_needs_its_attributes_and_takes_no_others,
    the_key_is_what_was_set,
];

/// The immediate data in marks.
const MARK: u32 = 0x4d41_524b;

/// A pair, an address handle for the path from A to B, and separate memory at B for marks.
pub(super) struct Scene {
    pub(super) ah: Ah,
    room: Mr,
    pub(super) pair: Pair,
}

impl Scene {
    pub(super) fn new(device: &Device) -> Self {
        let pair = Pair::new(device);
        Self { ah: pair.ah(), room: pair.b.pd.register(HEADER, LOCAL_WRITE), pair }
    }

    pub(super) fn good(&self, wr_id: u64, length: usize) -> Wr {
        self.pair.good(&self.ah, wr_id, length)
    }

    pub(super) fn to(&self, wr: Wr, qpn: u32, qkey: u32) -> Wr {
        wr.to(&self.ah, qpn, qkey)
    }

    /// Posts a receive request that is large enough for a mark.
    pub(super) fn receive_mark(&self, wr_id: u64) {
        self.pair.b.qp.post_receive(wr_id, &[self.room.sge(0, HEADER)]);
    }

    /// Sends a request, and checks that it succeeds at the sender, whatever happens to the
    /// datagram.
    #[track_caller]
    pub(super) fn send(&self, wr: &Wr) {
        self.pair.a.qp.post(wr);
        self.pair.a.send_cq.expect_success(wr.wr.wr_id);
    }

    /// Sends a mark and checks that it is B's next datagram. So all earlier datagrams that have not
    /// arrived by then are lost.
    #[track_caller]
    pub(super) fn expect_mark(&self, receive: u64) {
        self.send(&self.good(99, 0).with_imm(MARK));
        let got = self.pair.b.receive_cq.expect_success(receive);
        assert_eq!((got.byte_len, imm_of(&got)), (40, MARK));
    }
}

/// Returns the maximum length of a datagram that the port can send.
pub(super) fn mtu(side: &Side) -> usize {
    128 << side.context.query_port().active_mtu.0
}

fn has_header(wc: &ibv_wc) -> bool {
    wc.wc_flags & ibv_wc_flags::IBV_WC_GRH.0 != 0
}

fn datagrams_arrive_behind_forty_bytes(device: &Device) {
    let scene = Scene::new(device);
    let Pair { a, at_b, .. } = &scene.pair;
    let longest = mtu(a);
    for length in [0, 1, 3, 4, 100, longest - 1, longest] {
        at_b.fill(0xbb);
        scene.pair.receive(10, HEADER + MTU);
        let got = scene.pair.expect_sent(&scene.good(1, length), 10);
        assert_eq!(got.byte_len as usize, HEADER + length);
        let bytes = at_b.bytes();
        assert_eq!(bytes[HEADER..HEADER + length], vec![0xaa; length]);
        assert!(bytes[HEADER + length..].iter().all(|&byte| byte == 0xbb));
    }
}

fn the_receiver_learns_who_sent(device: &Device) {
    let scene = Scene::new(device);
    scene.receive_mark(10);
    let got = scene.pair.expect_sent(&scene.good(1, 0), 10);
    assert_eq!(got.opcode, Opcode::IBV_WC_RECV);
    assert_eq!((got.qp_num, got.src_qp), (scene.pair.b.qp.number(), scene.pair.a.qp.number()));
}

fn immediate_data_arrives_and_nothing_else_is_taken_for_it(device: &Device) {
    let scene = Scene::new(device);
    let with_imm = ibv_wc_flags::IBV_WC_WITH_IMM.0;
    for imm in [0, 77, u32::MAX] {
        scene.receive_mark(10);
        let got = scene.pair.expect_sent(&scene.good(1, 0).with_imm(imm), 10);
        assert_eq!((got.wc_flags & with_imm, imm_of(&got)), (with_imm, imm));
    }
    scene.receive_mark(11);
    let got = scene.pair.expect_sent(&scene.good(2, 0), 11);
    assert_eq!(got.wc_flags & with_imm, 0);
}

fn completions_say_whether_a_header_came(device: &Device) {
    let scene = Scene::new(device);
    scene.receive_mark(10);
    let got = scene.pair.expect_sent(&scene.good(1, 0), 10);
    assert_eq!(has_header(&got), scene.pair.a.endpoint().ethernet, "always on RoCE");
}

fn service_levels_arrive_where_the_link_has_them(device: &Device) {
    let scene = Scene::new(device);
    let end = scene.pair.a.endpoint();
    device
        .needs(!end.ethernet, "the port is of Ethernet, which has neither LIDs nor service levels");
    scene.receive_mark(10);
    let got = scene.pair.expect_sent(&scene.good(1, 0), 10);
    assert_eq!((got.slid, got.sl, got.dlid_path_bits), (end.lid, 3, 0));
}

fn datagrams_arrive_once_and_in_the_order_of_the_receives(device: &Device) {
    let scene = Scene::new(device);
    for wr_id in 10..31 {
        scene.receive_mark(wr_id);
    }
    let wrs: Vec<_> = (0..20).map(|imm| scene.good(imm.into(), 0).with_imm(imm)).collect();
    scene.pair.a.qp.try_post_list(&wrs).unwrap();
    for imm in 0..20 {
        scene.pair.a.send_cq.expect_success(imm.into());
        let got = scene.pair.b.receive_cq.expect_success(10 + u64::from(imm));
        assert_eq!(imm_of(&got), imm);
    }
    scene.expect_mark(30);
}

fn datagrams_come_from_anybody_and_from_itself(device: &Device) {
    let receiver = side(device);
    let sink = receiver.pd.register(HEADER, LOCAL_WRITE);
    let others = [side(device), side(device)];
    for sender in others.iter().chain([&receiver]) {
        let ah = sender.pd.ah_to(&sender.endpoint(), &receiver.endpoint());
        receiver.qp.post_receive(10, &[sink.sge(0, HEADER)]);
        sender.qp.post(&Wr::send(1, &[]).to(&ah, receiver.qp.number(), QKEY));
        sender.send_cq.expect_success(1);
        let got = receiver.receive_cq.expect_success(10);
        assert_eq!((got.src_qp, got.byte_len), (sender.qp.number(), 40));
    }
}

fn one_queue_pair_reaches_many(device: &Device) {
    let sender = side(device);
    let receivers: Vec<_> = (0..4).map(|_| side(device)).collect();
    for n in [0, 1, 2, 3, 0] {
        let receiver = &receivers[n];
        let sink = receiver.pd.register(HEADER, LOCAL_WRITE);
        receiver.qp.post_receive(11, &[sink.sge(0, HEADER)]);
        let ah = sender.pd.ah_to(&sender.endpoint(), &receiver.endpoint());
        sender.qp.post(&Wr::send(2, &[]).to(&ah, receiver.qp.number(), QKEY));
        sender.send_cq.expect_success(2);
        assert_eq!(receiver.receive_cq.expect_success(11).qp_num, receiver.qp.number());
    }
}

fn elements_are_joined_and_filled_in_order(device: &Device) {
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
    // The elements receive 30 bytes of the header, the last 10 of the header with 5 of the message,
    // and the rest of the message.
    let message: Vec<u8> = (10..15).chain(30..33).chain(40..50).collect();
    assert_eq!(bytes[10..15], message[..5]);
    assert_eq!(bytes[20..33], message[5..]);
    assert_eq!(bytes[33..50], [0xee; 17]);
    assert_eq!(bytes[15..20], [0xee; 5]);
}

fn inline_data_may_change_after_the_post(device: &Device) {
    device.needs_inline(20);
    let (a, b) = (side(device), side(device));
    let sink = b.pd.register(100, LOCAL_WRITE);
    let ah = a.pd.ah_to(&a.endpoint(), &b.endpoint());
    let mut inline = [7_u8; 20];
    let addr = inline.as_mut_ptr().expose_provenance() as u64;
    b.qp.post_receive(11, &[sink.sge(0, 100)]);
    let sge = ibv_sge { addr, length: 20, lkey: 0 };
    a.qp.post(&Wr::send(2, &[sge]).inline().to(&ah, b.qp.number(), QKEY));
    inline.fill(8);
    assert_eq!(std::hint::black_box(inline), [8; 20]);
    assert_eq!(b.receive_cq.expect_success(11).byte_len, 60);
    assert_eq!(sink.bytes()[HEADER..60], [7; 20]);
}

fn unsignaled_datagrams_complete_silently(device: &Device) {
    let scene = Scene::new(device);
    for wr_id in 10..13 {
        scene.receive_mark(wr_id);
    }
    scene.pair.a.qp.post(&scene.good(1, 0).unsignaled());
    scene.pair.a.qp.post(&scene.good(2, 0).unsignaled());
    // The sender's next completion is that of the mark.
    scene.pair.a.qp.post(&scene.good(3, 0).with_imm(MARK));
    scene.pair.a.send_cq.expect_success(3);
    for wr_id in 10..13 {
        scene.pair.b.receive_cq.expect_success(wr_id);
    }
}

fn datagrams_are_posted_by_calls(device: &Device) {
    use rdma_sys::ibv_qp_create_send_ops_flags as Op;
    let sends = u64::from(Op::IBV_QP_EX_WITH_SEND.0 | Op::IBV_QP_EX_WITH_SEND_WITH_IMM.0);
    needs_calls(device);
    let (a, b) = (Side::extended(device, &size(), sends), side(device));
    activate(&a.qp, QKEY);
    let source = a.pd.register_filled(vec![0xaa; 8], 0);
    let sink = b.pd.register(64, LOCAL_WRITE);
    let ah = a.pd.ah_to(&a.endpoint(), &b.endpoint());
    b.qp.post_receive(10, &[sink.sge(0, 64)]);
    a.qp.start();
    a.qp.build(&Wr::send(1, &[source.sge(0, 8)]).with_imm(6));
    a.qp.set_address(ah.0, b.qp.number(), QKEY);
    assert_eq!(a.qp.complete(), 0);
    a.send_cq.expect_success(1);
    let got = b.receive_cq.expect_success(10);
    assert_eq!((got.byte_len, got.src_qp, imm_of(&got)), (48, a.qp.number(), 6));
    assert_eq!(sink.bytes()[HEADER..48], [0xaa; 8]);
}

fn datagrams_with_a_wrong_key_are_lost(device: &Device) {
    let scene = Scene::new(device);
    scene.pair.receive(10, HEADER + 8);
    for (wr_id, qkey) in [(1, QKEY + 1), (2, 0), (3, QKEY ^ 0x0100_0000)] {
        let wr = scene.pair.send(wr_id, 8);
        scene.send(&scene.to(wr, scene.pair.b.qp.number(), qkey));
    }
    scene.expect_mark(10);
    assert_eq!(scene.pair.at_b.bytes()[HEADER..HEADER + 8], [0xbb; 8]);
    scene.pair.b.qp.assert_ready();
}

fn wrong_keys_are_counted(device: &Device) {
    let scene = Scene::new(device);
    let violations = || scene.pair.b.context.query_port().qkey_viol_cntr;
    let before = violations();
    for wr_id in 1..3 {
        let wr = scene.pair.send(wr_id, 0);
        scene.send(&scene.to(wr, scene.pair.b.qp.number(), QKEY + 1));
    }
    // The count may also include datagrams to other programs that use the port.
    until("the count", || violations() - before >= 2);
}

fn a_receivers_key_can_be_changed(device: &Device) {
    let scene = Scene::new(device);
    let b = &scene.pair.b.qp;
    let attr = ibv_qp_attr { qkey: 5, ..Default::default() };
    assert_eq!(b.modify(attr, Mask::IBV_QP_QKEY.0), 0);
    scene.receive_mark(10);
    scene.send(&scene.good(1, 0));
    let changed = scene.to(scene.pair.send(2, 0).with_imm(MARK), b.number(), 5);
    assert_eq!(imm_of(&scene.pair.expect_sent(&changed, 10)), MARK);
}

fn with_the_high_bit_the_senders_own_key_goes(device: &Device) {
    let scene = Scene::new(device);
    scene.receive_mark(10);
    let wr = scene.to(scene.pair.send(4, 0), scene.pair.b.qp.number(), 0x8000_1234);
    if device.differs("ud-qkey-high-bit") {
        scene.send(&wr);
        return scene.expect_mark(10);
    }
    scene.pair.expect_sent(&wr, 10);
}

fn a_key_with_the_high_bit_is_only_sent_by_those_who_have_it(device: &Device) {
    let (a, b) = (side(device), Side::new(device, &size(), 16));
    let privileged = 0x8001_0000;
    activate(&b.qp, privileged);
    let sink = b.pd.register(HEADER, LOCAL_WRITE);
    b.qp.post_receive(10, &[sink.sge(0, HEADER)]);
    let ah = a.pd.ah_to(&a.endpoint(), &b.endpoint());
    let wr = |wr_id| Wr::send(wr_id, &[]).to(&ah, b.qp.number(), privileged);
    a.qp.post(&wr(1).with_imm(1));
    a.send_cq.expect_success(1);
    let attr = ibv_qp_attr { qkey: privileged, ..Default::default() };
    assert_eq!(a.qp.modify(attr, Mask::IBV_QP_QKEY.0), 0);
    a.qp.post(&wr(2).with_imm(2));
    a.send_cq.expect_success(2);
    let arrived = device.expected(2, "ud-qkey-high-bit", 1);
    assert_eq!(imm_of(&b.receive_cq.expect_success(10)), arrived);
}

fn sequence_numbers_count_datagrams(device: &Device) {
    let scene = Scene::new(device);
    let a = &scene.pair.a;
    // With the last value, the PSN wraps around after 24 bits.
    for first in [0, 5, 0x00ff_fffe] {
        let mut attr = ibv_qp_attr { qp_state: State::IBV_QPS_RESET, ..Default::default() };
        assert_eq!(a.qp.modify(attr, Mask::IBV_QP_STATE.0), 0);
        step(&a.qp, State::IBV_QPS_INIT, QKEY);
        step(&a.qp, State::IBV_QPS_RTR, QKEY);
        (attr.qp_state, attr.sq_psn) = (State::IBV_QPS_RTS, first);
        assert_eq!(a.qp.modify(attr, UNRELIABLE_RTS), 0);
        for n in 0..3 {
            a.qp.post(&scene.good(n, 8));
            a.send_cq.expect_success(n);
        }
        assert_eq!(a.qp.query().sq_psn, (first + 3) & 0x00ff_ffff);
    }
}

fn datagrams_that_are_lost_are_no_events(device: &Device) {
    let scene = Scene::new(device);
    let b = scene.pair.b.qp.number();
    scene.send(&scene.good(1, 8));
    scene.send(&scene.to(scene.pair.send(2, 8), b, QKEY + 1));
    scene.send(&scene.to(scene.pair.send(3, 8), b ^ 0x0080_0000, QKEY));
    device.let_arrive();
    scene.receive_mark(10);
    scene.expect_mark(10);
    for side in [&scene.pair.a, &scene.pair.b] {
        assert!(side.context.async_events().is_empty());
    }
}

fn datagrams_to_nobody_are_sent(device: &Device) {
    let scene = Scene::new(device);
    scene.pair.receive(10, HEADER + 8);
    for (wr_id, qpn) in (1..).zip([0, 1, 0x00ff_ffff, scene.pair.b.qp.number() ^ 0x0080_0000]) {
        scene.send(&scene.to(scene.pair.send(wr_id, 8), qpn, QKEY));
    }
    scene.expect_mark(10);
}

fn datagrams_to_a_queue_pair_that_is_gone_are_sent(device: &Device) {
    let mut scene = Scene::new(device);
    let wr = scene.good(1, 8);
    scene.pair.b.qp.destroy();
    scene.send(&wr);
    scene.pair.at_b.assert_filled(0xbb);
    scene.pair.a.qp.assert_ready();
}

fn an_address_that_nobody_has_gets_nothing(device: &Device) {
    let scene = Scene::new(device);
    let mut nowhere = scene.pair.b.endpoint();
    (nowhere.lid, nowhere.gid) = (nowhere.lid ^ 1, changed(&nowhere.gid));
    // A first datagram is sent to the correct address.
    scene.receive_mark(9);
    scene.expect_mark(9);
    scene.pair.receive(10, HEADER + 8);
    let from = scene.pair.a.endpoint();
    let way = vector(&from, &nowhere, from.ethernet);
    // If creating a handle resolves the address, it may fail.
    if let Ok(ah) = scene.pair.a.pd.try_ah(way) {
        scene.send(&scene.pair.good(&ah, 1, 8));
        if device.differs("loopback-ignores-addresses") {
            assert_eq!(scene.pair.b.receive_cq.expect_success(10).byte_len, 48);
            return;
        }
    }
    scene.expect_mark(10);
}

fn queue_pairs_that_are_not_ready_hear_nothing(device: &Device) {
    let scene = Scene::new(device);
    let b = &scene.pair.b.qp;
    b.to_reset();
    scene.send(&scene.good(1, 0));
    step(b, State::IBV_QPS_INIT, QKEY);
    scene.receive_mark(10);
    scene.send(&scene.good(2, 0));
    device.let_arrive();
    step(b, State::IBV_QPS_RTR, QKEY);
    scene.expect_mark(10);
    b.to_error();
    scene.send(&scene.good(3, 0));
    scene.pair.a.qp.assert_ready();
}

fn a_queue_pair_hears_before_it_may_send(device: &Device) {
    let scene = Scene::new(device);
    let b = &scene.pair.b.qp;
    b.to_reset();
    step(b, State::IBV_QPS_INIT, QKEY);
    scene.receive_mark(10);
    step(b, State::IBV_QPS_RTR, QKEY);
    scene.pair.expect_sent(&scene.good(1, 0), 10);
    assert_eq!(b.state(), State::IBV_QPS_RTR);
}

fn queue_pairs_of_other_types_hear_nothing(device: &Device) {
    let scene = Scene::new(device);
    for qp_type in device.types(&[ibv_qp_type::IBV_QPT_RC, ibv_qp_type::IBV_QPT_UC]) {
        let other = Side::new(device, &Size { qp_type, ..Size::default() }, 16);
        let peer = Side::new(device, &Size { qp_type, ..Size::default() }, 16);
        let reliable = qp_type == ibv_qp_type::IBV_QPT_RC;
        let connect = if reliable { connect } else { connect_unreliably };
        connect(&other.qp, &other.endpoint(), &peer.endpoint(), &Knobs::default());
        connect(&peer.qp, &peer.endpoint(), &other.endpoint(), &Knobs::default());
        let room = other.pd.register(HEADER, LOCAL_WRITE);
        other.qp.post_receive(20, &[room.sge(0, HEADER)]);
        for (wr_id, qkey) in [(1, QKEY), (2, 0)] {
            scene.send(&scene.to(scene.pair.send(wr_id, 0), other.qp.number(), qkey));
        }
        // The queue pair's next message is from its connected peer.
        peer.qp.post(&Wr::send(3, &[]).with_imm(MARK));
        peer.send_cq.expect_success(3);
        assert_eq!(imm_of(&other.receive_cq.expect_success(20)), MARK);
    }
}

fn each_step_needs_its_attributes_and_takes_no_others(device: &Device) {
    let (state, qkey) = (Mask::IBV_QP_STATE.0, Mask::IBV_QP_QKEY.0);
    let steps = [
        (State::IBV_QPS_INIT, UD_INIT, 0),
        (State::IBV_QPS_RTR, state, qkey | Mask::IBV_QP_PKEY_INDEX.0),
        (State::IBV_QPS_RTS, UNRELIABLE_RTS, qkey | Mask::IBV_QP_CUR_STATE.0),
    ];
    let side = Side::new(device, &size(), 16);
    let mut good = ibv_qp_attr { port_num: 1, qkey: QKEY, ..Default::default() };
    for (to, needed, optional) in steps {
        let from = side.qp.state();
        good.qp_state = to;
        for bit in (0..26).map(|n| 1 << n).filter(|bit| bit & state == 0) {
            let given = if needed & bit != 0 { needed & !bit } else { needed | bit };
            if needed & bit != 0 || optional & bit == 0 {
                assert_ne!(side.qp.modify(good, given), 0, "{to:?} {bit:#x}");
                assert_eq!(side.qp.state(), from);
            }
        }
        assert_eq!(side.qp.modify(good, needed), 0);
        assert_eq!(side.qp.state(), to);
    }
}

fn the_key_is_what_was_set(device: &Device) {
    let side = Side::new(device, &size(), 16);
    activate(&side.qp, QKEY);
    assert_eq!(side.qp.query().qkey, QKEY);
    for qkey in [0, 5, 0x8001_0000] {
        let attr = ibv_qp_attr { qkey, ..Default::default() };
        assert_eq!(side.qp.modify(attr, Mask::IBV_QP_QKEY.0), 0);
        assert_eq!(side.qp.query().qkey, qkey);
    }
}
