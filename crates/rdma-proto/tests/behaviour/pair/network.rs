//! Two ends and the network between them, in virtual time.

use std::collections::BTreeMap;
use std::time::Duration;

use rdma_proto::requester::{self, Requester};
use rdma_proto::responder::{self, Responder};
use rdma_proto::wire::{Headers, NakCode, Operation, Packet, Syndrome};
use rdma_proto::{Burst, Connection, Kind, MessageEnd, MessageStart, Remote, Time, Wqe};
use rdma_types::{AckTimeout, MaxAckRetries, MaxRnrRetries, MinRnrTimer, Mtu, Psn, Qpn, WcStatus};

use crate::pair::ends::{Memory, Posted, Queue, RKEY, VA};

pub(crate) const MTU: u32 = 256;

/// The one-way latency of a packet.
const LATENCY: u64 = 1_000;

/// The fate of a packet.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Fate {
    Arrives,
    Lost,
    Twice,
    /// Delayed until this many later packets of its direction were sent.
    Late(u64),
}

impl Fate {
    /// Returns a network that gives the listed packets their fate, by their direction and their number.
    pub(crate) fn listed<W: PartialEq + 'static, const N: usize>(
        fates: [(W, u64, Self); N],
    ) -> Box<dyn FnMut(W, u64) -> Self> {
        Box::new(move |way, n| {
            let own = fates.iter().find(|fate| fate.0 == way && fate.1 == n);
            own.map_or(Self::Arrives, |fate| fate.2)
        })
    }
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) enum Way {
    /// From the requester to the responder.
    Request,
    Response,
}

/// Chooses the fate of a packet by its direction and its number there, counted from 0.
pub(crate) type Network = Box<dyn FnMut(Way, u64) -> Fate>;

pub(crate) struct Pair {
    pub(crate) requester: Requester,
    pub(crate) responder: Responder,
    pub(crate) queue: Queue,
    pub(crate) memory: Memory,
    pub(crate) now: Time,
    network: Network,
    /// The packets in flight, by the time of arrival and the order of departure.
    under_way: BTreeMap<(u64, u64), (Way, Vec<u8>)>,
    departed: u64,
    sent: BTreeMap<Way, u64>,
    trace: Vec<String>,
    /// The number of bursts that both ends sent.
    pub(crate) bursts: u32,
    completions: usize,
    /// The buffer size that each end gets for a transmission.
    pub(crate) room: usize,
    first: Psn,
}

/// The default settings of both ends.
pub(crate) fn settings() -> (requester::Settings, responder::Settings) {
    let requester = requester::Settings {
        connection: Connection::new(Qpn::masked(0x12), Mtu::MTU256),
        psn: Psn::MAX.wrapping_sub(1),
        timeout: AckTimeout::limited(8).unwrap(),
        retries: MaxAckRetries::limited(3).unwrap(),
        rnr_retries: MaxRnrRetries::limited(2).unwrap(),
        max_rd_atomic: 2,
    };
    let responder = responder::Settings {
        connection: Connection::new(Qpn::masked(0x11), Mtu::MTU256),
        psn: requester.psn,
        min_rnr_timer: MinRnrTimer::limited(12).unwrap(),
        max_dest_rd_atomic: 2,
    };
    (requester, responder)
}

impl Pair {
    pub(crate) fn new() -> Self {
        let (requester, responder) = settings();
        Self::with(&requester, &responder)
    }

    pub(crate) fn with(requester: &requester::Settings, responder: &responder::Settings) -> Self {
        Self {
            requester: Requester::new(requester),
            responder: Responder::new(responder),
            queue: Queue::default(),
            memory: Memory::new(),
            now: Time::from_nanos(0),
            network: Box::new(|_, _| Fate::Arrives),
            under_way: BTreeMap::new(),
            departed: 0,
            sent: BTreeMap::new(),
            trace: Vec::new(),
            bursts: 0,
            completions: 0,
            room: MTU as usize,
            first: requester.psn,
        }
    }

    /// A network that gives these packets a specific fate.
    pub(crate) fn fates<const N: usize>(mut self, fates: [(Way, u64, Fate); N]) -> Self {
        self.network = Fate::listed(fates);
        self
    }

    pub(crate) fn network(mut self, network: Network) -> Self {
        self.network = network;
        self
    }

    fn post(&mut self, start: MessageStart, end: MessageEnd, local: Vec<u8>) -> usize {
        let request = Wqe::Remote { start, end, fence: false };
        self.queue.posted.push(Posted { request, local, reachable: Ok(()) });
        self.queue.posted.len() - 1
    }

    pub(crate) fn fence(&mut self) {
        let Some(Posted { request: Wqe::Remote { fence, .. }, .. }) = self.queue.posted.last_mut()
        else {
            panic!("a request for the peer")
        };
        *fence = true;
    }

    pub(crate) fn local(&mut self, reachable: Result<(), WcStatus>) {
        let request = Wqe::Local;
        self.queue.posted.push(Posted { request, local: Vec::new(), reachable });
    }

    pub(crate) fn send(&mut self, length: u32) -> usize {
        self.send_with(MessageEnd { length, ..MessageEnd::default() })
    }

    pub(crate) fn send_with(&mut self, end: MessageEnd) -> usize {
        let n = self.queue.posted.len();
        self.post(MessageStart::send(), end, bytes(n, end.length))
    }

    pub(crate) fn write(&mut self, at: u64, length: u32) -> usize {
        self.write_with(at, MessageEnd { length, ..MessageEnd::default() })
    }

    pub(crate) fn write_with(&mut self, at: u64, end: MessageEnd) -> usize {
        let n = self.queue.posted.len();
        let remote = Remote { va: VA + at, rkey: RKEY };
        self.post(
            MessageStart::one_sided(Kind::Write, remote, end.length),
            end,
            bytes(n, end.length),
        )
    }

    pub(crate) fn read(&mut self, at: u64, length: u32) -> usize {
        let remote = Remote { va: VA + at, rkey: RKEY };
        let end = MessageEnd { length, ..MessageEnd::default() };
        self.post(
            MessageStart::one_sided(Kind::Read, remote, length),
            end,
            vec![0; length as usize],
        )
    }

    pub(crate) fn add(&mut self, at: u64, operand: u64) -> usize {
        let remote = Remote { va: VA + at, rkey: RKEY };
        let start = MessageStart::atomic(Kind::FetchAdd, remote, operand, 0);
        self.post(start, MessageEnd { length: 8, ..MessageEnd::default() }, vec![0; 8])
    }

    /// Runs until nothing is in flight and no deadline is set, or until `duration` has passed. Returns the packets and
    /// completions of that time as lines.
    pub(crate) fn run_for(&mut self, duration: Duration) -> Vec<String> {
        let end = self.now.after(duration);
        loop {
            self.transmit();
            let arrival =
                self.under_way.first_key_value().map(|(&(at, _), _)| Time::from_nanos(at));
            let deadline = self.requester.deadline();
            let next = [arrival, deadline].into_iter().flatten().min();
            let Some(next) = next.filter(|&next| next <= end) else {
                self.now = if next.is_some() { end } else { self.now };
                break;
            };
            self.now = self.now.max(next);
            if arrival == Some(next) {
                let (_, (way, datagram)) = self.under_way.pop_first().unwrap();
                self.arrive(way, &datagram);
            } else {
                self.requester.expire(self.now, &mut self.queue);
            }
            self.trace_completions();
        }
        core::mem::take(&mut self.trace)
    }

    pub(crate) fn run(&mut self) -> Vec<String> {
        self.run_for(Duration::from_secs(1000))
    }

    /// Delivers everything in flight before either end is polled again.
    pub(crate) fn hand_over(&mut self) {
        while let Some((_, (way, datagram))) = self.under_way.pop_first() {
            self.arrive(way, &datagram);
        }
    }

    fn transmit(&mut self) {
        loop {
            let mut room = vec![0xaa; self.room];
            let (way, burst) = if let Some(burst) =
                self.requester.poll_transmit(self.now, &mut self.queue, &mut room)
            {
                (Way::Request, burst)
            } else if let Some(burst) = self.responder.poll_transmit(&mut self.memory, &mut room) {
                (Way::Response, burst)
            } else {
                break;
            };
            self.depart(way, &burst, &room);
        }
        self.trace_completions();
    }

    fn depart(&mut self, way: Way, burst: &Burst, room: &[u8]) {
        self.bursts += 1;
        let payload = &room[..burst.length as usize];
        let mut lengths = Vec::new();
        for (headers, payload) in burst.packets(payload) {
            let mut datagram = vec![0; 512];
            let packet = Packet { headers, payload, icrc: 0 };
            let len = packet.emit(&mut datagram).expect("headers of their opcode").len();
            datagram.truncate(len);
            lengths.push(len);
            self.depart_one(way, &headers, datagram);
        }
        let (last, before) = lengths.split_last().expect("at least one packet");
        assert!(
            before.iter().all(|len| *len == lengths[0] && len >= last),
            "one size: {lengths:?}"
        );
    }

    fn depart_one(&mut self, way: Way, headers: &Headers, datagram: Vec<u8>) {
        let sent = self.sent.entry(way).or_default();
        let fate = (self.network)(way, *sent);
        *sent += 1;
        let shown = match fate {
            Fate::Arrives => "",
            Fate::Lost => ", lost",
            Fate::Twice => ", twice",
            Fate::Late(_) => ", late",
        };
        self.trace.push(format!("{}{shown}", self.describe(way, headers)));
        let (copies, late) = match fate {
            Fate::Arrives => (1, 0),
            Fate::Lost => (0, 0),
            Fate::Twice => (2, 0),
            Fate::Late(late) => (1, late * LATENCY),
        };
        for _ in 0..copies {
            let at = self.now.as_nanos() + LATENCY + late;
            self.under_way.insert((at, self.departed), (way, datagram.clone()));
            self.departed += 1;
        }
    }

    /// Formats a packet as a line, with its PSN counted from the first one.
    fn describe(&self, way: Way, headers: &Headers) -> String {
        let arrow = if way == Way::Request { "->" } else { "<-" };
        let operation = headers.bth.opcode.operation();
        let what = match headers.aeth.map(|aeth| aeth.syndrome) {
            Some(Syndrome::Ack(_)) if operation == Operation::Acknowledge => "ACK".to_owned(),
            Some(Syndrome::RnrNak(_)) => "RNR NAK".to_owned(),
            Some(Syndrome::Nak(NakCode::PsnSequence)) => "NAK sequence".to_owned(),
            Some(Syndrome::Nak(code)) => format!("NAK {code:?}"),
            _ => operation.to_string(),
        };
        let asks = if way == Way::Request && !headers.bth.ack_request { " -" } else { "" };
        format!("{arrow} {what} {}{asks}", headers.bth.psn.distance_from(self.first))
    }

    fn arrive(&mut self, way: Way, datagram: &[u8]) {
        let packet = Packet::parse(datagram).unwrap();
        let burst = Burst::single(packet.headers, packet.payload.len());
        self.deliver(way, &burst, packet.payload);
    }

    /// Delivers a packet from any sender.
    pub(crate) fn deliver(&mut self, way: Way, burst: &Burst, payload: &[u8]) {
        match way {
            Way::Request => self.responder.receive(burst, payload, &mut self.memory),
            Way::Response => self.requester.receive(self.now, burst, payload, &mut self.queue),
        }
    }

    fn trace_completions(&mut self) {
        for n in self.completions..self.queue.completed.len() {
            let status = self.queue.completed[n];
            self.trace.push(match status {
                WcStatus::SUCCESS => format!("   {n} done"),
                _ => format!("   {n} failed: {}", status.name().unwrap()),
            });
        }
        self.completions = self.queue.completed.len();
    }
}

/// The payload of a request, which depends on its number.
pub(crate) fn bytes(n: usize, length: u32) -> Vec<u8> {
    (0..length as usize).map(|at| (at * 7 + at / 251 + n * 31 + 1) as u8).collect()
}
