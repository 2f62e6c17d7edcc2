//! Unreliable connections: there are no acknowledgements, so a message counts as sent whatever
//! happens to it.
//!
//! A lost message is not reported. To detect a loss, a case sends another message, the mark, on the
//! same connection. If the first message was lost, the mark arrives in the receive that was posted
//! for it.

use rdma_sys::{
    ibv_event_type, ibv_mw_type, ibv_qp_attr, ibv_qp_attr_mask as Mask, ibv_qp_state as State,
    ibv_qp_type, ibv_send_flags, ibv_sge, ibv_wc_flags, ibv_wc_opcode as Opcode,
    ibv_wc_status as Status,
};

use test_support::rig::connect::{
    INIT, Knobs, Side, UC_RTR, UNRELIABLE_RTS, attributes, connect, connect_unreliably,
};
use test_support::rig::post::Wr;
use test_support::rig::{ALL_ACCESS, LOCAL_WRITE, MW_BIND, Mr, REMOTE_WRITE, Size, imm_of, until};

use crate::case::cases;
use crate::device::Device;

cases![
    sends_arrive,
    writes_arrive_unheard,
    writes_with_immediate_take_a_receive,
    immediate_data_arrives_with_a_send,
    messages_of_many_packets_arrive_whole,
    messages_arrive_in_order,
    both_ends_send_at_once,
    a_queue_pair_can_be_its_own_peer,
    inline_data_may_change_after_the_post,
    unsignaled_messages_complete_silently,
    an_empty_write_needs_no_key,
    writes_through_a_window_arrive,
    messages_to_nobody_are_sent,
    messages_to_a_peer_that_is_not_ready_are_lost_and_later_ones_are_not,
    messages_to_a_peer_in_error_are_sent,
    messages_without_a_receive_are_lost_and_later_ones_are_not,
    messages_that_are_lost_are_no_events,
    writes_that_the_peer_does_not_allow_are_lost,
    a_lost_write_with_immediate_leaves_its_receive,
    writes_of_many_packets_that_are_not_allowed_write_nothing,
    a_queue_pair_without_the_right_loses_writes,
    the_first_message_is_an_event,
    any_sequence_number_is_taken,
    sequence_numbers_count_what_was_lost,
    queue_pairs_of_other_types_are_not_heard,
    each_step_needs_its_attributes_and_takes_no_others,
    after_a_reset_it_can_be_connected_again,
    after_a_reset_no_receive_of_before_is_used,
];

const BYTES: usize = 64;

pub(super) const MARK: u32 = 0x4d41_524b;

pub(super) fn size() -> Size {
    Size { qp_type: ibv_qp_type::IBV_QPT_UC, ..Size::default() }
}

fn pair_of_sides(device: &Device, knobs: &Knobs) -> (Side, Side) {
    let (a, b) = (Side::new(device, &size(), 256), Side::new(device, &size(), 256));
    connect_unreliably(&a.qp, &a.endpoint(), &b.endpoint(), knobs);
    connect_unreliably(&b.qp, &b.endpoint(), &a.endpoint(), knobs);
    (a, b)
}

/// Two connected ends with 64 bytes of memory each: A's bytes are 0xaa, and B's are 0xbb.
pub(super) struct Pair {
    pub(super) at_a: Mr,
    pub(super) at_b: Mr,
    pub(super) a: Side,
    pub(super) b: Side,
}

impl Pair {
    pub(super) fn new(device: &Device) -> Self {
        Self::with(device, &Knobs::default())
    }

    fn with(device: &Device, knobs: &Knobs) -> Self {
        let (a, b) = pair_of_sides(device, knobs);
        let at_a = a.pd.register_filled(vec![0xaa; BYTES], ALL_ACCESS);
        let at_b = b.pd.register_filled(vec![0xbb; BYTES], ALL_ACCESS);
        Self { at_a, at_b, a, b }
    }

    /// Returns a SEND of sixteen bytes.
    pub(super) fn send(&self, wr_id: u64) -> Wr {
        Wr::send(wr_id, &[self.at_a.sge(0, 16)])
    }

    /// Returns a WRITE of sixteen bytes to offset 8 in B's memory.
    pub(super) fn write(&self, wr_id: u64) -> Wr {
        Wr::write(wr_id, &[self.at_a.sge(0, 16)], &self.at_b, 8)
    }

    /// Returns a SEND whose only element has a wrong key.
    pub(super) fn bad(&self, wr_id: u64) -> Wr {
        let mut bad = self.at_a.sge(0, 16);
        bad.lkey ^= 1;
        Wr::send(wr_id, &[bad])
    }

    /// Posts a request, and checks that it succeeds at A, whatever happens to the message.
    #[track_caller]
    pub(super) fn expect_sent(&self, wr: &Wr) {
        self.a.qp.post(wr);
        self.a.send_cq.expect_success(wr.wr.wr_id);
        self.a.qp.assert_ready();
    }

    /// Sends a mark and checks that it is B's next message, so everything sent before it has
    /// arrived or was lost.
    #[track_caller]
    pub(super) fn expect_mark(&self, receive: u64) {
        self.expect_sent(&Wr::send(99, &[]).with_imm(MARK));
        assert_eq!(imm_of(&self.b.receive_cq.expect_success(receive)), MARK);
    }

    pub(super) fn receive(&self, wr_id: u64, length: usize) {
        self.b.qp.post_receive(wr_id, &[self.at_b.sge(0, length)]);
    }
}

fn sends_arrive(device: &Device) {
    let pair = Pair::new(device);
    pair.receive(10, 32);
    pair.a.qp.post(&pair.send(1).flags(ibv_send_flags::IBV_SEND_FENCE));
    let sent = pair.a.send_cq.expect_success(1);
    assert_eq!((sent.opcode, sent.qp_num), (Opcode::IBV_WC_SEND, pair.a.qp.number()));
    let got = pair.b.receive_cq.expect_success(10);
    assert_eq!((got.opcode, got.byte_len), (Opcode::IBV_WC_RECV, 16));
    assert_eq!(got.wc_flags & ibv_wc_flags::IBV_WC_WITH_IMM.0, 0);
    assert_eq!(got.qp_num, pair.b.qp.number());
    assert_eq!(pair.at_b.bytes(), [[0xaa; 16].as_slice(), &[0xbb; 48]].concat());
}

fn writes_arrive_unheard(device: &Device) {
    let pair = Pair::new(device);
    pair.b.qp.post_receive(11, &[]);
    pair.a.qp.post(&pair.write(2));
    assert_eq!(pair.a.send_cq.expect_success(2).opcode, Opcode::IBV_WC_RDMA_WRITE);
    pair.expect_mark(11);
    assert_eq!(pair.at_b.bytes()[8..24], [0xaa; 16]);
}

fn writes_with_immediate_take_a_receive(device: &Device) {
    let pair = Pair::new(device);
    pair.b.qp.post_receive(11, &[]);
    pair.expect_sent(&pair.write(3).with_imm(77));
    let got = pair.b.receive_cq.expect_success(11);
    assert_eq!((got.opcode, got.byte_len), (Opcode::IBV_WC_RECV_RDMA_WITH_IMM, 16));
    let with_imm = ibv_wc_flags::IBV_WC_WITH_IMM.0;
    assert_eq!((got.wc_flags & with_imm, imm_of(&got)), (with_imm, 77));
    assert_eq!(pair.at_b.bytes()[8..24], [0xaa; 16]);
}

fn immediate_data_arrives_with_a_send(device: &Device) {
    let pair = Pair::new(device);
    for imm in [0, 78, u32::MAX] {
        pair.receive(12, 32);
        pair.expect_sent(&pair.send(4).with_imm(imm));
        let got = pair.b.receive_cq.expect_success(12);
        assert_eq!((got.opcode, got.byte_len), (Opcode::IBV_WC_RECV, 16));
        assert_eq!(imm_of(&got), imm);
    }
}

fn messages_of_many_packets_arrive_whole(device: &Device) {
    let (a, b) = pair_of_sides(device, &Knobs::default());
    let longest = 9 * 1024 + 5;
    let data: Vec<u8> = (0_u32..).map(|n| n.to_le_bytes()[0]).take(longest).collect();
    let at_a = a.pd.register_filled(data.clone(), LOCAL_WRITE);
    let at_b = b.pd.register(longest, ALL_ACCESS);
    // Zero, one, lengths around the path MTU and twice the path MTU, and the longest one.
    for length in [0, 1, 1023, 1024, 1025, 2048, 2049, longest] {
        let local = [at_a.sge(0, length)];
        let write = Wr::write(1, &local, &at_b, 0).with_imm(1);
        for (wr, bytes) in [(Wr::send(1, &local), longest), (write, 0)] {
            at_b.fill(0xbb);
            b.qp.post_receive(10, &[at_b.sge(0, bytes)]);
            a.qp.post(&wr);
            a.send_cq.expect_success(1);
            assert_eq!(b.receive_cq.expect_success(10).byte_len as usize, length);
            assert_eq!(at_b.bytes()[..length], data[..length]);
            assert!(at_b.bytes()[length..].iter().all(|&byte| byte == 0xbb));
        }
    }
}

fn messages_arrive_in_order(device: &Device) {
    let pair = Pair::new(device);
    let numbers = pair.a.pd.register_filled((0..32).collect(), LOCAL_WRITE);
    for wr_id in 0..32 {
        pair.b.qp.post_receive(100 + wr_id, &[]);
    }
    let number = |n: u8| [numbers.sge(n.into(), 1)];
    let write = |n: u8| Wr::write(n.into(), &number(n), &pair.at_b, 0).with_imm(n.into());
    let wrs: Vec<_> = (0..32).map(write).collect();
    pair.a.qp.try_post_list(&wrs).unwrap();
    for n in 0..32 {
        pair.a.send_cq.expect_success(n);
        assert_eq!(u64::from(imm_of(&pair.b.receive_cq.expect_success(100 + n))), n);
    }
    assert_eq!(pair.at_b.bytes()[0], 31, "the last value written");
}

fn both_ends_send_at_once(device: &Device) {
    let pair = Pair::new(device);
    for (side, memory) in [(&pair.a, &pair.at_a), (&pair.b, &pair.at_b)] {
        for wr_id in 10..14 {
            side.qp.post_receive(wr_id, &[memory.sge(32, 8)]);
        }
    }
    for wr_id in 0..4 {
        pair.a.qp.post(&Wr::send(wr_id, &[pair.at_a.sge(0, 8)]));
        pair.b.qp.post(&Wr::send(wr_id, &[pair.at_b.sge(0, 8)]));
    }
    for side in [&pair.a, &pair.b] {
        for wr_id in 0..4 {
            side.send_cq.expect_success(wr_id);
            side.receive_cq.expect_success(10 + wr_id);
        }
    }
    assert_eq!(pair.at_a.bytes()[32..40], [0xbb; 8]);
    assert_eq!(pair.at_b.bytes()[32..40], [0xaa; 8]);
}

fn a_queue_pair_can_be_its_own_peer(device: &Device) {
    let side = Side::new(device, &size(), 16);
    connect_unreliably(&side.qp, &side.endpoint(), &side.endpoint(), &Knobs::default());
    let memory = side.pd.register_filled((0..16).collect(), ALL_ACCESS);
    side.qp.post_receive(10, &[]);
    side.qp.post(&Wr::write(1, &[memory.sge(0, 8)], &memory, 8).with_imm(3));
    side.send_cq.expect_success(1);
    assert_eq!(imm_of(&side.receive_cq.expect_success(10)), 3);
    assert_eq!(memory.bytes()[8..], memory.bytes()[..8]);
}

fn inline_data_may_change_after_the_post(device: &Device) {
    device.needs_inline(20);
    let pair = Pair::new(device);
    let mut inline = [7_u8; 20];
    let addr = inline.as_mut_ptr().expose_provenance() as u64;
    let sge = ibv_sge { addr, length: 20, lkey: 0 };
    pair.b.qp.post_receive(10, &[]);
    pair.a.qp.post(&Wr::write(1, &[sge], &pair.at_b, 0).inline().with_imm(1));
    inline.fill(8);
    assert_eq!(std::hint::black_box(inline), [8; 20]);
    pair.a.send_cq.expect_success(1);
    pair.b.receive_cq.expect_success(10);
    assert_eq!(pair.at_b.bytes()[..20], [7; 20]);
}

fn unsignaled_messages_complete_silently(device: &Device) {
    let pair = Pair::new(device);
    pair.b.qp.post_receive(10, &[]);
    pair.a.qp.post(&pair.write(1).unsignaled());
    pair.a.qp.post(&pair.write(2).unsignaled());
    // A's next completion is that of the mark.
    pair.expect_mark(10);
    assert_eq!(pair.at_b.bytes()[8..24], [0xaa; 16]);
}

fn an_empty_write_needs_no_key(device: &Device) {
    let pair = Pair::new(device);
    pair.b.qp.post_receive(10, &[]);
    let write = Wr::write(1, &[], &pair.at_b, 0).remote(u64::MAX, pair.at_b.key() ^ 1);
    pair.expect_sent(&write.with_imm(6));
    let got = pair.b.receive_cq.expect_success(10);
    assert_eq!((got.byte_len, imm_of(&got)), (0, 6));
}

fn writes_through_a_window_arrive(device: &Device) {
    let (a, b) = pair_of_sides(device, &Knobs::default());
    let at_a = a.pd.register_filled(vec![0xaa; BYTES], LOCAL_WRITE);
    let at_b = b.pd.register_filled(vec![0xbb; BYTES], LOCAL_WRITE | MW_BIND);
    let Ok(window) = b.pd.try_mw(ibv_mw_type::IBV_MW_TYPE_1) else {
        device.skip("the device has no memory windows");
    };
    let key = b.qp.post_bind(1, &window, at_b.part(16, 16, REMOTE_WRITE));
    b.send_cq.next();
    b.qp.post_receive(10, &[]);
    let write = Wr::write(1, &[at_a.sge(0, 16)], &at_b, 16).remote(at_b.address() + 16, key);
    a.qp.post(&write.with_imm(2));
    a.send_cq.expect_success(1);
    assert_eq!(imm_of(&b.receive_cq.expect_success(10)), 2);
    let wanted = [[0xbb; 16], [0xaa; 16], [0xbb; 16], [0xbb; 16]].concat();
    assert_eq!(at_b.bytes(), wanted);
}

fn messages_to_nobody_are_sent(device: &Device) {
    let mut pair = Pair::new(device);
    pair.b.qp.destroy();
    pair.expect_sent(&pair.send(1));
    pair.expect_sent(&pair.write(2));
    pair.expect_sent(&pair.write(3).with_imm(5));
    pair.at_b.assert_filled(0xbb);
}

fn messages_to_a_peer_that_is_not_ready_are_lost_and_later_ones_are_not(device: &Device) {
    let pair = Pair::new(device);
    pair.b.qp.to_reset();
    pair.expect_sent(&pair.send(1));
    let (at_a, at_b) = (pair.a.endpoint(), pair.b.endpoint());
    let attr = attributes(&at_b, &at_a, &Knobs::default());
    let init = ibv_qp_attr { qp_state: State::IBV_QPS_INIT, ..attr };
    assert_eq!(pair.b.qp.modify(init, INIT), 0);
    pair.receive(10, 32);
    pair.expect_sent(&pair.send(2));
    pair.expect_sent(&pair.write(3));
    device.let_arrive();
    let rtr = ibv_qp_attr { qp_state: State::IBV_QPS_RTR, ..attr };
    assert_eq!(pair.b.qp.modify(rtr, UC_RTR), 0);
    pair.expect_mark(10);
    pair.at_b.assert_filled(0xbb);
}

fn messages_to_a_peer_in_error_are_sent(device: &Device) {
    let pair = Pair::new(device);
    pair.b.qp.to_error();
    pair.expect_sent(&pair.send(1));
    pair.expect_sent(&pair.write(2));
    pair.expect_sent(&pair.write(3).with_imm(5));
    pair.at_b.assert_filled(0xbb);
}

fn messages_without_a_receive_are_lost_and_later_ones_are_not(device: &Device) {
    let pair = Pair::new(device);
    pair.expect_sent(&pair.send(1));
    pair.expect_sent(&pair.write(2).with_imm(5));
    device.let_arrive();
    pair.receive(10, 32);
    pair.expect_mark(10);
    pair.at_b.assert_filled(0xbb);
    pair.b.qp.assert_ready();
}

fn messages_that_are_lost_are_no_events(device: &Device) {
    let pair = Pair::new(device);
    pair.expect_sent(&pair.send(1));
    pair.expect_sent(&pair.write(2).with_imm(5));
    pair.expect_sent(&pair.write(3).remote(pair.at_b.address(), pair.at_b.key() ^ 1));
    device.let_arrive();
    pair.receive(10, 32);
    pair.expect_mark(10);
    for side in [&pair.a, &pair.b] {
        assert!(side.context.async_events().is_empty());
    }
}

/// Returns targets that B does not let A write to, each as an address and a key.
fn forbidden(pair: &Pair, unwritable: &Mr, foreign: &Mr) -> [(u64, u32); 5] {
    let (address, key) = (pair.at_b.address(), pair.at_b.key());
    [
        (address, key ^ 1),
        (address + 49, key),
        (u64::MAX - 7, key),
        (unwritable.address(), unwritable.key()),
        (foreign.address(), foreign.key()),
    ]
}

fn writes_that_the_peer_does_not_allow_are_lost(device: &Device) {
    let pair = Pair::new(device);
    let unwritable = pair.b.pd.register_filled(vec![0xbb; BYTES], LOCAL_WRITE);
    let foreign = pair.a.pd.register_filled(vec![0xbb; BYTES], ALL_ACCESS);
    for (address, key) in forbidden(&pair, &unwritable, &foreign) {
        pair.expect_sent(&pair.write(1).remote(address, key));
    }
    pair.b.qp.post_receive(10, &[]);
    pair.expect_mark(10);
    for memory in [&pair.at_b, &unwritable, &foreign] {
        memory.assert_filled(0xbb);
    }
    pair.b.qp.assert_ready();
}

fn a_lost_write_with_immediate_leaves_its_receive(device: &Device) {
    let pair = Pair::new(device);
    let unwritable = pair.b.pd.register_filled(vec![0xbb; BYTES], LOCAL_WRITE);
    let foreign = pair.a.pd.register_filled(vec![0xbb; BYTES], ALL_ACCESS);
    pair.b.qp.post_receive(10, &[]);
    for (address, key) in forbidden(&pair, &unwritable, &foreign) {
        pair.expect_sent(&pair.write(1).remote(address, key).with_imm(9));
    }
    pair.expect_mark(10);
    pair.at_b.assert_filled(0xbb);
}

fn writes_of_many_packets_that_are_not_allowed_write_nothing(device: &Device) {
    let (a, b) = pair_of_sides(device, &Knobs::default());
    let length = 5000;
    let at_a = a.pd.register_filled(vec![0xaa; length], LOCAL_WRITE);
    let at_b = b.pd.register_filled(vec![0xbb; length], ALL_ACCESS);
    b.qp.post_receive(10, &[]);
    // Every byte except the last one would fit.
    for wr in [Wr::write(1, &[at_a.sge(0, length)], &at_b, 1), Wr::send(2, &[]).with_imm(MARK)] {
        a.qp.post(&wr);
        a.send_cq.expect_success(wr.wr.wr_id);
    }
    assert_eq!(imm_of(&b.receive_cq.expect_success(10)), MARK);
    at_b.assert_filled(0xbb);
}

fn a_queue_pair_without_the_right_loses_writes(device: &Device) {
    let pair = Pair::with(device, &Knobs { access: 0, ..Knobs::default() });
    pair.expect_sent(&pair.write(1));
    pair.receive(10, 32);
    pair.expect_mark(10);
    pair.at_b.assert_filled(0xbb);
}

fn the_first_message_is_an_event(device: &Device) {
    let pair = Pair::new(device);
    let (at_a, at_b) = (pair.a.endpoint(), pair.b.endpoint());
    pair.b.qp.to_reset();
    let attr = attributes(&at_b, &at_a, &Knobs::default());
    let init = ibv_qp_attr { qp_state: State::IBV_QPS_INIT, ..attr };
    assert_eq!(pair.b.qp.modify(init, INIT), 0);
    pair.receive(10, 32);
    let rtr = ibv_qp_attr { qp_state: State::IBV_QPS_RTR, ..attr };
    assert_eq!(pair.b.qp.modify(rtr, UC_RTR), 0);
    pair.expect_mark(10);
    let event = (ibv_event_type::IBV_EVENT_COMM_EST, pair.b.qp.0.addr());
    let expected = device.expected(vec![event], "established-connections-are-no-events", vec![]);
    let context = &pair.b.context;
    until("the event", || expected.is_empty() || context.has_async_events());
    assert_eq!(context.async_events(), expected);
}

/// Returns two connected ends that disagree about A's first PSN.
fn out_of_step(device: &Device) -> (Side, Side) {
    let (a, b) = (Side::new(device, &size(), 256), Side::new(device, &size(), 256));
    let with = |psn| Knobs { psn, ..Knobs::default() };
    connect_unreliably(&a.qp, &a.endpoint(), &b.endpoint(), &with(100));
    connect_unreliably(&b.qp, &b.endpoint(), &a.endpoint(), &with(9999));
    (a, b)
}

fn any_sequence_number_is_taken(device: &Device) {
    let (a, b) = out_of_step(device);
    b.qp.post_receive(10, &[]);
    b.qp.post_receive(11, &[]);
    for wr_id in [0, 1] {
        a.qp.post(&Wr::send(wr_id, &[]));
        a.send_cq.expect_success(wr_id);
        b.receive_cq.expect_success(10 + wr_id);
    }
}

fn sequence_numbers_count_what_was_lost(device: &Device) {
    let (a, b) = out_of_step(device);
    b.qp.post_receive(10, &[]);
    a.qp.post(&Wr::send(1, &[]));
    b.receive_cq.expect_success(10);
    assert_eq!((a.qp.query().sq_psn, b.qp.query().rq_psn), (101, 101));
    a.qp.post(&Wr::send(2, &[]));
    a.send_cq.expect_success(1);
    a.send_cq.expect_success(2);
    device.let_arrive();
    b.qp.post_receive(11, &[]);
    a.qp.post(&Wr::send(3, &[]));
    b.receive_cq.expect_success(11);
    assert_eq!((a.qp.query().sq_psn, b.qp.query().rq_psn), (103, 103));
}

fn queue_pairs_of_other_types_are_not_heard(device: &Device) {
    let reliable = Side::new(device, &Size::default(), 256);
    let unreliable = Side::new(device, &size(), 256);
    // The reliable end makes two attempts of 67 ms each.
    let knobs = Knobs { timeout: 14, retries: 1, ..Knobs::default() };
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
}

fn each_step_needs_its_attributes_and_takes_no_others(device: &Device) {
    let state = Mask::IBV_QP_STATE.0;
    let migration = Mask::IBV_QP_ALT_PATH.0 | Mask::IBV_QP_PATH_MIG_STATE.0;
    let rtr_more = migration | Mask::IBV_QP_ACCESS_FLAGS.0 | Mask::IBV_QP_PKEY_INDEX.0;
    let rts_more = migration | Mask::IBV_QP_ACCESS_FLAGS.0 | Mask::IBV_QP_CUR_STATE.0;
    let steps = [
        (State::IBV_QPS_INIT, INIT, 0),
        (State::IBV_QPS_RTR, UC_RTR, rtr_more & !Mask::IBV_QP_PATH_MIG_STATE.0),
        (State::IBV_QPS_RTS, UNRELIABLE_RTS, rts_more),
    ];
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
                assert_ne!(side.qp.modify(good, given), 0, "{to:?} {bit:#x}");
                assert_eq!(side.qp.state(), from);
            }
        }
        assert_eq!(side.qp.modify(good, needed), 0);
        assert_eq!(side.qp.state(), to);
    }
}

/// Resets and reconnects both ends.
fn connect_again(pair: &Pair) {
    let (at_a, at_b) = (pair.a.endpoint(), pair.b.endpoint());
    pair.a.qp.to_reset();
    pair.b.qp.to_reset();
    connect_unreliably(&pair.a.qp, &at_a, &at_b, &Knobs::default());
    connect_unreliably(&pair.b.qp, &at_b, &at_a, &Knobs::default());
}

fn after_a_reset_it_can_be_connected_again(device: &Device) {
    let pair = Pair::new(device);
    pair.receive(9, 32);
    pair.expect_mark(9);
    for side in [&pair.a, &pair.b] {
        side.qp.to_error();
    }
    connect_again(&pair);
    pair.receive(10, 32);
    pair.expect_mark(10);
}

fn after_a_reset_no_receive_of_before_is_used(device: &Device) {
    let pair = Pair::new(device);
    // The first receive is posted for the message that is lost, and no message is sent for the
    // second one. The reset must drop both.
    pair.receive(8, 32);
    pair.receive(9, 32);
    pair.expect_sent(&pair.write(1).remote(pair.at_b.address(), pair.at_b.key() ^ 1).with_imm(5));
    connect_again(&pair);
    pair.receive(10, 32);
    pair.expect_mark(10);
    assert!(pair.b.receive_cq.is_empty());
}
