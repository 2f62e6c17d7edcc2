//! The responder of a reliable connection: has a [`Host`] execute what the peer asks for, once and in order,
//! and answers.

mod acknowledge;
mod resources;
pub(crate) mod sequence;

use rdma_types::{MinRnrTimer, Psn};

use crate::burst::Burst;
use crate::connection::Connection;
use crate::counters::{Counters, count};
use crate::host::Host;
use crate::operation::{End, Kind, Nak, Remote, Start, Stop};
use crate::wire::{Headers, Service};

use acknowledge::Owed;
use resources::{Resource, Resources};
use sequence::{Invalid, Message, Step};

/// The attributes that a responder gets when its queue pair becomes ready to receive.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Settings {
    /// The far end.
    pub connection: Connection,
    /// The number of the first packet that it will take.
    pub psn: Psn,
    /// How long the peer shall wait when there is no receive.
    pub min_rnr_timer: MinRnrTimer,
    /// How many READs and atomics the peer may have in flight.
    pub max_dest_rd_atomic: u8,
}

/// What a responder has to send.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[expect(clippy::exhaustive_enums, reason = "who drives it decides by it")]
pub enum Owes {
    /// Nothing.
    Nothing,
    /// An acknowledgement of what was taken, and nothing else. It may wait for a moment, for what is sent next or for
    /// more to acknowledge, as long as that is short beside the timeout of the peer.
    Acknowledgement,
    /// A response or a negative acknowledgement, too.
    Answer,
}

/// A packet was executed.
struct Executed {
    /// How many PSNs it used.
    packets: u32,
    /// Whether what it is answered says so, as the response of a READ or an atomic does.
    acknowledges: bool,
}

/// A responder. See the [module](self).
///
/// Whoever drives it calls [`poll_transmit`](Self::poll_transmit) after [`receive`](Self::receive),
/// as long as it returns something and the link has space.
#[derive(Debug)]
pub struct Responder {
    connection: Connection,
    min_rnr_timer: MinRnrTimer,
    /// The packet that comes next.
    expected: Psn,
    /// How many PSNs before it were taken: the number of the expected packet, which never begins anew.
    history: u64,
    /// The newest packet of a SEND or a WRITE that was taken: what an acknowledgement is about. It never has the
    /// PSN of a READ or an atomic, whose acknowledgement is its response: SoftRoCE would complete the READ.
    taken: Psn,
    /// How many messages were executed (MSN).
    msn: u32,
    /// The message of which a part is there.
    message: Option<Message>,
    /// Whether the peer was informed that the expected packet is missing, or found no receive: it
    /// is informed once, and what follows is dropped until that packet comes.
    told: bool,
    /// Whether the expected packet found no receive when it came.
    not_ready: bool,
    failed: bool,
    resources: Resources,
    owed: Owed,
    counters: Counters,
}

impl Responder {
    /// A responder that keeps slots for the READs and atomics that the peer may have in flight.
    #[must_use]
    pub fn new(settings: &Settings) -> Self {
        Self {
            connection: settings.connection,
            min_rnr_timer: settings.min_rnr_timer,
            expected: settings.psn,
            history: 0,
            taken: settings.psn.wrapping_sub(1),
            msn: 0,
            message: None,
            told: false,
            not_ready: false,
            failed: false,
            resources: Resources::new(settings.max_dest_rd_atomic),
            owed: Owed::Nothing,
            counters: Counters::default(),
        }
    }

    /// Whether a request was refused: what comes after it is dropped.
    #[must_use]
    pub const fn failed(&self) -> bool {
        self.failed
    }

    /// The number of the packet that it takes next.
    ///
    /// A link may bring that number to the peer's requester, which [records](crate::requester::Requester::executed) it.
    /// Then no packet has to [acknowledge](Self::is_acknowledged) what was executed.
    #[must_use]
    pub const fn expected(&self) -> Psn {
        self.expected
    }

    /// What [`poll_transmit`](Self::poll_transmit) would give out.
    #[must_use]
    pub fn owes(&self) -> Owes {
        match self.owed {
            _ if !self.resources.owes_nothing() => Owes::Answer,
            Owed::Nothing => Owes::Nothing,
            Owed::Ack => Owes::Acknowledgement,
            _ => Owes::Answer,
        }
    }

    /// Notes that the peer learns the [expected](Self::expected) number by other means than a packet: a mere
    /// acknowledgement is no longer owed.
    pub fn is_acknowledged(&mut self) {
        if self.owed == Owed::Ack {
            self.owed = Owed::Nothing;
        }
    }

    /// How long the peer shall wait from now on when there is no receive.
    pub const fn set_min_rnr_timer(&mut self, timer: MinRnrTimer) {
        self.min_rnr_timer = timer;
    }

    /// The RNR NAK of the packet that found no receive, until that packet comes again. A link that supports this sends
    /// it again, marked as void, when a receive is posted: see
    /// [`Requester::receiver_is_ready`](crate::requester::Requester::receiver_is_ready).
    #[must_use]
    pub fn refusal(&self) -> Option<Burst> {
        self.not_ready.then(|| self.rnr_nak())
    }

    /// What it counted, since it was [taken](Self::take_counters) last.
    #[must_use]
    pub const fn counters(&self) -> &Counters {
        &self.counters
    }

    /// Takes what it counted, and counts from zero again: for a caller that keeps the sum. Nothing is taken while it
    /// is packets alone, which were given out and came, so that this costs little after each of them.
    pub fn take_counters(&mut self) -> Option<Counters> {
        self.counters.take_reasons()
    }

    /// Takes requests of the peer: packets of which
    /// [`Operation::is_response`](crate::wire::Operation::is_response) is false, that came from the connected queue
    /// pair. `payload` is that of all packets, one behind the other.
    pub fn receive<H: Host + ?Sized>(&mut self, burst: &Burst, payload: &[u8], host: &mut H) {
        if burst.segments == 1 {
            self.receive_packet(&burst.header, payload, host);
        } else {
            for (headers, payload) in burst.packets(payload) {
                self.receive_packet(&headers, payload, host);
            }
        }
    }

    fn receive_packet<H: Host + ?Sized>(
        &mut self,
        headers: &Headers,
        payload: &[u8],
        host: &mut H,
    ) {
        count(&mut self.counters.rcvd_pkts);
        let opcode = headers.bth.opcode;
        let is_request = opcode.service() == Service::Rc && !opcode.operation().is_response();
        if self.failed || !is_request {
            let Counters { after_end, wrong_opcode, .. } = &mut self.counters;
            count(if self.failed { after_end } else { wrong_opcode });
            return;
        }
        match headers.bth.psn.offset_from(self.expected) {
            0 => self.in_sequence(headers, payload, host),
            1.. => self.out_of_sequence(),
            // What no message had is no duplicate of one: the other end began with another PSN.
            before => match self.history.checked_sub(before.unsigned_abs().into()) {
                Some(number) => self.duplicate(number, headers, payload),
                None => count(&mut self.counters.unanswered_duplicate),
            },
        }
    }

    /// A packet before this one is missing. The peer is informed once per gap (IBTA section
    /// 9.7.5.2); after an RNR NAK not at all (9.7.5.2.8).
    fn out_of_sequence(&mut self) {
        count(&mut self.counters.out_of_seq_request);
        if !self.told {
            self.told = true;
            self.owed = Owed::OutOfSequence;
        }
    }

    /// The expected packet.
    fn in_sequence<H: Host + ?Sized>(&mut self, headers: &Headers, payload: &[u8], host: &mut H) {
        let executed =
            match sequence::judge(&self.connection, self.message.as_ref(), headers, payload) {
                Ok(Step::Data { message, begins, end }) => {
                    self.data(message, begins, end, payload, host)
                }
                Ok(Step::Fetch(start)) => self.fetch(&start, host),
                // IBTA section 9.7.4.1.
                Err(Invalid) => Err(Stop::Nak(Nak::InvalidRequest)),
            };
        match executed {
            Ok(Executed { packets, acknowledges }) => {
                self.expected = self.expected.wrapping_add(packets);
                self.history = self.history.wrapping_add(packets.into());
                (self.told, self.not_ready) = (false, false);
                // What was owed and is not sent yet says less than an acknowledgement does now.
                let asked = headers.bth.ack_request || self.owed != Owed::Nothing;
                self.owed = if asked && !acknowledges { Owed::Ack } else { Owed::Nothing };
            }
            Err(Stop::NotReady) => {
                count(&mut self.counters.send_rnr_err);
                (self.told, self.not_ready) = (true, true);
                self.owed = Owed::NotReady;
            }
            Err(Stop::Nak(nak)) => self.refuse(headers.bth.psn, nak, host),
            Err(Stop::Drop) => count(&mut self.counters.dropped_by_host),
        }
    }

    /// The request with that PSN is refused, and all ends.
    fn refuse<H: Host + ?Sized>(&mut self, psn: Psn, nak: Nak, host: &mut H) {
        self.owed = Owed::Refused(psn, nak);
        if !self.failed {
            (self.failed, self.not_ready) = (true, false);
            self.counters.refused(nak);
            host.fail(nak);
        }
    }

    /// A packet of a SEND or a WRITE. What the message has come to is kept only when the packet was taken
    /// as a whole, so that it can come again.
    fn data<H: Host + ?Sized>(
        &mut self,
        message: Message,
        begins: bool,
        end: Option<End>,
        payload: &[u8],
        host: &mut H,
    ) -> Result<Executed, Stop> {
        let Message { start, at } = message;
        if begins {
            host.begin(&start)?;
        }
        if end.as_ref().is_some_and(|end| takes_receive_at_end(&start, end)) {
            host.take_receive(&start)?;
        }
        if !payload.is_empty() {
            host.place(&start, at, payload)?;
        }
        if let Some(end) = end {
            host.finish(&start, &end)?;
            self.message = None;
            self.executed();
        } else {
            let at = at.saturating_add(self.connection.mtu.bytes());
            self.message = Some(Message { start, at });
        }
        self.taken = self.expected;
        Ok(Executed { packets: 1, acknowledges: false })
    }

    /// A READ or an atomic. More than the peer may have in flight is an invalid request (IBTA
    /// section 9.7.4.1).
    fn fetch<H: Host + ?Sized>(&mut self, start: &Start, host: &mut H) -> Result<Executed, Stop> {
        if !self.resources.has_room() {
            return Err(Stop::Nak(Nak::InvalidRequest));
        }
        host.begin(start)?;
        let (original, packets) = match start.kind {
            Kind::Read => (0, self.connection.packets(start.length.unwrap_or_default())),
            _ => (host.atomic(start)?, 1),
        };
        self.executed();
        self.resources.push(Resource {
            start: *start,
            number: self.history,
            psn: self.expected,
            packets,
            msn: self.msn,
            original,
            first: 0,
            next: 0,
            repeats: false,
        });
        Ok(Executed { packets, acknowledges: true })
    }

    /// A message was executed, a READ or an atomic too (IBTA section 9.7.7.1, C9-148).
    const fn executed(&mut self) {
        self.msn = self.msn.wrapping_add(1);
    }

    /// A packet that was taken before (IBTA C9-105 and section 9.7.4.1). A SEND or a WRITE is
    /// acknowledged again, with the newest of them; a READ is executed again; an atomic is answered as it was.
    fn duplicate(&mut self, number: u64, headers: &Headers, payload: &[u8]) {
        count(&mut self.counters.duplicate_request);
        let Ok(start) = sequence::fetch(None, headers, payload) else {
            if self.owed == Owed::Nothing {
                self.owed = Owed::Ack;
            }
            return;
        };
        match self.resources.find(number) {
            Some((at, packet)) if self.asked_for(at, packet, &start) => {
                self.resources.answer_again(at, packet);
            }
            // Older than what the peer may still ask for, or not what it asked for then.
            _ => count(&mut self.counters.unanswered_duplicate),
        }
    }

    /// Whether a duplicate is the request that was executed then, or the tail of it from that packet on.
    fn asked_for(&self, at: usize, packet: u32, now: &Start) -> bool {
        let Some(then) = self.resources.get(at).map(|resource| resource.start) else {
            return false;
        };
        let skipped = self.connection.offset(packet);
        let va = then.remote.va.wrapping_add(skipped.into());
        let length = then.length.map(|length| length.saturating_sub(skipped));
        *now == Start { remote: Remote { va, ..then.remote }, length, ..then }
    }
}

/// Whether it is a WRITE with immediate, which takes its receive when its last packet comes (IBTA section
/// 9.7.4.1).
pub(crate) fn takes_receive_at_end(start: &Start, end: &End) -> bool {
    start.kind == Kind::Write && end.immediate.is_some()
}
