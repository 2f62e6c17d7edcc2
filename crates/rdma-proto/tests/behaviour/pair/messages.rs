//! Messages on a network without loss.

use rdma_proto::requester::{Requester, Window};
use rdma_proto::{MessageEnd, Time};
use rdma_types::{Rkey, WcStatus};

use crate::pair::ends::{Posted, Received};
use crate::pair::network::Way::{Request, Response};
use crate::pair::network::{Pair, bytes, settings};

/// IBTA section 9.7.5.1.2.
#[test]
fn a_send_of_one_packet_is_acknowledged() {
    let mut pair = Pair::new();
    pair.memory.receives.push_back(100);
    pair.send(21);
    assert_eq!(pair.run(), ["-> SEND Only 0", "<- ACK 0", "   0 done"]);
    let end = MessageEnd { length: 21, ..MessageEnd::default() };
    assert_eq!(pair.memory.received, [Received { bytes: bytes(0, 21), end }]);
}

/// IBTA C9-92: only the last packet may be shorter than the MTU.
#[test]
fn a_send_is_divided_into_full_packets_and_a_last_one() {
    let mut pair = Pair::new();
    pair.memory.receives.push_back(600);
    let end = MessageEnd {
        length: 600,
        immediate: Some(0xdead_beef),
        solicited: true,
        ..MessageEnd::default()
    };
    pair.send_with(end);
    let expected = [
        "-> SEND First 0 -",
        "-> SEND Middle 1 -",
        "-> SEND Last with Immediate 2",
        "<- ACK 2",
        "   0 done",
    ];
    assert_eq!(pair.run(), expected);
    assert_eq!(pair.memory.received, [Received { bytes: bytes(0, 600), end }]);
}

/// IBTA C9-88: an empty message is a packet without payload, and its key is not checked.
#[test]
fn empty_messages_need_no_key() {
    let mut pair = Pair::new();
    pair.memory.granted = false;
    pair.memory.receives.push_back(0);
    pair.send(0);
    pair.write(0, 0);
    pair.read(0, 0);
    let expected = [
        "-> SEND Only 0",
        "-> RDMA WRITE Only 1",
        "-> RDMA READ Request 2",
        "<- ACK 0",
        "<- ACK 1",
        "<- RDMA READ Response Only 2",
        "   0 done",
        "   1 done",
        "   2 done",
    ];
    assert_eq!(pair.run(), expected);
}

/// IBTA C9-92.
#[test]
fn a_write_is_divided_into_full_packets_and_a_last_one() {
    let mut pair = Pair::new();
    pair.write(100, 513);
    let expected = [
        "-> RDMA WRITE First 0 -",
        "-> RDMA WRITE Middle 1 -",
        "-> RDMA WRITE Last 2",
        "<- ACK 2",
        "   0 done",
    ];
    assert_eq!(pair.run(), expected);
    assert_eq!(pair.memory.bytes[100..613], bytes(0, 513));
    assert_eq!(pair.memory.bytes[613..], [0; crate::pair::ends::BYTES - 613]);
}

/// IBTA chapter 9, SEND with invalidate.
#[test]
fn a_key_goes_with_the_last_packet() {
    let mut pair = Pair::new();
    pair.memory.receives.push_back(600);
    let invalidate = Some(Rkey::new(0x167));
    pair.send_with(MessageEnd { length: 300, invalidate, ..MessageEnd::default() });
    let expected = ["-> SEND First 0 -", "-> SEND Last with Invalidate 1", "<- ACK 1", "   0 done"];
    assert_eq!(pair.run(), expected);
    assert_eq!(pair.memory.received[0].end.invalidate, invalidate);
}

/// A READ uses as many PSNs as its response has packets.
/// IBTA chapter 9, packet sequence numbers.
#[test]
fn a_read_uses_one_psn_per_response_packet() {
    let mut pair = Pair::new();
    pair.memory.bytes[..700].copy_from_slice(&bytes(9, 700));
    pair.memory.receives.push_back(1);
    pair.read(0, 700);
    pair.send(1);
    let expected = [
        "-> RDMA READ Request 0",
        "-> SEND Only 3",
        "<- RDMA READ Response First 0",
        "<- RDMA READ Response Middle 1",
        "<- RDMA READ Response Last 2",
        "<- ACK 3",
        "   0 done",
        "   1 done",
    ];
    assert_eq!(pair.run(), expected);
    assert_eq!(pair.queue.posted[0].local, bytes(9, 700));
}

/// IBTA section 9.7.5.1.2: a response acknowledges the packets before it, so that a pending ACK is not sent. See
/// `Responder::poll_transmit`.
#[test]
fn a_response_acknowledges_the_packets_before_it() {
    let mut pair = Pair::new();
    pair.write(0, 8);
    pair.add(8, 5);
    pair.run_for(std::time::Duration::ZERO);
    let mut room = [0; 256];
    pair.hand_over();
    assert_eq!(pair.run(), ["<- ATOMIC Acknowledge 1", "   0 done", "   1 done"]);
    assert_eq!(pair.memory.bytes[8], 5);
    assert!(pair.responder.poll_transmit(&mut pair.memory, &mut room).is_none());
}

/// IBTA section 9.7.5.1.2: so does a later ACK. Here three messages get one ACK.
#[test]
fn pending_acknowledgements_merge_into_one() {
    let mut pair = Pair::new();
    (0..3).for_each(|_| _ = pair.write(0, 8));
    pair.run_for(std::time::Duration::ZERO);
    pair.hand_over();
    assert_eq!(pair.run(), ["<- ACK 2", "   0 done", "   1 done", "   2 done"]);
}

/// IBTA section 9.4.5: the response has the previous value of the word.
#[test]
fn atomics_return_the_previous_value() {
    let mut pair = Pair::new();
    pair.add(16, 7);
    pair.add(16, 1);
    pair.run();
    assert_eq!(pair.queue.posted[1].local, 7_u64.to_ne_bytes());
    assert_eq!(pair.memory.bytes[16..24], 8_u64.to_ne_bytes());
}

/// At most as many READs and atomics are in flight as the responder has resources for.
/// IBTA chapter 9, responder resources.
#[test]
fn reads_in_flight_are_limited() {
    let mut pair = Pair::new();
    (0..3).for_each(|_| _ = pair.read(0, 8));
    let expected = [
        "-> RDMA READ Request 0",
        "-> RDMA READ Request 1",
        "<- RDMA READ Response Only 0",
        "<- RDMA READ Response Only 1",
        "   0 done",
        "-> RDMA READ Request 2",
        "   1 done",
        "<- RDMA READ Response Only 2",
        "   2 done",
    ];
    assert_eq!(pair.run(), expected);
}

/// IBTA section 10.8.3.3.
#[test]
fn a_fence_waits_for_reads_and_not_for_writes() {
    let mut pair = Pair::new();
    pair.write(0, 8);
    pair.fence();
    pair.read(0, 8);
    pair.write(0, 8);
    pair.fence();
    let expected = [
        "-> RDMA WRITE Only 0",
        "-> RDMA READ Request 1",
        "<- ACK 0",
        "<- RDMA READ Response Only 1",
        "   0 done",
        "   1 done",
        "-> RDMA WRITE Only 2",
        "<- ACK 2",
        "   2 done",
    ];
    assert_eq!(pair.run(), expected);
}

#[test]
fn local_work_waits_for_all_before_it() {
    let mut pair = Pair::new();
    pair.local(Ok(()));
    pair.write(0, 8);
    pair.local(Ok(()));
    pair.write(0, 8);
    let expected = [
        "-> RDMA WRITE Only 0",
        "   0 done",
        "<- ACK 0",
        "   1 done",
        "-> RDMA WRITE Only 1",
        "   2 done",
        "<- ACK 1",
        "   3 done",
    ];
    assert_eq!(pair.run(), expected);
    pair.local(Err(WcStatus::MW_BIND_ERR));
    assert_eq!(pair.run(), ["   4 failed: MW_BIND_ERR"]);
}

/// `InFlight`: a long message requests acknowledgements on the way, so that its window never closes.
#[test]
fn a_long_message_requests_acknowledgements() {
    let mut pair = Pair::new();
    pair.write(0, 200 * 256);
    let trace = pair.run();
    let asking: Vec<_> =
        trace.iter().filter(|line| line.contains("->") && !line.ends_with('-')).collect();
    let expected = [19, 39, 59, 79, 99, 119, 139, 159, 179, 199].map(|n| match n {
        199 => "-> RDMA WRITE Last 199".to_owned(),
        _ => format!("-> RDMA WRITE Middle {n}"),
    });
    assert_eq!(asking, expected.iter().collect::<Vec<_>>());
    assert_eq!(pair.memory.bytes[..51_200], bytes(0, 51_200));
}

/// `Burst`: runs of packets of one length. The first packet of a WRITE has a RETH; the last of a READ has an AETH; the
/// last of a SEND may have one word more. It is alone if that makes it longer than the others.
#[test]
fn a_burst_has_packets_of_one_length() {
    for (length, last) in [(1100, 76), (1276, 252), (1277, 253), (1280, 256)] {
        let mut pair = Pair::new();
        pair.room = 1 << 16;
        pair.memory.bytes[..1280].copy_from_slice(&bytes(9, 1280));
        pair.memory.receives.push_back(2000);
        pair.read(0, length);
        pair.send_with(MessageEnd { length, immediate: Some(1), ..MessageEnd::default() });
        pair.write(4096, length);
        pair.run();
        assert_eq!(pair.queue.completed, [WcStatus::SUCCESS; 3], "last packet of {last} bytes");
        assert_eq!(pair.queue.posted[0].local, bytes(9, length));
        assert_eq!(pair.memory.received[0].bytes, bytes(1, length));
        assert_eq!(pair.memory.bytes[4096..][..length as usize], bytes(2, length));
        // FIRST, MIDDLE..LAST or MIDDLE.. and LAST; FIRST.. or FIRST.. and LAST; FIRST, MIDDLE..LAST.
        let runs: u32 = if last <= 252 { [2, 1, 2] } else { [3, 2, 2] }.into_iter().sum();
        assert_eq!(pair.bursts, runs + 3, "and the request of the READ, and two ACKs");
    }
}

/// IBTA section 10.3.1: a queue that drains finishes the requests that have begun.
#[test]
fn a_draining_queue_finishes_begun_requests() {
    let mut pair = Pair::new();
    pair.write(0, 300);
    pair.write(0, 300);
    let mut room = [0; 256];
    let now = pair.now;
    assert!(pair.requester.idle() && pair.requester.begun() == 0);
    assert!(pair.requester.poll_transmit(now, &mut pair.queue, &mut room).is_some());
    assert_eq!((pair.requester.begun(), pair.requester.idle()), (1, false));
    pair.queue.admitted = Some(pair.requester.begun());
    // The packet that was polled above is lost.
    let trace = pair.run();
    assert_eq!(trace.last().unwrap(), "   0 done");
    assert!(pair.requester.idle());
    pair.queue.admitted = None;
    assert_eq!(pair.run().last().unwrap(), "   1 done");
}

/// IBTA section 10.3.1.
#[test]
fn a_stopped_requester_is_silent() {
    let mut pair = Pair::new();
    pair.write(0, 8);
    pair.run_for(std::time::Duration::ZERO);
    pair.requester.stop();
    pair.write(0, 8);
    assert_eq!(pair.run(), ["<- ACK 0"]);
    assert_eq!((pair.requester.deadline(), pair.requester.counters().after_end), (None, 1));
}

/// The request fails when those before it have completed.
#[test]
fn a_request_with_inaccessible_memory_fails_in_order() {
    let mut pair = Pair::new();
    pair.write(0, 8);
    let second = pair.write(0, 8);
    pair.queue.posted[second].reachable = Err(WcStatus::LOC_PROT_ERR);
    let expected = ["-> RDMA WRITE Only 0", "<- ACK 0", "   0 done", "   1 failed: LOC_PROT_ERR"];
    assert_eq!(pair.run(), expected);

    let mut pair = Pair::new();
    let read = pair.read(0, 8);
    pair.queue.posted[read].reachable = Err(WcStatus::LOC_PROT_ERR);
    assert_eq!(pair.run().last().unwrap(), "   0 failed: LOC_PROT_ERR");
}

/// `Burst`: the receiving end takes a run as a unit, as delivered by a ring or GRO.
#[test]
fn a_run_is_received_as_a_unit() {
    let mut pair = Pair::new();
    pair.memory.receives.push_back(2000);
    pair.memory.bytes[..1100].copy_from_slice(&bytes(9, 1100));
    pair.send(1100);
    pair.read(0, 1100);
    let (now, mut room) = (pair.now, vec![0; 4096]);
    while let Some(burst) = pair.requester.poll_transmit(now, &mut pair.queue, &mut room) {
        pair.deliver(Request, &burst, &room[..burst.length as usize]);
    }
    while let Some(burst) = pair.responder.poll_transmit(&mut pair.memory, &mut room) {
        pair.deliver(Response, &burst, &room[..burst.length as usize]);
    }
    assert_eq!(pair.queue.completed, [WcStatus::SUCCESS; 2]);
    assert_eq!(pair.memory.received[0].bytes, bytes(0, 1100));
    assert_eq!(pair.queue.posted[1].local, bytes(9, 1100));
}

/// Responses leave in the order of PSNs: an ACK waits for the response of a READ.
/// IBTA chapter 9, acknowledgements.
#[test]
fn an_acknowledgement_waits_for_an_earlier_response() {
    let mut pair = Pair::new();
    pair.read(0, 513);
    pair.write(0, 8);
    pair.run_for(std::time::Duration::ZERO);
    pair.hand_over();
    let expected = [
        "<- RDMA READ Response First 0",
        "<- RDMA READ Response Middle 1",
        "<- RDMA READ Response Last 2",
        "<- ACK 3",
        "   0 done",
        "   1 done",
    ];
    assert_eq!(pair.run(), expected);
}

/// A window of two packets that counts its notifications.
#[derive(Default)]
struct Two {
    acknowledged: u32,
    congested: bool,
    lost: u32,
}

impl Window for Two {
    fn packets(&self) -> u32 {
        2
    }

    fn acknowledged(&mut self, _: Time, packets: u32, congested: bool) {
        self.acknowledged += packets;
        self.congested |= congested;
    }

    fn lost(&mut self, _: Time) {
        self.lost += 1;
    }
}

/// `Window`: at most its number of packets are in flight, the last of them requests an acknowledgement, and it is
/// notified of acknowledgements and losses.
#[test]
fn a_custom_window_is_respected_and_notified() {
    let (settings, _) = settings();
    let mut pair = Pair::new();
    let mut requester = Requester::with_window(&settings, Two::default());
    pair.write(0, 5 * 256);
    let (now, mut room) = (pair.now, vec![0; 4096]);
    for expected in [[0, 1], [2, 3]] {
        for n in expected {
            let burst = requester.poll_transmit(now, &mut pair.queue, &mut room).unwrap();
            assert_eq!(burst.header.bth.psn, settings.psn.wrapping_add(n));
            pair.deliver(Request, &burst, &room[..burst.length as usize]);
        }
        assert!(requester.poll_transmit(now, &mut pair.queue, &mut room).is_none());
        let mut ack = pair.responder.poll_transmit(&mut pair.memory, &mut room).unwrap();
        ack.header.bth.becn = true;
        requester.receive(now, &ack, &[], &mut pair.queue);
    }
    assert!(requester.poll_transmit(now, &mut pair.queue, &mut room).is_some());
    requester.expire(requester.deadline().unwrap(), &mut pair.queue);
    let window = requester.window();
    assert_eq!((window.acknowledged, window.congested, window.lost), (4, true, 1));
}

#[test]
fn a_custom_window_is_notified_of_executed_packets() {
    let (settings, _) = settings();
    let mut pair = Pair::new();
    let mut requester = Requester::with_window(&settings, Two::default());
    pair.write(0, 2 * 256);
    let (now, mut room) = (pair.now, vec![0; 4096]);
    while requester.poll_transmit(now, &mut pair.queue, &mut room).is_some() {}
    for _ in 0..2 {
        requester.executed(now, settings.psn.wrapping_add(2), &mut pair.queue);
        let window = requester.window();
        assert_eq!((window.acknowledged, window.congested), (2, false));
    }
}

/// At most half of all PSNs are in flight. A READ of 2 GiB uses all of them. IBTA chapter 9, packet sequence numbers.
#[test]
fn at_most_half_of_all_psns_are_in_flight() {
    let mut pair = Pair::new();
    pair.read(0, 8);
    pair.write(0, 8);
    let Posted { request: rdma_proto::Wqe::Remote { end, .. }, .. } = &mut pair.queue.posted[0]
    else {
        panic!("a READ")
    };
    end.length = 1 << 31;
    let (now, mut room) = (pair.now, [0; 256]);
    let burst = pair.requester.poll_transmit(now, &mut pair.queue, &mut room).unwrap();
    assert_eq!(burst.header.reth.unwrap().length, 1 << 31);
    assert!(pair.requester.poll_transmit(now, &mut pair.queue, &mut room).is_none());
}

/// A request fails halfway: its first packet was sent, and is acknowledged together with the request before it.
#[test]
fn a_request_whose_memory_disappears_halfway_fails() {
    let mut pair = Pair::new();
    pair.write(0, 8);
    pair.write(0, 300);
    let (now, mut room) = (pair.now, [0; 256]);
    for _ in 0..2 {
        let burst = pair.requester.poll_transmit(now, &mut pair.queue, &mut room).unwrap();
        pair.deliver(Request, &burst, &room[..burst.length as usize]);
    }
    pair.queue.posted[1].reachable = Err(WcStatus::LOC_PROT_ERR);
    let expected = ["<- ACK 1", "   0 done", "   1 failed: LOC_PROT_ERR"];
    assert_eq!(pair.run(), expected);
}
