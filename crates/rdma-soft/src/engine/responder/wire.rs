//! Requests that arrive as packets. A responder of `rdma_proto` puts the requests in order, calls [`Inbound`] to
//! execute them, and answers them.

mod single;

use std::sync::Arc;

use rdma_proto::responder::{Owes, Responder as Reliable, Settings};
use rdma_proto::{
    Burst, Datagrams, Delivered, Host, Kind, MessageEnd, MessageStart, Nak, Source, Stop,
    UnreliableResponder,
};
use rdma_types::{
    AccessFlags, AsyncEventKind, MinRnrTimer, Mtu, Psn, QpState, Qpn, WcStatus as Status,
};

use crate::engine::adapter::notices::Reason;
use crate::engine::aftermath::Aftermath;
use crate::engine::operation::{Opcode, Operation};
use crate::engine::queue_pair::service::Service;
use crate::engine::receive_queue::Waits;
use crate::engine::responder::datagram::{Arrived, Datagram};
use crate::engine::responder::inbound::{self, Inbound, Placed, Refused};
use crate::engine::responder::side::Responder;
use crate::engine::station::Station;
use crate::engine::wire::grant::{Given, Visited};
use crate::engine::wire::letter::{self, Kept, Letter};
use crate::engine::wire::run::Run;
use crate::engine::wire::{self, Carrier, Outgoing, Route};
use crate::memory::copy::Data;
use crate::memory::grace_period::Visit;

/// The MTU of the port, which limits the length of the datagrams that it accepts.
const PORT_MTU: Mtu = Mtu::MTU4096;
/// The length of an atomic request.
const ATOMIC_BYTES: u64 = 8;

/// The responder's state for packets.
#[derive(Debug)]
pub(crate) struct Wire {
    protocol: Protocol,
    pub(crate) route: Route,
    mtu: Mtu,
    /// Whether a packet from the peer has arrived.
    has_received: bool,
    /// Whether the last refusal must still be followed by a void refusal.
    ready: bool,
    /// The packet that found no receive request, if its sender waits without limit.
    kept: Option<Kept>,
    /// Whether the packet that was kept is about to arrive again, and no other packet has arrived since.
    expects_kept: bool,
    /// The grants to the process of the peer.
    given: Given,
}

/// The continuation of a request that found no receive request, after one was posted.
#[derive(Debug)]
pub(crate) enum Continuation {
    /// No request of another process waits.
    Nothing,
    /// The queue pair's next turn sends a void refusal to the peer, which then sends its packets again.
    Refusal,
    /// This packet arrives again.
    Packet(Box<Letter>),
}

/// The time at which a responder sends its answers.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Answers {
    Never,
    /// In its next turn.
    Now,
    /// Before the program sees the completions that are held back.
    First,
}

#[derive(Debug)]
enum Protocol {
    Reliable(Reliable),
    Unreliable(UnreliableResponder),
}

impl Wire {
    /// Creates the state for a queue pair that becomes ready to receive. Its MTU is two to the power of `mtu_log2`
    /// bytes.
    pub(crate) fn new(service: Service, side: &Responder, mtu_log2: u32, route: Route) -> Self {
        let connection = wire::connection(side.peer_qpn, mtu_log2);
        let protocol = match service {
            Service::ReliableConnection => Protocol::Reliable(Reliable::new(&Settings {
                connection,
                psn: side.psn,
                min_rnr_timer: timer(side),
                max_dest_rd_atomic: side.max_rd_atomic,
            })),
            _ => Protocol::Unreliable(UnreliableResponder::new(connection, side.psn)),
        };
        Self {
            protocol,
            route,
            mtu: connection.mtu,
            has_received: false,
            ready: false,
            kept: None,
            expects_kept: false,
            given: Given::default(),
        }
    }

    /// Revokes what the process of the peer may access without packets. Returns the visits that may still use it.
    pub(crate) fn revoke(&mut self) -> Option<Visited> {
        self.given.revoke()
    }

    /// Applies a changed minimum RNR timer to a queue pair that is ready to receive.
    pub(crate) fn set(&mut self, timer_code: u8) {
        if let Protocol::Reliable(protocol) = &mut self.protocol
            && let Some(timer) = MinRnrTimer::from_code(timer_code)
        {
            protocol.set_min_rnr_timer(timer);
        }
    }

    /// Returns the packet sequence number that is expected next.
    pub(crate) fn psn(&self) -> Psn {
        match &self.protocol {
            Protocol::Reliable(protocol) => protocol.expected(),
            Protocol::Unreliable(protocol) => protocol.expected(),
        }
    }

    /// Returns true if a peer outside this process waits for acknowledgements.
    fn acknowledges(&self) -> bool {
        matches!(self.protocol, Protocol::Reliable(_)) && self.route.outlet.carrier().is_some()
    }

    /// If the letter has a word, this reports the executed requests to the peer's process in that word, before the
    /// program can see their completions. A duplicate is acknowledged with a packet, because the word may not have
    /// reported the request.
    fn report_executed(&mut self, own: &Station, expected_before: Psn, letter: &Letter) {
        if let Protocol::Reliable(protocol) = &mut self.protocol
            && protocol.expected() != expected_before
            && letter.store(protocol.expected())
            // A capture must contain acknowledgements.
            && own.adapter.tap.is_none()
        {
            protocol.is_acknowledged();
        }
    }

    fn owes(&self) -> Owes {
        match &self.protocol {
            Protocol::Reliable(protocol) => protocol.owes(),
            Protocol::Unreliable(_) => Owes::Nothing,
        }
    }

    /// Returns a copy of a single packet that has just found no receive request, if its sender waits without limit.
    fn keep(&self, own: &Station, letter: &Letter) -> Option<Kept> {
        let Protocol::Reliable(protocol) = &self.protocol else { return None };
        let is_refused =
            protocol.refusal().is_some() && protocol.expected() == letter.burst.header.bth.psn;
        // A capture must contain the packet that the sender sends again.
        let may_keep = letter.burst.segments == 1 && own.adapter.tap.is_none();
        if is_refused && may_keep { letter.keep() } else { None }
    }

    /// Returns true if the letter contained the packet expected before, and the protocol did not drop or refuse it.
    fn has_executed(&self, letter: &Letter, expected_before: Psn) -> bool {
        self.is_reliable()
            && letter.burst.header.bth.psn == expected_before
            && self.psn() != expected_before
    }

    fn is_reliable(&self) -> bool {
        matches!(self.protocol, Protocol::Reliable(_))
    }

    /// Returns the void refusal that is yet to be sent, if any.
    fn void(&self) -> Option<Burst> {
        match &self.protocol {
            Protocol::Reliable(protocol) if self.ready => protocol.refusal(),
            _ => None,
        }
    }

    /// Makes the next turn send a void refusal, if a packet was refused because it found no receive request. Returns true
    /// if there is such a packet.
    fn plan_void(&mut self) -> bool {
        self.ready = true;
        self.ready = self.void().is_some();
        self.ready
    }

    /// Adds the protocol's counts to the device's counters.
    fn count(&mut self, own: &Station, peer_qpn: u32) {
        let counted = match &mut self.protocol {
            Protocol::Reliable(protocol) => protocol.take_counters(),
            Protocol::Unreliable(protocol) => protocol.take_counters(),
        };
        if let Some(counted) = counted {
            own.adapter.count_packets(&counted, self.route.endpoints(own, peer_qpn));
        }
    }
}

fn timer(side: &Responder) -> MinRnrTimer {
    // The code was checked when the attribute was set.
    MinRnrTimer::from_code(side.min_rnr_timer).unwrap_or_default()
}

impl Responder {
    /// Receives packets with requests. Returns when to answer these requests.
    pub(crate) fn receive_requests(
        &mut self,
        own: &Station,
        letter: &Letter,
        aftermath: &mut Aftermath,
    ) -> Answers {
        let listens = self.is_ready() && self.wire.is_some() && letter.number >= self.first_letter;
        if let Some(reason) = wire::why_not_taken(listens, self.path, letter) {
            wire::drop_packets(own.adapter, letter, reason, Some(self.peer_qpn));
            return Answers::Never;
        }
        let Some(wire) = &mut self.wire else { return Answers::Never };
        let expects_kept = std::mem::take(&mut wire.expects_kept);
        if letter.was_kept && !(expects_kept && letter.is_patient()) {
            // A later packet has arrived in between, and was dropped. The peer sends both again after a void refusal.
            // Or the peer has given up since the receive was posted. Another connection may then use its word, so
            // nothing may be stored there.
            return if wire.plan_void() { Answers::Now } else { Answers::Never };
        }
        let Some(mut wire) = self.wire.take() else { return Answers::Never };
        if !wire.has_received {
            wire.has_received = true;
            if self.state == QpState::RTR {
                // The first message shows a passive side that the other side is ready.
                own.reporter.report(AsyncEventKind::COMM_EST);
            }
        }
        let expected = wire.psn();
        self.holds = wire.acknowledges();
        let mut arrival = Arrival::new(own, self, aftermath);
        let (burst, payload) = (&letter.burst, letter.payload());
        arrival.placed = Placed { bytes: letter.placed, words: letter.words.as_ref() };
        arrival.run = Run::of(burst, payload, wire.mtu);
        arrival.waits = wire.is_reliable() && wire.route.outlet.carries_void();
        match &mut wire.protocol {
            Protocol::Reliable(protocol) => protocol.receive(burst, payload, &mut arrival),
            Protocol::Unreliable(protocol) => protocol.receive(burst, payload, &mut arrival),
        }
        let keeps = arrival.waits;
        self.holds = false;
        wire.kept = if keeps { wire.keep(own, letter) } else { None };
        wire.report_executed(own, expected, letter);
        if own.adapter.maps && wire.has_executed(letter, expected) && self.is_ready() {
            self.give(own, &mut wire, letter);
        }
        wire.count(own, self.peer_qpn);
        let owes = wire.owes();
        self.wire = Some(wire);
        let owes = owes != Owes::Nothing;
        // Another thread may have passed answers to the carrier, but not flushed it yet.
        if self.has_held() && (owes || self.unflushed) {
            return Answers::First;
        }
        self.publish(own);
        if owes { Answers::Now } else { Answers::Never }
    }

    /// Grants the peer's process access to the region of an executed request, unless it has access already. The key of
    /// a request without bytes was not checked.
    fn give(&self, own: &Station, wire: &mut Wire, letter: &Letter) {
        if !own.adapter.port_is_up() {
            // The port went down after the letter arrived, and the grants may have been revoked already.
            return;
        }
        let headers = &letter.burst.header;
        let key = headers.reth.filter(|reth| reth.length > 0).map(|reth| reth.rkey);
        let key = key.or_else(|| headers.atomic.map(|atomic| atomic.rkey));
        let (Some(key), Some(words), Some(word)) = (key, &letter.words, letter.word) else {
            return;
        };
        let mut access = self.access;
        if self.max_rd_atomic == 0 {
            access &= AccessFlags::REMOTE_WRITE.bits();
        }
        let (key, domain) = (key.get(), own.pd_number);
        let is_registered = |key| own.adapter.memory.regions.find(key).is_some();
        if let Some(want) = wire.given.want(words, word, key, domain, access, is_registered) {
            words.grant(want);
        }
    }

    /// Returns true if some received requests are not acknowledged yet.
    pub(crate) fn owes_acknowledgement(&self) -> bool {
        self.wire.as_deref().is_some_and(|wire| wire.owes() == Owes::Acknowledgement)
    }

    /// Returns the carrier that takes answers out of this process, if any.
    pub(crate) fn carrier(&self) -> Option<Arc<dyn Carrier>> {
        self.wire.as_ref()?.route.outlet.carrier().map(Arc::clone)
    }

    /// Drops the answers that are owed to the peer, so that no memory is read for them any longer. If only an
    /// acknowledgement is owed, it is still sent.
    pub(crate) fn drop_unanswered(&mut self) {
        self.revoke();
        if let Some(wire) = self.wire.take_if(|wire| wire.owes() != Owes::Acknowledgement) {
            self.psn = wire.psn();
        }
    }

    /// Sends some answers. Returns true if more may be sent in another turn.
    pub(crate) fn transmit(&mut self, own: &Station, aftermath: &mut Aftermath) -> bool {
        let owes = |wire: &mut Box<Wire>| wire.owes() != Owes::Nothing || wire.ready;
        let Some(mut wire) = self.wire.take_if(owes) else { return false };
        let leaves = wire.acknowledges();
        let mut arrival = Arrival::new(own, self, aftermath);
        let more = match &mut wire.protocol {
            Protocol::Reliable(protocol) => {
                wire::transmit(own, (&wire.route, None), wire.mtu, |room| {
                    let burst = protocol.poll_transmit(&mut arrival, room)?;
                    arrival.side.unflushed = leaves;
                    let more = protocol.owes() != Owes::Nothing;
                    Some(Outgoing { burst, placed: 0, more })
                })
            }
            Protocol::Unreliable(_) => false,
        };
        // A void refusal is sent after the refusal itself.
        if wire.owes() == Owes::Nothing {
            let sent = wire.void().is_none_or(|void| wire::send_void(own, &wire.route, void));
            wire.ready = !sent;
        }
        wire.count(own, self.peer_qpn);
        self.wire = Some(wire);
        more
    }

    /// Handles a newly posted receive request. Returns how a request that found none earlier continues.
    pub(crate) fn handle_posted_receive(&mut self) -> Continuation {
        let Some(wire) = &mut self.wire else { return Continuation::Nothing };
        if let Some(kept) = wire.kept.take() {
            // A sender that no longer waits without limit was reset or changed, or has failed.
            let letter = kept.into_letter();
            wire.expects_kept = letter.is_some();
            return letter.map_or(Continuation::Nothing, Continuation::Packet);
        }
        if wire.plan_void() { Continuation::Refusal } else { Continuation::Nothing }
    }

    /// Receives a datagram. Returns the reason if it was dropped, except for a wrong opcode, which is counted here.
    pub(crate) fn receive_datagram(
        &mut self,
        own: &Station,
        letter: &Letter,
        datagram: letter::Datagram,
        aftermath: &mut Aftermath,
    ) -> Option<Reason> {
        let first = match letter.is_for_many() {
            true => self.first_letter_of_group,
            false => self.first_letter,
        };
        let listens = self.is_ready() && letter.number >= first;
        if own.service != Service::UnreliableDatagram || !listens {
            return Some(Reason::WrongState);
        }
        // If the packet has no route header, the protocol sees zeros instead. The delivery in [`Arrival`] uses the
        // header from the link.
        let (qkey, header) = (self.qkey, datagram.header.unwrap_or([0; 40]));
        let mut protocol = Datagrams::new(Qpn::masked(own.qpn), PORT_MTU, Psn::default());
        let mut arrival = Arrival::new(own, self, aftermath);
        arrival.datagram = Some(datagram);
        protocol.receive(qkey, &header, &letter.burst, letter.payload(), &mut arrival);
        let counted = protocol.counters();
        let of_packet = [
            (counted.qkey_viol_cntr, Reason::WrongQkey),
            (counted.resp_invalid_request_errors, Reason::RefusedInvalid),
        ];
        own.adapter.tally.rare.wrong_opcode.add(counted.wrong_opcode);
        let of_packet = of_packet.into_iter().find(|(count, _)| *count > 0);
        of_packet.map(|(_, reason)| reason).or(arrival.dropped)
    }
}

/// A responder as the protocol sees it, with its lock held.
struct Arrival<'a> {
    own: &'a Station,
    side: &'a mut Responder,
    aftermath: &'a mut Aftermath,
    /// The reason why the current request was refused.
    refused: Option<Refused>,
    /// Whether the current request needs a receive request, and has taken one. If not, a refusal of the current request
    /// does not affect a receive request that another request took.
    uses_receive: bool,
    /// The link's information about a datagram.
    datagram: Option<letter::Datagram>,
    /// The reason why a datagram was dropped, if it was.
    dropped: Option<Reason>,
    /// The bytes that the peer's process has written itself, before those of the packet.
    placed: Placed<'a>,
    /// The received packets.
    run: Run<'a>,
    /// Whether this queue pair waits to be notified of the next receive request when a packet finds none.
    waits: bool,
}

impl<'a> Arrival<'a> {
    fn new(own: &'a Station, side: &'a mut Responder, aftermath: &'a mut Aftermath) -> Self {
        let (refused, uses_receive, datagram, dropped) = (None, false, None, None);
        let (placed, run, waits) = (Placed::default(), Run::default(), false);
        Self { own, side, aftermath, refused, uses_receive, datagram, dropped, placed, run, waits }
    }

    /// Runs `work` on the responder, within a separate visit.
    fn inbound<R>(&mut self, work: impl FnOnce(&mut Inbound<'_>, &mut Aftermath) -> R) -> R {
        let visit = Visit::begin();
        let (own, side, reach) = (self.own, &mut *self.side, self.own.adapter.later());
        work(&mut Inbound { own, side, visit: &visit, reach }, self.aftermath)
    }

    fn refuse(&mut self, refused: Refused) -> Stop {
        self.refused = Some(refused);
        Stop::Nak(match refused.request {
            Status::REM_INV_REQ_ERR => Nak::InvalidRequest,
            Status::REM_ACCESS_ERR => Nak::RemoteAccess,
            _ => Nak::RemoteOperational,
        })
    }

    /// Writes payload to its destination, `at` bytes after the start of the message.
    fn place_bytes(&mut self, start: &MessageStart, at: u32, payload: &[u8]) -> Result<(), Stop> {
        let operation = operation(start, None);
        // A failed copy of the whole run may have left a refusal.
        self.refused = None;
        self.uses_receive |= operation.opcode.is_send();
        let from = u64::from(at);
        let to = from + payload.len() as u64;
        let length = start.length.map_or(to, u64::from);
        let data = Data::Bytes(payload);
        let placed = self.inbound(|inbound, _| inbound.place(&operation, length, data, (from, to)));
        placed.map_err(|stop| match stop {
            inbound::Stop::Refused(refused) => self.refuse(refused),
            // A packet's bytes are always mapped.
            inbound::Stop::Local => Stop::Drop,
        })
    }

    /// Takes the receive request that a message needs.
    fn receive_for(&mut self, operation: &Operation) -> Result<(), Stop> {
        if self.inbound(|inbound, _| inbound.begin(operation)) || self.retry_receive() {
            self.uses_receive = true;
            return Ok(());
        }
        Err(Stop::NotReady)
    }

    /// Looks for a receive request again. If there is none, this queue pair is notified of the next one.
    #[cold]
    fn retry_receive(&mut self) -> bool {
        let waits = || Waits { waiter: self.own.waiter(), is_far: true };
        self.waits && self.side.take_receive_or_wait(self.own, waits())
    }
}

/// Returns the operation of a message, given the start of the message, and its end if that has arrived.
fn operation(start: &MessageStart, end: Option<&MessageEnd>) -> Operation {
    let immediate = end.and_then(|end| end.immediate);
    let invalidate = end.and_then(|end| end.invalidate);
    let opcode = match (start.kind, immediate, invalidate) {
        (Kind::Send, Some(_), _) => Opcode::SendWithImm,
        (Kind::Send, None, Some(_)) => Opcode::SendWithInvalidate,
        (Kind::Send, None, None) => Opcode::Send,
        (Kind::Write, Some(_), _) => Opcode::WriteWithImm,
        (Kind::Write, None, _) => Opcode::Write,
        (Kind::Read, ..) => Opcode::Read,
        (Kind::CompareSwap, ..) => Opcode::CompareAndSwap,
        (Kind::FetchAdd, ..) => Opcode::FetchAndAdd,
    };
    Operation {
        opcode,
        solicited: end.is_some_and(|end| end.solicited),
        imm: match (immediate, invalidate) {
            (Some(immediate), _) => immediate.to_be(),
            (None, Some(key)) => key.get(),
            (None, None) => 0,
        },
        remote_address: start.remote.va,
        rkey: start.remote.rkey.get(),
        operand: start.operand,
        swap: start.swap,
    }
}

impl Host for Arrival<'_> {
    fn begin(&mut self, start: &MessageStart) -> Result<(), Stop> {
        let operation = operation(start, None);
        if operation.opcode.is_send() {
            return self.receive_for(&operation);
        }
        self.uses_receive = false;
        let length = start.length.unwrap_or_default().into();
        let placed = self.placed;
        let checked = self.inbound(|inbound, _| match placed.bytes {
            0 => inbound.check(&operation, length),
            _ => inbound.check_placed(&operation, length, placed),
        });
        checked.map_err(|refused| self.refuse(refused))?;
        if operation.opcode == Opcode::Read {
            self.side.executed += 1;
            self.side.bytes += length;
        }
        Ok(())
    }

    fn place(&mut self, start: &MessageStart, at: u32, payload: &[u8]) -> Result<(), Stop> {
        let mut run = std::mem::take(&mut self.run);
        let placed =
            run.place(at, payload, start.length, |bytes| self.place_bytes(start, at, bytes));
        self.run = run;
        placed
    }

    fn fetch(&mut self, start: &MessageStart, at: u32, out: &mut [u8]) -> Result<(), Stop> {
        let operation = operation(start, None);
        let length = start.length.unwrap_or_default().into();
        let fetched =
            self.inbound(|inbound, _| inbound.fetch_bytes(&operation, length, at.into(), out));
        fetched.map_err(|refused| self.refuse(refused))
    }

    fn atomic(&mut self, start: &MessageStart) -> Result<u64, Stop> {
        let operation = operation(start, None);
        let before = self.inbound(|inbound, _| inbound.atomic(&operation));
        let before = before.map_err(|refused| self.refuse(refused))?;
        self.side.executed += 1;
        self.side.bytes += ATOMIC_BYTES;
        Ok(before)
    }

    fn take_receive(&mut self, _start: &MessageStart) -> Result<(), Stop> {
        self.receive_for(&Operation { opcode: Opcode::WriteWithImm, ..Operation::EMPTY })
    }

    fn finish(&mut self, start: &MessageStart, end: &MessageEnd) -> Result<(), Stop> {
        let operation = operation(start, Some(end));
        let length = u64::from(self.placed.bytes) + u64::from(end.length);
        let is_send = operation.opcode.is_send();
        let finished = self.inbound(|inbound, aftermath| {
            if is_send && length == 0 {
                // The message had no bytes, so no packet has checked yet whether the receive request can be used.
                inbound.find_room(0)?;
            }
            match inbound.finish(&operation, length) {
                // The message was delivered; only the responder fails.
                Err(refused) if refused.request == Status::SUCCESS => {
                    inbound.fail(refused, aftermath);
                    Ok(())
                }
                finished => finished,
            }
        });
        finished.map_err(|refused| self.refuse(refused))
    }

    fn abandon(&mut self) {
        if let Some(refused) = self.refused.take().filter(|_| self.uses_receive) {
            self.inbound(|inbound, aftermath| inbound.abandon(refused, aftermath));
        }
    }

    fn fail(&mut self, nak: Nak) {
        let of_packet = Refused { receive: Status::WR_FLUSH_ERR, request: nak.status() };
        let refused = self.refused.take().unwrap_or(of_packet);
        self.inbound(|inbound, aftermath| inbound.fail(refused, aftermath));
    }

    fn datagram(&mut self, from: &Source, end: &MessageEnd, payload: &[u8]) -> Delivered {
        let Some(letter::Datagram { source, header, .. }) = self.datagram else {
            return Delivered::Dropped;
        };
        let operation = operation(&MessageStart::send(), Some(end));
        let length = payload.len() as u64;
        let (operation, data) = (&operation, Data::Bytes(payload));
        let qkey = from.qkey;
        let datagram = Datagram { source, qkey, header, operation, length, data, upto: length };
        match self.inbound(|inbound, aftermath| inbound.datagram(&datagram, aftermath)) {
            Arrived::Not(reason) => {
                self.dropped = Some(reason);
                Delivered::Dropped
            }
            _ => Delivered::Whole,
        }
    }
}
