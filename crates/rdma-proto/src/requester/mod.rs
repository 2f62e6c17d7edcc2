//! The requester of a reliable connection: sends what is in a [`Work`] queue, and completes it as answers
//! come.
//!
//! It remembers the oldest packet that is not acknowledged and the next one to send, and nothing of each
//! request: what has to be sent again is asked of the queue again.

mod reads;
mod retry;
mod rnr;
mod transmit;
mod window;

use rdma_types::{AckTimeout, MaxAckRetries, MaxRnrRetries, Psn, WcStatus};

use crate::burst::Burst;
use crate::connection::Connection;
use crate::counters::{Counters, count};
use crate::operation::Nak;
use crate::time::Time;
use crate::wire::{Aeth, Headers, NakCode, Operation, Service, Syndrome};
use crate::work::{Request, Work};

use retry::{Retry, Silence};
use rnr::NotReady;
use window::InFlight;
pub use window::{Fixed, Window};

/// The attributes that a requester gets when its queue pair becomes ready to send.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Settings {
    /// The far end.
    pub connection: Connection,
    /// The number of the first packet.
    pub psn: Psn,
    /// How long it waits for an answer.
    pub timeout: AckTimeout,
    /// How often it sends again without one.
    pub retries: MaxAckRetries,
    /// How often it tries again when the receiver is not ready.
    pub rnr_retries: MaxRnrRetries,
    /// How many READs and atomics may be in flight. With none allowed, none is ever sent.
    pub max_rd_atomic: u8,
}

/// A requester. See the [module](self).
///
/// Whoever drives it calls [`poll_transmit`](Self::poll_transmit) after each other call and each
/// post, as long as it returns something and the link has space; and [`expire`](Self::expire) at
/// [`deadline`](Self::deadline).
#[derive(Debug)]
pub struct Requester<W = Fixed> {
    connection: Connection,
    max_rd_atomic: u8,
    /// The oldest request that is not done, and how many of its packets are acknowledged.
    head: u32,
    taken: u32,
    /// The number of the oldest packet that is not acknowledged.
    oldest: Psn,
    /// The request that is sent next, and which of its packets.
    next: u32,
    packet: u32,
    /// How many PSNs are from the oldest to the next packet, and to the first that was never sent. The
    /// second is larger after a retransmission has begun.
    sent: u32,
    ever_sent: u32,
    /// The number behind the last request of which something was ever sent.
    begun: u32,
    in_flight: InFlight,
    /// The oldest packet when it was due to be sent again as a probe.
    probe: Option<Psn>,
    /// The packet behind what was sent as a probe last.
    probed: Option<Psn>,
    retry: Retry,
    not_ready: NotReady,
    /// A request that failed here, but waits until those before it are done.
    broken: Option<(u32, WcStatus)>,
    stopped: bool,
    counters: Counters,
    window: W,
}

impl Requester {
    /// With a [`Fixed`] window, for a queue whose first request has the number 0.
    #[must_use]
    pub fn new(settings: &Settings) -> Self {
        Self::with_window(settings, Fixed::default())
    }
}

impl<W: Window> Requester<W> {
    /// The same with another window.
    #[must_use]
    pub fn with_window(settings: &Settings, window: W) -> Self {
        Self {
            connection: settings.connection,
            max_rd_atomic: settings.max_rd_atomic,
            head: 0,
            taken: 0,
            oldest: settings.psn,
            next: 0,
            packet: 0,
            sent: 0,
            ever_sent: 0,
            begun: 0,
            in_flight: InFlight::default(),
            probe: None,
            probed: None,
            retry: Retry::new(settings.timeout, settings.retries),
            not_ready: NotReady::new(settings.rnr_retries),
            broken: None,
            stopped: false,
            counters: Counters::default(),
            window,
        }
    }

    /// The number behind the last request of which a packet was ever given out: what a queue that drains
    /// (SQD) still admits (IBTA section 10.3.1).
    #[must_use]
    pub const fn begun(&self) -> u32 {
        self.begun
    }

    /// The number of the oldest packet that is not acknowledged.
    #[must_use]
    pub const fn oldest(&self) -> Psn {
        self.oldest
    }

    /// Whether all that has begun is done: a queue that drains has drained.
    #[must_use]
    pub const fn idle(&self) -> bool {
        self.head == self.begun
    }

    /// The number of the first packet that was never sent.
    #[must_use]
    pub const fn psn(&self) -> Psn {
        self.oldest.wrapping_add(self.ever_sent)
    }

    /// Goes on with other limits: how long it waits for an answer, how often it tries again, and
    /// how many READs and atomics may be in flight. Another timeout counts from now on, also for what is in
    /// flight. The connection and the PSN stay as they are.
    pub fn set_limits(&mut self, now: Time, settings: &Settings) {
        self.max_rd_atomic = settings.max_rd_atomic;
        self.retry.set_limits(now, settings.timeout, settings.retries);
        self.not_ready.set_limit(settings.rnr_retries);
    }

    /// Whether it has stopped, by [`stop`](Self::stop) or since a request failed.
    #[must_use]
    pub const fn stopped(&self) -> bool {
        self.stopped
    }

    /// The queue pair is in error, or reset: nothing is sent, completed or listened to any more.
    pub const fn stop(&mut self) {
        self.stopped = true;
        self.retry.stop();
        self.not_ready.until = None;
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

    /// The window, such as it is now.
    #[must_use]
    pub const fn window(&self) -> &W {
        &self.window
    }

    /// Whether [`poll_transmit`](Self::poll_transmit) may have something to give out, when so many requests [may
    /// go](Work::admitted).
    #[must_use]
    pub fn has_packets(&self, admitted: u32) -> bool {
        self.probe.is_some() || admitted.wrapping_sub(self.next).cast_signed() > 0
    }

    /// When to call [`expire`](Self::expire), at the latest. Each answer moves it: a timer that was set
    /// before may ring, look here again, and be set anew.
    #[must_use]
    pub fn deadline(&self) -> Option<Time> {
        self.not_ready.until.or_else(|| self.retry.deadline())
    }

    /// Looks whether a deadline has passed: without an answer the oldest packet is sent again as a probe, then
    /// all from there on, or the oldest request fails (IBTA section 9.7.6.1.3).
    pub fn expire<Q: Work + ?Sized>(&mut self, now: Time, work: &mut Q) {
        if self.stopped || self.not_ready.waits(now) {
            return;
        }
        match self.retry.silence(now) {
            Silence::Wait => {}
            Silence::Probe if self.probed == Some(self.oldest) => self.probe_alone(now),
            Silence::Probe => {
                count(&mut self.counters.roce_adp_retrans);
                self.probe = Some(self.oldest);
            }
            Silence::TimedOut => self.time_out(now, work),
        }
    }

    /// The timer counts as one that has run out.
    fn time_out<Q: Work + ?Sized>(&mut self, now: Time, work: &mut Q) {
        count(&mut self.counters.local_ack_timeout_err);
        let again = self.retry.once_more();
        self.send_again(now, again, work);
    }

    /// Sends no probes from now on, for a link on which nothing is lost.
    pub const fn forgo_probes(&mut self) {
        self.retry.forgo_probes();
    }

    /// Returns true if the transport timer has run out, so that [`expire`](Self::expire) would count a retry. A caller
    /// that knows better whether the peer could have answered calls [`hold`](Self::hold) instead.
    #[must_use]
    pub fn has_run_out(&self, now: Time) -> bool {
        !self.stopped && self.not_ready.until.is_none() && self.retry.has_run_out(now)
    }

    /// Holds the transport timer, which has run out although the peer may have had no time to answer. It stays held
    /// until the peer takes something, or until [`count_held`](Self::count_held).
    pub const fn hold(&mut self) {
        self.retry.hold();
    }

    /// Returns true if the transport timer is [held](Self::hold).
    #[must_use]
    pub const fn is_held(&self) -> bool {
        self.retry.is_held()
    }

    /// Counts a [held](Self::hold) timer as one that has run out: the peer had time to answer, and has not answered.
    pub fn count_held<Q: Work + ?Sized>(&mut self, now: Time, work: &mut Q) {
        if !self.stopped && self.is_held() {
            self.retry.count_silence();
            self.time_out(now, work);
        }
    }

    /// Returns true if it waits for answers with a limit.
    #[must_use]
    pub const fn has_timeout(&self) -> bool {
        self.retry.has_timeout()
    }

    /// Ends the wait with the packet of that PSN early: the receiver that was not ready for it is ready now. The wait
    /// still counts as an RNR retry. Returns true if a wait ended.
    pub fn receiver_is_ready(&mut self, psn: Psn) -> bool {
        psn == self.oldest && self.not_ready.until.take().is_some()
    }

    /// The peer has ended, and will answer nothing: the oldest request fails as one that was tried often enough. Without a
    /// request nothing happens.
    pub fn give_up<Q: Work + ?Sized>(&mut self, work: &mut Q) {
        if !self.stopped && self.head != work.admitted() {
            count(&mut self.counters.retry_exceeded_err);
            self.fail(WcStatus::RETRY_EXC_ERR, work);
        }
    }

    /// Records that the peer has executed all packets before the one with that number, which its responder
    /// [expects](crate::responder::Responder::expected) next. This is an acknowledgement that did not arrive as a
    /// packet. A READ or an atomic completes only by its response; requests after it wait for the next call.
    ///
    /// A number beyond what was sent is ignored.
    pub fn executed<Q: Work + ?Sized>(&mut self, now: Time, expected: Psn, work: &mut Q) {
        let news = expected.distance_from(self.oldest);
        if news == 0 || news > self.ever_sent || self.stopped {
            return;
        }
        let before = self.oldest;
        if self.acknowledge(now, news, work) {
            self.probe_was_taken(now);
        }
        let taken = self.oldest.distance_from(before);
        if taken > 0 {
            self.window.acknowledged(now, taken, false);
        }
    }

    /// Takes answers of the peer: packets of which [`Operation::is_response`] is true, that came from the
    /// connected queue pair. `payload` is that of all packets, one behind the other.
    pub fn receive<Q: Work + ?Sized>(
        &mut self,
        now: Time,
        burst: &Burst,
        payload: &[u8],
        work: &mut Q,
    ) {
        if burst.segments == 1 {
            self.receive_packet(now, &burst.header, payload, work);
        } else {
            for (headers, payload) in burst.packets(payload) {
                self.receive_packet(now, &headers, payload, work);
            }
        }
    }

    fn receive_packet<Q: Work + ?Sized>(
        &mut self,
        now: Time,
        headers: &Headers,
        payload: &[u8],
        work: &mut Q,
    ) {
        count(&mut self.counters.rcvd_pkts);
        let bth = &headers.bth;
        let behind = bth.psn.distance_from(self.oldest);
        if let Some(reason) = self.unexpected(behind, headers, payload) {
            count(reason);
            return;
        }
        let before = self.oldest;
        match (bth.opcode.operation(), &headers.aeth) {
            (Operation::Acknowledge, Some(aeth)) => {
                self.acknowledgement(now, behind, aeth, work);
            }
            (operation, _) if operation.is_response() => {
                if !self.acknowledge(now, behind, work) {
                    self.implied_nak(now, work);
                } else if !self.stopped {
                    self.response(now, headers, payload, work);
                }
            }
            _ => count(&mut self.counters.wrong_opcode),
        }
        let taken = self.oldest.distance_from(before);
        if taken > 0 {
            self.window.acknowledged(now, taken, bth.becn || bth.fecn);
        }
    }

    /// Why a packet answers nothing that was sent, if so. What is not within the window is a ghost or a
    /// duplicate (IBTA chapter 9, acknowledgements). An acknowledgement has no payload, and what has data says
    /// ACK and nothing else in its AETH. The MSN is not looked at: only credits need it (9.7.7.2).
    #[inline]
    fn unexpected(&mut self, behind: u32, headers: &Headers, payload: &[u8]) -> Option<&mut u64> {
        let is_ack = headers.bth.opcode.operation() == Operation::Acknowledge;
        let refuses = |aeth: &Aeth| !matches!(aeth.syndrome, Syndrome::Ack(_));
        if self.stopped {
            Some(&mut self.counters.after_end)
        } else if headers.bth.opcode.service() != Service::Rc {
            Some(&mut self.counters.wrong_opcode)
        } else if behind >= self.ever_sent {
            Some(&mut self.counters.unsolicited_response)
        } else if is_ack && !payload.is_empty() {
            Some(&mut self.counters.bad_response)
        } else if !is_ack && headers.aeth.as_ref().is_some_and(refuses) {
            Some(&mut self.counters.reserved_syndrome)
        } else {
            None
        }
    }

    /// An acknowledgement, positive or negative, of the packet that is so far behind the oldest.
    fn acknowledgement<Q: Work + ?Sized>(
        &mut self,
        now: Time,
        behind: u32,
        aeth: &Aeth,
        work: &mut Q,
    ) {
        match aeth.syndrome {
            // Reliable connections have no such ones, so that they acknowledge nothing either.
            Syndrome::Nak(NakCode::InvalidRdRequest) | Syndrome::Reserved(_) => {
                count(&mut self.counters.reserved_syndrome);
            }
            // All up to and with this packet (IBTA section 9.7.5.1.2). The credits are not used.
            Syndrome::Ack(_) => {
                if self.acknowledge(now, behind.wrapping_add(1), work) {
                    self.probe_was_taken(now);
                } else {
                    self.implied_nak(now, work);
                }
            }
            // All before it; and a response that did not come was lost (IBTA section 9.7.5.1.2).
            Syndrome::RnrNak(_) | Syndrome::Nak(_) if !self.acknowledge(now, behind, work) => {
                self.implied_nak(now, work);
            }
            // What it acknowledges was all that a request which failed here had waited for.
            Syndrome::RnrNak(_) | Syndrome::Nak(_) if self.stopped => {}
            // It says something of what was sent before all was sent again.
            Syndrome::RnrNak(_) | Syndrome::Nak(NakCode::PsnSequence) if self.sent == 0 => {
                count(&mut self.counters.stale_nak);
            }
            Syndrome::RnrNak(timer) => {
                count(&mut self.counters.rcvd_rnr_err);
                self.retry.alive();
                if self.not_ready.wait(now, timer) {
                    self.rewind();
                } else {
                    count(&mut self.counters.retry_rnr_exceeded_err);
                    self.fail(WcStatus::RNR_RETRY_EXC_ERR, work);
                }
            }
            Syndrome::Nak(NakCode::PsnSequence) => {
                count(&mut self.counters.rcvd_seq_err);
                self.missing(now, work);
            }
            Syndrome::Nak(NakCode::InvalidRequest) => self.refused(Nak::InvalidRequest, work),
            Syndrome::Nak(NakCode::RemoteAccess) => self.refused(Nak::RemoteAccess, work),
            Syndrome::Nak(NakCode::RemoteOperational) => self.refused(Nak::RemoteOperational, work),
        }
    }

    /// So many packets from the oldest on were taken: completes what that completes. Says `false` when it
    /// meets a READ or an atomic, whose acknowledgement is its response alone.
    #[inline]
    fn acknowledge<Q: Work + ?Sized>(&mut self, now: Time, packets: u32, work: &mut Q) -> bool {
        let mut left = packets;
        while left > 0 && !self.stopped {
            let Request::Remote { start, end, .. } = work.request(self.head) else { return false };
            if start.kind.fetches() {
                return false;
            }
            let in_all = self.connection.packets(end.length);
            let step = left.min(in_all.saturating_sub(self.taken));
            left = left.saturating_sub(step);
            self.in_flight.acknowledged(step);
            self.take(now, step, in_all, work);
        }
        true
    }

    /// Moves on over so many packets of the oldest request, and completes it if they were the last.
    #[inline]
    fn take<Q: Work + ?Sized>(&mut self, now: Time, packets: u32, in_all: u32, work: &mut Q) {
        self.taken = self.taken.wrapping_add(packets);
        self.oldest = self.oldest.wrapping_add(packets);
        self.sent = self.sent.saturating_sub(packets);
        self.ever_sent = self.ever_sent.saturating_sub(packets);
        if self.taken >= in_all {
            let done = self.head;
            self.taken = 0;
            self.head = self.head.wrapping_add(1);
            work.done(done);
        }
        if self.sent == 0 {
            (self.next, self.packet) = (self.head, self.taken);
        }
        self.not_ready.progress();
        self.retry.progress(now, packets, self.sent);
        self.give_up_broken(work);
    }

    /// The peer refuses the oldest request.
    fn refused<Q: Work + ?Sized>(&mut self, nak: Nak, work: &mut Q) {
        self.fail(nak.status(), work);
    }

    /// What came is past a READ or an atomic, whose answer got lost: an implied NAK (IBTA
    /// section 9.9.2).
    fn implied_nak<Q: Work + ?Sized>(&mut self, now: Time, work: &mut Q) {
        count(&mut self.counters.implied_nak_seq_err);
        self.missing(now, work);
    }

    /// What came shows that the oldest packet, or its answer, got lost.
    fn missing<Q: Work + ?Sized>(&mut self, now: Time, work: &mut Q) {
        if self.stopped || self.sent == 0 {
            return;
        }
        if let Some(again) = self.retry.missing() {
            self.send_again(now, again, work);
        }
    }

    /// Looks whether what was acknowledged last is a probe, and nothing that was sent behind it.
    #[inline]
    fn probe_was_taken(&mut self, now: Time) {
        // In the middle of a message the probe alone asked for it.
        if self.taken > 0 && self.probed == Some(self.oldest) {
            self.probe_alone(now);
        }
    }

    /// The last probe was taken, and nothing that was sent behind it.
    #[cold]
    fn probe_alone(&mut self, now: Time) {
        count(&mut self.counters.completer_retry_err);
        self.window.lost(now);
        self.retry.again();
        self.rewind();
    }

    fn send_again<Q: Work + ?Sized>(&mut self, now: Time, again: bool, work: &mut Q) {
        if again {
            count(&mut self.counters.completer_retry_err);
            self.window.lost(now);
            self.rewind();
        } else {
            count(&mut self.counters.retry_exceeded_err);
            self.fail(WcStatus::RETRY_EXC_ERR, work);
        }
    }

    /// The oldest packet is the next one (go-back-N).
    fn rewind(&mut self) {
        (self.next, self.packet) = (self.head, self.taken);
        self.sent = 0;
        self.in_flight = InFlight::default();
        (self.probe, self.probed) = (None, None);
    }

    /// The oldest request failed, and all ends.
    fn fail<Q: Work + ?Sized>(&mut self, status: WcStatus, work: &mut Q) {
        self.stop();
        work.failed(self.head, status);
    }

    /// A request failed here; it says so when those before it are done.
    fn break_at<Q: Work + ?Sized>(&mut self, n: u32, status: WcStatus, work: &mut Q) {
        self.broken = Some((n, status));
        self.give_up_broken(work);
    }

    fn give_up_broken<Q: Work + ?Sized>(&mut self, work: &mut Q) {
        if let Some((n, status)) = self.broken
            && n == self.head
        {
            self.fail(status, work);
        }
    }
}
