//! Packets that answer no request, or repeat very old ones.

use rdma_proto::requester::Requester;
use rdma_proto::wire::{
    Aeth, Bth, CreditCount, Headers, NakCode, Opcode, Operation, Service, Syndrome,
};
use rdma_proto::{Burst, Last};
use rdma_types::{MinRnrTimer, Qpn, WcStatus};

use crate::pair::ends::Queue;
use crate::pair::network::Way::{Request, Response};
use crate::pair::network::{Pair, settings};

const ACK: Syndrome = Syndrome::Ack(CreditCount::UNLIMITED);

fn acknowledge(n: u32, syndrome: Syndrome, msn: u32) -> Burst {
    let opcode = Opcode::reliable(Operation::Acknowledge);
    let psn = settings().0.psn.wrapping_add(n);
    let mut headers = Headers::new(Bth::new(opcode, Qpn::masked(0x11), psn));
    headers.aeth = Some(Aeth { syndrome, msn });
    Burst::single(headers, 0)
}

/// A pair with two WRITEs in flight, with the PSNs 0 and 1.
fn waiting() -> Pair {
    let mut pair = Pair::new();
    pair.write(0, 8);
    pair.write(0, 8);
    let mut room = [0; 256];
    let now = pair.now;
    while pair.requester.poll_transmit(now, &mut pair.queue, &mut room).is_some() {}
    pair
}

/// PSNs that are not in flight are ghosts. IBTA chapter 9, acknowledgements.
#[test]
fn acknowledgements_outside_the_window_are_ignored() {
    for n in [2, 3, 1 << 22, 1 << 23, (1 << 24) - 1] {
        for syndrome in [ACK, Syndrome::Nak(NakCode::RemoteAccess)] {
            let mut pair = waiting();
            pair.deliver(Response, &acknowledge(n, syndrome, 1), &[]);
            assert_eq!(pair.requester.counters().unsolicited_response, 1);
            assert!(pair.queue.completed.is_empty());
        }
    }
}

/// Only the PSN, not the MSN, identifies the request that a response is for (IBTA section 9.7.5.1.2). A peer with an
/// older queue pair also counts earlier messages in its MSN. Here only the requester starts again, with the PSN that
/// its peer expects.
#[test]
fn a_response_is_matched_by_psn_not_msn() {
    let mut pair = Pair::new();
    (0..3).for_each(|_| _ = pair.write(0, 8));
    pair.run();
    let (mut anew, _) = settings();
    anew.psn = anew.psn.wrapping_add(3);
    pair.requester = Requester::new(&anew);
    pair.queue = Queue::default();
    pair.write(0, 8);
    assert_eq!(pair.run(), ["-> RDMA WRITE Only 3", "<- ACK 3", "   0 done"]);
    assert_eq!(pair.queue.completed, [WcStatus::SUCCESS]);
}

/// A responder that expects a later PSN than its peer begins with has received nothing. It acknowledges nothing;
/// otherwise the peer would take its message as arrived. IBTA chapter 9, packet sequence numbers.
#[test]
fn requests_before_the_first_psn_are_not_acknowledged() {
    let (requester, mut responder) = settings();
    responder.psn = requester.psn.wrapping_add(1);
    let mut pair = Pair::with(&requester, &responder);
    pair.write(0, 8);
    pair.run();
    assert_eq!(pair.queue.completed, [WcStatus::RETRY_EXC_ERR]);
    let counters = pair.responder.counters();
    assert_eq!((counters.duplicate_request, counters.sent_pkts), (0, 0));
    assert_eq!(counters.unanswered_duplicate, counters.rcvd_pkts);
}

/// IBTA chapter 9, AETH.
#[test]
fn reserved_syndromes_are_dropped() {
    for code in [0x40, 0x64, 0x7f, 0xff] {
        let mut pair = waiting();
        pair.deliver(Response, &acknowledge(0, Syndrome::from_code(code), 0), &[]);
        assert_eq!(
            (pair.queue.completed.len(), pair.requester.counters().reserved_syndrome),
            (0, 1)
        );
    }
}

/// A dropped packet acknowledges nothing: neither the packet with its PSN nor earlier ones. IBTA chapter 9, AETH.
#[test]
fn syndromes_that_are_dropped_acknowledge_nothing() {
    for code in [0x40, 0x64, 0x65, 0xff] {
        let mut pair = waiting();
        pair.deliver(Response, &acknowledge(1, Syndrome::from_code(code), 1), &[]);
        assert_eq!(
            (pair.queue.completed.len(), pair.requester.counters().reserved_syndrome),
            (0, 1)
        );
    }
}

/// IBTA chapter 9, AETH: a response with data has ACK in its AETH. A packet with another syndrome is dropped, and the
/// request is repeated.
#[test]
fn responses_with_data_and_a_refusal_are_dropped() {
    let timer = MinRnrTimer::limited(1).unwrap();
    let refusal = Syndrome::Nak(NakCode::RemoteAccess);
    for syndrome in [refusal, Syndrome::RnrNak(timer), Syndrome::from_code(0x85)] {
        for atomic in [false, true] {
            let mut pair = Pair::new();
            let _ = if atomic { pair.add(0, 1) } else { pair.read(0, 8) };
            let (now, mut room) = (pair.now, [0; 256]);
            let request = pair.requester.poll_transmit(now, &mut pair.queue, &mut room).unwrap();
            pair.deliver(Request, &request, &[]);
            let mut response = pair.responder.poll_transmit(&mut pair.memory, &mut room).unwrap();
            response.header.aeth.as_mut().unwrap().syndrome = syndrome;
            let payload = if atomic { &[] } else { &room[..8] };
            pair.deliver(Response, &response, payload);
            assert_eq!((pair.queue.completed.len(), pair.queue.delivered), (0, 0));
            assert_eq!(pair.requester.counters().reserved_syndrome, 1);
            assert_eq!(pair.run().last().unwrap(), "   0 done");
        }
    }
}

/// An acknowledgement has no payload. IBTA chapter 9, acknowledgements.
#[test]
fn acknowledgements_with_a_payload_are_dropped() {
    for syndrome in [ACK, Syndrome::Nak(NakCode::RemoteAccess)] {
        let mut pair = waiting();
        let mut more = acknowledge(1, syndrome, 2);
        (more.length, more.segment) = (200, 200);
        pair.deliver(Response, &more, &[0; 200]);
        assert_eq!((pair.queue.completed.len(), pair.requester.counters().bad_response), (0, 1));
    }
}

/// The memory of the second request disappears after its first packet. The acknowledgement of the first request would
/// also fail the second one, which must fail only once.
#[test]
fn a_request_that_failed_locally_fails_once() {
    let timer = MinRnrTimer::limited(1).unwrap();
    let naks = [Syndrome::Nak(NakCode::RemoteAccess), Syndrome::RnrNak(timer)];
    let mut response = acknowledge(1, ACK, 1);
    response.header.bth.opcode = Opcode::reliable(Operation::RdmaReadResponseOnly);
    for answer in naks.map(|syndrome| acknowledge(1, syndrome, 1)).into_iter().chain([response]) {
        let mut pair = Pair::new();
        pair.write(0, 8);
        let second = pair.write(0, 300);
        let (now, mut room) = (pair.now, [0; 256]);
        let mut sent = 0;
        while pair.requester.poll_transmit(now, &mut pair.queue, &mut room).is_some() {
            sent += 1;
            if sent == 2 {
                pair.queue.posted[second].reachable = Err(WcStatus::LOC_PROT_ERR);
            }
        }
        pair.deliver(Response, &answer, &[]);
        assert_eq!(pair.queue.completed, [WcStatus::SUCCESS, WcStatus::LOC_PROT_ERR]);
        assert_eq!((sent, pair.requester.deadline()), (2, None));
    }
}

/// A NAK for packets that were not sent again yet is not new: one repetition, not two. IBTA chapter 9,
/// acknowledgements.
#[test]
fn a_duplicate_nak_causes_one_repetition() {
    let mut pair = waiting();
    for _ in 0..2 {
        pair.deliver(Response, &acknowledge(1, Syndrome::Nak(NakCode::PsnSequence), 1), &[]);
    }
    assert_eq!(pair.requester.counters().completer_retry_err, 1);
    let rnr = Syndrome::RnrNak(MinRnrTimer::limited(1).unwrap());
    pair.deliver(Response, &acknowledge(1, rnr, 1), &[]);
    let counters = pair.requester.counters();
    assert_eq!((counters.rcvd_rnr_err, counters.stale_nak), (0, 2));
}

/// Nothing is in flight, so no packet can be an answer. IBTA chapter 9, acknowledgements.
#[test]
fn responses_without_a_request_are_ignored() {
    let mut pair = Pair::new();
    for n in [0, 1, (1 << 24) - 1] {
        pair.deliver(Response, &acknowledge(n, ACK, 0), &[]);
    }
    assert_eq!(pair.requester.counters().unsolicited_response, 3);
}

/// Responses are not for the responder, requests not for the requester; packets of other services are for neither.
#[test]
fn packets_of_another_service_or_direction_are_dropped() {
    let psn = settings().0.psn;
    let with = |opcode| Burst::single(Headers::new(Bth::new(opcode, Qpn::masked(1), psn)), 8);
    let uc = with(Opcode::new(Service::Uc, Operation::SendOnly).unwrap());
    let request = with(Opcode::reliable(Operation::SendOnly));
    let response = with(Opcode::reliable(Operation::RdmaReadResponseOnly));
    let mut pair = waiting();
    pair.deliver(Request, &uc, &[0; 8]);
    pair.deliver(Request, &response, &[0; 8]);
    pair.deliver(Response, &uc, &[0; 8]);
    pair.deliver(Response, &request, &[0; 8]);
    assert_eq!(pair.responder.counters().wrong_opcode, 2);
    assert_eq!(pair.requester.counters().wrong_opcode, 2);
}

/// Wrong headers: a run with less payload than they announce.
#[test]
fn runs_with_too_little_payload_do_not_panic() {
    let psn = settings().0.psn;
    let headers =
        Headers::new(Bth::new(Opcode::reliable(Operation::SendFirst), Qpn::masked(1), psn));
    for segments in [0, 2, u16::MAX] {
        let lie = Burst {
            header: headers,
            last: Some(Last::of(&headers)),
            segment: 256,
            segments,
            length: 1,
        };
        let mut pair = Pair::new();
        pair.deliver(Request, &lie, &[0; 3]);
        pair.deliver(Response, &lie, &[0; 3]);
        assert_eq!(pair.memory.failed.is_some(), segments > 0);
    }
}
