//! Devices that send messages as packets: their own choices, outside the contract.

use rdma_soft::{Builder, Link, Schedule, SoftDevice};
use rdma_sys::{
    ibv_qp_attr, ibv_qp_attr_mask as Mask, ibv_qp_state as State, ibv_wc_status as Status,
};

use crate::device::rig::connect::{Knobs, Side, connect_sides, pair_with};
use crate::device::rig::post::Wr;
use crate::device::rig::{ALL_ACCESS, Size, until};

fn device(name: &str) -> SoftDevice {
    Builder::new(name).force_wire().install().unwrap()
}

/// More requests than the inbox of the device can hold, and messages of as many packets.
#[test]
fn senders_wait_for_space_in_the_inbox() {
    device("wire-room");
    let size = Size { send_wr: 1024, receive_wr: 1024, ..Size::default() };
    let [a, b] = [(); 2].map(|()| Side::new("wire-room", &size, 2048));
    connect_sides(&a, &b, &Knobs { timeout: 18, ..Knobs::default() });
    let length = 1 << 20;
    let source = a.pd.register_filled((0..length).map(|n| (n / 997) as u8).collect(), ALL_ACCESS);
    let sink = b.pd.register(length, ALL_ACCESS);
    for n in 0..512 {
        b.qp.post_receive(n, &[]);
    }
    a.qp.post(&Wr::write(1, &[source.sge(0, length)], &sink, 0));
    for n in 0..512 {
        a.qp.post(&Wr::send(2 + n, &[]));
    }
    a.qp.post(&Wr::read(1000, &[source.sge(0, length)], &sink, 0));
    a.send_cq.expect_success(1);
    for n in 0..512 {
        a.send_cq.expect_success(2 + n);
        b.receive_cq.expect_success(n);
    }
    a.send_cq.expect_success(1000);
    assert_eq!(source.bytes(), sink.bytes());
}

/// One end forces packets, and both use them, in both directions; its other connections are direct.
#[test]
fn one_end_that_forces_packets_suffices() {
    device("wire-one");
    Builder::new("wire-other").install().unwrap();
    let [a, b] = ["wire-one", "wire-other"].map(|name| Side::new(name, &Size::default(), 64));
    connect_sides(&a, &b, &Knobs::default());
    let (d, _e) = pair_with("wire-other", &Size::default(), &Knobs::default());
    for (from, to) in [(&a, &b), (&b, &a)] {
        let source = from.pd.register_filled(vec![7; 5000], ALL_ACCESS);
        let sink = to.pd.register(5000, ALL_ACCESS);
        from.qp.post(&Wr::write(1, &[source.sge(0, 5000)], &sink, 0));
        from.send_cq.expect_success(1);
        sink.assert_filled(7);
        to.qp.post_receive(3, &[sink.sge(0, 8)]);
        from.qp.post(&Wr::send(2, &[source.sge(0, 8)]));
        from.send_cq.expect_success(2);
        to.receive_cq.expect_success(3);
    }
    let own = d.pd.register(8, ALL_ACCESS);
    d.qp.post(&Wr::write(1, &[own.sge(0, 8)], &own, 0));
    d.send_cq.expect(1, Status::IBV_WC_REM_ACCESS_ERR);
}

/// A port that is down loses packets, and the connection sends them again when it is up.
#[test]
fn packets_lost_by_a_port_are_sent_again() {
    let device = device("wire-port");
    let knobs = Knobs { timeout: 14, ..Knobs::default() };
    let (a, b) = pair_with("wire-port", &Size::default(), &knobs);
    let source = a.pd.register_filled(vec![9; 3000], ALL_ACCESS);
    let sink = b.pd.register(3000, ALL_ACCESS);
    device.set_port_up(false);
    a.qp.post(&Wr::write(1, &[source.sge(0, 3000)], &sink, 0));
    // Three packets, by whichever thread has time for them.
    until("the port has lost them", || device.counters().port_down >= 3);
    sink.assert_filled(0);
    device.set_port_up(true);
    a.send_cq.expect_success(1);
    sink.assert_filled(9);
    let counters = device.counters();
    assert!(counters.completer_retry_err > 0, "{counters:?}");
}

/// The RNR wait of a sender ends on time, although its timer was set for something earlier meanwhile.
#[test]
fn a_wait_for_a_receiver_ends_on_time_despite_earlier_timers() {
    let builder = Builder::new("wire-timers").schedule(Schedule::Deferred { seed: 3 });
    builder.force_wire().install().unwrap();
    // Two waits of 20 ms.
    let knobs = Knobs { rnr_retries: 1, min_rnr_timer: 20, ..Knobs::default() };
    let (a, _b) = pair_with("wire-timers", &Size::default(), &knobs);
    for n in 0..8 {
        a.qp.post(&Wr::send(n, &[]));
    }
    a.send_cq.expect(0, Status::IBV_WC_RNR_RETRY_EXC_ERR);
    a.send_cq.expect_flushed(1..8);
}

/// A request that a schedule releases while the send queue is drained is sent when the queue sends again.
#[test]
fn requests_released_while_drained_are_sent_later() {
    let device = Builder::new("wire-drained").schedule(Schedule::Held).force_wire();
    let device = device.install().unwrap();
    let (a, b) = pair_with("wire-drained", &Size::default(), &Knobs::default());
    assert_eq!(a.qp.to_state(State::IBV_QPS_SQD), 0);
    for n in 0..3 {
        b.qp.post_receive(n, &[]);
        a.qp.post(&Wr::send(n, &[]));
    }
    device.release_all();
    assert!(a.send_cq.is_empty() && b.receive_cq.is_empty());
    assert_eq!(a.qp.to_state(State::IBV_QPS_RTS), 0);
    for n in 0..3 {
        a.send_cq.expect_success(n);
        b.receive_cq.expect_success(n);
    }
}

/// The queue pair that requests are for is destroyed while they are in flight.
#[test]
fn a_destroyed_peer_does_not_answer() {
    for (name, link) in [("wire-gone", Link::Ethernet), ("wire-gone-ib", Link::InfiniBand)] {
        let device = Builder::new(name).link(link).force_wire().install().unwrap();
        let knobs = Knobs { timeout: 14, retries: 2, ..Knobs::default() };
        let (a, b) = pair_with(name, &Size::default(), &knobs);
        let source = a.pd.register(8, ALL_ACCESS);
        a.qp.post(&Wr::send(1, &[source.sge(0, 8)]));
        drop(b);
        a.send_cq.expect(1, Status::IBV_WC_RETRY_EXC_ERR);
        until("all is flushed", || device.in_flight(a.qp.qpn()) == 0);
        assert_eq!(device.counters().retry_exceeded_err, 1);
        // The last of them may arrive after its queue pair is gone.
        until("a packet arrived for an unknown queue pair", || device.counters().unknown_qp > 0);
    }
}

/// Sequence numbers are those of packets: one for each MTU of a message, or of the answer to a READ.
#[test]
fn sequence_numbers_count_packets() {
    device("wire-psn");
    let knobs = Knobs { psn: 0x00ff_fffe, ..Knobs::default() };
    let (a, b) = pair_with("wire-psn", &Size::default(), &knobs);
    let [source, sink] = [&a, &b].map(|side| side.pd.register(4096, ALL_ACCESS));
    a.qp.post(&Wr::write(1, &[source.sge(0, 4096)], &sink, 0));
    a.qp.post(&Wr::read(2, &[source.sge(0, 2049)], &sink, 0));
    a.send_cq.expect_success(1);
    a.send_cq.expect_success(2);
    // MTU 1024: four packets, then three.
    assert_eq!(a.qp.query().sq_psn, 5);
    assert_eq!(b.qp.query().rq_psn, 5);
}

/// A posted READ is sent, although the program has since forbidden further ones.
#[test]
fn posted_reads_are_sent_after_further_ones_are_forbidden() {
    device("wire-no-reads");
    let (a, b) = pair_with("wire-no-reads", &Size::default(), &Knobs::default());
    let [here, there] = [&a, &b].map(|side| side.pd.register(8, ALL_ACCESS));
    a.qp.post(&Wr::send(1, &[]));
    a.qp.post(&Wr::read(2, &[here.sge(0, 8)], &there, 0));
    assert_eq!(a.qp.to_state(State::IBV_QPS_SQD), 0);
    let none = ibv_qp_attr { max_rd_atomic: 0, ..Default::default() };
    assert_eq!(a.qp.modify(none, Mask::IBV_QP_MAX_QP_RD_ATOMIC.0), 0);
    assert_eq!(a.qp.to_state(State::IBV_QPS_RTS), 0);
    b.qp.post_receive(3, &[]);
    a.send_cq.expect_success(1);
    a.send_cq.expect_success(2);
    let refused = a.qp.try_post(&Wr::read(4, &[here.sge(0, 8)], &there, 0));
    assert_ne!(refused, 0);
}
