//! The counters: every dropped packet, by its reason. The other tests check single counters where they matter.

use rdma_proto::Counters;
use rdma_proto::wire::{Bth, Headers, Opcode, Operation};
use rdma_types::{Psn, Qpn};

use crate::pair::ends::BYTES;
use crate::pair::network::Fate::{Lost, Twice};
use crate::pair::network::Way::{Request, Response};
use crate::pair::network::{Pair, settings};

/// The nonzero counters.
pub(crate) fn counted(counters: &Counters) -> Vec<(&'static str, u64)> {
    counters.iter().filter(|&(_, value)| value > 0).collect()
}

fn requester(pair: &Pair) -> Vec<(&'static str, u64)> {
    counted(pair.requester.counters())
}

fn responder(pair: &Pair) -> Vec<(&'static str, u64)> {
    counted(pair.responder.counters())
}

#[test]
fn only_packets_are_counted_if_nothing_is_lost() {
    let mut pair = Pair::new();
    pair.memory.receives.push_back(600);
    pair.send(600);
    pair.read(0, 300);
    pair.run();
    assert_eq!(requester(&pair), [("sent_pkts", 4), ("rcvd_pkts", 3)]);
    assert_eq!(responder(&pair), [("sent_pkts", 3), ("rcvd_pkts", 4)]);
}

#[test]
fn a_gap_is_counted_at_both_ends() {
    let mut pair = Pair::new().fates([(Request, 0, Lost)]);
    (0..3).for_each(|_| _ = pair.write(0, 8));
    pair.run();
    let expected =
        [("sent_pkts", 6), ("rcvd_pkts", 4), ("rcvd_seq_err", 1), ("completer_retry_err", 1)];
    assert_eq!(requester(&pair), expected);
    assert_eq!(responder(&pair), [("sent_pkts", 4), ("rcvd_pkts", 5), ("out_of_seq_request", 2)]);
}

#[test]
fn a_lost_acknowledgement_is_counted_as_a_timeout_and_a_duplicate() {
    let mut pair = Pair::new().fates([(Response, 0, Lost)]);
    pair.write(0, 8);
    pair.run();
    let expected = [
        ("sent_pkts", 2),
        ("rcvd_pkts", 1),
        ("completer_retry_err", 1),
        ("local_ack_timeout_err", 1),
    ];
    assert_eq!(requester(&pair), expected);
    assert_eq!(responder(&pair), [("sent_pkts", 2), ("rcvd_pkts", 2), ("duplicate_request", 1)]);
}

/// The first of two acknowledgements completes the request; the second is a duplicate.
#[test]
fn a_doubled_acknowledgement_is_counted_as_unsolicited() {
    let mut pair = Pair::new().fates([(Response, 0, Twice)]);
    pair.write(0, 8);
    pair.run();
    assert_eq!(requester(&pair)[2..], [("unsolicited_response", 1)]);
}

#[test]
fn a_silent_peer_is_counted_as_timeouts_and_exceeded_retries() {
    let mut pair = Pair::new().network(Box::new(|_, _| Lost));
    pair.write(0, 8);
    pair.run();
    let expected = [
        ("sent_pkts", 4),
        ("retry_exceeded_err", 1),
        ("completer_retry_err", 3),
        ("local_ack_timeout_err", 4),
    ];
    assert_eq!(requester(&pair), expected);
}

/// The second and the third SEND follow a request that must arrive again.
#[test]
fn each_rnr_nak_is_counted_at_both_ends() {
    let mut pair = Pair::new();
    (0..3).for_each(|_| _ = pair.send(8));
    pair.run();
    let expected =
        [("sent_pkts", 9), ("rcvd_pkts", 3), ("rcvd_rnr_err", 3), ("retry_rnr_exceeded_err", 1)];
    assert_eq!(requester(&pair), expected);
    let expected =
        [("sent_pkts", 3), ("rcvd_pkts", 9), ("out_of_seq_request", 6), ("send_rnr_err", 3)];
    assert_eq!(responder(&pair), expected);
}

/// The middle and the last packet of the response arrive after the lost one; their data is requested again.
#[test]
fn a_lost_response_is_counted_as_an_implied_nak() {
    let mut pair = Pair::new().fates([(Response, 1, Lost)]);
    pair.read(0, 1000);
    pair.run();
    let expected = [
        ("sent_pkts", 2),
        ("rcvd_pkts", 6),
        ("completer_retry_err", 1),
        ("implied_nak_seq_err", 2),
    ];
    assert_eq!(requester(&pair), expected);
    assert_eq!(responder(&pair)[2..], [("duplicate_request", 1)]);
}

/// The second one is about a packet that is not sent again yet.
#[test]
fn a_doubled_negative_acknowledgement_is_counted_as_stale() {
    let mut pair = Pair::new().fates([(Response, 0, Twice)]);
    pair.send(8);
    pair.run_for(std::time::Duration::from_micros(10));
    assert_eq!(requester(&pair)[2..], [("rcvd_rnr_err", 1), ("stale_nak", 1)]);
}

/// Packets after a refusal are not answered, and both ends count them.
#[test]
fn refused_requests_are_counted_by_reason() {
    let mut pair = Pair::new();
    pair.write(BYTES as u64, 1);
    pair.write(0, 8);
    pair.run();
    assert_eq!(requester(&pair), [("sent_pkts", 2), ("rcvd_pkts", 1)]);
    let expected =
        [("sent_pkts", 1), ("rcvd_pkts", 2), ("resp_remote_access_errors", 1), ("after_end", 1)];
    assert_eq!(responder(&pair), expected);

    let mut pair = Pair::new();
    pair.memory.receives.push_back(7);
    pair.send(8);
    pair.run();
    assert_eq!(responder(&pair)[2..], [("resp_invalid_request_errors", 1)]);
}

/// The memory of a READ is gone, but its host allows the access: the refusal is counted once, however many packets were
/// left.
#[test]
fn an_unfinished_response_is_counted_once() {
    let mut pair = Pair::new();
    pair.read(0, 600);
    pair.read(0, 600);
    pair.run_for(std::time::Duration::ZERO);
    pair.memory.unreadable = true;
    assert_eq!(pair.run().last().unwrap(), "   0 failed: REM_OP_ERR");
    assert_eq!(responder(&pair)[2..], [("resp_remote_operation_errors", 1), ("after_end", 1)]);
}

/// A packet that the host asks to drop arrives again.
#[test]
fn a_packet_dropped_by_the_host_arrives_again() {
    let mut pair = Pair::new();
    pair.memory.drops = 1;
    pair.write(0, 8);
    assert_eq!(pair.run().last().unwrap(), "   0 done");
    assert_eq!(responder(&pair)[2..], [("dropped_by_host", 1)]);
}

/// A READ response arrives for a WRITE.
#[test]
fn a_response_that_does_not_match_is_counted() {
    let mut pair = Pair::new();
    pair.write(0, 8);
    pair.run_for(std::time::Duration::ZERO);
    let opcode = Opcode::reliable(Operation::RdmaReadResponseMiddle);
    let psn: Psn = settings().0.psn;
    let header = Headers::new(Bth::new(opcode, Qpn::masked(0x11), psn));
    let burst = rdma_proto::Burst::single(header, 256);
    pair.deliver(Response, &burst, &[0; 256]);
    pair.deliver(Response, &burst, &[0; 256]);
    assert_eq!(requester(&pair)[1..], [("rcvd_pkts", 2), ("bad_response", 1), ("after_end", 1)]);
}
