//! Requests that are posted with function calls (`ibv_wr_*`): the effect of each call (man
//! `ibv_wr_post`).

use std::slice;

use rdma_sys::{
    Errno, ibv_qp_create_send_ops_flags as Op, ibv_qp_type, ibv_send_flags,
    ibv_wc_opcode as Opcode, ibv_wc_status as Status, ibv_wr_opcode,
};
use test_support::rig::batch::Scene;
use test_support::rig::connect::{
    Knobs, Side, connect, connect_sides, connect_unreliably, endpoint,
};
use test_support::rig::datagram::{self, HEADER, QKEY};
use test_support::rig::extended::{init, operations};
use test_support::rig::post::Wr;
use test_support::rig::window::{BINDABLE, TYPE_2};
use test_support::rig::{LOCAL_WRITE, REMOTE_WRITE, Size, imm_of, until, usual_inline};

use crate::case::cases;
use crate::device::Device;

cases![
    every_call_is_the_request_that_a_list_would_have,
    calls_of_an_unreliable_connection_are_what_a_list_would_have,
    a_datagram_goes_where_its_call_says,
    each_datagram_of_a_batch_goes_where_it_says,
    a_datagram_by_call_carries_immediate_data,
    a_call_binds_a_window,
    a_call_invalidates_a_window,
    a_send_by_call_invalidates_the_peers_window,
    lists_of_elements_are_sent_one_behind_the_other,
    as_many_elements_as_the_queue_pair_has_are_sent,
    inline_data_is_copied_at_the_call,
    inline_data_of_several_buffers_is_one_message,
    inline_data_by_call_may_have_the_length_that_was_asked_for,
    inline_data_needs_no_region,
    wr_id_and_flags_are_those_of_the_moment_of_the_call,
    unsignaled_calls_complete_silently,
    calls_of_a_queue_pair_that_signals_all_complete,
    a_fenced_call_waits_for_the_read_before_it,
    a_solicited_call_wakes_who_waits_for_solicited_completions,
];

/// Skips the case unless the device has queue pairs that can post with function calls.
pub(in crate::cases) fn needs_calls(device: &Device) {
    let context = device.open();
    let (cq, pd) = (context.cq(4), context.pd());
    let refused = context.try_qp_ex(&init(&pd, &cq, &cq, &Size::default(), operations())).err();
    let lacks = [Errno::EOPNOTSUPP, Errno::ENOSYS].map(Some).contains(&refused);
    device.needs(!lacks, "the device has no queue pairs that post by function calls");
}

pub(super) fn scene(device: &Device) -> Scene {
    needs_calls(device);
    Scene::new(device)
}

fn every_call_is_the_request_that_a_list_would_have(device: &Device) {
    needs_calls(device);
    device.needs(device.has_atomics(), "the device has no atomics");
    let mut rounds = Vec::new();
    for calls in [false, true] {
        let scene = Scene::new(device);
        let (a, b) = (&scene.a, &scene.b);
        let local = [scene.at_a.sge(0, 8), scene.at_a.sge(32, 8)];
        let word = [scene.at_a.sge(56, 8)];
        let swap = ibv_wr_opcode::IBV_WR_ATOMIC_CMP_AND_SWP;
        let add = ibv_wr_opcode::IBV_WR_ATOMIC_FETCH_AND_ADD;
        let requests = [
            Wr::send(1, &local),
            Wr::send(2, &local[..1]).with_imm(7),
            Wr::write(3, &local, &scene.at_b, 0),
            Wr::write(4, &[], &scene.at_b, 0).with_imm(8),
            Wr::read(5, &local[1..], &scene.at_b, 0),
            Wr::new(6, swap, &word).atomic(&scene.at_b, 48, 0, 5),
            Wr::new(7, add, &word).atomic(&scene.at_b, 48, 2, 0),
            Wr::send(8, &[]).flags(ibv_send_flags::IBV_SEND_SOLICITED).fenced(),
        ];
        let mut seen = Vec::new();
        for wr in &requests {
            let receives = matches!(wr.wr.wr_id, 1 | 2 | 4 | 8);
            if receives {
                b.qp.post_receive(wr.wr.wr_id, &[scene.at_b.sge(20, 20)]);
            }
            let posted = match calls {
                true => a.qp.try_call(slice::from_ref(wr)),
                false => a.qp.try_post(wr),
            };
            assert_eq!(posted, 0);
            let opcode = a.send_cq.expect_success(wr.wr.wr_id).opcode;
            let received = receives
                .then(|| b.receive_cq.expect_success(wr.wr.wr_id))
                .map(|wc| (wc.opcode, wc.byte_len, wc.wc_flags, imm_of(&wc)));
            seen.push((opcode, received));
        }
        rounds.push((seen, scene.at_a.deregister(), scene.at_b.deregister()));
    }
    assert_eq!(rounds[0], rounds[1]);
    assert_eq!(rounds[1].2[48..56], 7_u64.to_ne_bytes(), "swapped and added to");
}

fn calls_of_an_unreliable_connection_are_what_a_list_would_have(device: &Device) {
    needs_calls(device);
    let size = device.size_of(ibv_qp_type::IBV_QPT_UC);
    let operations = [
        Op::IBV_QP_EX_WITH_SEND,
        Op::IBV_QP_EX_WITH_SEND_WITH_IMM,
        Op::IBV_QP_EX_WITH_RDMA_WRITE,
        Op::IBV_QP_EX_WITH_RDMA_WRITE_WITH_IMM,
    ];
    let operations = operations.iter().fold(0, |all, op| all | u64::from(op.0));
    let mut rounds = Vec::new();
    for calls in [false, true] {
        let (a, b) = (Side::extended(device, &size, operations), Side::new(device, &size, 256));
        let (at_a, at_b) = (a.endpoint(), b.endpoint());
        let knobs = Knobs { access: LOCAL_WRITE | REMOTE_WRITE, ..Knobs::default() };
        connect_unreliably(&a.qp, &at_a, &at_b, &knobs);
        connect_unreliably(&b.qp, &at_b, &at_a, &knobs);
        let from = a.pd.register_filled((0..64).collect(), LOCAL_WRITE);
        let to = b.pd.register(64, LOCAL_WRITE | REMOTE_WRITE);
        let local = [from.sge(4, 8)];
        let requests = [
            Wr::write(1, &local, &to, 0),
            Wr::send(2, &local),
            Wr::send(3, &local).with_imm(7),
            Wr::write(4, &local, &to, 48).with_imm(8),
        ];
        let mut seen = Vec::new();
        for wr in &requests {
            let wr_id = wr.wr.wr_id;
            b.qp.post_receive(wr_id, &[to.sge(16, 16)]);
            let posted = match calls {
                true => a.qp.try_call(slice::from_ref(wr)),
                false => a.qp.try_post(wr),
            };
            assert_eq!(posted, 0);
            seen.push((a.send_cq.expect_success(wr_id).opcode, 0, 0));
            // The first request, a write without immediate data, consumes no receive. So each of
            // the other three consumes the receive that was posted one request earlier.
            if wr_id > 1 {
                let wc = b.receive_cq.expect_success(wr_id - 1);
                seen.push((wc.opcode, wc.byte_len, wc.wc_flags));
            }
        }
        rounds.push((seen, to.bytes()));
    }
    assert_eq!(rounds[0], rounds[1]);
}

const DATAGRAMS: u64 = (Op::IBV_QP_EX_WITH_SEND.0 | Op::IBV_QP_EX_WITH_SEND_WITH_IMM.0) as u64;

/// Returns a side that sends datagrams with function calls.
fn datagram_side(device: &Device) -> Side {
    needs_calls(device);
    device.needs_type(ibv_qp_type::IBV_QPT_UD);
    let side = Side::extended(device, &datagram::size(), DATAGRAMS);
    datagram::activate(&side.qp, QKEY);
    side
}

fn a_datagram_goes_where_its_call_says(device: &Device) {
    let (a, b) = (datagram_side(device), datagram::side(device));
    let from = a.pd.register_filled((0..64).collect(), LOCAL_WRITE);
    let to = b.pd.register(HEADER + 64, LOCAL_WRITE);
    let ah = a.pd.ah_to(&a.endpoint(), &b.endpoint());
    b.qp.post_receive(1, &[to.sge(0, HEADER + 64)]);
    a.qp.start();
    a.qp.build(&Wr::send(2, &[from.sge(8, 24)]));
    a.qp.set_address(ah.0, b.qp.number(), QKEY);
    assert_eq!(a.qp.complete(), 0);
    a.send_cq.expect_success(2);
    let wc = b.receive_cq.expect_success(1);
    assert_eq!((wc.byte_len as usize, wc.src_qp), (HEADER + 24, a.qp.number()));
    assert_eq!(to.bytes()[HEADER..HEADER + 24], from.bytes()[8..32]);
}

fn each_datagram_of_a_batch_goes_where_it_says(device: &Device) {
    let a = datagram_side(device);
    let peers = [datagram::side(device), datagram::side(device)];
    let from = a.pd.register_filled((0..64).collect(), LOCAL_WRITE);
    let ways = peers.each_ref().map(|peer| a.pd.ah_to(&a.endpoint(), &peer.endpoint()));
    let rooms = peers.each_ref().map(|peer| {
        let room = peer.pd.register(2 * (HEADER + 8), LOCAL_WRITE);
        for n in 0..2 {
            peer.qp.post_receive(n, &[room.sge(usize::from(n == 1) * (HEADER + 8), HEADER + 8)]);
        }
        room
    });
    a.qp.start();
    for n in 0..4 {
        a.qp.build(&Wr::send(n as u64, &[from.sge(8 * n, 8)]));
        a.qp.set_address(ways[n % 2].0, peers[n % 2].qp.number(), QKEY);
    }
    assert_eq!(a.qp.complete(), 0);
    for n in 0..4 {
        a.send_cq.expect_success(n);
    }
    for (n, (peer, room)) in peers.iter().zip(&rooms).enumerate() {
        for receive in 0..2 {
            peer.receive_cq.expect_success(receive as u64);
            let (start, sent) = (receive * (HEADER + 8) + HEADER, 8 * (2 * receive + n));
            assert_eq!(room.bytes()[start..start + 8], from.bytes()[sent..sent + 8]);
        }
    }
}

fn a_datagram_by_call_carries_immediate_data(device: &Device) {
    let (a, b) = (datagram_side(device), datagram::side(device));
    let to = b.pd.register(HEADER, LOCAL_WRITE);
    let ah = a.pd.ah_to(&a.endpoint(), &b.endpoint());
    b.qp.post_receive(1, &[to.sge(0, HEADER)]);
    a.qp.start();
    a.qp.build(&Wr::send(2, &[]).with_imm(0x0102_0304_u32.to_be()));
    a.qp.set_address(ah.0, b.qp.number(), QKEY);
    assert_eq!(a.qp.complete(), 0);
    let wc = b.receive_cq.expect_success(1);
    assert_eq!((imm_of(&wc), wc.byte_len as usize), (0x0102_0304_u32.to_be(), HEADER));
    a.send_cq.expect_success(2);
}

/// Returns two connected sides that post with function calls.
fn both_sides(device: &Device) -> (Side, Side) {
    needs_calls(device);
    let (a, b) = (
        Side::extended(device, &Size::default(), operations()),
        Side::extended(device, &Size::default(), operations()),
    );
    connect_sides(&a, &b, &Knobs::default());
    (a, b)
}

fn a_call_binds_a_window(device: &Device) {
    let (grantor, user) = both_sides(device);
    let shown = grantor.pd.register(64, BINDABLE);
    let local = user.pd.register_filled(vec![7; 64], LOCAL_WRITE);
    let mw = needs_windows(device, &grantor);
    let key = mw.key_with(1);
    // Local write has no effect for a window, but naming it is allowed.
    let bind = Wr::bind(1, &mw, key, shown.part(16, 8, REMOTE_WRITE | LOCAL_WRITE));
    assert_eq!(grantor.qp.try_call(&[bind]), 0);
    assert_eq!(grantor.send_cq.expect_success(1).opcode, Opcode::IBV_WC_BIND_MW);
    let write = Wr::write(2, &[local.sge(0, 8)], &shown, 0).remote(shown.address() + 16, key);
    assert_eq!(user.qp.try_call(&[write]), 0);
    user.send_cq.expect_success(2);
    drop(mw);
    assert_eq!(shown.deregister()[16..24], [7; 8]);
}

fn needs_windows(device: &Device, side: &Side) -> test_support::rig::window::Mw {
    let mw = side.pd.try_mw(TYPE_2);
    device.needs(mw.is_ok(), "the device has no memory windows of type 2");
    mw.unwrap()
}

fn a_call_invalidates_a_window(device: &Device) {
    let (grantor, user) = both_sides(device);
    let shown = grantor.pd.register(64, BINDABLE);
    let local = user.pd.register_filled(vec![7; 64], LOCAL_WRITE);
    let mw = needs_windows(device, &grantor);
    let key = mw.key_with(1);
    let bind = Wr::bind(1, &mw, key, shown.part(16, 8, REMOTE_WRITE));
    assert_eq!(grantor.qp.try_call(&[bind, Wr::local_invalidate(3, key)]), 0);
    grantor.send_cq.expect_success(1);
    assert_eq!(grantor.send_cq.expect_success(3).opcode, Opcode::IBV_WC_LOCAL_INV);
    let write = Wr::write(2, &[local.sge(0, 8)], &shown, 0).remote(shown.address() + 16, key);
    assert_eq!(user.qp.try_call(&[write]), 0);
    user.send_cq.expect(2, Status::IBV_WC_REM_ACCESS_ERR);
    shown.assert_filled(0);
}

fn a_send_by_call_invalidates_the_peers_window(device: &Device) {
    let (grantor, user) = both_sides(device);
    let shown = grantor.pd.register(64, BINDABLE);
    let local = user.pd.register_filled(vec![7; 64], LOCAL_WRITE);
    let mw = needs_windows(device, &grantor);
    let key = mw.key_with(1);
    assert_eq!(grantor.qp.try_call(&[Wr::bind(1, &mw, key, shown.part(16, 8, REMOTE_WRITE))]), 0);
    grantor.send_cq.expect_success(1);
    grantor.qp.post_receive(5, &[]);
    let write = Wr::write(2, &[local.sge(0, 8)], &shown, 0).remote(shown.address() + 16, key);
    let give_back = Wr::send_with_invalidate(4, &[], key);
    assert_eq!(user.qp.try_call(&[write.clone(), give_back, write]), 0);
    user.send_cq.expect_success(2);
    user.send_cq.expect_success(4);
    grantor.receive_cq.expect_success(5);
    user.send_cq.expect(2, Status::IBV_WC_REM_ACCESS_ERR);
}

/// Writes these parts of A's memory, given as offset and length, to B's memory with a function
/// call. Returns the contents of B's memory.
fn written(scene: &Scene, pieces: &[(usize, usize)]) -> Vec<u8> {
    let sges: Vec<_> = pieces.iter().map(|&(from, length)| scene.at_a.sge(from, length)).collect();
    assert_eq!(scene.a.qp.try_call(&[Wr::write(1, &sges, &scene.at_b, 0)]), 0);
    scene.a.send_cq.expect_success(1);
    scene.at_b.bytes()
}

fn lists_of_elements_are_sent_one_behind_the_other(device: &Device) {
    let scene = scene(device);
    let bytes = written(&scene, &[(40, 2), (0, 10), (20, 3)]);
    // SoftRoCE computes the length as if all three elements were as long as the first.
    let count = device.expected(15, "wr-set-sge-list-length", 6);
    let wanted: Vec<u8> = (40..42).chain(0..10).chain(20..23).take(count).collect();
    assert_eq!(bytes[..count], wanted);
    assert_eq!(bytes[count..], vec![0; 64 - count]);
}

fn as_many_elements_as_the_queue_pair_has_are_sent(device: &Device) {
    needs_calls(device);
    let most = u32::try_from(device.attributes().max_sge.min(16)).unwrap();
    let scene = Scene::with(device, &Size { sge: most, ..Size::default() }, operations());
    let most = most as usize;
    let pieces: Vec<_> = (0..most).rev().map(|n| (4 * n, 4)).collect();
    let bytes = written(&scene, &pieces);
    let wanted: Vec<u8> = pieces
        .iter()
        .flat_map(|&(from, length)| scene.at_a.bytes()[from..from + length].to_vec())
        .collect();
    assert_eq!(bytes[..4 * most], wanted);
}

/// Returns a write whose data must be set with a further call. It has the inline flag, because
/// without it SoftRoCE does not treat the data as inline.
fn flagged(scene: &Scene, wr_id: u64, place: usize) -> Wr {
    Wr::write(wr_id, &[], &scene.at_b, place).inline()
}

fn inline_data_is_copied_at_the_call(device: &Device) {
    device.needs_inline(10);
    let scene = scene(device);
    let mut bytes = vec![1_u8; 10];
    scene.a.qp.start();
    scene.a.qp.begin(&Wr::write(1, &[], &scene.at_b, 0));
    scene.a.qp.set_inline(&[&bytes]);
    bytes.fill(2);
    assert_eq!(scene.a.qp.complete(), 0);
    if device.differs("wr-set-inline-data-flag") {
        scene.a.send_cq.expect(1, Status::IBV_WC_LOC_QP_OP_ERR);
        return scene.at_b.assert_filled(0);
    }
    scene.a.send_cq.expect_success(1);
    assert_eq!(scene.at_b.bytes()[..10], [1; 10]);
}

fn inline_data_needs_no_region(device: &Device) {
    device.needs_inline(10);
    let scene = scene(device);
    let mut bytes = vec![1_u8; 10];
    scene.a.qp.start();
    for n in 0..3 {
        scene.a.qp.begin(&flagged(&scene, n as u64, 10 * n));
        scene.a.qp.set_inline(&[&bytes[..10 - n]]);
        bytes.fill(2 + u8::try_from(n).unwrap());
    }
    drop(bytes);
    assert_eq!(scene.a.qp.complete(), 0);
    scene.expect_successes(0..3);
    let wanted = [&[1; 10][..], &[2; 9], &[0], &[3; 8], &[0; 36]].concat();
    assert_eq!(scene.at_b.bytes(), wanted);
}

fn inline_data_of_several_buffers_is_one_message(device: &Device) {
    device.needs_inline(6);
    let scene = scene(device);
    scene.b.qp.post_receive(5, &[scene.at_b.sge(0, 64)]);
    scene.a.qp.start();
    scene.a.qp.begin(&Wr::send(1, &[]).inline());
    scene.a.qp.set_inline(&[&[1, 2, 3], &[], &[9], &[5, 6]]);
    assert_eq!(scene.a.qp.complete(), 0);
    scene.a.send_cq.expect_success(1);
    let sent: &[u8] = device.expected(&[1, 2, 3, 9, 5, 6], "wr-set-inline-data-list-length", &[]);
    assert_eq!(scene.b.receive_cq.expect_success(5).byte_len as usize, sent.len());
    assert_eq!(&scene.at_b.bytes()[..sent.len()], sent);
}

fn inline_data_by_call_may_have_the_length_that_was_asked_for(device: &Device) {
    needs_calls(device);
    for inline in [1, 16, 48].into_iter().filter(|&inline| inline <= usual_inline()) {
        let scene = Scene::with(device, &Size { inline, ..Size::default() }, operations());
        let bytes: Vec<u8> = (1..=64).take(inline as usize).collect();
        scene.a.qp.start();
        scene.a.qp.begin(&flagged(&scene, 1, 0));
        scene.a.qp.set_inline(&[&bytes]);
        assert_eq!(scene.a.qp.complete(), 0);
        scene.a.send_cq.expect_success(1);
        assert_eq!(scene.at_b.bytes()[..bytes.len()], bytes);
    }
}

fn wr_id_and_flags_are_those_of_the_moment_of_the_call(device: &Device) {
    let scene = scene(device);
    scene.a.qp.start();
    scene.a.qp.build(&scene.write(1, 0));
    scene.a.qp.build(&scene.write(2, 8).unsignaled());
    scene.a.qp.build(&scene.write(3, 16));
    scene.a.qp.build(&scene.write(4, 24).unsignaled());
    assert_eq!(scene.a.qp.complete(), 0);
    scene.a.qp.post(&scene.write(5, 32));
    for wr_id in [1, 3, 5] {
        scene.a.send_cq.expect_success(wr_id);
    }
    assert!(scene.a.send_cq.is_empty());
}

fn unsignaled_calls_complete_silently(device: &Device) {
    let scene = scene(device);
    let silent = [0, 8, 16].map(|place| scene.write(1, place).unsignaled());
    assert_eq!(scene.a.qp.try_call(&silent), 0);
    assert_eq!(scene.a.qp.try_call(&[scene.write(2, 24)]), 0);
    scene.a.send_cq.expect_success(2);
    assert!(scene.a.send_cq.is_empty());
    assert_eq!(scene.at_b.bytes()[..32], scene.at_a.bytes()[..32]);
}

fn calls_of_a_queue_pair_that_signals_all_complete(device: &Device) {
    needs_calls(device);
    let scene = Scene::with(device, &Size { signal_all: true, ..Size::default() }, operations());
    let silent = [1, 2, 3].map(|wr_id| scene.write(wr_id, 0).unsignaled());
    assert_eq!(scene.a.qp.try_call(&silent), 0);
    scene.expect_successes(1..4);
}

fn a_fenced_call_waits_for_the_read_before_it(device: &Device) {
    let scene = scene(device);
    scene.at_b.fill(9);
    let read = Wr::read(1, &[scene.at_a.sge(0, 32)], &scene.at_b, 0);
    let send_on = Wr::send(2, &[scene.at_a.sge(0, 32)]).fenced();
    scene.b.qp.post_receive(3, &[scene.at_b.sge(32, 32)]);
    assert_eq!(scene.a.qp.try_call(&[read, send_on]), 0);
    scene.expect_successes(1..3);
    scene.b.receive_cq.expect_success(3);
    scene.at_b.assert_filled(9);
}

fn a_solicited_call_wakes_who_waits_for_solicited_completions(device: &Device) {
    needs_calls(device);
    let context = device.open();
    let channel = context.channel();
    let (pd, send_cq) = (context.pd(), context.cq(16));
    let receive_cq = context.cq_with(&channel, 16);
    let receiver = pd.qp(&send_cq, &receive_cq, &Size::default());
    let a = Side::extended(device, &Size::default(), operations());
    let (there, here) = (a.endpoint(), endpoint(&context, &receiver));
    connect(&a.qp, &there, &here, &Knobs::default());
    connect(&receiver, &here, &there, &Knobs::default());
    (1..3).for_each(|n| receiver.post_receive(n, &[]));
    receive_cq.request_event(true);
    assert_eq!(a.qp.try_call(&[Wr::send(1, &[])]), 0);
    a.send_cq.expect_success(1);
    receive_cq.expect_success(1);
    assert!(!channel.is_readable(), "no event was requested");
    let solicited = Wr::send(2, &[]).flags(ibv_send_flags::IBV_SEND_SOLICITED);
    assert_eq!(a.qp.try_call(&[solicited]), 0);
    a.send_cq.expect_success(2);
    until("the event", || channel.is_readable());
    assert_eq!(channel.get(), Ok(receive_cq.0));
    receive_cq.acknowledge(1);
    receive_cq.expect_success(2);
}
