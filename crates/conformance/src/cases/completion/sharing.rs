//! Completion queues that several send and receive queues share, queue pairs that are connected to
//! themselves, and many queue pairs at once.

use rdma_sys::ibv_wc_status as Status;
use test_support::rig::connect::{Knobs, Side, connect, connect_sides, endpoint, pair};
use test_support::rig::post::Wr;
use test_support::rig::{ALL_ACCESS, Context, Cq, Pd, Qp, Size};

use crate::case::cases;
use crate::device::Device;

cases![
    one_queue_takes_the_completions_of_both_ends_of_a_queue_pair,
    one_queue_takes_the_completions_of_many_queue_pairs,
    each_queue_pair_keeps_its_order_in_a_shared_queue,
    failure_of_one_queue_pair_leaves_others_of_its_completion_queue_alone,
    flushes_of_both_ends_of_a_queue_pair_share_a_queue,
    completions_of_others_survive_a_queue_pair,
    queue_pair_connected_to_itself_sends_writes_and_reads,
    queue_pair_connected_to_itself_can_refuse_itself,
    each_of_many_queue_pairs_gets_its_own_messages,
    queue_pairs_of_one_domain_work_side_by_side,
    queue_pair_numbers_are_different,
];

/// A device that uses one completion queue for everything.
struct Node {
    cq: Cq,
    pd: Pd,
    context: Context,
}

impl Node {
    fn new(device: &Device) -> Self {
        let context = device.open();
        let (cq, pd) = (context.cq(512), context.pd());
        Self { cq, pd, context }
    }

    /// Connects two queue pairs of this device to each other.
    fn pair(&self) -> (Qp, Qp) {
        let [a, b] = [(); 2].map(|()| self.pd.qp(&self.cq, &self.cq, &Size::default()));
        let (at_a, at_b) = (endpoint(&self.context, &a), endpoint(&self.context, &b));
        connect(&a, &at_a, &at_b, &Knobs::default());
        connect(&b, &at_b, &at_a, &Knobs::default());
        (a, b)
    }

    /// Polls the next completions. Returns the queue pair's number, the request's ID and the status
    /// of each.
    fn take(&self, count: usize) -> Vec<(u32, u64, Status)> {
        let next = || self.cq.next();
        (0..count).map(|_| next()).map(|wc| (wc.qp_num, wc.wr_id, wc.status)).collect()
    }
}

fn one_queue_takes_the_completions_of_both_ends_of_a_queue_pair(device: &Device) {
    let node = Node::new(device);
    let (a, b) = node.pair();
    for n in 0..10 {
        b.post_receive(n, &[]);
        a.post(&Wr::send(n + 100, &[]));
        let mut found = node.take(2);
        found.sort_by_key(|completion| completion.1);
        let success = Status::IBV_WC_SUCCESS;
        assert_eq!(found, [(b.number(), n, success), (a.number(), n + 100, success)]);
    }
    assert!(node.cq.is_empty());
}

fn one_queue_takes_the_completions_of_many_queue_pairs(device: &Device) {
    let node = Node::new(device);
    let pairs: Vec<_> = (0..16).map(|_| node.pair()).collect();
    let mut wanted = Vec::new();
    for (n, (a, b)) in pairs.iter().enumerate() {
        b.post_receive(n as u64, &[]);
        a.post(&Wr::send(n as u64, &[]));
        wanted.extend([a, b].map(|qp| (qp.number(), n as u64, Status::IBV_WC_SUCCESS)));
    }
    let mut found = node.take(wanted.len());
    found.sort_by_key(|completion| completion.0);
    wanted.sort_by_key(|completion| completion.0);
    assert_eq!(found, wanted);
    assert!(node.cq.is_empty());
}

fn each_queue_pair_keeps_its_order_in_a_shared_queue(device: &Device) {
    let node = Node::new(device);
    let pairs: Vec<_> = (0..4).map(|_| node.pair()).collect();
    let memory = node.pd.register(4096, ALL_ACCESS);
    for n in 0..20 {
        for (a, _) in &pairs {
            let length = if n % 3 == 0 { 4096 } else { 1 };
            a.post(&Wr::write(n, &[memory.sge(0, length)], &memory, 0));
        }
    }
    let found = node.take(80);
    for (a, _) in &pairs {
        let own = found.iter().filter(|completion| completion.0 == a.number());
        assert!(own.map(|completion| completion.1).eq(0..20));
    }
}

fn failure_of_one_queue_pair_leaves_others_of_its_completion_queue_alone(device: &Device) {
    let node = Node::new(device);
    let ((bad, _peer), (good, other)) = (node.pair(), node.pair());
    let memory = node.pd.register(8, ALL_ACCESS);
    bad.post(&Wr::write(1, &[memory.sge(0, 8)], &memory, 0).remote(0, 0));
    assert_eq!(node.take(1), [(bad.number(), 1, Status::IBV_WC_REM_ACCESS_ERR)]);
    good.post(&Wr::write(2, &[memory.sge(0, 8)], &memory, 0));
    assert_eq!(node.take(1), [(good.number(), 2, Status::IBV_WC_SUCCESS)]);
    good.assert_ready();
    other.assert_ready();
}

fn flushes_of_both_ends_of_a_queue_pair_share_a_queue(device: &Device) {
    let node = Node::new(device);
    let (a, _b) = node.pair();
    for n in 0..4 {
        a.post_receive(n, &[]);
        a.post(&Wr::send(n + 10, &[]).unsignaled());
    }
    a.to_error();
    let found = node.take(8);
    let of = |first: u64| {
        let ids = found.iter().map(|completion| completion.1);
        ids.filter(|id| (first..first + 4).contains(id)).collect::<Vec<_>>()
    };
    // The device decides which of the two queues is flushed first.
    assert_eq!((of(0), of(10)), ((0..4).collect(), (10..14).collect()));
    for (qpn, _, status) in found {
        assert_eq!((qpn, status), (a.number(), Status::IBV_WC_WR_FLUSH_ERR));
    }
}

fn completions_of_others_survive_a_queue_pair(device: &Device) {
    let node = Node::new(device);
    let ((mut gone, peer), (stays, other)) = (node.pair(), node.pair());
    let memory = node.pd.register(8, ALL_ACCESS);
    for n in 0..3 {
        stays.post(&Wr::write(n, &[memory.sge(0, 8)], &memory, 0));
        other.post(&Wr::write(n, &[memory.sge(0, 8)], &memory, 0));
    }
    gone.destroy();
    let found = node.take(6);
    for qp in [&stays, &other] {
        let own = found.iter().filter(|completion| completion.0 == qp.number());
        assert!(own.map(|completion| completion.1).eq(0..3));
    }
    drop(peer);
}

/// Returns a queue pair that is connected to itself.
fn own_peer(device: &Device) -> Side {
    let side = Side::new(device, &Size::default(), 64);
    let at = side.endpoint();
    connect(&side.qp, &at, &at, &Knobs::default());
    side
}

fn queue_pair_connected_to_itself_sends_writes_and_reads(device: &Device) {
    let side = own_peer(device);
    let memory = side.pd.register_filled((0..64).collect(), ALL_ACCESS);
    for round in 0..10u64 {
        let id = |n| 10 * round + n;
        side.qp.post(&Wr::send(id(1), &[memory.sge(0, 8)]));
        side.qp.post(&Wr::write(id(2), &[memory.sge(0, 8)], &memory, 24));
        side.qp.post(&Wr::read(id(3), &[memory.sge(48, 8)], &memory, 0));
        side.qp.post_receive(id(4), &[memory.sge(8, 8)]);
        for n in 1..=3 {
            side.send_cq.expect_success(id(n));
        }
        side.receive_cq.expect_success(id(4));
    }
    let bytes = memory.bytes();
    for place in [8, 24, 48] {
        assert_eq!(bytes[place..place + 8], bytes[..8], "at {place}");
    }
}

fn queue_pair_connected_to_itself_can_refuse_itself(device: &Device) {
    let side = own_peer(device);
    let memory = side.pd.register(8, ALL_ACCESS);
    side.qp.post_receive(2, &[]);
    side.qp.post(&Wr::write(1, &[memory.sge(0, 8)], &memory, 0).remote(0, 0));
    if device.differs_by_packets("own-refusal-is-flushed") {
        side.send_cq.expect(1, Status::IBV_WC_WR_FLUSH_ERR);
    } else {
        side.send_cq.expect(1, Status::IBV_WC_REM_ACCESS_ERR);
    }
    side.receive_cq.expect_flushed([2]);
    side.qp.wait_for_error();
}

fn each_of_many_queue_pairs_gets_its_own_messages(device: &Device) {
    const PAIRS: usize = 48;
    let node = Node::new(device);
    let pairs: Vec<_> = (0..PAIRS).map(|_| node.pair()).collect();
    let source = node.pd.register_filled((1..=PAIRS as u8).collect(), 0);
    let sink = node.pd.register(PAIRS, ALL_ACCESS);
    for (n, (_, b)) in pairs.iter().enumerate() {
        b.post_receive(1000, &[sink.sge(n, 1)]);
    }
    for (n, (a, _)) in pairs.iter().enumerate().rev() {
        a.post(&Wr::send(2000, &[source.sge(n, 1)]));
    }
    for (_, _, status) in node.take(2 * PAIRS) {
        assert_eq!(status, Status::IBV_WC_SUCCESS);
    }
    assert_eq!(sink.bytes(), source.bytes());
}

fn queue_pairs_of_one_domain_work_side_by_side(device: &Device) {
    let node = Node::new(device);
    let ((a, b), (c, _d)) = (node.pair(), node.pair());
    let memory = node.pd.register(8, ALL_ACCESS);
    // A's request waits for a receive while C's requests continue.
    a.post(&Wr::send(1, &[]));
    for n in 10..20 {
        c.post(&Wr::write(n, &[memory.sge(0, 8)], &memory, 0));
        assert_eq!(node.take(1), [(c.number(), n, Status::IBV_WC_SUCCESS)]);
    }
    b.post_receive(2, &[]);
    let mut found = node.take(2);
    found.sort_by_key(|completion| completion.1);
    assert_eq!(found.iter().map(|completion| completion.1).collect::<Vec<_>>(), [1, 2]);
}

fn queue_pair_numbers_are_different(device: &Device) {
    let (a, b) = pair(device);
    let (c, d) = (Side::new(device, &Size::default(), 8), Side::new(device, &Size::default(), 8));
    connect_sides(&c, &d, &Knobs::default());
    let mut numbers = [&a, &b, &c, &d].map(|side| side.qp.number());
    numbers.sort_unstable();
    assert!(numbers.windows(2).all(|two| two[0] < two[1]), "{numbers:?}");
    assert!(numbers[0] > 1 && numbers[3] < 0x00ff_ffff, "the numbers of special queue pairs");
}
