//! The requester of a reliable connection: sends the requests in a [`Work`] queue, and completes
//! them when answers arrive.
//!
//! It tracks the oldest unacknowledged packet and the next one to send, but keeps no state per
//! request. To retransmit, it reads the request from the queue again.

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
use crate::work::{Work, Wqe};

use retry::{Retry, TimeoutAction};
use rnr::NotReady;
use window::InFlight;
pub use window::{Fixed, Window};

/// The attributes that a requester gets when its queue pair moves to RTS.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Settings {
    /// The peer and the path to it.
    pub connection: Connection,
    /// The PSN of the first packet.
    pub psn: Psn,
    /// The time to wait for an answer.
    pub timeout: AckTimeout,
    /// The maximum number of retransmissions without an answer.
    pub retries: MaxAckRetries,
    /// The maximum number of retries while the receiver is not ready.
    pub rnr_retries: MaxRnrRetries,
    /// The maximum number of READs and atomics in flight. If this is 0, none is ever sent.
    pub max_rd_atomic: u8,
}

/// A requester; see the [module](self).
///
/// After every other call and every post, the driver calls [`poll_transmit`](Self::poll_transmit)
/// until it returns `None` or the link has no space. It calls [`expire`](Self::expire) at the
/// [`deadline`](Self::deadline).
#[derive(Debug)]
pub struct Requester<W = Fixed> {
    connection: Connection,
    max_rd_atomic: u8,
    /// The oldest request that has not completed.
    head: u32,
    /// The number of acknowledged packets of the request `head`.
    acknowledged: u32,
    /// The PSN of the oldest unacknowledged packet.
    oldest: Psn,
    /// The next request to send.
    next: u32,
    /// The index of the next packet of the request `next`.
    packet: u32,
    /// The number of PSNs from the oldest packet to the next one to send.
    sent: u32,
    /// The number of PSNs from the oldest packet to the first one that was never sent. It is larger
    /// than `sent` while packets are retransmitted.
    ever_sent: u32,
    /// The number that follows the last request with at least one sent packet.
    begun: u32,
    in_flight: InFlight,
    /// The oldest packet, if it is due to be sent as a probe.
    probe: Option<Psn>,
    /// The PSN that follows the last probe.
    probed: Option<Psn>,
    retry: Retry,
    not_ready: NotReady,
    /// A request that failed locally and waits until the requests before it complete.
    broken: Option<(u32, WcStatus)>,
    stopped: bool,
    counters: Counters,
    window: W,
}

impl Requester {
    /// Creates a requester with a [`Fixed`] window, for a queue whose first request has number 0.
    #[must_use]
    pub fn new(settings: &Settings) -> Self {
        Self::with_window(settings, Fixed::default())
    }
}

impl<W: Window> Requester<W> {
    /// Like [`new`](Requester::new), but with this window.
    #[must_use]
    pub fn with_window(settings: &Settings, window: W) -> Self {
        Self {
            connection: settings.connection,
            max_rd_atomic: settings.max_rd_atomic,
            head: 0,
            acknowledged: 0,
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

    /// Returns the number that follows the last request with at least one sent packet. A
    /// draining queue (SQD) still admits the requests before this number (IBTA section 10.3.1).
    #[must_use]
    pub const fn begun(&self) -> u32 {
        self.begun
    }

    /// Returns the PSN of the oldest unacknowledged packet.
    #[must_use]
    pub const fn oldest(&self) -> Psn {
        self.oldest
    }

    /// Returns true if every request that was begun has completed. A draining queue is then
    /// drained.
    #[must_use]
    pub const fn idle(&self) -> bool {
        self.head == self.begun
    }

    /// Returns the PSN of the first packet that was never sent.
    #[must_use]
    pub const fn psn(&self) -> Psn {
        self.oldest.wrapping_add(self.ever_sent)
    }

    /// Changes the limits: the timeout, the number of retries, and how many READs and atomics may
    /// be in flight. A new timeout starts now, and also applies to packets in flight. The
    /// connection and the PSN do not change.
    pub fn set_limits(&mut self, now: Time, settings: &Settings) {
        self.max_rd_atomic = settings.max_rd_atomic;
        self.retry.set_limits(now, settings.timeout, settings.retries);
        self.not_ready.set_limit(settings.rnr_retries);
    }

    /// Sends all unacknowledged packets again, because the path to the peer has changed and answers
    /// to the former path may not count. This is not a retry, and restarts the transport timer. A
    /// peer that still expects the former path drops the packets. Without a timeout, nothing sends
    /// them again then.
    pub fn path_has_changed(&mut self) {
        self.retry.again();
        self.rewind();
    }

    /// Returns true if the requester has stopped, because of [`stop`](Self::stop) or a failed
    /// request.
    #[must_use]
    pub const fn stopped(&self) -> bool {
        self.stopped
    }

    /// Stops the requester, because the queue pair is in error or reset. From now on it neither
    /// sends nor completes anything, and it ignores received packets.
    pub const fn stop(&mut self) {
        self.stopped = true;
        self.retry.stop();
        self.not_ready.until = None;
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

    /// Returns the current window.
    #[must_use]
    pub const fn window(&self) -> &W {
        &self.window
    }

    /// Returns true if [`poll_transmit`](Self::poll_transmit) might return packets while this many
    /// requests are [admitted](Work::admitted).
    #[must_use]
    pub fn has_packets(&self, admitted: u32) -> bool {
        self.probe.is_some() || admitted.wrapping_sub(self.next).cast_signed() > 0
    }

    /// Returns the latest time to call [`expire`](Self::expire). Each answer changes the deadline.
    /// When a timer that was set to an older deadline fires, call this again and set the timer to
    /// the result.
    #[must_use]
    pub fn deadline(&self) -> Option<Time> {
        self.not_ready.until.or_else(|| self.retry.deadline())
    }

    /// Handles an expired deadline. If no answer has arrived, the oldest packet is first sent again
    /// as a probe. Later, everything from there on is retransmitted, or the oldest request fails
    /// (IBTA section 9.7.6.1.3).
    pub fn expire<Q: Work + ?Sized>(&mut self, now: Time, work: &mut Q) {
        if self.stopped || self.not_ready.waits(now) {
            return;
        }
        match self.retry.due_action(now) {
            TimeoutAction::Wait => {}
            TimeoutAction::Probe if self.probed == Some(self.oldest) => self.probe_alone(now),
            TimeoutAction::Probe => {
                count(&mut self.counters.roce_adp_retrans);
                self.probe = Some(self.oldest);
            }
            TimeoutAction::TimedOut => self.time_out(now, work),
        }
    }

    /// Handles an expired transport timer.
    fn time_out<Q: Work + ?Sized>(&mut self, now: Time, work: &mut Q) {
        count(&mut self.counters.local_ack_timeout_err);
        let again = self.retry.count_retransmission();
        self.send_again(now, again, work);
    }

    /// Disables probes, for a link that never loses packets.
    pub const fn forgo_probes(&mut self) {
        self.retry.forgo_probes();
    }

    /// Returns true if the transport timer has expired, so that [`expire`](Self::expire) would
    /// count a retry. A caller that knows that the peer could not have answered yet calls
    /// [`hold`](Self::hold) instead.
    #[must_use]
    pub fn has_run_out(&self, now: Time) -> bool {
        !self.stopped && self.not_ready.until.is_none() && self.retry.has_run_out(now)
    }

    /// Holds the expired transport timer, because the peer may not have had time to answer. The
    /// timer stays held until an answer restarts or stops it, until its timeout or the path changes,
    /// or until [`count_held`](Self::count_held).
    pub const fn hold(&mut self) {
        self.retry.hold();
    }

    /// Returns true if the transport timer is [held](Self::hold).
    #[must_use]
    pub const fn is_held(&self) -> bool {
        self.retry.is_held()
    }

    /// Counts a [held](Self::hold) timer as expired, because the peer has had time to answer and
    /// did not.
    pub fn count_held<Q: Work + ?Sized>(&mut self, now: Time, work: &mut Q) {
        if !self.stopped && self.is_held() {
            self.retry.count_timeout();
            self.time_out(now, work);
        }
    }

    /// Returns true if the requester has a timeout for answers.
    #[must_use]
    pub const fn has_timeout(&self) -> bool {
        self.retry.has_timeout()
    }

    /// Ends the RNR wait for the packet with this PSN early, because its receiver is ready now. The
    /// wait still counts as an RNR retry. Returns true if there was such a wait.
    pub fn receiver_is_ready(&mut self, psn: Psn) -> bool {
        psn == self.oldest && self.not_ready.until.take().is_some()
    }

    /// Returns true if the next request may be [skipped](Self::skip): all requests that were begun have completed, and
    /// none has failed.
    #[must_use]
    pub const fn can_skip(&self) -> bool {
        !self.stopped
            && self.head == self.begun
            && self.head == self.next
            && self.ever_sent == 0
            && self.broken.is_none()
    }

    /// Skips the next request, which the caller executes without packets. It takes no PSN, and [`Work::done`] is not
    /// called for it. Returns false, and does nothing, unless the request [can be skipped](Self::can_skip).
    pub const fn skip(&mut self) -> bool {
        if self.can_skip() {
            self.head = self.head.wrapping_add(1);
            (self.next, self.begun) = (self.head, self.head);
            return true;
        }
        false
    }

    /// Fails the oldest request as if its retries were exhausted, because the peer is gone and will
    /// not answer. Does nothing if no request is pending.
    pub fn give_up<Q: Work + ?Sized>(&mut self, work: &mut Q) {
        if !self.stopped && self.head != work.admitted() {
            count(&mut self.counters.retry_exceeded_err);
            self.fail(WcStatus::RETRY_EXC_ERR, work);
        }
    }

    /// Records that the peer has executed all packets before `expected`, the PSN that its responder
    /// [expects](crate::responder::Responder::expected) next. This acknowledges them without a
    /// packet. A READ or an atomic completes only with its response; requests after it wait for the
    /// next call.
    ///
    /// A PSN beyond the last sent packet is ignored.
    pub fn executed<Q: Work + ?Sized>(&mut self, now: Time, expected: Psn, work: &mut Q) {
        let news = expected.distance_from(self.oldest);
        if news == 0 || news > self.ever_sent || self.stopped {
            return;
        }
        let before = self.oldest;
        if self.acknowledge(now, news, work) {
            self.probe_acknowledged(now);
        }
        let acknowledged = self.oldest.distance_from(before);
        if acknowledged > 0 {
            self.window.acknowledged(now, acknowledged, false);
        }
    }

    /// Receives answers from the connected peer: packets whose operation [is a
    /// response](Operation::is_response). `payload` is the concatenated payload of all packets.
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
        let acknowledged = self.oldest.distance_from(before);
        if acknowledged > 0 {
            self.window.acknowledged(now, acknowledged, bth.becn || bth.fecn);
        }
    }

    /// Returns the counter to increment if the packet is not a valid answer to a sent packet. A PSN
    /// that is not in flight belongs to a ghost or a duplicate (IBTA chapter 9, acknowledgements).
    /// An acknowledgement has no payload. A response with data has an ACK in its AETH, never
    /// another syndrome. The MSN is ignored, because only credits need it (9.7.7.2).
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

    /// Handles a positive or negative acknowledgement of the packet `behind` PSNs after the oldest
    /// one.
    fn acknowledgement<Q: Work + ?Sized>(
        &mut self,
        now: Time,
        behind: u32,
        aeth: &Aeth,
        work: &mut Q,
    ) {
        match aeth.syndrome {
            // Reliable connections do not use these codes, so they acknowledge nothing.
            Syndrome::Nak(NakCode::InvalidRdRequest) | Syndrome::Reserved(_) => {
                count(&mut self.counters.reserved_syndrome);
            }
            // Acknowledges everything up to and including this packet (IBTA section 9.7.5.1.2). Its
            // credits are ignored.
            Syndrome::Ack(_) => {
                if self.acknowledge(now, behind.wrapping_add(1), work) {
                    self.probe_acknowledged(now);
                } else {
                    self.implied_nak(now, work);
                }
            }
            // The NAK acknowledges everything before this packet. If a response is missing, it was
            // lost (IBTA section 9.7.5.1.2).
            Syndrome::RnrNak(_) | Syndrome::Nak(_) if !self.acknowledge(now, behind, work) => {
                self.implied_nak(now, work);
            }
            // The NAK acknowledged everything before a request that failed locally, so the
            // requester has stopped.
            Syndrome::RnrNak(_) | Syndrome::Nak(_) if self.stopped => {}
            // The NAK answers a packet that was sent before the current retransmission.
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

    /// Handles an acknowledgement of the `packets` oldest packets, and completes finished requests.
    /// Returns `false` at a READ or an atomic, because only its response acknowledges it.
    #[inline]
    fn acknowledge<Q: Work + ?Sized>(&mut self, now: Time, packets: u32, work: &mut Q) -> bool {
        let mut left = packets;
        while left > 0 && !self.stopped {
            let Wqe::Remote { start, end, .. } = work.request(self.head) else { return false };
            if start.kind.fetches() {
                return false;
            }
            let in_all = self.connection.packets(end.length);
            let step = left.min(in_all.saturating_sub(self.acknowledged));
            left = left.saturating_sub(step);
            self.in_flight.acknowledged(step);
            self.take(now, step, in_all, work);
        }
        true
    }

    /// Advances by this many packets in the oldest request, and completes the request after its
    /// last packet.
    #[inline]
    fn take<Q: Work + ?Sized>(&mut self, now: Time, packets: u32, in_all: u32, work: &mut Q) {
        self.acknowledged = self.acknowledged.wrapping_add(packets);
        self.oldest = self.oldest.wrapping_add(packets);
        self.sent = self.sent.saturating_sub(packets);
        self.ever_sent = self.ever_sent.saturating_sub(packets);
        if self.acknowledged >= in_all {
            let done = self.head;
            self.acknowledged = 0;
            self.head = self.head.wrapping_add(1);
            work.done(done);
        }
        if self.sent == 0 {
            (self.next, self.packet) = (self.head, self.acknowledged);
        }
        self.not_ready.progress();
        self.retry.progress(now, packets, self.sent);
        self.give_up_broken(work);
    }

    /// Handles a NAK with which the peer refuses the oldest request.
    fn refused<Q: Work + ?Sized>(&mut self, nak: Nak, work: &mut Q) {
        self.fail(nak.status(), work);
    }

    /// Handles an implied NAK: an answer to a later packet arrived, so the answer to the READ or
    /// atomic was lost (IBTA section 9.9.2).
    fn implied_nak<Q: Work + ?Sized>(&mut self, now: Time, work: &mut Q) {
        count(&mut self.counters.implied_nak_seq_err);
        self.missing(now, work);
    }

    /// Handles evidence that the oldest packet or its answer was lost.
    fn missing<Q: Work + ?Sized>(&mut self, now: Time, work: &mut Q) {
        if self.stopped || self.sent == 0 {
            return;
        }
        if let Some(again) = self.retry.missing() {
            self.send_again(now, again, work);
        }
    }

    /// Starts to retransmit if the last acknowledgement covers a probe, but nothing that was sent
    /// after the probed packet.
    #[inline]
    fn probe_acknowledged(&mut self, now: Time) {
        // In the middle of a message, the original of the probed packet has rarely requested an
        // acknowledgement. The acknowledgement therefore answers the probe.
        if self.acknowledged > 0 && self.probed == Some(self.oldest) {
            self.probe_alone(now);
        }
    }

    /// Handles an acknowledgement of only the last probe: the packets that were sent after it are
    /// missing.
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

    /// Goes back to the oldest packet (go-back-N).
    fn rewind(&mut self) {
        (self.next, self.packet) = (self.head, self.acknowledged);
        self.sent = 0;
        self.in_flight = InFlight::default();
        (self.probe, self.probed) = (None, None);
    }

    /// Fails the oldest request and stops the requester.
    fn fail<Q: Work + ?Sized>(&mut self, status: WcStatus, work: &mut Q) {
        self.stop();
        work.failed(self.head, status);
    }

    /// Records a request that failed locally; it completes after the requests before it.
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
