//! Replays of conversations that SoftRoCE had. Its requests go into a responder, which must answer as it did. Its
//! answers go into a requester, which must continue as it did.
//!
//! Each end gets from the capture what it was configured with or answered: PSNs, keys, and the results of READs and
//! atomics. It also gets the requests that found no receive or had no right. Not compared are
//! - the time of sending: the captures are from a slow virtual machine;
//! - AckReq within a message: SoftRoCE sets it on each 66th packet;
//! - the bytes of payload, since only the sent ones are known;
//! - the NAK of a sequence error directly after an RNR NAK, which SoftRoCE sends and the specification does not define
//!   (IBTA section 9.7.5.2.8);
//! - two flows as requesters: in `loss` the capture lacks the requests that the network lost; in `rxe` 0x14, SoftRoCE
//!   sends a new request although an RNR NAK asks it to wait;
//! - in `loss`, FIRST and ONLY of a READ response: when a READ is requested again, SoftRoCE continues with MIDDLE and
//!   LAST.

#![allow(clippy::cast_possible_truncation)]

use std::collections::VecDeque;

use rdma_proto::requester::{self, Requester};
use rdma_proto::responder::{self, Responder};
use rdma_proto::wire::{Headers, NakCode, Opcode, Operation, Syndrome};
use rdma_proto::{
    Burst, Connection, Counters, Delivered, Host, Kind, MessageEnd, MessageStart, Nak, Remote,
    Source, Stop, Time, Work, Wqe,
};
use rdma_types::{AckTimeout, MaxAckRetries, MaxRnrRetries, Mtu, Psn, WcStatus};

use crate::flow::{Captured, FLOWS, Flow, conversation, qpn_of};

impl Captured {
    fn burst(&self) -> Burst {
        Burst::single(self.headers, self.payload.len())
    }
}

/// The compared part of a packet: everything except the exclusions at the top of this file.
fn compared(headers: &Headers, length: usize) -> (Headers, usize) {
    let mut headers = *headers;
    if !headers.bth.opcode.operation().ends_message() {
        headers.bth.ack_request = false;
    }
    (headers, length)
}

/// The same, with the opcode of a READ response changed to that of a resumed one.
fn taken_up((mut headers, length): (Headers, usize)) -> (Headers, usize) {
    let operation = headers.bth.opcode.operation();
    let other = match operation {
        Operation::RdmaReadResponseFirst => Operation::RdmaReadResponseMiddle,
        Operation::RdmaReadResponseOnly => Operation::RdmaReadResponseLast,
        other => other,
    };
    if operation == Operation::RdmaReadResponseFirst {
        headers.aeth = None;
    }
    headers.bth.opcode = Opcode::reliable(other);
    (headers, length)
}

/// A host that does what the captured answer implies.
#[derive(Default)]
struct Script {
    stop: Option<Stop>,
    original: u64,
    failed: bool,
}

impl Script {
    /// Sets the host's reaction to this request, if the next answer is for it.
    fn set(&mut self, request: &Captured, answer: Option<&Captured>) {
        let about = answer.filter(|answer| answer.psn() == request.psn());
        self.stop = match about.and_then(Captured::syndrome) {
            Some(Syndrome::RnrNak(_)) => Some(Stop::NotReady),
            Some(Syndrome::Nak(NakCode::RemoteAccess)) => Some(Stop::Nak(Nak::RemoteAccess)),
            Some(Syndrome::Nak(NakCode::RemoteOperational)) => {
                Some(Stop::Nak(Nak::RemoteOperational))
            }
            _ => None,
        };
    }

    fn answer(&self) -> Result<(), Stop> {
        self.stop.map_or(Ok(()), Err)
    }
}

impl Host for Script {
    fn begin(&mut self, _: &MessageStart) -> Result<(), Stop> {
        self.answer()
    }
    fn place(&mut self, _: &MessageStart, _: u32, _: &[u8]) -> Result<(), Stop> {
        self.answer()
    }
    fn fetch(&mut self, _: &MessageStart, _: u32, _: &mut [u8]) -> Result<(), Stop> {
        self.answer()
    }
    fn atomic(&mut self, _: &MessageStart) -> Result<u64, Stop> {
        self.answer().map(|()| self.original)
    }
    fn take_receive(&mut self, _: &MessageStart) -> Result<(), Stop> {
        self.answer()
    }
    fn finish(&mut self, _: &MessageStart, _: &MessageEnd) -> Result<(), Stop> {
        self.answer()
    }
    fn abandon(&mut self) {}
    fn fail(&mut self, _: Nak) {
        self.failed = true;
    }
    fn datagram(&mut self, _: &Source, _: &MessageEnd, _: &[u8]) -> Delivered {
        Delivered::Dropped
    }
}

/// Returns our responder's answers to the captured requests.
fn answers(flow: &Flow, conversation: &[Captured]) -> Vec<(Headers, usize)> {
    let captured: Vec<_> = conversation.iter().filter(|it| it.operation().is_response()).collect();
    let timer = captured.iter().find_map(|it| match it.syndrome() {
        Some(Syndrome::RnrNak(timer)) => Some(timer),
        _ => None,
    });
    let mut responder = Responder::new(&responder::Settings {
        connection: Connection::new(qpn_of(flow.from), Mtu::MTU256),
        psn: conversation[0].psn(),
        min_rnr_timer: timer.unwrap_or_default(),
        max_dest_rd_atomic: 16,
    });
    let (mut host, mut given, mut room) = (Script::default(), Vec::new(), [0; 256]);
    for (at, request) in conversation.iter().enumerate() {
        if request.operation().is_response() {
            continue;
        }
        let mut behind = conversation[at..].iter().filter(|it| it.operation().is_response());
        host.set(request, captured.get(given.len()).copied());
        let found =
            behind.find(|it| it.psn() == request.psn()).and_then(|it| it.headers.atomic_ack);
        host.original = found.map_or(0, |ack| ack.original);
        responder.receive(&request.burst(), request.payload, &mut host);
        while let Some(burst) = responder.poll_transmit(&mut host, &mut room) {
            given.push(compared(&burst.header, burst.length as usize));
        }
    }
    given
}

/// Our answers equal the captured ones, in order. In `loss` the capture lacks the answers that the network lost.
#[test]
fn the_responder_answers_as_captured() {
    let mut compared_in_all = 0;
    for flow in &FLOWS {
        let conversation = conversation(flow);
        let given = answers(flow, &conversation);
        let captured: Vec<_> = conversation
            .iter()
            .filter(|it| it.operation().is_response())
            .map(|it| compared(&it.headers, it.payload.len()))
            .collect();
        compared_in_all += captured.len();
        let name = format!("{} {} {:#x}", flow.capture, flow.requester, flow.to);
        if flow.capture == "loss" {
            let mut rest = given.iter();
            for (at, answer) in captured.iter().enumerate() {
                let is_given = rest.any(|given| taken_up(*given) == taken_up(*answer));
                assert!(is_given, "{name}: answer {at} {answer:#?}");
            }
        } else {
            assert_eq!(given.len(), captured.len(), "{name}");
            for (at, (given, captured)) in given.iter().zip(&captured).enumerate() {
                assert_eq!(given, captured, "{name}: answer {at}");
            }
        }
    }
    println!("{compared_in_all} answers");
}

/// The requests of a flow, with the PSN and the payload of the packets of each.
#[derive(Default)]
struct Requests {
    all: Vec<(Psn, Wqe, Vec<u8>)>,
    posted: usize,
    completed: Vec<WcStatus>,
    /// The number of bytes that READs and atomics returned.
    delivered: usize,
}

impl Requests {
    fn of(conversation: &[Captured]) -> Self {
        let mut found = Self::default();
        let mut next = conversation[0].psn();
        let requests = || conversation.iter().filter(|it| !it.operation().is_response());
        while let Some(first) = requests().find(|it| it.psn() == next) {
            let (mut payload, mut packet) = (Vec::new(), first);
            loop {
                payload.extend(packet.payload);
                next = next.wrapping_add(1);
                if packet.operation().ends_message() {
                    break;
                }
                packet = requests().find(|it| it.psn() == next).unwrap();
            }
            let request = request(&first.headers, &packet.headers, payload.len() as u32);
            if let Wqe::Remote { start: MessageStart { kind: Kind::Read, length, .. }, .. } =
                request
            {
                next = first.psn().wrapping_add(length.unwrap().div_ceil(256).max(1));
            }
            found.all.push((first.psn(), request, payload));
        }
        found
    }
}

/// Returns the request with this first and last packet and this much payload.
fn request(first: &Headers, last: &Headers, length: u32) -> Wqe {
    let mut end = MessageEnd {
        length,
        immediate: last.imm.map(|imm| imm.immediate),
        invalidate: last.ieth.map(|ieth| ieth.rkey),
        solicited: last.bth.solicited,
    };
    let operation = first.bth.opcode.operation();
    let start = if let Some(reth) = first.reth {
        end.length = reth.length;
        let is_read = operation == Operation::RdmaReadRequest;
        let kind = if is_read { Kind::Read } else { Kind::Write };
        MessageStart::one_sided(kind, Remote { va: reth.va, rkey: reth.rkey }, reth.length)
    } else if let Some(atomic) = first.atomic {
        end.length = 8;
        let remote = Remote { va: atomic.va, rkey: atomic.rkey };
        match operation {
            Operation::FetchAdd => {
                MessageStart::atomic(Kind::FetchAdd, remote, atomic.swap_or_add, 0)
            }
            _ => {
                MessageStart::atomic(Kind::CompareSwap, remote, atomic.compare, atomic.swap_or_add)
            }
        }
    } else {
        MessageStart::send()
    };
    Wqe::Remote { start, end, fence: false }
}

impl Work for Requests {
    fn admitted(&self) -> u32 {
        self.posted as u32
    }
    fn request(&self, n: u32) -> Wqe {
        self.all[n as usize].1
    }
    fn gather(&mut self, n: u32, at: u32, out: &mut [u8]) -> Result<(), WcStatus> {
        out.copy_from_slice(&self.all[n as usize].2[at as usize..][..out.len()]);
        Ok(())
    }
    fn deliver(&mut self, _: u32, _: u32, payload: &[u8]) -> Result<(), WcStatus> {
        self.delivered += payload.len();
        Ok(())
    }
    fn execute_local(&mut self, _: u32) -> Result<(), WcStatus> {
        Ok(())
    }
    fn done(&mut self, n: u32) {
        assert_eq!(n as usize, self.completed.len());
        self.completed.push(WcStatus::SUCCESS);
    }
    fn failed(&mut self, n: u32, status: WcStatus) {
        assert_eq!(n as usize, self.completed.len());
        self.completed.push(status);
    }
}

/// A requester in place of the captured one, and its packets that are not compared yet.
struct Replay {
    requester: Requester,
    requests: Requests,
    now: Time,
    given: VecDeque<(Headers, usize)>,
}

impl Replay {
    fn of(flow: &Flow, conversation: &[Captured]) -> Self {
        let requester = Requester::new(&requester::Settings {
            connection: Connection::new(qpn_of(flow.to), Mtu::MTU256),
            psn: conversation[0].psn(),
            timeout: AckTimeout::default(),
            retries: MaxAckRetries::default(),
            rnr_retries: MaxRnrRetries::limited(1).unwrap(),
            max_rd_atomic: 16,
        });
        let requests = Requests::of(conversation);
        Self { requester, requests, now: Time::from_nanos(0), given: VecDeque::new() }
    }

    fn poll(&mut self) {
        let mut room = [0; 256];
        let Self { requester, requests, now, given } = self;
        while let Some(burst) = requester.poll_transmit(*now, requests, &mut room) {
            given.push_back(compared(&burst.header, burst.length as usize));
        }
    }

    /// Returns the packet that it sends next. If it has none, the program posts the request that the captured program
    /// posts now, or time passes.
    fn next(&mut self, captured: &Captured) -> Option<(Headers, usize)> {
        self.poll();
        if self.given.is_empty() {
            let next = self.requests.all.get(self.requests.posted);
            if next.is_some_and(|(psn, ..)| *psn == captured.psn()) {
                self.requests.posted += 1;
            } else {
                self.now = self.requester.deadline()?;
                self.requester.expire(self.now, &mut self.requests);
            }
            self.poll();
        }
        self.given.pop_front()
    }
}

/// The number of packets that were not used.
fn dropped(counters: &Counters) -> u64 {
    counters.unsolicited_response
        + counters.stale_nak
        + counters.reserved_syndrome
        + counters.wrong_opcode
}

#[test]
fn the_requester_continues_as_captured() {
    let mut packets = 0;
    for flow in FLOWS.iter().filter(|flow| flow.capture != "loss" && flow.to != 0x14) {
        let conversation = conversation(flow);
        let mut replay = Replay::of(flow, &conversation);
        let name = format!("{} {} {:#x}", flow.capture, flow.requester, flow.to);
        for (at, captured) in conversation.iter().enumerate() {
            if captured.operation().is_response() {
                let (burst, payload) = (captured.burst(), captured.payload);
                replay.requester.receive(replay.now, &burst, payload, &mut replay.requests);
                assert_eq!(dropped(replay.requester.counters()), 0, "{name}: packet {at}");
            } else {
                packets += 1;
                let expected = compared(&captured.headers, captured.payload.len());
                assert_eq!(replay.next(captured), Some(expected), "{name}: packet {at}");
            }
        }
        replay.poll();
        assert!(replay.given.is_empty(), "{name}: nothing else is sent");
        let mut expected = vec![WcStatus::SUCCESS; replay.requests.all.len()];
        if let Some(status) = expected.last_mut().filter(|_| flow.capture == "rxe") {
            *status = match flow.to {
                0x15 => WcStatus::REM_ACCESS_ERR,
                0x16 => WcStatus::REM_OP_ERR,
                0x18 => WcStatus::RNR_RETRY_EXC_ERR,
                _ => WcStatus::SUCCESS,
            };
        }
        assert_eq!(replay.requests.completed, expected, "{name}");
    }
    println!("{packets} requests");
}
