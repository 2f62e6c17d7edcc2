//! Packets are lost, arrive twice, or overtake each other.

use std::time::Duration;

use rdma_proto::requester::Settings;
use rdma_proto::wire::{Bth, Headers, Opcode, Operation, Reth};
use rdma_types::AckTimeout;

use crate::pair::ends::RKEY;
use crate::pair::network::Fate::{Late, Lost, Twice};
use crate::pair::network::Way::{Request, Response};
use crate::pair::network::{Pair, bytes, settings};

/// IBTA section 9.7.5.2: a gap is reported once, however many packets follow, and everything from there on is sent
/// again.
#[test]
fn a_gap_is_reported_by_one_nak() {
    let mut pair = Pair::new().fates([(Request, 1, Lost)]);
    pair.write(0, 4 * 256);
    let expected = [
        "-> RDMA WRITE First 0 -",
        "-> RDMA WRITE Middle 1 -, lost",
        "-> RDMA WRITE Middle 2 -",
        "-> RDMA WRITE Last 3",
        "<- NAK sequence 1",
        "-> RDMA WRITE Middle 1 -",
        "-> RDMA WRITE Middle 2 -",
        "-> RDMA WRITE Last 3",
        "<- ACK 3",
        "   0 done",
    ];
    assert_eq!(pair.run(), expected);
    assert_eq!(pair.memory.bytes[..1024], bytes(0, 1024));
    assert_eq!(pair.responder.counters().out_of_seq_request, 2);
    assert_eq!(pair.requester.counters().rcvd_seq_err, 1);
}

/// IBTA section 9.7.5.1.2: a NAK acknowledges the packets before it.
#[test]
fn a_nak_acknowledges_the_packets_before_it() {
    let mut pair = Pair::new().fates([(Request, 1, Lost), (Response, 0, Lost)]);
    (0..3).for_each(|_| _ = pair.write(0, 8));
    let expected = [
        "-> RDMA WRITE Only 0",
        "-> RDMA WRITE Only 1, lost",
        "-> RDMA WRITE Only 2",
        "<- ACK 0, lost",
        "<- NAK sequence 1",
        "   0 done",
        "-> RDMA WRITE Only 1",
        "-> RDMA WRITE Only 2",
        "<- ACK 1",
        "<- ACK 2",
        "   1 done",
        "   2 done",
    ];
    assert_eq!(pair.run(), expected);
}

/// IBTA section 9.7.6.1.3: code 8 is 1.05 ms.
#[test]
fn a_lost_last_packet_is_sent_again_after_the_timeout() {
    let mut pair = Pair::new().fates([(Request, 0, Lost)]);
    pair.write(0, 8);
    let expected = ["-> RDMA WRITE Only 0, lost", "-> RDMA WRITE Only 0", "<- ACK 0", "   0 done"];
    assert_eq!(pair.run(), expected);
    assert_eq!(pair.now.as_nanos(), (4096 << 8) + 2_000);
    assert_eq!(pair.requester.deadline(), None);
}

/// IBTA C9-105: a duplicate is acknowledged, and not executed again.
#[test]
fn a_lost_acknowledgement_is_sent_again() {
    let mut pair = Pair::new().fates([(Response, 0, Lost)]);
    pair.memory.receives.extend([8, 8]);
    pair.send(8);
    let expected = ["-> SEND Only 0", "<- ACK 0, lost", "-> SEND Only 0", "<- ACK 0", "   0 done"];
    assert_eq!(pair.run(), expected);
    assert_eq!(pair.memory.received.len(), 1);
    assert_eq!(pair.responder.counters().duplicate_request, 1);
}

/// IBTA section 9.7.5.1.2: the acknowledgement has the newest PSN, although the duplicate is an older packet.
#[test]
fn a_duplicate_is_acknowledged_with_the_newest_psn() {
    let mut pair =
        Pair::new().fates([(Request, 0, Twice), (Response, 0, Lost), (Response, 1, Lost)]);
    pair.write(0, 8);
    pair.write(0, 8);
    pair.run_for(std::time::Duration::ZERO);
    pair.hand_over();
    assert_eq!(pair.run()[0], "<- ACK 1, lost");
}

/// IBTA section 9.7.5.1: an acknowledgement is owed; then a packet is missing, but arrives before the NAK is sent. The
/// acknowledgement that the NAK replaced is still sent.
#[test]
fn a_packet_that_was_missing_for_a_moment_is_acknowledged() {
    let mut pair = Pair::new().fates([(Request, 1, Late(2))]);
    pair.write(0, 8);
    pair.write(0, 500);
    let sent = ["-> RDMA WRITE Only 0", "-> RDMA WRITE First 1 -, late", "-> RDMA WRITE Last 2"];
    assert_eq!(pair.run_for(std::time::Duration::ZERO), sent);
    pair.hand_over();
    assert_eq!(pair.run()[..2], ["<- ACK 1", "   0 done"]);
    assert_eq!(pair.queue.completed.len(), 2);
}

/// IBTA section 9.7.5.1.2.
#[test]
fn a_later_acknowledgement_makes_up_for_a_lost_one() {
    let mut pair = Pair::new().fates([(Response, 0, Lost)]);
    pair.write(0, 8);
    pair.write(0, 8);
    let expected = [
        "-> RDMA WRITE Only 0",
        "-> RDMA WRITE Only 1",
        "<- ACK 0, lost",
        "<- ACK 1",
        "   0 done",
        "   1 done",
    ];
    assert_eq!(pair.run(), expected);
}

/// IBTA section 9.7.6: `retry_cnt` is 3, so that a packet is sent four times.
#[test]
fn the_request_fails_after_the_last_retry() {
    let mut pair = Pair::new().network(Box::new(|_, _| Lost));
    pair.write(0, 8);
    let expected = [
        "-> RDMA WRITE Only 0, lost",
        "-> RDMA WRITE Only 0, lost",
        "-> RDMA WRITE Only 0, lost",
        "-> RDMA WRITE Only 0, lost",
        "   0 failed: RETRY_EXC_ERR",
    ];
    assert_eq!(pair.run(), expected);
    assert_eq!(pair.now.as_nanos(), 4 * (4096 << 8));
    assert_eq!(pair.requester.counters().retry_exceeded_err, 1);
    assert!(pair.requester.stopped());
}

/// The counter is per packet: progress resets it. IBTA section 9.7.6.
#[test]
fn each_success_resets_the_retries() {
    let mut pair = Pair::new().network(Box::new(|way, n| match (way, n % 4) {
        (Request, 0..3) => Lost,
        _ => crate::pair::network::Fate::Arrives,
    }));
    for n in 0..3 {
        pair.write(0, 8);
        assert_eq!(pair.run().last().unwrap(), &format!("   {n} done"));
    }
    assert_eq!(pair.requester.counters().completer_retry_err, 9);
}

/// Only the missing part of a response is requested again. IBTA chapter 9, retries of READs.
#[test]
fn only_the_missing_tail_of_a_read_is_requested_again() {
    let mut pair = Pair::new().fates([(Response, 1, Lost)]);
    pair.memory.bytes[..1000].copy_from_slice(&bytes(9, 1000));
    pair.read(0, 1000);
    let expected = [
        "-> RDMA READ Request 0",
        "<- RDMA READ Response First 0",
        "<- RDMA READ Response Middle 1, lost",
        "<- RDMA READ Response Middle 2",
        "<- RDMA READ Response Last 3",
        "-> RDMA READ Request 1",
        "<- RDMA READ Response First 1",
        "<- RDMA READ Response Middle 2",
        "<- RDMA READ Response Last 3",
        "   0 done",
    ];
    assert_eq!(pair.run(), expected);
    assert_eq!(pair.queue.posted[0].local, bytes(9, 1000));
    assert_eq!(pair.queue.delivered, 1000);
    assert_eq!(pair.requester.counters().completer_retry_err, 1);
}

/// The same if the whole response is lost, or the request. IBTA chapter 9, retries of READs.
#[test]
fn a_read_is_requested_again_after_the_timeout() {
    for way in [Request, Response] {
        let mut pair = Pair::new().fates([(way, 0, Lost)]);
        pair.read(0, 8);
        assert_eq!(pair.run().last().unwrap(), "   0 done");
        assert_eq!(pair.now.as_nanos() / 1_000_000, 1);
    }
}

/// An implied NAK: an acknowledgement past an unanswered READ shows that the answer was lost. IBTA chapter 9,
/// acknowledgements.
#[test]
fn an_acknowledgement_past_an_unanswered_read_repeats_the_read() {
    let mut pair = Pair::new().fates([(Response, 0, Lost)]);
    pair.read(0, 8);
    pair.write(0, 8);
    let expected = [
        "-> RDMA READ Request 0",
        "-> RDMA WRITE Only 1",
        "<- RDMA READ Response Only 0, lost",
        "<- ACK 1",
        "-> RDMA READ Request 0",
        "-> RDMA WRITE Only 1",
        "<- RDMA READ Response Only 0",
        "   0 done",
        "<- ACK 1",
        "   1 done",
    ];
    let trace = pair.run();
    let mut sorted = trace.clone();
    sorted.sort();
    let mut wanted = expected.map(str::to_owned).to_vec();
    wanted.sort();
    assert_eq!(sorted, wanted, "{trace:#?}");
}

/// IBTA section 9.7.4.1: an atomic is executed once, and the stored answer is repeated.
#[test]
fn an_atomic_is_executed_once() {
    let mut pair = Pair::new().fates([(Response, 0, Lost)]);
    pair.add(0, 7);
    pair.add(0, 1);
    assert_eq!(pair.run().last().unwrap(), "   1 done");
    assert_eq!(pair.memory.atomics, 2);
    assert_eq!(pair.queue.posted[0].local, 0_u64.to_ne_bytes());
    assert_eq!(pair.queue.posted[1].local, 7_u64.to_ne_bytes());
}

/// IBTA section 9.7.4.1: a READ that arrives again is executed again. Here the memory has changed since.
#[test]
fn a_read_is_executed_again() {
    let mut pair = Pair::new().fates([(Response, 0, Lost)]);
    pair.read(0, 1);
    pair.run_for(std::time::Duration::from_micros(10));
    pair.memory.bytes[0] = 9;
    assert_eq!(pair.run().last().unwrap(), "   0 done");
    assert_eq!(pair.queue.posted[0].local, [9]);
}

/// IBTA section 9.7.4.1: the responder keeps as many as may be in flight: an older one is not answered.
#[test]
fn a_duplicate_that_is_too_old_is_dropped() {
    let mut pair = Pair::new();
    (0..3).for_each(|_| _ = pair.add(0, 1));
    let (now, mut room) = (pair.now, [0; 256]);
    let first = pair.requester.poll_transmit(now, &mut pair.queue, &mut room).unwrap();
    pair.deliver(Request, &first, &[]);
    pair.run();
    pair.deliver(Request, &first, &[]);
    assert_eq!(pair.run(), [""; 0]);
    assert_eq!((pair.memory.atomics, pair.responder.counters().unanswered_duplicate), (3, 1));
}

/// The maximum number is in flight. A late duplicate of a completed one does not count. IBTA chapter 9, responder
/// resources.
#[test]
fn a_late_duplicate_does_not_use_the_resource_of_the_next_atomic() {
    let mut pair = Pair::new();
    (0..2).for_each(|_| _ = pair.add(0, 1));
    let mut room = [0; 256];
    let first = pair.requester.poll_transmit(pair.now, &mut pair.queue, &mut room).unwrap();
    pair.deliver(Request, &first, &[]);
    pair.run();
    pair.add(0, 1);
    let third = pair.requester.poll_transmit(pair.now, &mut pair.queue, &mut room).unwrap();
    pair.deliver(Request, &first, &[]);
    pair.deliver(Request, &third, &[]);
    assert_eq!(pair.run().last().unwrap(), "   2 done");
    assert_eq!((pair.memory.atomics, pair.responder.failed()), (3, false));
}

/// A requester may repeat a READ shortly before the answer arrives, and invalidate its key after that. The connection
/// must not fail. IBTA section 9.7.4.1.
#[test]
fn a_late_duplicate_of_a_read_with_an_invalidated_key_does_not_fail_the_connection() {
    let mut pair = Pair::new();
    pair.read(0, 600);
    let mut room = [0; 256];
    let read = pair.requester.poll_transmit(pair.now, &mut pair.queue, &mut room).unwrap();
    pair.deliver(Request, &read, &[]);
    assert_eq!(pair.run().last().unwrap(), "   0 done");
    pair.memory.unreadable = true;
    pair.deliver(Request, &read, &[]);
    assert_eq!(pair.run(), ["<- NAK RemoteOperational 0"]);
    assert!(!pair.responder.failed() && pair.memory.failed.is_none());
    pair.write(0, 8);
    assert_eq!(pair.run().last().unwrap(), "   1 done");
}

/// IBTA chapter 9, packet sequence numbers: after 2^24 packets another request has the same PSN. A duplicate is a
/// duplicate of the newest request with its PSN, and an older one is never the answer.
#[test]
fn a_duplicate_gets_no_answer_of_an_older_atomic_with_the_same_psn() {
    for newer_is_atomic in [true, false] {
        let (requester, mut responder) = settings();
        responder.max_dest_rd_atomic = 16;
        let mut pair = Pair::with(&requester, &responder);
        pair.memory.endless = true;
        let mut wide = vec![0; 65_535 * 256];
        let mut answers = |pair: &mut Pair, request: &rdma_proto::Burst| {
            pair.deliver(Request, request, &[]);
            core::iter::from_fn(|| pair.responder.poll_transmit(&mut pair.memory, &mut wide)).last()
        };
        let given_out = |pair: &mut Pair| {
            pair.requester.poll_transmit(pair.now, &mut pair.queue, &mut [0; 256]).unwrap()
        };
        pair.add(0, 7);
        let atomic = given_out(&mut pair);
        assert!(answers(&mut pair, &atomic).is_some());
        // The other 2^24 - 1 PSNs of this round.
        for length in [1 << 31, (1 << 31) - 256] {
            let psn = pair.responder.expected();
            let opcode = Opcode::reliable(Operation::RdmaReadRequest);
            let mut read = Headers::new(Bth::new(opcode, atomic.header.bth.destination, psn));
            read.reth = Some(Reth { va: 0, rkey: RKEY, length });
            answers(&mut pair, &rdma_proto::Burst::single(read, 0));
        }
        assert_eq!(pair.responder.expected(), atomic.header.bth.psn);
        let mut newer = atomic;
        if !newer_is_atomic {
            newer.header.bth.opcode = Opcode::reliable(Operation::RdmaWriteOnly);
            newer.header.atomic = None;
            newer.header.reth = Some(Reth { va: 0, rkey: RKEY, length: 0 });
        }
        answers(&mut pair, &newer);
        let again = answers(&mut pair, &atomic).and_then(|burst| burst.header.atomic_ack);
        assert_eq!(again.map(|ack| ack.original), newer_is_atomic.then_some(7));
        assert_eq!(pair.memory.atomics, 1 + usize::from(newer_is_atomic));
    }
}

/// Reordered packets look like a gap for a while.
/// IBTA section 9.7.5.2.
#[test]
fn reordered_packets_are_executed_in_order() {
    let mut pair = Pair::new().fates([(Request, 0, Late(3))]);
    pair.memory.receives.extend([8, 8]);
    pair.send(8);
    pair.send(8);
    assert_eq!(pair.run().last().unwrap(), "   1 done");
    let received: Vec<_> = pair.memory.received.iter().map(|it| it.bytes.clone()).collect();
    assert_eq!(received, [bytes(0, 8), bytes(1, 8)]);
}

/// Responses that overtake each other are requested once, not once for each.
/// IBTA chapter 9, retries of READs.
#[test]
fn late_responses_cause_one_repetition() {
    let mut pair = Pair::new().fates([(Response, 0, Late(9))]);
    pair.read(0, 1000);
    let trace = pair.run();
    let requests = trace.iter().filter(|line| line.contains("Request")).count();
    assert_eq!((requests, trace.last().unwrap().as_str()), (2, "   0 done"), "{trace:#?}");
}

/// IBTA section 9.7.4.1: a repeated request must equal the original, or the tail of it.
#[test]
fn a_duplicate_that_differs_from_the_request_is_dropped() {
    let mut pair = Pair::new();
    pair.read(0, 600);
    let (now, mut room) = (pair.now, [0; 256]);
    let burst = pair.requester.poll_transmit(now, &mut pair.queue, &mut room).unwrap();
    pair.deliver(Request, &burst, &[]);
    pair.run();
    let tail = |skipped: u32| {
        let mut tail = burst;
        tail.header.bth.psn = burst.header.bth.psn.wrapping_add(skipped / 256);
        let reth = tail.header.reth.as_mut().unwrap();
        (reth.va, reth.length) = (reth.va + u64::from(skipped), reth.length - skipped);
        tail
    };
    let mut others = [tail(256); 4];
    others[0].header.reth.as_mut().unwrap().length += 1;
    others[1].header.reth.as_mut().unwrap().va += 1;
    others[2].header.reth.as_mut().unwrap().rkey = rdma_types::Rkey::new(7);
    others[3].header.bth.psn = burst.header.bth.psn;
    for other in others {
        pair.deliver(Request, &other, &[]);
        assert_eq!(pair.run(), [""; 0]);
    }
    assert_eq!(pair.responder.counters().unanswered_duplicate, 4);
    pair.deliver(Request, &tail(512), &[]);
    assert_eq!(pair.run(), ["<- RDMA READ Response Only 2"]);
}

/// An ACK has the PSN of a SEND or a WRITE, never that of a READ or an atomic. SoftRoCE would take it for the response.
#[test]
fn an_acknowledgement_never_has_the_psn_of_a_read_or_an_atomic() {
    for atomic in [false, true] {
        let mut pair = Pair::new().fates([(Response, 0, Lost)]);
        pair.write(0, 8);
        let _ = if atomic { pair.add(8, 1) } else { pair.read(8, 8) };
        pair.run_for(std::time::Duration::ZERO);
        pair.hand_over();
        let trace = pair.run();
        let acks: Vec<_> = trace.iter().filter(|line| line.starts_with("<- ACK")).collect();
        assert_eq!(acks, ["<- ACK 0"], "{trace:#?}");
        assert_eq!(trace.last().unwrap(), "   1 done");
    }
}

/// `docs/rocev2.md` shows these traces.
#[test]
fn the_page_shows_the_actual_traces() {
    let page = concat!(env!("CARGO_MANIFEST_DIR"), "/../../docs/rocev2.md");
    let page = std::fs::read_to_string(page).unwrap();
    let mut write = Pair::new().fates([(Request, 1, Lost)]);
    write.write(0, 1024);
    let mut read = Pair::new().fates([(Response, 1, Lost)]);
    read.read(0, 1000);
    for mut pair in [write, read] {
        let trace = pair.run().join("\n");
        assert!(page.contains(&format!("```text\n{trace}\n```")), "{trace}");
    }
}

/// The answer was sent to the former path, and nothing limits the wait for it.
#[test]
fn a_changed_path_sends_the_unacknowledged_packets_again() {
    let (requester, responder) = settings();
    let timeout = AckTimeout::unlimited();
    let mut pair = Pair::with(&Settings { timeout, ..requester }, &responder);
    pair = pair.fates([(Response, 1, Lost)]);
    (0..2).for_each(|_| _ = pair.write(0, 8));
    pair.run();
    pair.requester.hold();
    pair.requester.path_has_changed();
    assert!(!pair.requester.is_held());
    assert_eq!(pair.run(), ["-> RDMA WRITE Only 1", "<- ACK 1", "   1 done"]);
    assert_eq!(pair.requester.counters().completer_retry_err, 0);
}

/// A wait that the receiver has requested goes on.
#[test]
fn a_changed_path_ends_no_wait_for_a_receiver() {
    let mut pair = Pair::new();
    pair.send(8);
    assert_eq!(pair.run_for(Duration::from_micros(600)).last().unwrap(), "<- RNR NAK 0");
    let deadline = pair.requester.deadline();
    pair.requester.path_has_changed();
    assert_eq!(pair.requester.deadline(), deadline);
    pair.memory.receives.push_back(8);
    assert_eq!(pair.run(), ["-> SEND Only 0", "<- ACK 0", "   0 done"]);
    assert_eq!(Some(pair.now), deadline.map(|at| at.after(Duration::from_micros(2))));
}
