//! Requests that arrive as packets. A responder of `rdma_proto` puts the requests in order, calls [`Inbound`] to
//! execute them, and answers them.

mod arrival;
mod single;

use std::sync::Arc;

use rdma_proto::responder::{Owes, Responder as Reliable, Settings};
use rdma_proto::wire::Operation as Packet;
use rdma_proto::{Burst, Datagrams, UnreliableResponder};
use rdma_types::{AccessFlags, AsyncEventKind, MinRnrTimer, Mtu, Psn, QpState, Qpn};

use crate::engine::adapter::notices::Reason;
use crate::engine::aftermath::Aftermath;
use crate::engine::queue_pair::service::Service;
use crate::engine::responder::inbound::Placed;
use crate::engine::responder::side::Responder;
use crate::engine::responder::wire::arrival::Arrival;
use crate::engine::station::Station;
use crate::engine::wire::grant::{Given, Visited};
use crate::engine::wire::letter::{self, Kept, Letter};
use crate::engine::wire::run::Run;
use crate::engine::wire::{self, Carrier, Outgoing, Route};

/// The MTU of the port, which limits the length of the datagrams that it accepts.
const PORT_MTU: Mtu = Mtu::MTU4096;

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
        arrival.in_ring = letter.in_ring;
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

    /// Returns true if a completion may have to wait until the link has accepted answers, once this request is executed.
    pub(crate) fn may_hold(&self, letter: &Letter) -> bool {
        let burst = &letter.burst;
        let last = burst.last.map_or(burst.header.bth.opcode, |last| last.opcode).operation();
        let takes_receive = !matches!(
            last,
            Packet::RdmaWriteFirst
                | Packet::RdmaWriteMiddle
                | Packet::RdmaWriteLast
                | Packet::RdmaWriteOnly
                | Packet::RdmaReadRequest
                | Packet::CompareSwap
                | Packet::FetchAdd
        );
        let owes = |wire: &Wire| wire.owes() != Owes::Nothing || letter.word.is_none();
        let owes = self.wire.as_deref().is_some_and(|wire| wire.acknowledges() && owes(wire));
        self.has_held() || takes_receive && (self.unflushed || owes)
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
                wire::transmit(own, (&wire.route, None), wire.mtu, |room, in_ring| {
                    arrival.in_ring = in_ring;
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
