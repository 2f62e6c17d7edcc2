//! Receivers that are not ready. The responder requests a wait of 0.64 ms (code 12), the requester retries three times.

use std::time::Duration;

use rdma_proto::MessageEnd;
use rdma_types::MaxRnrRetries;

use crate::pair::network::Fate::{Arrives, Lost, Twice};
use crate::pair::network::Way::{Request, Response};
use crate::pair::network::{Pair, bytes, settings};

/// IBTA section 9.7.5.2.8: the requester waits as long as requested, then continues from the refused packet. Later
/// packets are dropped silently.
#[test]
fn the_requester_waits_as_long_as_requested() {
    let mut pair = Pair::new();
    pair.send(300);
    pair.write(0, 8);
    let expected = ["-> SEND First 0 -", "-> SEND Last 1", "-> RDMA WRITE Only 2", "<- RNR NAK 0"];
    assert_eq!(pair.run_for(Duration::from_micros(600)), expected);
    pair.memory.receives.push_back(300);
    let expected = [
        "-> SEND First 0 -",
        "-> SEND Last 1",
        "-> RDMA WRITE Only 2",
        "<- ACK 1",
        "<- ACK 2",
        "   0 done",
        "   1 done",
    ];
    assert_eq!(pair.run(), expected);
    assert_eq!(pair.now.as_nanos(), 640_000 + 4_000);
    assert_eq!(pair.memory.received[0].bytes, bytes(0, 300));
    let counters = (pair.responder.counters(), pair.requester.counters());
    assert_eq!((counters.0.send_rnr_err, counters.1.rcvd_rnr_err), (1, 1));
}

/// `rnr_retry` is 2, so that it is sent three times. IBTA section 9.7.5.2.8.
#[test]
fn rnr_retry_exhausted_fails_the_request() {
    let mut pair = Pair::new();
    pair.send(8);
    let expected = [
        "-> SEND Only 0",
        "<- RNR NAK 0",
        "-> SEND Only 0",
        "<- RNR NAK 0",
        "-> SEND Only 0",
        "<- RNR NAK 0",
        "   0 failed: RNR_RETRY_EXC_ERR",
    ];
    assert_eq!(pair.run(), expected);
    assert_eq!(pair.requester.counters().retry_rnr_exceeded_err, 1);
}

/// Code 7 means no limit. IBTA section 9.7.5.2.8.
#[test]
fn seven_means_unlimited_retries() {
    let (mut requester, responder) = settings();
    requester.rnr_retries = MaxRnrRetries::unlimited();
    let mut pair = Pair::with(&requester, &responder);
    pair.send(8);
    assert_eq!(pair.run_for(Duration::from_secs(1)).len() / 2, 1 + 1_000_000 / 642);
    pair.memory.receives.push_back(8);
    assert_eq!(pair.run().last().unwrap(), "   0 done");
}

/// It acknowledges the packets before it, and the wait continues. IBTA section 9.7.5.1.2.
#[test]
fn an_rnr_nak_acknowledges_the_packets_before_it() {
    let mut pair = Pair::new().fates([(Response, 0, Lost)]);
    pair.write(0, 8);
    pair.send(8);
    pair.memory.receives.clear();
    let expected =
        ["-> RDMA WRITE Only 0", "-> SEND Only 1", "<- ACK 0, lost", "<- RNR NAK 1", "   0 done"];
    assert_eq!(pair.run_for(Duration::from_micros(600)), expected);
}

/// IBTA section 9.7.4.1: a WRITE with immediate consumes its receive with its last packet; only that packet is sent
/// again.
#[test]
fn a_write_with_immediate_consumes_its_receive_at_its_end() {
    let mut pair = Pair::new();
    let end = MessageEnd { length: 300, immediate: Some(5), ..MessageEnd::default() };
    pair.write_with(0, end);
    let expected =
        ["-> RDMA WRITE First 0 -", "-> RDMA WRITE Last with Immediate 1", "<- RNR NAK 1"];
    assert_eq!(pair.run_for(Duration::from_micros(600)), expected);
    pair.memory.receives.push_back(0);
    let expected = ["-> RDMA WRITE Last with Immediate 1", "<- ACK 1", "   0 done"];
    assert_eq!(pair.run(), expected);
    assert_eq!(pair.memory.received[0].end, end);
}

/// A duplicate counts once: the second is about packets that were not sent again yet. IBTA section 9.7.5.2.8.
#[test]
fn a_duplicate_rnr_nak_counts_once() {
    let mut pair = Pair::new().fates([(Response, 0, Twice), (Response, 1, Twice)]);
    pair.send(8);
    pair.run_for(Duration::from_millis(1));
    pair.memory.receives.push_back(8);
    assert_eq!(pair.run().last().unwrap(), "   0 done");
}

/// If it is lost, the timer causes a retransmission. IBTA section 9.7.5.2.8.
#[test]
fn a_lost_rnr_nak_is_repaired_by_the_timer() {
    let mut pair = Pair::new().fates([(Response, 0, Lost)]);
    pair.send(8);
    let expected = ["-> SEND Only 0", "<- RNR NAK 0, lost", "-> SEND Only 0", "<- RNR NAK 0"];
    assert_eq!(pair.run_for(Duration::from_micros(1_100)), expected);
    assert_eq!(pair.requester.deadline().map(|at| at.as_nanos()), Some((4096 << 8) + 642_000));
}

/// A gap after an RNR NAK is not reported as well: SoftRoCE does so, but the specification does not. IBTA section
/// 9.7.5.2.
#[test]
fn no_sequence_nak_follows_an_rnr_nak() {
    let mut pair = Pair::new().fates([(Request, 1, Lost)]);
    (0..3).for_each(|_| _ = pair.send(8));
    let trace = pair.run_for(Duration::from_micros(600));
    assert!(trace.iter().all(|line| !line.contains("sequence")), "{trace:?}");
}

/// The counter is per packet: progress resets it. IBTA section 9.7.6.
#[test]
fn each_success_resets_the_rnr_retries() {
    let mut pair = Pair::new();
    for n in 0..3 {
        pair.send(8);
        pair.run_for(Duration::from_micros(1_000));
        pair.memory.receives.push_back(8);
        assert_eq!(pair.run().last().unwrap(), &format!("   {n} done"));
    }
    assert_eq!(pair.requester.counters().rcvd_rnr_err, 6);
}

/// A receiver that is not ready is alive: its answer resets the other retries (IBTA section 9.7.6).
#[test]
fn an_rnr_nak_resets_the_other_retries() {
    let (mut requester, responder) = settings();
    requester.rnr_retries = MaxRnrRetries::unlimited();
    let mut pair = Pair::with(&requester, &responder).network(Box::new(|way, n| match way {
        Response if n % 3 != 2 => Lost,
        _ => Arrives,
    }));
    pair.send(8);
    pair.run_for(Duration::from_millis(30));
    pair.memory.receives.push_back(8);
    assert_eq!(pair.run().last().unwrap(), "   0 done");
}

/// The link reports that a receive was posted: the wait ends, but still counts as one.
#[test]
fn a_receiver_that_becomes_ready_ends_the_wait() {
    let mut pair = Pair::new();
    assert_eq!(pair.responder.refusal(), None);
    pair.send(8);
    for round in 1..=2 {
        assert_eq!(pair.run_for(Duration::from_micros(600)).last().unwrap(), "<- RNR NAK 0");
        let psn = pair.responder.refusal().unwrap().header.bth.psn;
        assert!(!pair.requester.receiver_is_ready(psn.wrapping_add(1)), "another packet's");
        assert!(pair.requester.receiver_is_ready(psn), "round {round}");
        assert!(!pair.requester.receiver_is_ready(psn), "it does not wait");
        assert_eq!(pair.requester.deadline(), None);
    }
    // It has two retries.
    let expected = ["-> SEND Only 0", "<- RNR NAK 0", "   0 failed: RNR_RETRY_EXC_ERR"];
    assert_eq!(pair.run_for(Duration::from_micros(600)), expected);
    assert_eq!(pair.requester.counters().rcvd_rnr_err, 3);
    // A requester that has failed does not wait.
    let psn = pair.responder.refusal().unwrap().header.bth.psn;
    assert!(!pair.requester.receiver_is_ready(psn));
}

#[test]
fn the_refusal_ends_when_its_packet_arrives_again() {
    let mut pair = Pair::new();
    pair.send(8);
    pair.run_for(Duration::from_micros(600));
    pair.memory.receives.push_back(8);
    let refusal = pair.responder.refusal().unwrap();
    assert!(pair.requester.receiver_is_ready(refusal.header.bth.psn));
    let before = pair.now;
    assert_eq!(pair.run(), ["-> SEND Only 0", "<- ACK 0", "   0 done"]);
    assert_eq!(pair.now.as_nanos() - before.as_nanos(), 2_000);
    assert_eq!(pair.responder.refusal(), None);
}
