//! Selection of the next packets to send.

use rdma_types::{Psn, WcStatus};

use super::window::{InFlight, MOST_PSNS};
use super::{Requester, Window};
use crate::burst::Burst;
use crate::operation::{MAX_MESSAGE_BYTES, MessageEnd, MessageStart};
use crate::segmentation::Outbound;
use crate::time::Time;
use crate::wire::{Headers, Opcode, Operation, Service};
use crate::work::{Work, Wqe};

impl<W: Window> Requester<W> {
    /// Returns the next packets to send, if any can be sent now. Their payload is written to the
    /// beginning of `room`, which must have space for at least one full packet. More space allows a
    /// longer run.
    pub fn poll_transmit<Q: Work + ?Sized>(
        &mut self,
        now: Time,
        work: &mut Q,
        room: &mut [u8],
    ) -> Option<Burst> {
        if self.not_ready.waits(now) {
            return None;
        }
        if self.probe.is_some() {
            let probe = self.transmit_probe(now, work, room);
            if probe.is_some() {
                return probe;
            }
        }
        loop {
            let nothing = work.admitted().wrapping_sub(self.next).cast_signed() <= 0;
            if self.stopped || nothing || self.broken.is_some_and(|(n, _)| n == self.next) {
                return None;
            }
            match work.request(self.next) {
                Wqe::Remote { start, end, fence } => {
                    if fence && self.packet == 0 && self.in_flight.fetches > 0 {
                        return None;
                    }
                    return self.transmit(now, &start, &end, work, room);
                }
                Wqe::Local if self.next != self.head => return None,
                Wqe::Local => self.execute_local(work),
                Wqe::Invalid(status) => {
                    self.break_at(self.next, status, work);
                    return None;
                }
            }
        }
    }

    /// Returns the PSN of request `n` if it may be sent now and nothing has to be sent before it. It
    /// is a SEND or WRITE of one packet, and the caller has checked that it is valid and
    /// [admitted](Work::admitted). The caller then sends the packet, which requests an
    /// acknowledgement, and calls [`has_sent_alone`](Self::has_sent_alone). A caller that does not
    /// send it calls nothing. `fence` is true if the request waits for READs and atomics before it.
    /// After an RNR NAK, nothing is sent alone until [`poll_transmit`](Self::poll_transmit) has ended
    /// the wait.
    ///
    /// This has the effect of [`poll_transmit`](Self::poll_transmit), but the packet need not be built.
    #[inline]
    #[must_use]
    pub fn may_send_alone(&self, n: u32, fence: bool) -> Option<Psn> {
        let is_next = self.next == n && self.packet == 0 && self.broken.is_none();
        let waits = fence && self.in_flight.fetches > 0 || self.not_ready.until.is_some();
        let has_room = self.in_flight.most(self.window.packets()) > 0 && self.sent < MOST_PSNS;
        let may_send = is_next && has_room && !waits && !self.stopped && self.probe.is_none();
        may_send.then(|| self.oldest.wrapping_add(self.sent))
    }

    /// Records that the request that [`may_send_alone`](Self::may_send_alone) allowed was sent at the time `now`.
    #[inline]
    pub fn has_sent_alone(&mut self, now: Time) {
        self.in_flight.sent(1, true, self.window.packets());
        self.advance(1, true);
        self.count_sent(now, 1);
    }

    /// Returns the oldest packet again as a probe. Returns `None` if it is no longer the packet to
    /// probe, or if it is retransmitted anyway. The probe requests an acknowledgement. It changes
    /// neither the count of packets in flight nor the next packet to send.
    #[cold]
    fn transmit_probe<Q: Work + ?Sized>(
        &mut self,
        now: Time,
        work: &mut Q,
        room: &mut [u8],
    ) -> Option<Burst> {
        if self.probe.take() != Some(self.oldest) || self.sent == 0 {
            return None;
        }
        let one = InFlight::all_but_one(self.window.packets());
        let in_flight = core::mem::replace(&mut self.in_flight, one);
        let (next, packet, sent) = (self.next, self.packet, self.sent);
        (self.next, self.packet, self.sent) = (self.head, self.acknowledged, 0);
        let burst = self.poll_transmit(now, work, room);
        self.probed = burst.is_some().then(|| self.oldest.wrapping_add(self.sent));
        (self.next, self.packet, self.sent) = (next, packet, sent);
        self.in_flight = in_flight;
        burst
    }

    /// Executes the oldest request, which is local.
    fn execute_local<Q: Work + ?Sized>(&mut self, work: &mut Q) {
        let n = self.head;
        if let Err(status) = work.execute_local(n) {
            self.fail(status, work);
            return;
        }
        self.head = n.wrapping_add(1);
        (self.next, self.packet) = (self.head, 0);
        if n == self.begun {
            self.begun = self.head;
        }
        work.done(n);
    }

    #[inline]
    fn transmit<Q: Work + ?Sized>(
        &mut self,
        now: Time,
        start: &MessageStart,
        end: &MessageEnd,
        work: &mut Q,
        room: &mut [u8],
    ) -> Option<Burst> {
        if end.length > MAX_MESSAGE_BYTES {
            self.break_at(self.next, WcStatus::LOC_LEN_ERR, work);
            return None;
        }
        if start.kind.fetches() {
            self.transmit_fetch(now, start, end)
        } else {
            self.transmit_message(now, start, end, work, room)
        }
    }

    /// Returns the request packet of a READ or an atomic, if three limits allow it:
    /// `max_rd_atomic`, the window, and [`MOST_PSNS`].
    fn transmit_fetch(
        &mut self,
        now: Time,
        start: &MessageStart,
        end: &MessageEnd,
    ) -> Option<Burst> {
        let allowed = self.in_flight.fetches < self.max_rd_atomic.into();
        let length = if start.kind.is_atomic() { 8 } else { end.length };
        let in_all = if start.kind.is_atomic() { 1 } else { self.connection.packets(length) };
        let packets = in_all.saturating_sub(self.packet);
        let open = self.in_flight.most(self.window.packets()) > 0;
        if !allowed || !open || self.sent.saturating_add(packets) > MOST_PSNS {
            return None;
        }
        let burst = self.fetch_burst(start, length);
        self.in_flight.fetches = self.in_flight.fetches.saturating_add(1);
        self.in_flight.sent(1, true, self.window.packets());
        self.advance(packets, true);
        self.count_sent(now, 1);
        Some(burst)
    }

    /// Counts packets as sent and starts the timer.
    #[inline]
    fn count_sent(&mut self, now: Time, packets: u16) {
        self.counters.sent(packets);
        self.retry.start(now);
    }

    /// Returns the next packets of a SEND or a WRITE.
    #[inline]
    fn transmit_message<Q: Work + ?Sized>(
        &mut self,
        now: Time,
        start: &MessageStart,
        end: &MessageEnd,
        work: &mut Q,
        room: &mut [u8],
    ) -> Option<Burst> {
        let window = self.window.packets();
        let outbound = Outbound {
            connection: self.connection,
            service: Service::Rc,
            start,
            end,
            packet: self.packet,
            psn: self.oldest.wrapping_add(self.sent),
        };
        let most = self.in_flight.most(window).min(MOST_PSNS.saturating_sub(self.sent));
        let run = outbound.remainder().run(&self.connection, most, room.len())?;
        if let Err(status) = outbound.gather(&run, self.next, work, room) {
            self.break_at(self.next, status, work);
            return None;
        }
        let asks = self.in_flight.sent(run.packets, run.ends, window);
        self.advance(run.packets, run.ends);
        self.count_sent(now, run.segments());
        Some(outbound.burst(&run, asks))
    }

    /// Advances by `packets` in the next request; `ends` is true if they were its last packets.
    #[inline]
    fn advance(&mut self, packets: u32, ends: bool) {
        if self.packet == 0 && self.next == self.begun {
            self.begun = self.next.wrapping_add(1);
        }
        self.sent = self.sent.wrapping_add(packets);
        self.ever_sent = self.ever_sent.max(self.sent);
        (self.next, self.packet) = match ends {
            true => (self.next.wrapping_add(1), 0),
            false => (self.next, self.packet.wrapping_add(packets)),
        };
    }

    /// Returns the headers of the next packet, which has this operation.
    pub(super) fn next_headers(&self, operation: Operation) -> Headers {
        let opcode = Opcode::reliable(operation);
        self.connection.headers(opcode, self.oldest.wrapping_add(self.sent))
    }
}
