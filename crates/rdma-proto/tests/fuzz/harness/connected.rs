//! A responder of a reliable connection, and its state as seen from outside.

use rdma_proto::responder::{self, Responder};
use rdma_proto::wire::{Headers, NakCode, Operation, Service, Syndrome};
use rdma_proto::{Burst, Counters, Kind, MAX_MESSAGE_BYTES, MessageStart, Nak, Remote, Stop};
use rdma_types::Psn;

use super::ends::VA;
use super::peer::{self, PEER};
use super::watched::{self, Message, Watched};

/// An executed READ or atomic.
struct Fetch {
    psn: Psn,
    packets: u32,
    start: MessageStart,
    msn: u32,
    original: Option<u64>,
}

pub(crate) struct Connected {
    responder: Responder,
    pub(crate) host: Watched,
    settings: responder::Settings,
    pub(crate) expected: Psn,
    /// The number of PSNs that were executed.
    history: u32,
    /// The newest SEND or WRITE packet that was executed.
    taken: Psn,
    /// The number of executed messages.
    messages: u32,
    fetches: Vec<Fetch>,
    /// Whether the peer knows that the expected packet is missing, or was not accepted.
    told: bool,
    /// Whether an acknowledgement of executed requests is owed, and whether a request for the expected packet is.
    owes: bool,
    owes_nak: bool,
    /// The number of packets that arrived, and that were sent.
    came: u64,
    gave: u64,
}

/// The reasons that were counted, each once, besides the arrival of a packet.
pub(crate) fn counted(before: &Counters, after: &Counters) -> Vec<&'static str> {
    let mut counted = Vec::new();
    for ((name, before), (_, after)) in before.iter().zip(after.iter()) {
        assert!(after == before || after == before + 1, "{name}");
        if after > before && name != "rcvd_pkts" {
            counted.push(name);
        }
    }
    counted
}

/// The counter of a request that is not executed.
pub(crate) fn reason(stop: Stop) -> &'static str {
    match stop {
        Stop::NotReady => "send_rnr_err",
        Stop::Nak(Nak::InvalidRequest) => "resp_invalid_request_errors",
        Stop::Nak(Nak::RemoteAccess) => "resp_remote_access_errors",
        Stop::Nak(_) => "resp_remote_operation_errors",
        _ => "dropped_by_host",
    }
}

fn is_fetch(operation: Operation) -> bool {
    use Operation::{CompareSwap, FetchAdd, RdmaReadRequest};
    matches!(operation, RdmaReadRequest | CompareSwap | FetchAdd)
}

/// Returns true if a packet may come next after this part of a message (IBTA sections 9.7.4.1.5 and 9.7.4.1.6).
pub(crate) fn legal(open: Option<Message>, headers: &Headers, payload: &[u8], mtu: u32) -> bool {
    let operation = headers.bth.opcode.operation();
    let (starts, ends) = (operation.starts_message(), operation.ends_message());
    let length = payload.len() as u64;
    let announced = headers.reth.map_or(0, |reth| reth.length);
    let is_write = operation.to_string().contains("WRITE");
    let is_read = operation == Operation::RdmaReadRequest;
    // Packets of a run that no peer can send lack headers.
    let needs_reth = is_read || is_write && starts;
    let needs_atomic = is_fetch(operation) && !is_read;
    let lacks = needs_reth && headers.reth.is_none() || needs_atomic && headers.atomic.is_none();
    if lacks || announced > MAX_MESSAGE_BYTES || starts == open.is_some() {
        return false;
    }
    if is_fetch(operation) {
        return length == 0;
    }
    let (before, announced) = match open {
        Some(open) if is_write != (open.start.kind == Kind::Write) => return false,
        Some(open) => (u64::from(open.at), open.start.length),
        None => (0, is_write.then_some(announced)),
    };
    let full = length == u64::from(mtu);
    let fits = if ends { length <= u64::from(mtu) && (starts || length > 0) } else { full };
    let total = before + length;
    let right = match announced {
        Some(announced) if ends => total == u64::from(announced),
        Some(announced) => total < u64::from(announced),
        None => true,
    };
    fits && right && total <= u64::from(MAX_MESSAGE_BYTES)
}

impl Connected {
    pub(crate) fn new(settings: &responder::Settings) -> Self {
        Self {
            responder: Responder::new(settings),
            host: Watched::new(),
            settings: *settings,
            expected: settings.psn,
            history: 0,
            taken: settings.psn.wrapping_sub(1),
            messages: 0,
            fetches: Vec::new(),
            told: false,
            owes: false,
            owes_nak: false,
            came: 0,
            gave: 0,
        }
    }

    pub(crate) fn counters(&self) -> Counters {
        *self.responder.counters()
    }

    /// Receives a packet: it is executed, answered, or counted.
    pub(crate) fn receive(&mut self, headers: &Headers, payload: &[u8]) {
        let (before, failed) = (self.counters(), self.responder.failed());
        self.host.take_up(headers, payload);
        let burst = Burst::single(*headers, payload.len());
        self.responder.receive(&burst, payload, &mut self.host);
        self.came += 1;

        assert_eq!(self.counters().rcvd_pkts, self.came);
        let counted = counted(&before, &self.counters());
        let opcode = headers.bth.opcode;
        let is_request = opcode.service() == Service::Rc && !opcode.operation().is_response();
        let ahead = headers.bth.psn.offset_from(self.expected);
        if failed {
            assert_eq!(counted, ["after_end"]);
        } else if !is_request {
            assert_eq!(counted, ["wrong_opcode"]);
        } else if ahead == 0 {
            return self.in_sequence(headers, payload, &counted);
        } else if ahead > 0 {
            assert_eq!(counted, ["out_of_seq_request"]);
            self.owes_nak |= !self.told;
            self.told = true;
        } else if ahead.unsigned_abs() > self.history {
            assert_eq!(counted, ["unanswered_duplicate"]);
        } else {
            // An invalid one is answered like any other duplicate.
            let mtu = self.settings.connection.mtu.bytes();
            let asks = is_fetch(opcode.operation()) && legal(None, headers, payload, mtu);
            let is_answered = counted == ["duplicate_request"];
            assert!(
                is_answered || asks && counted == ["duplicate_request", "unanswered_duplicate"]
            );
            if is_answered && asks {
                self.is_a_tail(headers);
            }
            self.owes |= is_answered && !self.owes_nak;
        }
        assert_eq!(self.responder.expected(), self.expected);
        assert!(!self.host.hand.asked(), "executed once, in order");
        assert_eq!(self.responder.failed(), failed);
    }

    /// Checks a repeated READ or atomic that is answered: it was executed before, or is the rest of one.
    fn is_a_tail(&self, headers: &Headers) {
        let (now, psn) = (watched::start(headers), headers.bth.psn);
        let mtu = self.settings.connection.mtu.bytes();
        let is_tail = |fetch: &Fetch| {
            let skipped = psn.distance_from(fetch.psn).saturating_mul(mtu);
            let Remote { va, rkey } = fetch.start.remote;
            let remote = Remote { va: va.wrapping_add(skipped.into()), rkey };
            let length = fetch.start.length.map(|length| length.saturating_sub(skipped));
            psn.distance_from(fetch.psn) < fetch.packets
                && now == MessageStart { remote, length, ..fetch.start }
        };
        assert!(self.fetches.iter().any(is_tail), "{headers:?}");
    }

    /// Checks the arrival of the expected packet.
    fn in_sequence(&mut self, headers: &Headers, payload: &[u8], counted: &[&str]) {
        let mtu = self.settings.connection.mtu.bytes();
        let legal = legal(self.host.open, headers, payload, mtu);
        let (hand, failure) = (&self.host.hand, self.host.plain.memory.failed);
        let stop = failure.map(Stop::Nak).or(hand.stopped);
        assert_eq!(counted, stop.map(reason).as_slice());
        assert_eq!(self.responder.failed(), failure.is_some());
        assert!(!hand.abandoned);
        match (failure, hand.stopped) {
            (Some(nak), Some(stop)) => assert_eq!(stop, Stop::Nak(nak)),
            (Some(nak), None) => {
                let may_have_too_many = is_fetch(headers.bth.opcode.operation());
                assert!(nak == Nak::InvalidRequest && (!legal || may_have_too_many));
                assert!(!hand.asked());
            }
            (None, Some(Stop::NotReady)) => (self.told, self.owes_nak) = (true, true),
            (None, Some(stop)) => assert_eq!(stop, Stop::Drop),
            (None, None) => return self.executed(headers, payload, legal),
        }
        if failure.is_some() {
            (self.owes, self.owes_nak) = (true, false);
        }
    }

    fn executed(&mut self, headers: &Headers, payload: &[u8], legal: bool) {
        assert!(legal, "{headers:?}");
        let operation = headers.bth.opcode.operation();
        let (hand, psn) = (&self.host.hand, self.expected);
        assert_eq!(hand.began, operation.starts_message());
        assert_eq!(hand.placed, !payload.is_empty());
        let owed_nak = self.owes_nak;
        (self.told, self.owes_nak) = (false, false);
        self.messages += u32::from(operation.ends_message());
        let is_read = operation == Operation::RdmaReadRequest;
        if is_fetch(operation) {
            assert_eq!((hand.original.is_some(), hand.finished), (!is_read, false));
            let length = headers.reth.map_or(0, |reth| reth.length);
            let packets = length.div_ceil(self.settings.connection.mtu.bytes()).max(1);
            let (original, msn) = (hand.original, self.messages);
            let start = *self.host.begun.last().expect("it began");
            self.fetches.push(Fetch { psn, packets, start, msn, original });
            self.expected = psn.wrapping_add(packets);
            self.history += packets;
            self.owes = true;
            self.host.open = None;
        } else {
            assert_eq!(hand.finished, operation.ends_message());
            self.taken = psn;
            self.expected = psn.wrapping_add(1);
            self.history += 1;
            self.owes |= headers.bth.ack_request || owed_nak;
            self.host.settle();
        }
    }

    /// Returns the next packets to answer with, each with its payload.
    pub(crate) fn transmit(&mut self, room: &mut [u8]) -> Vec<(Headers, Vec<u8>)> {
        let Some(burst) = self.responder.poll_transmit(&mut self.host, room) else {
            assert!(!self.owes && !self.owes_nak, "nothing is answered");
            return Vec::new();
        };
        let packets = peer::packets(&burst, room);
        packets.iter().for_each(|(headers, payload)| self.check(headers, payload));
        self.owes = false;
        if burst.header.bth.opcode.operation() == Operation::Acknowledge {
            // A NAK for the inaccessible memory of a repeated READ is sent before the owed NAK, and in addition.
            self.owes_nak &= self.refuses_repeated(&burst.header);
        }
        self.gave += packets.len() as u64;
        assert_eq!(self.counters().sent_pkts, self.gave);
        packets
    }

    /// Returns true if this refuses a repeated READ because its memory is gone. That fails no end.
    fn refuses_repeated(&self, headers: &Headers) -> bool {
        let refuses = headers.aeth.is_some_and(|aeth| match aeth.syndrome {
            Syndrome::Nak(code) => code != NakCode::PsnSequence,
            _ => false,
        });
        let of = |fetch: &Fetch| headers.bth.psn.distance_from(fetch.psn) < fetch.packets;
        let is_read = self.fetches.iter().any(|fetch| fetch.original.is_none() && of(fetch));
        refuses && is_read && self.host.plain.memory.failed.is_none()
    }

    /// Checks that a packet is a right answer.
    fn check(&self, headers: &Headers, payload: &[u8]) {
        let bth = headers.bth;
        assert_eq!((bth.opcode.service(), bth.destination), (Service::Rc, PEER));
        let msn = headers.aeth.map_or(0, |aeth| aeth.msn);
        assert!(msn <= self.messages);
        if bth.opcode.operation() != Operation::Acknowledge {
            return self.check_response(headers, payload);
        }
        assert!(payload.is_empty() && msn == self.messages);
        let ahead = bth.psn.offset_from(self.expected);
        match headers.aeth.expect("an acknowledgement").syndrome {
            Syndrome::Ack(_) => assert_eq!(bth.psn, self.taken),
            Syndrome::RnrNak(_) | Syndrome::Nak(NakCode::PsnSequence) => {
                assert!(ahead == 0 && self.owes_nak, "a NAK is sent once");
            }
            Syndrome::Nak(code) => {
                let failed = self.host.plain.memory.failed.is_some();
                assert!(failed || self.refuses_repeated(headers));
                assert!(ahead <= 0 && code != NakCode::InvalidRdRequest);
            }
            Syndrome::Reserved(code) => panic!("{code:#x}"),
            _ => panic!("{headers:?}"),
        }
    }

    /// Checks a part of a READ response, or an atomic response: it must be for an executed request.
    fn check_response(&self, headers: &Headers, payload: &[u8]) {
        let psn = headers.bth.psn;
        let of = |fetch: &&Fetch| psn.distance_from(fetch.psn) < fetch.packets;
        let fetch = self.fetches.iter().rfind(of).expect("it was asked for");
        assert!(headers.aeth.is_none_or(|aeth| aeth.msn == fetch.msn));
        assert!(headers.aeth.is_none_or(|aeth| matches!(aeth.syndrome, Syndrome::Ack(_))));
        if let Some(original) = fetch.original {
            assert_eq!(headers.atomic_ack.map(|ack| ack.original), Some(original));
            return;
        }
        let index = psn.distance_from(fetch.psn);
        let mtu = self.settings.connection.mtu.bytes();
        let (at, length) = (index * mtu, fetch.start.length.expect("a READ"));
        assert_eq!(payload.len(), (length - at).min(mtu) as usize);
        let is_last = index + 1 == fetch.packets;
        assert_eq!(headers.bth.opcode.operation().ends_message(), is_last);
        if !payload.is_empty() {
            let from = (fetch.start.remote.va - VA) as usize + at as usize;
            assert_eq!(payload, &self.host.plain.memory.bytes[from..][..payload.len()]);
        }
    }

    /// Checks that each atomic was executed once.
    pub(crate) fn end(&self) {
        let atomics = self.fetches.iter().filter(|fetch| fetch.original.is_some()).count();
        assert_eq!(self.host.plain.memory.atomics, atomics);
    }
}
