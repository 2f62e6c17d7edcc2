//! Packets get lost, come twice, or overtake each other.

use crate::pair::Fate::{Late, Lost, Twice};
use crate::pair::Way::{Request, Response};
use crate::pair::{Pair, bytes};

/// IBTA section 9.7.5.2.1: a gap is reported once, however many packets follow, and all from there on is
/// sent again.
#[test]
fn one_nak_for_a_gap() {
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

/// IBTA section 9.7.5.2.1: a NAK acknowledges what is before it.
#[test]
fn a_nak_acknowledges_what_is_before_it() {
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
fn a_lost_packet_that_none_follows_is_sent_again_in_time() {
    let mut pair = Pair::new().fates([(Request, 0, Lost)]);
    pair.write(0, 8);
    let expected = ["-> RDMA WRITE Only 0, lost", "-> RDMA WRITE Only 0", "<- ACK 0", "   0 done"];
    assert_eq!(pair.run(), expected);
    assert_eq!(pair.now.as_nanos(), (4096 << 8) + 2_000);
    assert_eq!(pair.requester.deadline(), None);
}

/// IBTA section 9.7.4.1.1: a duplicate is acknowledged, and not executed again.
#[test]
fn a_lost_acknowledgement_comes_again() {
    let mut pair = Pair::new().fates([(Response, 0, Lost)]);
    pair.memory.receives.extend([8, 8]);
    pair.send(8);
    let expected = ["-> SEND Only 0", "<- ACK 0, lost", "-> SEND Only 0", "<- ACK 0", "   0 done"];
    assert_eq!(pair.run(), expected);
    assert_eq!(pair.memory.received.len(), 1);
    assert_eq!(pair.responder.counters().duplicate_request, 1);
}

/// IBTA section 9.7.5.1.1: with the newest PSN, although it is about an older packet.
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

/// IBTA section 9.7.6.1.4: `retry_cnt` is 3, so that a packet is sent four times.
#[test]
fn retries_end() {
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

/// The counter is about one packet: what was taken resets it.
#[test]
fn retries_begin_anew_with_each_success() {
    let mut pair = Pair::new().network(Box::new(|way, n| match (way, n % 4) {
        (Request, 0..3) => Lost,
        _ => crate::pair::Fate::Arrives,
    }));
    for n in 0..3 {
        pair.write(0, 8);
        assert_eq!(pair.run().last().unwrap(), &format!("   {n} done"));
    }
    assert_eq!(pair.requester.counters().completer_retry_err, 9);
}

/// IBTA section 9.7.5.2.2: what is missing of a response is asked for, and no more.
#[test]
fn the_tail_of_a_read_is_asked_for_again() {
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

/// The same when all of the response is lost, and when the request is.
#[test]
fn a_read_is_asked_for_again_in_time() {
    for way in [Request, Response] {
        let mut pair = Pair::new().fates([(way, 0, Lost)]);
        pair.read(0, 8);
        assert_eq!(pair.run().last().unwrap(), "   0 done");
        assert_eq!(pair.now.as_nanos() / 1_000_000, 1);
    }
}

/// IBTA section 9.7.5.2.2: an acknowledgement past a READ that is not answered says that the answer was
/// lost.
#[test]
fn an_acknowledgement_past_an_unanswered_read() {
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

/// IBTA section 9.7.4.1.3: an atomic is executed once, and answered again from what the responder kept.
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

/// IBTA section 9.7.4.1.2: a READ that comes again is executed again. Here the memory has changed since.
#[test]
fn a_read_is_executed_again() {
    let mut pair = Pair::new().fates([(Response, 0, Lost)]);
    pair.read(0, 1);
    pair.run_for(std::time::Duration::from_micros(10));
    pair.memory.bytes[0] = 9;
    assert_eq!(pair.run().last().unwrap(), "   0 done");
    assert_eq!(pair.queue.posted[0].local, [9]);
}

/// IBTA section 9.7.4.1.2: as many are kept as may be under way: an older one is not answered.
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

/// IBTA section 9.7.2: packets that overtake each other are a gap for a while.
#[test]
fn packets_that_overtake_each_other() {
    let mut pair = Pair::new().fates([(Request, 0, Late(3))]);
    pair.memory.receives.extend([8, 8]);
    pair.send(8);
    pair.send(8);
    assert_eq!(pair.run().last().unwrap(), "   1 done");
    let received: Vec<_> = pair.memory.received.iter().map(|it| it.bytes.clone()).collect();
    assert_eq!(received, [bytes(0, 8), bytes(1, 8)]);
}

/// Responses that overtake each other are asked for once, not once for each.
#[test]
fn late_responses_cost_one_repetition() {
    let mut pair = Pair::new().fates([(Response, 0, Late(9))]);
    pair.read(0, 1000);
    let trace = pair.run();
    let requests = trace.iter().filter(|line| line.contains("Request")).count();
    assert_eq!((requests, trace.last().unwrap().as_str()), (2, "   0 done"), "{trace:#?}");
}

/// IBTA section 9.7.4.1.2: what comes again has to be what came, or the tail of it.
#[test]
fn a_duplicate_that_asks_for_something_else_is_dropped() {
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
