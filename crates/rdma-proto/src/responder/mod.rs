//! The responder of a reliable connection: executes the peer's requests on a [`Host`], once and in
//! order, and answers them.

mod acknowledge;
mod resources;
pub(crate) mod sequence;

use rdma_types::{MinRnrTimer, Psn};

use crate::burst::Burst;
use crate::connection::Connection;
use crate::counters::{Counters, count};
use crate::host::Host;
use crate::operation::{Kind, MessageEnd, MessageStart, Nak, Remote, Stop};
use crate::wire::{Headers, Service};

use acknowledge::Owed;
use resources::{Resource, Resources};
use sequence::{Invalid, Message, Step};

/// The attributes that a responder gets when its queue pair moves to RTR.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Settings {
    /// The peer and the path to it.
    pub connection: Connection,
    /// The PSN of the first packet to accept.
    pub psn: Psn,
    /// The time that the peer should wait when no receive is posted.
    pub min_rnr_timer: MinRnrTimer,
    /// The maximum number of READs and atomics that the peer may have in flight.
    pub max_dest_rd_atomic: u8,
}

/// The kind of answer that a responder has to send.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[expect(clippy::exhaustive_enums, reason = "the driver matches on it")]
pub enum Owes {
    /// Nothing.
    Nothing,
    /// Only an acknowledgement of accepted packets. It may be delayed until data is sent or more
    /// packets can be acknowledged. The delay must be short compared with the peer's timeout.
    Acknowledgement,
    /// A response or a negative acknowledgement, and perhaps an acknowledgement.
    Answer,
}

/// The result of executing a packet.
struct Executed {
    /// The number of PSNs that the packet used.
    packets: u32,
    /// Whether the packet's own response acknowledges it, as for a READ or an atomic.
    acknowledges: bool,
}

/// A responder; see the [module](self).
///
/// After [`receive`](Self::receive), the driver calls [`poll_transmit`](Self::poll_transmit) until
/// it returns `None` or the link has no space.
#[derive(Debug)]
pub struct Responder {
    connection: Connection,
    min_rnr_timer: MinRnrTimer,
    /// The PSN of the next packet to accept.
    expected: Psn,
    /// The number of PSNs accepted so far. It is also the number of the expected packet, and never
    /// wraps around.
    history: u64,
    /// The PSN of the newest accepted SEND or WRITE packet, for acknowledgements. It is never the
    /// PSN of a READ or an atomic, because their responses acknowledge them. If an acknowledgement
    /// had the PSN of a READ, SoftRoCE would complete the READ.
    accepted: Psn,
    /// The number of executed messages (MSN).
    msn: u32,
    /// The message that has arrived only in part.
    message: Option<Message>,
    /// Whether the peer was notified that the expected packet is missing or found no receive. The
    /// peer is notified once. Later packets are dropped until the expected one is accepted.
    nak_sent: bool,
    /// Whether the expected packet arrived but found no receive.
    not_ready: bool,
    failed: bool,
    resources: Resources,
    owed: Owed,
    counters: Counters,
}

impl Responder {
    /// Creates a responder with a slot for each READ or atomic that the peer may have in flight.
    #[must_use]
    pub fn new(settings: &Settings) -> Self {
        Self {
            connection: settings.connection,
            min_rnr_timer: settings.min_rnr_timer,
            expected: settings.psn,
            history: 0,
            accepted: settings.psn.wrapping_sub(1),
            msn: 0,
            message: None,
            nak_sent: false,
            not_ready: false,
            failed: false,
            resources: Resources::new(settings.max_dest_rd_atomic),
            owed: Owed::Nothing,
            counters: Counters::default(),
        }
    }

    /// Returns true if a request was refused. All later packets are dropped.
    #[must_use]
    pub const fn failed(&self) -> bool {
        self.failed
    }

    /// Returns the PSN of the next packet to accept.
    ///
    /// A link may pass this PSN to the peer's requester, which
    /// [records](crate::requester::Requester::executed) it. Then no packet has to
    /// [acknowledge](Self::is_acknowledged) the executed requests.
    #[must_use]
    pub const fn expected(&self) -> Psn {
        self.expected
    }

    /// Returns the kind of answer that [`poll_transmit`](Self::poll_transmit) would return.
    #[must_use]
    pub fn owes(&self) -> Owes {
        match self.owed {
            _ if !self.resources.owes_nothing() => Owes::Answer,
            Owed::Nothing => Owes::Nothing,
            Owed::Ack => Owes::Acknowledgement,
            _ => Owes::Answer,
        }
    }

    /// Records that the link passes the [expected](Self::expected) PSN to the peer, so that a plain
    /// acknowledgement is no longer owed.
    pub fn is_acknowledged(&mut self) {
        if self.owed == Owed::Ack {
            self.owed = Owed::Nothing;
        }
    }

    /// Sets how long the peer should wait from now on when no receive is posted.
    pub const fn set_min_rnr_timer(&mut self, timer: MinRnrTimer) {
        self.min_rnr_timer = timer;
    }

    /// Returns the RNR NAK for the packet that found no receive, until that packet is accepted or
    /// refused. When a receive is posted, a link can send this NAK again with a mark that makes it
    /// void. The mark wakes the requester: see
    /// [`Requester::receiver_is_ready`](crate::requester::Requester::receiver_is_ready).
    #[must_use]
    pub fn refusal(&self) -> Option<Burst> {
        self.not_ready.then(|| self.rnr_nak())
    }

    /// Returns the counts since the last call to [`take_counters`](Self::take_counters).
    #[must_use]
    pub const fn counters(&self) -> &Counters {
        &self.counters
    }

    /// Returns the counters and resets them to zero, for a caller that keeps running totals.
    /// Returns `None` and resets nothing if only sent and received packets were counted, so calling
    /// it for every packet costs little.
    pub fn take_counters(&mut self) -> Option<Counters> {
        self.counters.take_reasons()
    }

    /// Returns true if a packet with this PSN, which is a whole SEND of `length` bytes, would be executed, and the
    /// responder owes no answer. The caller may then execute the message itself and call
    /// [`has_executed_send`](Self::has_executed_send) instead of [`receive`](Self::receive).
    #[inline]
    #[must_use]
    pub fn expects_send(&self, psn: Psn, length: u32) -> bool {
        psn == self.expected
            && length <= self.connection.mtu.bytes()
            && self.message.is_none()
            && !self.failed
            && !self.not_ready
            && self.owes() == Owes::Nothing
    }

    /// Records that the expected packet was a whole SEND, which the caller has executed. The link passes the
    /// [expected](Self::expected) PSN to the peer, so no acknowledgement is owed.
    #[inline]
    pub fn has_executed_send(&mut self) {
        debug_assert!(self.expects_send(self.expected, 0));
        count(&mut self.counters.rcvd_pkts);
        self.executed();
        self.accepted = self.expected;
        self.expected = self.expected.wrapping_add(1);
        self.history = self.history.wrapping_add(1);
        self.nak_sent = false;
    }

    /// Receives requests from the connected peer: packets whose operation is [not a
    /// response](crate::wire::Operation::is_response). `payload` is the concatenated payload of all
    /// packets.
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
            // If this PSN was never accepted, the packet is not a duplicate: the peer began with a
            // different PSN.
            before => match self.history.checked_sub(before.unsigned_abs().into()) {
                Some(number) => self.duplicate(number, headers, payload),
                None => count(&mut self.counters.unanswered_duplicate),
            },
        }
    }

    /// Handles a packet that follows a missing one. The peer is notified once per gap (IBTA section
    /// 9.7.5.2), but not after an RNR NAK (9.7.5.2.8).
    fn out_of_sequence(&mut self) {
        count(&mut self.counters.out_of_seq_request);
        if !self.nak_sent {
            self.nak_sent = true;
            self.owed = Owed::OutOfSequence;
        }
    }

    /// Handles the expected packet.
    fn in_sequence<H: Host + ?Sized>(&mut self, headers: &Headers, payload: &[u8], host: &mut H) {
        let executed =
            match sequence::check(&self.connection, self.message.as_ref(), headers, payload) {
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
                (self.nak_sent, self.not_ready) = (false, false);
                // A pending answer becomes an acknowledgement that also covers this packet. If this
                // packet is a READ or an atomic, its response replaces that acknowledgement.
                let asked = headers.bth.ack_request || self.owed != Owed::Nothing;
                self.owed = if asked && !acknowledges { Owed::Ack } else { Owed::Nothing };
            }
            Err(Stop::NotReady) => {
                count(&mut self.counters.send_rnr_err);
                (self.nak_sent, self.not_ready) = (true, true);
                self.owed = Owed::NotReady;
            }
            Err(Stop::Nak(nak)) => self.refuse(headers.bth.psn, nak, host),
            Err(Stop::Drop) => count(&mut self.counters.dropped_by_host),
        }
    }

    /// Refuses the request with this PSN, and stops the responder.
    fn refuse<H: Host + ?Sized>(&mut self, psn: Psn, nak: Nak, host: &mut H) {
        self.owed = Owed::Refused(psn, nak);
        if !self.failed {
            (self.failed, self.not_ready) = (true, false);
            self.counters.refused(nak);
            host.fail(nak);
        }
    }

    /// Handles a SEND or WRITE packet. The state of the message advances only after the whole
    /// packet is accepted. A packet that was not accepted can therefore arrive again.
    fn data<H: Host + ?Sized>(
        &mut self,
        message: Message,
        begins: bool,
        end: Option<MessageEnd>,
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
        self.accepted = self.expected;
        Ok(Executed { packets: 1, acknowledges: false })
    }

    /// Handles a READ or an atomic. It is invalid if it exceeds the allowed number in flight (IBTA
    /// section 9.7.4.1).
    fn fetch<H: Host + ?Sized>(
        &mut self,
        start: &MessageStart,
        host: &mut H,
    ) -> Result<Executed, Stop> {
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

    /// Counts an executed message. READs and atomics count too (IBTA section 9.7.7.1, C9-148).
    const fn executed(&mut self) {
        self.msn = self.msn.wrapping_add(1);
    }

    /// Handles a packet that was accepted before (IBTA C9-105 and section 9.7.4.1). A SEND or a
    /// WRITE is acknowledged again, with the newest accepted PSN. A READ is executed again. An
    /// atomic gets its first answer again.
    fn duplicate(&mut self, number: u64, headers: &Headers, payload: &[u8]) {
        count(&mut self.counters.duplicate_request);
        let Ok(start) = sequence::fetch(None, headers, payload) else {
            if self.owed == Owed::Nothing {
                self.owed = Owed::Ack;
            }
            return;
        };
        match self.resources.find(number) {
            Some((at, packet)) if self.matches_request(at, packet, &start) => {
                self.resources.answer_again(at, packet);
            }
            // The request is older than any that the peer may still repeat, or differs from the
            // original.
            _ => count(&mut self.counters.unanswered_duplicate),
        }
    }

    /// Returns true if a duplicate equals the original request, or the tail of it that starts at
    /// this packet.
    fn matches_request(&self, at: usize, packet: u32, now: &MessageStart) -> bool {
        let Some(then) = self.resources.get(at).map(|resource| resource.start) else {
            return false;
        };
        let skipped = self.connection.offset(packet);
        let va = then.remote.va.wrapping_add(skipped.into());
        let length = then.length.map(|length| length.saturating_sub(skipped));
        *now == MessageStart { remote: Remote { va, ..then.remote }, length, ..then }
    }
}

/// Returns true if the request is a WRITE with immediate, which consumes a receive only when its
/// last packet arrives (IBTA section 9.7.4.1).
pub(crate) fn takes_receive_at_end(start: &MessageStart, end: &MessageEnd) -> bool {
    start.kind == Kind::Write && end.immediate.is_some()
}
