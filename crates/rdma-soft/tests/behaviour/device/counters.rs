//! Counters: their meaning and names, and that no counted event is lost.

use rdma_soft::{Builder, Counters, Link, SoftDevice};
use rdma_sys::{ibv_qp_type, ibv_wc_status as Status};

use crate::device::rig::connect::{
    Knobs, Side, attributes, connect, connect_sides, connect_unreliably, pair, pair_with, to_init,
    to_rtr, to_rts,
};
use crate::device::rig::post::Wr;
use crate::device::rig::window::{Grant, REMOTE, TYPE_2};
use crate::device::rig::{ALL_ACCESS, LOCAL_WRITE, Size, on_each_device, soft, until};

/// The names in `rxe_hw_counters.c`.
const NAMES: [&str; 15] = [
    "sent_pkts",
    "rcvd_pkts",
    "duplicate_request",
    "out_of_seq_request",
    "rcvd_rnr_err",
    "send_rnr_err",
    "rcvd_seq_err",
    "ack_deferred",
    "retry_exceeded_err",
    "retry_rnr_exceeded_err",
    "completer_retry_err",
    "send_err",
    "link_downed",
    "rdma_sends",
    "rdma_recvs",
];

/// The counters that are not 0, except those of bytes and of the ways of copying memory.
pub(crate) fn counted(counters: Counters) -> Vec<(&'static str, u64)> {
    let others = ["sent_bytes", "rcvd_bytes", "guarded_copies"];
    counters.iter().filter(|(name, value)| *value != 0 && !others.contains(name)).collect()
}

fn two_devices(name: &str) -> [SoftDevice; 2] {
    ["a", "b"].map(|end| Builder::new(format!("{name}-{end}")).install().unwrap())
}

fn sides(devices: &[SoftDevice; 2], knobs: &Knobs) -> (Side, Side) {
    let [a, b] = devices.map(|device| Side::new(device.name(), &Size::default(), 64));
    connect_sides(&a, &b, knobs);
    (a, b)
}

#[test]
fn a_new_device_has_counted_nothing_under_the_kernels_names() {
    let device = Builder::new("count-nothing").install().unwrap();
    let names: Vec<_> = device.counters().iter().map(|(name, _)| name).collect();
    assert!(NAMES.iter().all(|name| names.contains(name)), "{names:?}");
    assert_eq!(counted(device.counters()), []);
    assert_eq!(device.counters(), Counters::default());
}

#[test]
fn a_request_counts_at_both_devices_even_after_the_queue_pairs_are_gone() {
    let devices = two_devices("count-packets");
    {
        let (a, b) = sides(&devices, &Knobs::default());
        let (here, there) = (a.pd.register(4096, ALL_ACCESS), b.pd.register(4096, ALL_ACCESS));
        for length in [0, 1024, 4096] {
            a.qp.post(&Wr::write(1, &[here.sge(0, length)], &there, 0));
            a.send_cq.expect_success(1);
        }
        a.qp.post(&Wr::read(2, &[here.sge(0, 2048)], &there, 0));
        a.send_cq.expect_success(2);
        assert_eq!(counted(devices[0].counters()), [("sent_pkts", 4)]);
        assert_eq!(counted(devices[1].counters()), [("rcvd_pkts", 4)]);
        b.qp.to_reset();
    }
    assert_eq!(counted(devices[0].counters()), [("sent_pkts", 4)]);
    assert_eq!(counted(devices[1].counters()), [("rcvd_pkts", 4)]);
}

#[test]
fn each_end_counts_the_bytes_of_executed_requests() {
    for (name, packets) in [("count-bytes", false), ("count-wire-bytes", true)] {
        let devices = ["a", "b"].map(|end| {
            let device = Builder::new(format!("{name}-{end}"));
            if packets { device.force_wire() } else { device }.install().unwrap()
        });
        let (a, b) = sides(&devices, &Knobs::default());
        let (here, there) = (a.pd.register(8192, ALL_ACCESS), b.pd.register(8192, ALL_ACCESS));
        b.qp.post_receive(1, &[there.sge(0, 100)]);
        let requests = [
            Wr::send(1, &[here.sge(0, 30)]),
            Wr::write(1, &[here.sge(0, 5000)], &there, 0),
            Wr::read(1, &[here.sge(0, 700)], &there, 0),
            Wr::fetch_add(1, &[here.sge(0, 8)], &there, 0, 1),
        ];
        for request in requests {
            a.qp.post(&request);
            a.send_cq.expect_success(1);
        }
        let bytes = |device: &SoftDevice| {
            let counters = device.counters();
            (counters.sent_bytes, counters.rcvd_bytes)
        };
        assert_eq!(bytes(&devices[0]), (30 + 5000 + 700 + 8, 0), "{name}");
        until("the responder has counted", || bytes(&devices[1]).1 == 30 + 5000 + 700 + 8);
        // A request that fails does not count.
        a.qp.post(&Wr::write(2, &[here.sge(0, 50)], &there, 8191));
        a.send_cq.expect(2, Status::IBV_WC_REM_ACCESS_ERR);
        drop((here, there, a, b));
        assert_eq!(devices.map(|device| bytes(&device)), [(5738, 0), (0, 5738)], "{name}");
    }
}

#[test]
fn sends_and_receives_are_counted_when_they_are_done() {
    on_each_device("count-sends", |device| {
        let (a, b) = pair(device);
        let room = b.pd.register(64, ALL_ACCESS).mapped();
        let data = a.pd.register(64, LOCAL_WRITE).mapped();
        for n in 0..3 {
            b.qp.post_receive(n, &[room.sge(0, 64)]);
        }
        assert_eq!(counted(soft(device).counters()), []);
        a.qp.post(&Wr::send(1, &[data.sge(0, 8)]).unsignaled());
        a.qp.post(&Wr::send(2, &[data.sge(0, 8)]).with_imm(7));
        a.qp.post(&Wr::write(3, &[data.sge(0, 8)], &room, 0).with_imm(7));
        for n in 0..3 {
            b.receive_cq.expect_success(n);
        }
        let expected = [("sent_pkts", 3), ("rcvd_pkts", 3), ("rdma_sends", 2), ("rdma_recvs", 3)];
        assert_eq!(counted(soft(device).counters()), expected);
        // A message that does not fit, and receives that are flushed, do not count.
        b.qp.post_receive(4, &[room.sge(0, 1)]);
        b.qp.post_receive(5, &[room.sge(0, 1)]);
        a.qp.post(&Wr::send(4, &[data.sge(0, 8)]));
        a.qp.wait_for_error();
        b.qp.wait_for_error();
        assert_eq!(counted(soft(device).counters()), expected);
    });
}

#[test]
fn a_receiver_that_is_not_ready_is_counted_by_both_and_giving_up_by_the_requester() {
    let devices = two_devices("count-rnr");
    let (a, _b) = sides(&devices, &Knobs { rnr_retries: 0, ..Knobs::default() });
    a.qp.post(&Wr::send(1, &[]));
    a.send_cq.expect(1, Status::IBV_WC_RNR_RETRY_EXC_ERR);
    let expected = [("rcvd_rnr_err", 1), ("retry_rnr_exceeded_err", 1)];
    assert_eq!(counted(devices[0].counters()), expected);
    assert_eq!(counted(devices[1].counters()), [("send_rnr_err", 1)]);
}

#[test]
fn retries_are_counted_and_so_is_giving_up() {
    let devices = two_devices("count-retries");
    let (a, b) = sides(&devices, &Knobs { retries: 3, timeout: 2, ..Knobs::default() });
    b.qp.to_reset();
    a.qp.post(&Wr::send(1, &[]));
    a.send_cq.expect(1, Status::IBV_WC_RETRY_EXC_ERR);
    let expected = [("retry_exceeded_err", 1), ("completer_retry_err", 3)];
    assert_eq!(counted(devices[0].counters()), expected);
    assert_eq!(counted(devices[1].counters()), [], "it does not receive");
}

#[test]
fn a_peer_in_error_counts_nothing() {
    let devices = two_devices("count-error");
    let (a, b) = sides(&devices, &Knobs { retries: 0, timeout: 2, ..Knobs::default() });
    b.qp.to_error();
    a.qp.post(&Wr::send(1, &[]));
    a.send_cq.expect(1, Status::IBV_WC_RETRY_EXC_ERR);
    assert_eq!(counted(devices[1].counters()), []);
}

#[test]
fn earlier_and_later_sequence_numbers_have_separate_counters() {
    for (n, (theirs, name)) in
        [(6, "out_of_seq_request"), (8, "duplicate_request")].into_iter().enumerate()
    {
        let devices = two_devices(&format!("count-psn-{n}"));
        let [a, b] = devices.map(|device| Side::new(device.name(), &Size::default(), 8));
        let (at_a, at_b) = (a.endpoint(), b.endpoint());
        let knobs = Knobs { psn: 7, retries: 0, timeout: 2, ..Knobs::default() };
        connect(&a.qp, &at_a, &at_b, &knobs);
        connect(&b.qp, &at_b, &at_a, &Knobs { psn: theirs, ..knobs });
        a.qp.post(&Wr::send(1, &[]));
        a.send_cq.expect(1, Status::IBV_WC_RETRY_EXC_ERR);
        assert_eq!(counted(devices[1].counters()), [(name, 1)]);
        assert_eq!(counted(devices[0].counters()), [("retry_exceeded_err", 1)]);
    }
}

#[test]
fn a_stranger_with_a_wrong_number_is_not_counted() {
    let device = Builder::new("count-stranger").link(Link::InfiniBand).install().unwrap();
    let (a, _b) = pair("count-stranger");
    // C believes that it is connected to A, with another sequence number.
    let c = Side::new("count-stranger", &Size::default(), 8);
    let knobs = Knobs { psn: 100, retries: 0, timeout: 2, ..Knobs::default() };
    let attr = attributes(&c.endpoint(), &a.endpoint(), &knobs);
    to_init(&c.qp, &attr);
    to_rtr(&c.qp, &attr);
    to_rts(&c.qp, &attr);
    c.qp.post(&Wr::send(1, &[]));
    c.send_cq.expect(1, Status::IBV_WC_RETRY_EXC_ERR);
    assert_eq!(counted(device.counters()), [("retry_exceeded_err", 1)]);
}

#[test]
fn local_requests_are_not_counted_as_sent() {
    let device = Builder::new("count-local").install().unwrap();
    let grant = Grant::new("count-local");
    let (_window, key) = grant.window(TYPE_2, REMOTE);
    grant.local_invalidate(key);
    assert_eq!(counted(device.counters()), []);
}

#[test]
fn a_message_without_a_receive_counts_as_sent_but_not_received() {
    let devices = two_devices("count-lost");
    let size = Size { qp_type: ibv_qp_type::IBV_QPT_UC, ..Size::default() };
    let [a, b] = devices.map(|device| Side::new(device.name(), &size, 8));
    connect_unreliably(&a.qp, &a.endpoint(), &b.endpoint(), &Knobs::default());
    connect_unreliably(&b.qp, &b.endpoint(), &a.endpoint(), &Knobs::default());
    a.qp.post(&Wr::send(1, &[]));
    a.send_cq.expect_success(1);
    assert_eq!(counted(devices[0].counters()), [("sent_pkts", 1), ("rdma_sends", 1)]);
    assert_eq!(counted(devices[1].counters()), []);
    b.qp.post_receive(2, &[]);
    a.qp.post(&Wr::send(2, &[]));
    b.receive_cq.expect_success(2);
    assert_eq!(counted(devices[1].counters()), [("rcvd_pkts", 1), ("rdma_recvs", 1)]);
}

#[test]
fn a_port_counts_how_often_it_went_down() {
    let device = Builder::new("count-down").install().unwrap();
    for up in [false, false, true, false, true, true] {
        device.set_port_up(up);
    }
    assert_eq!(counted(device.counters()), [("link_downed", 2)]);
}

/// Two threads make pairs and send a message on each, while this one checks that no counter decreases.
pub(crate) fn watch_while_connections_come_and_go(device: &SoftDevice, rounds: u64, knobs: &Knobs) {
    let traffic = || {
        for _ in 0..rounds {
            let (a, b) = pair_with(device.name(), &Size::default(), knobs);
            a.qp.post(&Wr::send(1, &[]));
            b.qp.post_receive(1, &[]);
            a.send_cq.expect_success(1);
        }
    };
    std::thread::scope(|threads| {
        let threads = [threads.spawn(traffic), threads.spawn(traffic)];
        let mut before = device.counters();
        // Also ends if a thread fails.
        while !threads.iter().all(|thread| thread.is_finished()) {
            let now = device.counters();
            assert!(before.iter().zip(now.iter()).all(|((_, a), (_, b))| a <= b), "{now:?}");
            before = now;
            std::thread::yield_now();
        }
        threads.into_iter().for_each(|thread| thread.join().unwrap());
    });
}

#[test]
fn no_counter_goes_back_while_queue_pairs_come_and_go_and_none_is_lost() {
    const ROUNDS: u64 = 100;
    let device = Builder::new("count-race").install().unwrap();
    watch_while_connections_come_and_go(&device, ROUNDS, &Knobs::default());
    let all = 2 * ROUNDS;
    let counters = device.counters();
    assert_eq!((counters.sent_pkts, counters.rcvd_pkts), (all, all));
    assert_eq!((counters.rdma_sends, counters.rdma_recvs), (all, all));
}
