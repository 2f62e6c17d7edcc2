//! When no answer arrives, the oldest packet is sent again, alone, long before the timer expires.

use crate::pair::network::Fate::{Late, Lost};
use crate::pair::network::Pair;
use crate::pair::network::Way::{Request, Response};

/// A pair that has measured how long answers take: 2 us.
fn acquainted<const N: usize>(
    fates: [(crate::pair::network::Way, u64, crate::pair::network::Fate); N],
) -> Pair {
    let mut pair = Pair::new().fates(fates);
    pair.write(0, 8);
    pair.run();
    pair
}

/// `Retry`: after a silence much longer than the usual response time, the oldest packet is sent again, long before the
/// timer expires.
#[test]
fn silence_is_probed() {
    let mut pair = acquainted([(Request, 1, Lost)]);
    pair.write(0, 8);
    let expected = ["-> RDMA WRITE Only 1, lost", "-> RDMA WRITE Only 1", "<- ACK 1", "   1 done"];
    assert_eq!(pair.run(), expected);
    assert_eq!(pair.now.as_nanos(), 2_000 + 250_000 + 2_000);
    let counters = pair.requester.counters();
    assert_eq!((counters.roce_adp_retrans, counters.completer_retry_err), (1, 0));
}

/// It is sent alone, until an answer arrives. Here the NAK is lost, which the responder does not repeat.
#[test]
fn a_probe_repairs_a_lost_nak() {
    let mut pair = acquainted([(Request, 1, Lost), (Response, 1, Lost)]);
    (0..3).for_each(|_| _ = pair.write(0, 8));
    let expected = [
        "-> RDMA WRITE Only 1, lost",
        "-> RDMA WRITE Only 2",
        "-> RDMA WRITE Only 3",
        "<- NAK sequence 1, lost",
        "-> RDMA WRITE Only 1",
        "<- ACK 1",
        "   1 done",
        "-> RDMA WRITE Only 2",
        "-> RDMA WRITE Only 3",
        "<- ACK 2",
        "<- ACK 3",
        "   2 done",
        "   3 done",
    ];
    assert_eq!(pair.run(), expected);
    assert_eq!(pair.requester.counters().local_ack_timeout_err, 0);
}

/// The same if the retransmission is lost too.
#[test]
fn a_probe_repairs_a_lost_retransmission() {
    let mut pair = acquainted([(Request, 1, Lost), (Request, 3, Lost)]);
    (0..2).for_each(|_| _ = pair.write(0, 8));
    let expected = [
        "-> RDMA WRITE Only 1, lost",
        "-> RDMA WRITE Only 2",
        "<- NAK sequence 1",
        "-> RDMA WRITE Only 1, lost",
        "-> RDMA WRITE Only 2",
        "-> RDMA WRITE Only 1",
        "<- ACK 1",
        "   1 done",
        "-> RDMA WRITE Only 2",
        "<- ACK 2",
        "   2 done",
    ];
    assert_eq!(pair.run(), expected);
    assert!(pair.now.as_nanos() < 800_000);
}

/// The peer was slow, and nothing was lost: one packet arrives twice, and nothing else.
#[test]
fn an_unnecessary_probe_repeats_only_one_packet() {
    let mut pair = acquainted([(Response, 1, Late(400))]);
    (0..2).for_each(|_| _ = pair.write(0, 2 * 256));
    let trace = pair.run();
    let expected = [
        "-> RDMA WRITE First 1 -",
        "-> RDMA WRITE Last 2",
        "-> RDMA WRITE First 3 -",
        "-> RDMA WRITE Last 4",
        "<- ACK 2, late",
        "<- ACK 4",
        "   1 done",
        "   2 done",
    ];
    assert_eq!(trace, expected, "a later ACK covers the same packets");
    let mut pair = acquainted([(Response, 1, Late(400))]);
    pair.write(0, 2 * 256);
    let expected = [
        "-> RDMA WRITE First 1 -",
        "-> RDMA WRITE Last 2",
        "<- ACK 2, late",
        "-> RDMA WRITE First 1",
        "<- ACK 2",
        "   1 done",
    ];
    assert_eq!(pair.run(), expected);
    assert_eq!(pair.responder.counters().duplicate_request, 1);
    assert_eq!(pair.requester.counters().unsolicited_response, 1);
}

/// The peer is slow and accepts one packet after another: only the oldest is sent again, and all later ones stay in
/// flight.
#[test]
fn a_probe_leaves_the_others_in_flight() {
    let fates = [1, 2, 3].map(|n| (Response, n, Late(400 * n.min(2))));
    let mut pair = acquainted([fates[0], fates[1], fates[2], (Response, 4, Lost)]);
    (0..3).for_each(|_| _ = pair.write(0, 8));
    let expected = [
        "-> RDMA WRITE Only 1",
        "-> RDMA WRITE Only 2",
        "-> RDMA WRITE Only 3",
        "<- ACK 1, late",
        "<- ACK 2, late",
        "<- ACK 3, late",
        "-> RDMA WRITE Only 1",
        "<- ACK 3, lost",
        "   1 done",
        "   2 done",
        "   3 done",
    ];
    assert_eq!(pair.run(), expected);
    let counters = pair.requester.counters();
    assert_eq!((counters.roce_adp_retrans, counters.completer_retry_err), (1, 0));
}

/// New requests continue after a probe, and the NAK for the packets that they find missing arrives at once. Here the
/// first NAK is lost.
#[test]
fn new_requests_reveal_other_missing_packets() {
    let mut pair = acquainted([(Request, 1, Lost), (Response, 1, Lost)]);
    (0..2).for_each(|_| _ = pair.write(0, 8));
    pair.run_for(std::time::Duration::from_micros(251));
    pair.write(0, 8);
    let expected = [
        "-> RDMA WRITE Only 3",
        "   1 done",
        "<- NAK sequence 2",
        "-> RDMA WRITE Only 2",
        "-> RDMA WRITE Only 3",
        "<- ACK 2",
        "<- ACK 3",
        "   2 done",
        "   3 done",
    ];
    assert_eq!(pair.run(), expected);
}

/// In the middle of a message only the probe requests an acknowledgement. If only the probe is acknowledged, the
/// packets after it have not arrived. Here the second packet and its NAK are lost.
#[test]
fn a_probe_within_a_message_reveals_missing_packets() {
    let mut pair = acquainted([(Request, 1, Lost), (Response, 1, Lost)]);
    pair.write(0, 3 * 256);
    let expected = [
        "-> RDMA WRITE First 1 -, lost",
        "-> RDMA WRITE Middle 2 -",
        "-> RDMA WRITE Last 3",
        "<- NAK sequence 1, lost",
        "-> RDMA WRITE First 1",
        "<- ACK 1",
        "-> RDMA WRITE Middle 2 -",
        "-> RDMA WRITE Last 3",
        "<- ACK 3",
        "   1 done",
    ];
    assert_eq!(pair.run(), expected);
    assert!(pair.now.as_nanos() < 300_000);
}

/// Each probe waits twice as long as the one before it. None is counted as a retry, so that the time until a dead peer
/// is given up does not change: 4 times 1.05 ms.
#[test]
fn probes_do_not_change_when_a_peer_is_given_up() {
    let mut pair = acquainted([]).network(Box::new(|_, _| Lost));
    pair.write(0, 8);
    let before = pair.now.as_nanos();
    let trace = pair.run();
    // After 0.25, 0.5 and 1.0 ms of each 1.05 ms.
    assert_eq!(trace.len(), 4 * (1 + 3) + 1);
    assert_eq!(trace.last().unwrap(), "   1 failed: RETRY_EXC_ERR");
    assert_eq!(pair.now.as_nanos() - before, 4 * (4096 << 8));
    let counters = pair.requester.counters();
    assert_eq!((counters.roce_adp_retrans, counters.completer_retry_err), (12, 3));
}

/// When answers take longer, probes are sent later: after 800 us if an answer took 400.
#[test]
fn slow_answers_delay_the_probe() {
    let mut pair = acquainted([(Response, 1, Late(400)), (Response, 2, Lost), (Request, 3, Lost)]);
    pair.write(0, 8);
    pair.run();
    assert_eq!(pair.requester.counters().roce_adp_retrans, 1, "250 us were too short");
    let before = pair.now.as_nanos();
    pair.write(0, 8);
    pair.run();
    assert_eq!(pair.now.as_nanos() - before, 2 * 402_000 + 2_000);
}

/// A receiver that is not ready is not probed.
#[test]
fn the_wait_for_a_receive_is_not_silence() {
    let mut pair = acquainted([]);
    pair.send(8);
    pair.run_for(std::time::Duration::from_micros(600));
    pair.memory.receives.push_back(8);
    pair.run();
    let counters = pair.requester.counters();
    assert_eq!((counters.rcvd_rnr_err, counters.roce_adp_retrans), (1, 0));
}
