//! Sending with packets. A requester of `rdma_proto` sends the queued requests, and completes them by the responses.

mod execute;
mod mapped;
mod single;
mod work;

use std::sync::{Arc, Weak};
use std::time::Duration;
use std::{mem, ptr};

use rdma_proto::requester::{Requester as Reliable, Settings};
use rdma_proto::{Connection, UnreliableRequester};
use rdma_types::{AckTimeout, MaxAckRetries, MaxRnrRetries, Mtu, Psn, QpState};

use crate::engine::aftermath::Aftermath;
use crate::engine::queue_pair::service::Service;
use crate::engine::requester::peer::Near;
use crate::engine::requester::side::{Blocked, Requester, SendSide};
use crate::engine::requester::wire::mapped::{Mapped, Placed, is_before};
use crate::engine::requester::wire::work::Queue;
use crate::engine::station::Station;
use crate::engine::wire::letter::Letter;
use crate::engine::wire::run::Run;
use crate::engine::wire::{self, Carrier, Outgoing, Outlet, Route, Word};
use crate::fabric::clock::Time;
use crate::fabric::run_queue::Task;
use crate::limits::patience;

/// The send side's state for packets.
#[derive(Debug)]
pub(crate) struct Wire {
    protocol: Protocol,
    route: Route,
    /// Shows which requests the peer has executed, if the peer is in another process on this host.
    word: Option<Word>,
    /// Whether requests are retried without limit while the receiver is not ready.
    is_patient: bool,
    mtu: Mtu,
    /// The number that the protocol uses for the oldest request in the queue.
    head: u32,
    /// One more than the number of the last released request, if the schedule holds requests back.
    released: Option<u32>,
    /// The time at which the queue pair's timer expires.
    timer: Option<Time>,
    /// The number of the last question to the peer's process, while the timer is held. The answer shows that the
    /// process had time to run.
    question: u32,
    /// The number of the first letter that may be for this queue pair. Earlier letters are for an earlier incarnation.
    first_letter: u64,
    /// The requests that need no packets.
    mapped: Mapped,
}

#[derive(Debug)]
enum Protocol {
    Reliable(Reliable),
    Unreliable(UnreliableRequester),
}

impl Wire {
    /// Creates the state for a queue pair that becomes ready to send.
    pub(crate) fn new<P: Near>(own: &P, requester: &Requester<P>, route: Route) -> Self {
        let connection = wire::connection(requester.peer_qpn, requester.mtu_log2);
        let protocol = match own.service {
            Service::ReliableConnection => {
                let mut protocol = Reliable::new(&settings(own, requester, connection, &route));
                if route.outlet.is_lossless() {
                    protocol.forgo_probes();
                }
                Protocol::Reliable(protocol)
            }
            _ => Protocol::Unreliable(UnreliableRequester::new(connection, requester.psn)),
        };
        let released = (!own.immediate).then_some(0);
        let first_letter = own.arrived();
        let (word, mtu, head, timer, question) = (None, connection.mtu, 0, None, 0);
        let is_patient = rnr_retries(requester).retries().is_none();
        Self {
            protocol,
            route,
            word,
            is_patient,
            mtu,
            head,
            released,
            timer,
            question,
            first_letter,
            mapped: Mapped::default(),
        }
    }

    /// Sends packets by another route from now on. Keeps the word if the same connection between processes carries the
    /// packets, because requests that were already sent are reported in that word. Unless the route is the same, sends
    /// the unacknowledged packets again: answers by the former path are dropped.
    pub(crate) fn go(&mut self, route: Route) {
        let carrier = |route: &Route| route.outlet.carrier().map(Arc::as_ptr);
        let (before, now) = (carrier(&self.route), carrier(&route));
        let is_same = before.zip(now).is_some_and(|(before, now)| ptr::addr_eq(before, now));
        let is_same_kind =
            mem::discriminant(&self.route.outlet) == mem::discriminant(&route.outlet);
        let stays = route.path == self.route.path && is_same_kind && (is_same || now.is_none());
        if !is_same {
            self.word = None;
            let placed =
                self.mapped.placed.filter(|placed| is_before(placed.request, self.begun()));
            self.mapped.clear();
            self.mapped.placed = placed.map(|placed| Placed { is_stranded: true, ..placed });
        }
        if let Protocol::Reliable(protocol) = &mut self.protocol
            && !stays
        {
            protocol.path_has_changed();
        }
        self.route = route;
    }

    /// Claims a word that shows which requests are executed, if one is available. Returns the carrier of the packets.
    pub(crate) fn claim_word(&mut self, own: &Station) -> Option<Arc<dyn Carrier>> {
        let carrier = self.route.outlet.carrier()?;
        // With a word, there would be no acknowledgements, and a capture must contain them.
        let wants_word = own.adapter.tap.is_none() && self.word.is_none();
        if wants_word && matches!(self.protocol, Protocol::Reliable(_)) {
            self.word = Word::claim(carrier, own.driven());
            self.show_patience();
        }
        Some(Arc::clone(carrier))
    }

    /// Shows the peer whether it may keep a packet that found no receive request.
    fn show_patience(&self) {
        if let Some(word) = &self.word {
            word.set_patient(self.is_patient);
        }
    }

    /// Applies changed attributes of a queue pair that is ready to send.
    pub(crate) fn set<P>(&mut self, own: &Station, requester: &Requester<P>) {
        let now = own.adapter.fabric.clock.now();
        let connection = wire::connection(requester.peer_qpn, requester.mtu_log2);
        match &mut self.protocol {
            Protocol::Reliable(protocol) => {
                let settings = settings(own, requester, connection, &self.route);
                protocol.set_limits(wire::time(now), &settings);
                self.is_patient = settings.rnr_retries.retries().is_none();
                self.show_patience();
            }
            // A failed request may have stopped the protocol. It starts again.
            Protocol::Unreliable(protocol) if protocol.stopped() => {
                *protocol = UnreliableRequester::new(connection, protocol.psn());
                (self.head, self.released) = (0, self.released.map(|_| 0));
            }
            Protocol::Unreliable(_) => {}
        }
    }

    /// Stops the protocol, because the queue pair is in error.
    pub(crate) fn stop(&mut self) {
        self.is_patient = false;
        self.show_patience();
        self.mapped.clear();
        match &mut self.protocol {
            Protocol::Reliable(protocol) => protocol.stop(),
            Protocol::Unreliable(protocol) => protocol.stop(),
        }
    }

    /// Returns the next packet sequence number.
    pub(crate) fn psn(&self) -> Psn {
        match &self.protocol {
            Protocol::Reliable(protocol) => protocol.psn(),
            Protocol::Unreliable(protocol) => protocol.psn(),
        }
    }

    /// Returns one more than the number of the last request that has begun.
    fn begun(&self) -> u32 {
        match &self.protocol {
            Protocol::Reliable(protocol) => protocol.begun(),
            Protocol::Unreliable(protocol) => protocol.begun(),
        }
    }

    /// Returns true if a request has begun but is not done.
    pub(crate) fn has_begun(&self) -> bool {
        match &self.protocol {
            Protocol::Reliable(protocol) => !protocol.idle(),
            Protocol::Unreliable(protocol) => !protocol.idle(),
        }
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

    /// Sets the timer for the protocol's next deadline.
    fn arm(&mut self, own: &Station) {
        let Protocol::Reliable(protocol) = &self.protocol else { return };
        let Some(deadline) = protocol.deadline() else { return };
        let deadline = Time::from_nanoseconds(deadline.as_nanos());
        if self.timer.is_none_or(|timer| deadline < timer) {
            self.timer = Some(deadline);
            own.entry.set_timer(deadline);
        }
    }
}

fn settings<P>(
    own: &Station,
    requester: &Requester<P>,
    connection: Connection,
    route: &Route,
) -> Settings {
    // The codes were checked when the attributes were set.
    let timeout = AckTimeout::from_code(requester.ack_timeout).unwrap_or(AckTimeout::unlimited());
    let least = match route.outlet.is_network() {
        true => own.adapter.limits.patience.host,
        false => Duration::ZERO,
    };
    Settings {
        connection,
        psn: requester.psn,
        timeout: patience::at_least(timeout, least / (u32::from(requester.retries) + 1)),
        retries: MaxAckRetries::from_code(requester.retries).unwrap_or_default(),
        rnr_retries: rnr_retries(requester),
        // If no READs or atomics are allowed, none can be posted, but those posted earlier are still sent.
        max_rd_atomic: requester.max_rd_atomic.max(1),
    }
}

fn rnr_retries<P>(requester: &Requester<P>) -> MaxRnrRetries {
    // The code was checked when the attribute was set.
    MaxRnrRetries::from_code(requester.rnr_retries).unwrap_or_default()
}

impl<P: Near> SendSide<P> {
    /// Runs `work` on the protocol and this queue.
    fn with_wire<R>(
        &mut self,
        own: &P,
        aftermath: &mut Aftermath,
        work: impl FnOnce(&mut Protocol, &WireRoute<'_>, &mut Queue<'_, P>) -> R,
    ) -> Option<R> {
        self.with_packets(own, None, aftermath, work)
    }

    /// Like [`with_wire`](Self::with_wire), but for packets that have arrived.
    fn with_packets<R>(
        &mut self,
        own: &P,
        letter: Option<&Letter>,
        aftermath: &mut Aftermath,
        work: impl FnOnce(&mut Protocol, &WireRoute<'_>, &mut Queue<'_, P>) -> R,
    ) -> Option<R> {
        let mut wire = self.wire.take()?;
        let queued = u32::try_from(self.queue.len()).unwrap_or(u32::MAX);
        let (begun, admitted) = (wire.begun(), self.admitted(&wire));
        let head = wire.head;
        let posted = self.posts.map(|posts| wire.head.wrapping_add(queued).wrapping_sub(posts));
        let run = letter
            .map_or(Run::default(), |letter| Run::of(&letter.burst, letter.payload(), wire.mtu));
        let (placed, gathered_after) = (wire.mapped.placed, 0);
        let mut queue = Queue {
            own,
            send: self,
            head,
            begun,
            admitted,
            posted,
            aftermath,
            placed,
            gathered_after,
            run,
            in_ring: letter.and_then(|letter| letter.in_ring),
        };
        let way = WireRoute { route: &wire.route, word: wire.word.as_ref(), mtu: wire.mtu };
        let result = work(&mut wire.protocol, &way, &mut queue);
        let ended = queue.head != head;
        wire.head = queue.head;
        wire.mapped.placed = placed.filter(|placed| !is_before(placed.request, wire.head));
        wire.arm(own);
        wire.count(own, self.requester.peer_qpn);
        self.wire = Some(wire);
        if ended {
            self.report_drained(own);
            if self.wire.as_ref().is_some_and(|wire| wire.mapped.held.is_some()) {
                // The requests that waited for the ones that have ended may now be executed.
                own.entry.queue();
            }
        }
        Some(result)
    }

    /// Returns one more than the number of the last request that may begin.
    fn admitted(&self, wire: &Wire) -> u32 {
        let queued = u32::try_from(self.queue.len()).unwrap_or(u32::MAX);
        match self.state {
            QpState::RTS => {
                let all = || wire.head.wrapping_add(queued);
                wire.mapped.held.or(wire.released).unwrap_or_else(all)
            }
            _ => wire.begun(),
        }
    }

    /// Returns true if an answer is overdue, even while the peer's process is being asked about it.
    pub(crate) fn has_expired(&self, own: &Station) -> bool {
        let Some(Wire { protocol: Protocol::Reliable(protocol), .. }) = self.wire.as_deref() else {
            return false;
        };
        protocol.is_held()
            || protocol
                .deadline()
                .is_some_and(|at| at <= wire::time(own.adapter.fabric.clock.now()))
    }

    /// Sends some of the queue's requests. Returns true if more may be sent in another turn.
    pub(crate) fn transmit(&mut self, own: &P, aftermath: &mut Aftermath) -> bool {
        let more = self.transmit_some(own, aftermath);
        if self.wire.is_some() && self.awaits_word() && !more {
            // The word may have changed before.
            own.entry.queue();
        }
        more
    }

    /// Records whether requests wait until the peer has executed earlier ones. Returns true if they start to wait.
    fn awaits_word(&mut self) -> bool {
        let Some(mut wire) = self.wire.take() else { return false };
        let waits = match &wire.protocol {
            Protocol::Reliable(protocol) if !protocol.idle() => match self.state {
                QpState::RTS => {
                    protocol.has_packets(self.admitted(&wire)) || wire.mapped.held.is_some()
                }
                state => state == QpState::SQD,
            },
            _ => false,
        };
        let starts = wire.word.as_mut().is_some_and(|word| word.set_awaited(waits));
        self.wire = Some(wire);
        starts
    }

    fn transmit_some(&mut self, own: &P, aftermath: &mut Aftermath) -> bool {
        if self.wire.is_none() {
            // Datagrams are sent elsewhere, but wait here while the link has no space.
            if self.blocked == Blocked::NoRoom {
                self.take_turn(own, aftermath);
            }
            return false;
        }
        let has_ended = self.wire.as_ref().is_some_and(|wire| wire.route.outlet.has_ended());
        // Requests that the peer executed before it ended count as executed.
        self.complete_executed(own, aftermath);
        if has_ended {
            if let Some(wire) = &mut self.wire {
                wire.mapped.clear();
            }
            self.peer_has_ended(own, aftermath);
        }
        let more = self.execute_mapped(own, aftermath);
        if !self.has_packets() {
            if let Some(wire) = &mut self.wire {
                // The deadline may have changed together with the queue pair's attributes.
                wire.arm(own);
            }
            return more;
        }
        let now = wire::time(own.adapter.fabric.clock.now());
        let sent = self.with_wire(own, aftermath, |protocol, way, queue| {
            let word = way.word.map(|word| word.key);
            wire::transmit(own, (way.route, word), way.mtu, |room, in_ring| match protocol {
                Protocol::Reliable(protocol) => {
                    (queue.gathered_after, queue.in_ring) = (0, in_ring);
                    let burst = protocol.poll_transmit(now, queue, room)?;
                    let more = protocol.has_packets(queue.admitted);
                    Some(Outgoing { burst, placed: queue.gathered_after, more })
                }
                Protocol::Unreliable(protocol) => {
                    queue.in_ring = in_ring;
                    let burst = protocol.poll_transmit(queue, room)?;
                    Some(Outgoing { burst, placed: 0, more: true })
                }
            })
        });
        sent == Some(true) || more
    }

    /// Sends some of the last `posts` requests, which this call has posted. Their memory is certainly mapped while the
    /// call runs. The remaining requests and the earlier ones are sent in turns.
    #[cold]
    pub(super) fn transmit_posted(&mut self, own: &P, posts: u32, aftermath: &mut Aftermath) {
        if self.queue.is_empty() || self.has_sent_all() {
            return;
        }
        self.posts = Some(posts);
        let more = self.transmit(own, aftermath);
        self.posts = None;
        if more || self.has_packets() {
            own.entry.queue();
        }
    }

    /// Returns true if a turn may send some of the queue's requests.
    fn has_packets(&self) -> bool {
        match self.wire.as_deref() {
            Some(wire @ Wire { protocol: Protocol::Reliable(protocol), .. }) => {
                protocol.has_packets(self.admitted(wire))
            }
            _ => !self.queue.is_empty(),
        }
    }

    /// Completes the requests that the peer has executed, according to the connection's word.
    pub(crate) fn complete_executed(&mut self, own: &P, aftermath: &mut Aftermath) {
        let Some(Wire { protocol: Protocol::Reliable(protocol), word: Some(word), .. }) =
            self.wire.as_deref()
        else {
            return;
        };
        let advanced = word.expected().filter(|&expected| expected != protocol.oldest());
        let Some(expected) = advanced else { return };
        let now = wire::time(own.adapter.fabric.clock.now());
        self.with_wire(own, aftermath, |protocol, _, queue| {
            if let Protocol::Reliable(protocol) = protocol {
                protocol.executed(now, expected, queue);
            }
        });
    }

    /// Fails the oldest request, if any, because the peer's process has ended. The later requests are flushed.
    #[cold]
    fn peer_has_ended(&mut self, own: &P, aftermath: &mut Aftermath) {
        self.with_wire(own, aftermath, |protocol, _, queue| {
            if let Protocol::Reliable(protocol) = protocol {
                protocol.give_up(queue);
            }
        });
    }

    /// Receives packets with responses. Returns true if there may be something to send now.
    pub(crate) fn receive_responses(
        &mut self,
        own: &P,
        letter: &Letter,
        aftermath: &mut Aftermath,
    ) -> bool {
        let listens = matches!(self.state, QpState::RTS | QpState::SQD)
            && self.wire.as_ref().is_some_and(|wire| letter.number >= wire.first_letter);
        let ours = self.requester.origin.path;
        if let Some(reason) = wire::why_not_taken(listens, ours, letter) {
            let peer_qpn = Some(self.requester.peer_qpn);
            wire::drop_packets(own.adapter, letter, reason, peer_qpn);
            return false;
        }
        let now = wire::time(own.adapter.fabric.clock.now());
        self.with_packets(own, Some(letter), aftermath, |protocol, _, queue| {
            if let Protocol::Reliable(protocol) = protocol {
                if letter.is_void {
                    protocol.receiver_is_ready(letter.burst.header.bth.psn);
                } else {
                    protocol.receive(now, &letter.burst, letter.payload(), queue);
                }
            }
        });
        // The word may cover requests after a READ, which had to wait for the response that has arrived now.
        self.complete_executed(own, aftermath);
        !self.queue.is_empty()
    }

    /// Handles the expiry of the timer. A deadline may have passed, but need not have.
    pub(crate) fn expire_on_wire(&mut self, own: &P, aftermath: &mut Aftermath) {
        let now = own.adapter.fabric.clock.now();
        let Some(wire) = &mut self.wire else { return };
        // The timer has expired, for whatever reason, and is not set any longer.
        wire.timer = None;
        self.complete_executed(own, aftermath);
        let Some(question) = self.wire.as_ref().map(|wire| wire.question) else { return };
        let asked = self.with_wire(own, aftermath, |protocol, way, queue| {
            let Protocol::Reliable(protocol) = protocol else { return question };
            match &way.route.outlet {
                Outlet::Carrier(carrier) if carrier.is_lossless() => expire_on_lossless_link(
                    protocol,
                    carrier,
                    own.driven(),
                    question,
                    wire::time(now),
                    queue,
                ),
                _ => {
                    protocol.expire(wire::time(now), queue);
                    question
                }
            }
        });
        if let (Some(wire), Some(asked)) = (&mut self.wire, asked) {
            wire.question = asked;
        }
        own.entry.queue();
    }

    /// Releases at most `requests` more requests.
    pub(super) fn release_packets(&mut self, own: &P, requests: u32) {
        let queued = u32::try_from(self.queue.len()).unwrap_or(u32::MAX);
        let Some(wire) = &mut self.wire else { return };
        if let Some(released) = &mut wire.released {
            let before = released.wrapping_sub(wire.head).cast_signed().max(0).cast_unsigned();
            *released = wire.head.wrapping_add(before.saturating_add(requests).min(queued));
        }
        own.entry.queue();
    }

    /// Returns true if the device's schedule holds back requests that go as packets.
    pub(super) fn holds_back(&self, wire: &Wire) -> bool {
        let queued = u32::try_from(self.queue.len()).unwrap_or(u32::MAX);
        let all = wire.head.wrapping_add(queued);
        wire.released.is_some_and(|released| all.wrapping_sub(released).cast_signed() > 0)
    }
}

/// Handles a timeout on a link that loses nothing. On such a link, silence does not mean loss: unlike an adapter, the
/// peer's process may be stopped, or get no processor time. So a timeout counts only if that process has executed
/// everything sent and still has not answered. This function asks it, and returns the number of the last question. If
/// the process was silent for too long, the oldest request fails.
fn expire_on_lossless_link<P: Near>(
    protocol: &mut Reliable,
    carrier: &Arc<dyn Carrier>,
    own: Weak<dyn Task>,
    question: u32,
    now: rdma_proto::Time,
    queue: &mut Queue<'_, P>,
) -> u32 {
    if protocol.has_timeout() && carrier.is_silent() {
        protocol.give_up(queue);
    } else if protocol.is_held() {
        if carrier.has_answered(question) {
            protocol.count_held(now, queue);
        }
    } else if protocol.has_run_out(now) {
        protocol.hold();
        return Arc::clone(carrier).ask(own);
    }
    question
}

/// The route of packets.
struct WireRoute<'a> {
    route: &'a Route,
    word: Option<&'a Word>,
    mtu: Mtu,
}
