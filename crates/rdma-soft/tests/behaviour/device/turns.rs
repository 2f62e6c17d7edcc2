//! Limits of execution: a busy thread executes only a turn of the requests of others, and a thread with a long copy
//! lets others in.

use std::thread;

use rdma_soft::{Builder, SoftDevice};
use rdma_sys::{
    ibv_qp_attr, ibv_qp_attr_mask as Mask, ibv_qp_state as State, ibv_wc_status as Status,
};

use crate::device::rig::batch;
use crate::device::rig::connect::{Knobs, Side, pair_with};
use crate::device::rig::post::Wr;
use crate::device::rig::{ALL_ACCESS, Mr, Size, soft, until};

const LONG: usize = 8 << 20;
const BACKLOG: u32 = 64;

/// Fields drop in order.
struct Stage {
    source: Mr,
    sink: Mr,
    a: Side,
    b: Side,
    device: SoftDevice,
}

impl Stage {
    fn new(name: &str) -> Self {
        Builder::new(name).install().unwrap();
        let size = Size { send_wr: 256, receive_wr: 256, sge: 32, ..Size::default() };
        let (a, b) = pair_with(name, &size, &Knobs::default());
        let source = a.pd.register_filled(vec![7; LONG], ALL_ACCESS);
        let sink = b.pd.register_filled(vec![0; LONG], ALL_ACCESS);
        Self { source, sink, a, b, device: soft(name) }
    }

    /// Posts a SEND that finds no receive request, followed by writes of 8 MiB each.
    fn post_backlog(&self) {
        self.a.qp.post(&Wr::send(0, &[]));
        for n in 1..=BACKLOG {
            let all = [self.source.sge(0, LONG)];
            self.a.qp.post(&Wr::write(n.into(), &all, &self.sink, 0).unsignaled());
        }
        self.a.qp.post(&Wr::write(1000, &[], &self.sink, 0));
    }

    /// A stage whose backlog was released by `go`, which executed no more than half of it. The device's thread may
    /// execute more while this thread gets no processor, so this may take some attempts on a busy machine.
    fn with_most_left(name: &str, go: impl Fn(&Self)) -> Self {
        for attempt in 1.. {
            let stage = Self::new(&format!("{name}-{attempt}"));
            stage.post_backlog();
            go(&stage);
            let left = stage.left();
            if left > BACKLOG as usize / 2 {
                return stage;
            }
            assert!(attempt < 10, "only {left} of {BACKLOG} are left");
        }
        unreachable!("the assertion fails in the last attempt")
    }

    fn left(&self) -> usize {
        self.device.in_flight(self.a.qp.qpn())
    }
}

/// The receiver posts its receive request. The call returns long before everything that waited for it is copied; yet
/// all of it is executed in the end, polled or not.
#[test]
fn posting_a_receive_does_not_execute_the_backlog_of_the_peer() {
    let stage = Stage::with_most_left("turn-receive", |stage| stage.b.qp.post_receive(1, &[]));
    stage.a.send_cq.expect_success(0);
    stage.b.receive_cq.expect_success(1);
    // No thread polls here.
    until("the rest", || stage.left() == 0);
    stage.a.send_cq.expect_success(1000);
    assert_eq!(stage.sink.bytes()[LONG - 1], 7);
}

/// A post after a backlog executes at most a turn either, and order is kept.
#[test]
fn posting_after_a_backlog_does_not_execute_all_of_it() {
    let stage = Stage::with_most_left("turn-post", |stage| {
        stage.b.qp.post_receive(1, &[]);
        stage.a.qp.post(&Wr::write(1001, &[], &stage.sink, 0));
    });
    for wr_id in [0, 1000, 1001] {
        stage.a.send_cq.expect_success(wr_id);
    }
}

/// Without polls and other threads, the post must execute everything.
#[test]
fn posting_a_long_message_executes_all_of_it() {
    let stage = Stage::new("turn-own");
    stage.b.qp.post_receive(1, &[stage.sink.sge(0, LONG); 32]);
    stage.a.qp.post(&Wr::send(1, &[stage.source.sge(0, LONG); 32]));
    assert_eq!(stage.left(), 0);
    stage.a.send_cq.expect_success(1);
}

/// Requests of a batch after a long message wait without the thread that posted it.
#[test]
fn posting_a_long_batch_does_not_wait_for_a_receiver() {
    let device = Builder::new("turn-batch").install().unwrap();
    let scene = batch::Scene::new(device.name());
    let source = scene.a.pd.register(LONG, 0);
    let sink = scene.b.pd.register(LONG, ALL_ACCESS);
    let write = Wr::write(1, &[source.sge(0, LONG)], &sink, 0);
    assert_eq!(scene.a.qp.try_call(&[write, Wr::send(2, &[])]), 0);
    scene.a.send_cq.expect_success(1);
    assert_eq!(device.in_flight(scene.a.qp.qpn()), 1);
    scene.b.qp.post_receive(3, &[]);
    scene.a.send_cq.expect_success(2);
}

/// While a thread copies a message of 256 MiB, calls of others on the two queue pairs can return. This is required
/// during one of 20 copies: another thread may use this core. A test of the library (`requester/drive`) verifies that
/// waiters are let in after the current stretch of the copy.
#[test]
fn others_can_be_let_in_during_a_long_copy() {
    let stage = Stage::new("turn-long");
    let answered = (0..20).any(|n| is_answered_while_copying(&stage, n));
    assert!(answered, "each answer came after the copy");
}

/// Returns true if all answers arrived before the end of the copy.
fn is_answered_while_copying(stage: &Stage, n: u64) -> bool {
    let (from, to) = ([stage.source.sge(0, LONG); 32], [stage.sink.sge(0, LONG); 32]);
    stage.b.qp.post_receive(n, &to);
    let mut answered = false;
    thread::scope(|threads| {
        let a = &stage.a.qp;
        let copy = threads.spawn(move || a.post(&Wr::send(n, &from)));
        while stage.left() == 0 && !copy.is_finished() {}
        assert_eq!(stage.b.qp.state(), State::IBV_QPS_RTS);
        assert_eq!(stage.a.qp.state(), State::IBV_QPS_RTS);
        let _ = stage.device.counters();
        let slow = ibv_qp_attr { min_rnr_timer: 1 + n as u8 % 31, ..ibv_qp_attr::default() };
        assert_eq!(stage.b.qp.modify(slow, Mask::IBV_QP_MIN_RNR_TIMER.0), 0);
        assert_eq!(stage.a.qp.modify(slow, Mask::IBV_QP_MIN_RNR_TIMER.0), 0);
        answered = stage.left() > 0;
    });
    stage.a.send_cq.expect_success(n);
    assert_eq!(stage.b.receive_cq.expect_success(n).byte_len, 256 << 20);
    answered
}

/// The same with a list of 256 writes of 1 MiB each, posted by one call.
#[test]
fn others_can_be_let_in_during_a_list() {
    let stage = Stage::new("turn-list");
    let write = |n| Wr::write(n, &[stage.source.sge(0, LONG / 8)], &stage.sink, 0).unsignaled();
    let executed = || stage.device.counters().sent_pkts;
    let mut answered = false;
    for _ in 0..20 {
        let before = executed();
        thread::scope(|threads| {
            let asked = threads.spawn(|| {
                while executed() == before {}
                assert_eq!(stage.a.qp.state(), State::IBV_QPS_RTS);
                executed()
            });
            let mut list: Vec<Wr> = (0..255).map(write).collect();
            list.push(Wr::write(255, &[], &stage.sink, 0));
            stage.a.qp.try_post_list(&list).unwrap();
            answered |= asked.join().unwrap() < before + 256;
        });
        stage.a.send_cq.expect_success(255);
        if answered {
            return;
        }
    }
    panic!("each answer came after the list");
}

/// A message that is copied by several threads in turns is whole, and completes once.
#[test]
fn a_message_of_many_turns_is_whole() {
    let stage = Stage::new("turn-whole");
    let bytes: Vec<u8> = (0..LONG).map(|n| (n % 251) as u8).collect();
    let source = stage.a.pd.register_filled(bytes.clone(), 0);
    stage.a.qp.post(&Wr::send(1, &[source.sge(0, LONG)]));
    stage.b.qp.post_receive(2, &[stage.sink.sge(0, LONG)]);
    stage.a.send_cq.expect_success(1);
    assert_eq!(stage.b.receive_cq.expect_success(2).byte_len as usize, LONG);
    assert!(stage.sink.bytes() == bytes, "the message differs");
}

/// The queue pair is destroyed while its message is half copied.
#[test]
fn the_rest_of_a_destroyed_queue_pairs_message_is_cancelled() {
    let mut stage = Stage::new("turn-destroyed");
    stage.post_backlog();
    stage.b.qp.post_receive(1, &[]);
    stage.a.qp.destroy();
    stage.sink.fill(1);
    thread::yield_now();
    assert!(stage.sink.bytes().iter().all(|&byte| byte == 1), "written after the end");
    stage.b.receive_cq.expect(1, Status::IBV_WC_SUCCESS);
}
