//! The fields of completions in extended completion queues, and the device's clock (man
//! `ibv_create_cq_ex`, `ibv_query_device_ex`, `ibv_query_rt_values_ex`).

use std::time::{SystemTime, UNIX_EPOCH};

use rdma_sys::{
    Errno, ibv_cq_init_attr_ex, ibv_create_cq_wc_flags as Fields, ibv_wc_flags,
    ibv_wc_opcode as Opcode, ibv_wc_status as Status, ibv_wr_opcode,
};
use test_support::rig::connect::{Knobs, Side, connect, connect_sides, endpoint};
use test_support::rig::datagram::{self, HEADER, QKEY};
use test_support::rig::extended::{Read, STANDARD, TIMESTAMP, WALLCLOCK};
use test_support::rig::post::Wr;
use test_support::rig::transition::UD;
use test_support::rig::{ALL_ACCESS, Cq, LOCAL_WRITE, Mr, Size, imm_of};

use super::extended_polls::{complete_receives, needs_fields};
use crate::case::cases;
use crate::device::Device;

cases![
    fields_are_those_of_a_classic_poll,
    the_opcode_is_that_of_the_request,
    the_opcode_of_a_receive_says_what_arrived,
    the_length_is_what_arrived_not_what_there_was_room_for,
    immediate_data_is_there_with_its_flag,
    the_queue_pair_of_a_completion_is_told,
    the_sender_of_a_datagram_is_told,
    each_field_can_be_asked_for_alone,
    fields_may_be_read_again,
    a_failed_completion_has_its_identity_status_and_queue_pair,
    timestamps_say_when_it_completed,
    wallclock_times_say_when_it_completed,
    a_device_has_timestamps_if_and_only_if_it_says_so,
    extended_attributes_begin_with_the_classic_ones,
    extended_attributes_that_nobody_has_defined_are_refused,
    the_clock_does_not_go_backwards,
    the_clock_says_what_it_was_asked_for,
];

/// Two connected sides whose completion queues are extended and have the requested fields, and
/// memory of each side.
struct Scene {
    at_a: Mr,
    at_b: Mr,
    a: Side,
    b: Side,
}

fn scene(device: &Device, fields: u64) -> Scene {
    needs_fields(device, fields);
    let (a, b) = (Side::with_fields(device, 64, fields), Side::with_fields(device, 64, fields));
    connect_sides(&a, &b, &Knobs::default());
    let at_a = a.pd.register_filled((0..64).collect(), LOCAL_WRITE);
    let at_b = b.pd.register(64, ALL_ACCESS);
    Scene { at_a, at_b, a, b }
}

/// Waits for the next completion, checks that the request with this ID succeeded, and returns its
/// fields.
#[track_caller]
fn read_next(cq: &Cq, wr_id: u64) -> Read {
    cq.start_at_next();
    assert_eq!(cq.at(), (wr_id, Status::IBV_WC_SUCCESS));
    let read = cq.read();
    cq.end();
    read
}

impl Scene {
    /// Returns a SEND and a WRITE with immediate data, a READ, a WRITE and both atomics, each with
    /// the opcode of its completion.
    fn requests(&self) -> [(Wr, Opcode); 6] {
        let (local, word) = ([self.at_a.sge(0, 24)], [self.at_a.sge(56, 8)]);
        let swap = ibv_wr_opcode::IBV_WR_ATOMIC_CMP_AND_SWP;
        let add = ibv_wr_opcode::IBV_WR_ATOMIC_FETCH_AND_ADD;
        let imm = 0x1234_5678_u32.to_be();
        [
            (Wr::send(1, &local).with_imm(imm), Opcode::IBV_WC_SEND),
            (Wr::write(2, &local, &self.at_b, 0).with_imm(7), Opcode::IBV_WC_RDMA_WRITE),
            (Wr::read(3, &local, &self.at_b, 0), Opcode::IBV_WC_RDMA_READ),
            (Wr::write(4, &local, &self.at_b, 0), Opcode::IBV_WC_RDMA_WRITE),
            (Wr::new(5, swap, &word).atomic(&self.at_b, 48, 0, 5), Opcode::IBV_WC_COMP_SWAP),
            (Wr::new(6, add, &word).atomic(&self.at_b, 48, 2, 0), Opcode::IBV_WC_FETCH_ADD),
        ]
    }

    /// Posts a receive of up to 32 bytes, and then the request that consumes it.
    fn exchange(&self, wr: &Wr) {
        self.b.qp.post_receive(10 + wr.wr.wr_id, &[self.at_b.sge(32, 32)]);
        self.a.qp.post(wr);
    }
}

fn fields_are_those_of_a_classic_poll(device: &Device) {
    let scene = scene(device, STANDARD);
    let mut rounds = Vec::new();
    for classic in [true, false] {
        let mut seen = Vec::new();
        for (wr, _) in &scene.requests()[..4] {
            let receives = wr.wr.wr_id < 3;
            match receives {
                true => scene.exchange(wr),
                false => scene.a.qp.post(wr),
            }
            let queues = [Some(&scene.a.send_cq), receives.then_some(&scene.b.receive_cq)];
            for cq in queues.into_iter().flatten() {
                seen.push(if classic {
                    let wc = cq.next();
                    let fields = (wc.opcode, wc.wc_flags, wc.byte_len, imm_of(&wc));
                    let sender = (wc.src_qp, u32::from(wc.slid), wc.sl, wc.dlid_path_bits);
                    (wc.wr_id, fields, wc.qp_num, sender, wc.vendor_err)
                } else {
                    cq.start_at_next();
                    let (wr_id, read) = (cq.at().0, cq.read());
                    cq.end();
                    let fields = (read.opcode, read.wc_flags, read.byte_len, read.imm_data);
                    let sender = (read.src_qp, read.slid, read.sl, read.dlid_path_bits);
                    (wr_id, fields, read.qp_num, sender, read.vendor_err)
                });
            }
        }
        rounds.push(seen);
    }
    assert_eq!(rounds[0], rounds[1]);
}

fn the_opcode_is_that_of_the_request(device: &Device) {
    let scene = scene(device, STANDARD);
    scene.b.qp.post_receive(11, &[scene.at_b.sge(32, 32)]);
    scene.b.qp.post_receive(12, &[]);
    // The last two requests are atomics.
    let count = if device.has_atomics() { 6 } else { 4 };
    for (wr, opcode) in scene.requests().into_iter().take(count) {
        scene.a.qp.post(&wr);
        assert_eq!(read_next(&scene.a.send_cq, wr.wr.wr_id).opcode, opcode);
    }
}

fn the_opcode_of_a_receive_says_what_arrived(device: &Device) {
    let scene = scene(device, STANDARD);
    let [send, write, ..] = scene.requests();
    let opcodes = [Opcode::IBV_WC_RECV, Opcode::IBV_WC_RECV_RDMA_WITH_IMM];
    for ((wr, _), opcode) in [send, write].into_iter().zip(opcodes) {
        scene.exchange(&wr);
        assert_eq!(read_next(&scene.b.receive_cq, 10 + wr.wr.wr_id).opcode, opcode);
    }
}

fn the_length_is_what_arrived_not_what_there_was_room_for(device: &Device) {
    let scene = scene(device, STANDARD);
    for length in [0, 1, 31, 32] {
        scene.exchange(&Wr::send(1, &[scene.at_a.sge(0, length)]));
        assert_eq!(read_next(&scene.b.receive_cq, 11).byte_len as usize, length);
        let write = Wr::write(2, &[scene.at_a.sge(0, length)], &scene.at_b, 0);
        scene.exchange(&write.with_imm(1));
        assert_eq!(read_next(&scene.b.receive_cq, 12).byte_len as usize, length);
    }
}

fn immediate_data_is_there_with_its_flag(device: &Device) {
    let scene = scene(device, STANDARD);
    let imm = 0x8000_0001_u32.to_be();
    for (wr, flag) in [(Wr::send(1, &[]).with_imm(imm), true), (Wr::send(2, &[]), false)] {
        scene.exchange(&wr);
        let read = read_next(&scene.b.receive_cq, 10 + wr.wr.wr_id);
        assert_eq!(read.wc_flags & ibv_wc_flags::IBV_WC_WITH_IMM.0 != 0, flag);
        assert!(!flag || read.imm_data == imm, "{read:?}");
    }
}

fn the_queue_pair_of_a_completion_is_told(device: &Device) {
    needs_fields(device, STANDARD);
    let context = device.open();
    let (pd, cq) = (context.pd(), context.cq_ex(64, STANDARD));
    let qps = [0, 1, 2].map(|_| pd.qp(&cq, &cq, &Size::default()));
    for qp in &qps {
        let own = endpoint(&context, qp);
        connect(qp, &own, &own, &Knobs::default());
    }
    for (n, qp) in [2, 0, 1].map(|n: u8| (u64::from(n), &qps[usize::from(n)])) {
        qp.post_receive(10 + n, &[]);
        qp.post(&Wr::send(20 + n, &[]));
        let mut done = [0, 1].map(|_| {
            cq.start_at_next();
            let seen = (cq.at().0, cq.read().qp_num);
            cq.end();
            seen
        });
        done.sort_unstable();
        assert_eq!(done, [(10 + n, qp.number()), (20 + n, qp.number())]);
    }
}

fn the_sender_of_a_datagram_is_told(device: &Device) {
    device.needs_type(UD);
    needs_fields(device, STANDARD);
    let a = datagram::side(device);
    let context = device.open();
    let (pd, cq) = (context.pd(), context.cq_ex(16, STANDARD));
    let qp = pd.qp(&cq, &cq, &datagram::size());
    datagram::activate(&qp, QKEY);
    let to = pd.register(HEADER + 16, LOCAL_WRITE);
    let from = a.pd.register(16, LOCAL_WRITE);
    let ah = a.pd.ah_to(&a.endpoint(), &endpoint(&context, &qp));
    qp.post_receive(1, &[to.sge(0, HEADER + 16)]);
    a.qp.post(&Wr::send(2, &[from.sge(0, 16)]).to(&ah, qp.number(), QKEY));
    let read = read_next(&cq, 1);
    assert_eq!((read.src_qp, read.qp_num), (a.qp.number(), qp.number()));
    assert_eq!(read.byte_len as usize, HEADER + 16);
    let global = read.wc_flags & ibv_wc_flags::IBV_WC_GRH.0 != 0;
    assert_eq!(global, a.endpoint().ethernet);
    a.send_cq.expect_success(2);
}

fn each_field_can_be_asked_for_alone(device: &Device) {
    needs_fields(device, STANDARD);
    let imm = 0x0102_0304_u32.to_be();
    for field in
        [Fields::IBV_WC_EX_WITH_BYTE_LEN, Fields::IBV_WC_EX_WITH_IMM, Fields::IBV_WC_EX_WITH_QP_NUM]
    {
        let scene = scene(device, field.0.into());
        scene.exchange(&Wr::send(1, &[scene.at_a.sge(0, 24)]).with_imm(imm));
        let read = read_next(&scene.b.receive_cq, 11);
        assert_eq!(read.opcode, Opcode::IBV_WC_RECV);
        match field {
            Fields::IBV_WC_EX_WITH_BYTE_LEN => assert_eq!(read.byte_len, 24),
            Fields::IBV_WC_EX_WITH_IMM => assert_eq!(read.imm_data, imm),
            _ => assert_eq!(read.qp_num, scene.b.qp.number()),
        }
    }
}

fn fields_may_be_read_again(device: &Device) {
    let scene = scene(device, STANDARD);
    for wr_id in [1, 2] {
        scene.exchange(&Wr::send(wr_id, &[scene.at_a.sge(0, 8)]).with_imm(5));
        scene.a.send_cq.expect_success(wr_id);
    }
    complete_receives(&scene.a, &scene.b);
    let cq = &scene.b.receive_cq;
    assert_eq!(cq.start(), 0);
    let first = (cq.at(), cq.read());
    // Later completions do not change the current one, even if they are in the same queue.
    scene.exchange(&Wr::send(3, &[scene.at_a.sge(0, 9)]).with_imm(6));
    scene.a.send_cq.expect_success(3);
    assert_eq!((cq.at(), cq.read()), first);
    assert_eq!((cq.advance(), cq.at().0), (0, 12));
    cq.end();
}

fn a_failed_completion_has_its_identity_status_and_queue_pair(device: &Device) {
    let scene = scene(device, STANDARD);
    let bad = Wr::write(5, &[scene.at_a.sge(0, 8)], &scene.at_b, 0)
        .remote(scene.at_b.address(), scene.at_b.key() ^ 0x0010_0000);
    scene.a.qp.post(&bad);
    scene.a.qp.post(&Wr::send(6, &[]));
    let failures = [(5, Status::IBV_WC_REM_ACCESS_ERR), (6, Status::IBV_WC_WR_FLUSH_ERR)];
    for failure in failures {
        scene.a.send_cq.start_at_next();
        assert_eq!(scene.a.send_cq.at(), failure);
        assert_eq!(scene.a.send_cq.read().qp_num, scene.a.qp.number());
        scene.a.send_cq.end();
    }
}

fn has_timestamps(device: &Device) -> bool {
    device.open().query_device_ex().completion_timestamp_mask != 0
}

fn timestamps_say_when_it_completed(device: &Device) {
    device.needs(has_timestamps(device), "the device has no timestamps");
    let scene = scene(device, TIMESTAMP);
    let mut last = scene.a.context.clock();
    for wr_id in 1..5 {
        scene.exchange(&Wr::send(wr_id, &[]));
        let received = read_next(&scene.b.receive_cq, 10 + wr_id).timestamp;
        let sent = read_next(&scene.a.send_cq, wr_id).timestamp;
        let after = scene.a.context.clock();
        for timestamp in [received, sent] {
            assert!((last..=after).contains(&timestamp), "{last} {timestamp} {after}");
        }
        last = after;
    }
}

fn wallclock_times_say_when_it_completed(device: &Device) {
    device.needs(has_timestamps(device), "the device has no timestamps");
    let scene = scene(device, WALLCLOCK);
    // The two clocks are not read at the same moment, and one of them may be adjusted.
    let slack = 1_000_000_000;
    for wr_id in 1..4 {
        let before = wall();
        scene.exchange(&Wr::send(wr_id, &[]));
        let time = read_next(&scene.b.receive_cq, 10 + wr_id).wallclock;
        assert!((before - slack..wall() + slack).contains(&time), "{before} {time}");
    }
}

/// Returns the wall-clock time, in nanoseconds since 1970.
fn wall() -> u64 {
    let since = SystemTime::now().duration_since(UNIX_EPOCH).unwrap();
    u64::try_from(since.as_nanos()).unwrap()
}

fn a_device_has_timestamps_if_and_only_if_it_says_so(device: &Device) {
    needs_fields(device, STANDARD);
    let attr = ibv_cq_init_attr_ex { cqe: 4, wc_flags: TIMESTAMP, ..Default::default() };
    assert_eq!(device.open().try_cq_ex(&attr).is_ok(), has_timestamps(device));
}

fn extended_attributes_begin_with_the_classic_ones(device: &Device) {
    let context = device.open();
    let (classic, extended) = (context.query_device(), context.query_device_ex());
    assert_eq!(format!("{classic:?}"), format!("{:?}", extended.orig_attr));
}

fn extended_attributes_that_nobody_has_defined_are_refused(device: &Device) {
    let size = size_of::<rdma_sys::ibv_device_attr_ex>();
    let context = device.open();
    assert!(context.query_device_ex_bytes(0, size).is_ok());
    assert_eq!(context.query_device_ex_bytes(1 << 31, size), Err(Errno::EINVAL.raw()));
}

fn needs_clock(device: &Device) {
    let (refused, _) = device.open().query_rt_values(1);
    device.needs(refused != Errno::EOPNOTSUPP.raw(), "the device has no readable clock");
}

fn the_clock_does_not_go_backwards(device: &Device) {
    needs_clock(device);
    let context = device.open();
    let times: Vec<_> = (0..100).map(|_| context.clock()).collect();
    assert!(times.is_sorted(), "{times:?}");
}

fn the_clock_says_what_it_was_asked_for(device: &Device) {
    needs_clock(device);
    let context = device.open();
    let (done, asked) = context.query_rt_values(1);
    assert_eq!((done, asked.comp_mask), (0, 1));
    let (done, nothing) = context.query_rt_values(0);
    assert_eq!((done, nothing.comp_mask), (0, 0));
}
