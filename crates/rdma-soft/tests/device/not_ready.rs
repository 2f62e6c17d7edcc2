//! Receiver not ready: the requester waits as often and as long as it was told to, whether or not
//! anybody polls.

use std::time::{Duration, Instant};

use rdma_soft::{Builder, Link};
use rdma_sys::{ibv_wc_opcode, ibv_wc_status as Status};
use rdma_types::MinRnrTimer;

use crate::rig::connect::{Knobs, Side, connect_sides, pair_with};
use crate::rig::post::Wr;
use crate::rig::{ALL_ACCESS, LOCAL_WRITE, Size, on_each_device, on_each_held_device, soft, until};

/// A pair with these knobs whose A has posted a SEND of 8 bytes to a B without a receive request.
fn sent_too_early(device: &str, rnr_retries: u8, min_rnr_timer: u8) -> (Side, Side) {
    let knobs = Knobs { rnr_retries, min_rnr_timer, ..Knobs::default() };
    let (a, b) = pair_with(device, &Size::default(), &knobs);
    a.qp.post(&Wr::send(1, &[]));
    (a, b)
}

#[test]
fn no_retry_fails_at_once_and_leaves_the_receiver_alone() {
    on_each_device("rnr-0", |device| {
        // Were it waited for, the first wait would take 655 ms.
        let (a, b) = sent_too_early(device, 0, 0);
        a.send_cq.expect(1, Status::IBV_WC_RNR_RETRY_EXC_ERR);
        a.qp.wait_for_error();
        b.qp.assert_ready();
        b.qp.post_receive(2, &[]);
        assert!(b.receive_cq.is_empty());
    });
}

#[test]
fn retries_end_after_their_time_and_not_before() {
    on_each_device("rnr-3", |device| {
        let code = 14;
        let least = MinRnrTimer::from_code(code).unwrap().duration() * 3;
        assert!(least > Duration::from_millis(1));
        let start = Instant::now();
        let (a, b) = sent_too_early(device, 3, code);
        a.send_cq.expect(1, Status::IBV_WC_RNR_RETRY_EXC_ERR);
        assert!(start.elapsed() >= least, "{:?} of {least:?}", start.elapsed());
        a.qp.wait_for_error();
        b.qp.assert_ready();
    });
}

#[test]
fn retries_end_also_when_nobody_polls() {
    on_each_device("rnr-no-poll", |device| {
        let (a, _b) = sent_too_early(device, 1, 10);
        a.qp.wait_for_error();
        until("the flush", || soft(device).in_flight(a.qp.qpn()) == 0);
        a.send_cq.expect(1, Status::IBV_WC_RNR_RETRY_EXC_ERR);
        assert!(a.send_cq.is_empty());
    });
}

#[test]
fn receive_posted_in_time_ends_the_wait() {
    on_each_device("rnr-in-time", |device| {
        // Six times 655 ms: long enough for any machine.
        let (a, b) = sent_too_early(device, 6, 0);
        assert_eq!(soft(device).in_flight(a.qp.qpn()), 1);
        assert!(a.send_cq.is_empty() && b.receive_cq.is_empty());
        b.qp.post_receive(2, &[]);
        a.send_cq.expect_success(1);
        b.receive_cq.expect_success(2);
    });
}

#[test]
fn endless_retries_outlive_limited_ones_and_end_with_the_receive() {
    on_each_device("rnr-7", |device| {
        let (a, b) = sent_too_early(device, 7, 1);
        let (limited, _peer) = sent_too_early(device, 6, 10);
        limited.send_cq.expect(1, Status::IBV_WC_RNR_RETRY_EXC_ERR);
        assert_eq!(soft(device).in_flight(a.qp.qpn()), 1);
        assert!(a.send_cq.is_empty());
        a.qp.assert_ready();
        b.qp.post_receive(2, &[]);
        a.send_cq.expect_success(1);
        b.receive_cq.expect_success(2);
    });
}

#[test]
fn receive_ends_the_wait_also_when_nobody_polls() {
    on_each_device("rnr-7-no-poll", |device| {
        let knobs = Knobs::default();
        let (a, b) = pair_with(device, &Size::default(), &knobs);
        let source = a.pd.register_filled(vec![9; 8], 0);
        let sink = b.pd.register(8, LOCAL_WRITE);
        a.qp.post(&Wr::send(1, &[source.sge(0, 8)]));
        a.qp.post(&Wr::write(2, &[source.sge(0, 8)], &sink, 0).remote(0, 0));
        b.qp.post_receive(2, &[sink.sge(0, 8)]);
        until("the send", || soft(device).in_flight(a.qp.qpn()) == 0);
        sink.assert_filled(9);
        a.send_cq.expect_success(1);
        b.receive_cq.expect_success(2);
        // The write behind it had its turn, too: it has no key.
        a.send_cq.expect(2, Status::IBV_WC_REM_ACCESS_ERR);
    });
}

#[test]
fn requests_behind_one_that_waits_keep_their_order() {
    on_each_device("rnr-order", |device| {
        let (a, b) = sent_too_early(device, 7, 1);
        let source = a.pd.register_filled(vec![3; 8], 0);
        let sink = b.pd.register(8, ALL_ACCESS);
        a.qp.post(&Wr::write(2, &[source.sge(0, 8)], &sink, 0));
        a.qp.post(&Wr::send(3, &[]));
        assert!(a.send_cq.is_empty());
        sink.assert_filled(0);
        assert_eq!(soft(device).in_flight(a.qp.qpn()), 3);
        b.qp.post_receive(10, &[]);
        assert_eq!(a.send_cq.expect_success(1).opcode, ibv_wc_opcode::IBV_WC_SEND);
        a.send_cq.expect_success(2);
        sink.assert_filled(3);
        assert!(a.send_cq.is_empty());
        b.qp.post_receive(11, &[]);
        a.send_cq.expect_success(3);
        b.receive_cq.expect_success(10);
        b.receive_cq.expect_success(11);
    });
}

#[test]
fn write_with_immediate_waits_without_writing() {
    on_each_device("rnr-write-imm", |device| {
        let (a, b) = pair_with(device, &Size::default(), &Knobs::default());
        let source = a.pd.register_filled(vec![3; 8], 0);
        let sink = b.pd.register(8, ALL_ACCESS);
        a.qp.post(&Wr::write(1, &[source.sge(0, 8)], &sink, 0).with_imm(4));
        for _ in 0..100 {
            assert!(a.send_cq.is_empty() && b.receive_cq.is_empty());
        }
        sink.assert_filled(0);
        b.qp.post_receive(2, &[]);
        a.send_cq.expect_success(1);
        b.receive_cq.expect_success(2);
        sink.assert_filled(3);
    });
}

#[test]
fn wait_ends_with_the_error_state() {
    on_each_device("rnr-to-error", |device| {
        let (a, b) = sent_too_early(device, 7, 1);
        a.qp.post(&Wr::send(2, &[]).unsignaled());
        a.qp.to_error();
        a.send_cq.expect_flushed([1, 2]);
        b.qp.post_receive(3, &[]);
        assert!(a.send_cq.is_empty() && b.receive_cq.is_empty());
        b.qp.assert_ready();
    });
}

#[test]
fn receive_for_one_that_waited_in_an_earlier_life_releases_nothing() {
    on_each_held_device("rnr-earlier-life", |device| {
        let (a, b) = sent_too_early(device.name(), 7, 1);
        let c = Side::new(device.name(), &Size::default(), 16);
        let held = || device.in_flight(a.qp.qpn());
        assert_eq!((device.release(a.qp.qpn(), 1), held()), (0, 1), "it waits now");
        a.qp.to_reset();
        connect_sides(&a, &c, &Knobs::default());
        c.qp.post_receive(8, &[]);
        a.qp.post(&Wr::send(2, &[]));
        b.qp.post_receive(9, &[]);
        assert_eq!(held(), 1, "B's receive is none of A's business now");
        assert_eq!(device.release(a.qp.qpn(), 1), 1);
        a.send_cq.expect_success(2);
        c.receive_cq.expect_success(8);
    });
}

#[test]
fn endless_wait_for_a_receiver_that_goes_away_ends() {
    on_each_device("rnr-gone", |device| {
        for end in 0..3 {
            let (a, mut b) = sent_too_early(device, 7, 1);
            soft(device).release(a.qp.qpn(), 1);
            match end {
                0 => b.qp.to_error(),
                1 => b.qp.to_reset(),
                _ => b.qp.destroy(),
            }
            a.send_cq.expect(1, Status::IBV_WC_RETRY_EXC_ERR);
        }
    });
}

#[test]
fn endless_wait_ends_when_the_port_of_either_goes_down() {
    on_each_device("rnr-port", |device| {
        let there = format!("{device}-there");
        let knobs = Knobs { timeout: 1, retries: 1, rnr_retries: 7, ..Knobs::default() };
        let link = if device.contains("-ib-") { Link::InfiniBand } else { Link::Ethernet };
        Builder::new(&there).link(link).install().unwrap();
        for down in [device, &there] {
            let waits = || soft(device).counters().rcvd_rnr_err;
            let before = waits();
            let [a, b] = [device, &there].map(|name| Side::new(name, &Size::default(), 16));
            connect_sides(&a, &b, &knobs);
            a.qp.post(&Wr::send(1, &[]));
            until("the wait", || a.send_cq.is_empty() && waits() > before);
            soft(down).set_port_up(false);
            a.send_cq.expect(1, Status::IBV_WC_RETRY_EXC_ERR);
            soft(down).set_port_up(true);
        }
    });
}
