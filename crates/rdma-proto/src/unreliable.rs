//! Unreliable connections. Messages are not acknowledged, so a lost message does not stop others.

use rdma_types::{Psn, WcStatus};

use crate::burst::Burst;
use crate::connection::Connection;
use crate::counters::{Counters, count};
use crate::host::Host;
use crate::operation::{MAX_MESSAGE_BYTES, Nak, Stop};
use crate::responder::sequence::{self, Message, Step};
use crate::responder::takes_receive_at_end;
use crate::segmentation::{Outbound, PacketRun};
use crate::wire::{Headers, Service};
use crate::work::{Work, Wqe};

/// The requester of an unreliable connection. A request completes when its last packet is sent
/// (IBTA chapter 9, unreliable connections). The queue may contain only SENDs, WRITEs and local
/// requests.
#[derive(Debug)]
pub struct UnreliableRequester {
    connection: Connection,
    psn: Psn,
    /// The next request to send.
    next: u32,
    /// The index of the next packet of the request `next`.
    packet: u32,
    stopped: bool,
    counters: Counters,
}

impl UnreliableRequester {
    /// Creates a requester for a queue whose first request has number 0; `psn` is the PSN of its
    /// first packet.
    #[must_use]
    pub fn new(connection: Connection, psn: Psn) -> Self {
        let counters = Counters::default();
        Self { connection, psn, next: 0, packet: 0, stopped: false, counters }
    }

    /// Returns the number that follows the last request with at least one sent packet.
    #[must_use]
    pub const fn begun(&self) -> u32 {
        if self.packet > 0 { self.next.wrapping_add(1) } else { self.next }
    }

    /// Returns true if every request that was begun has completed.
    #[must_use]
    pub const fn idle(&self) -> bool {
        self.packet == 0
    }

    /// Returns true if the requester has stopped, because of [`stop`](Self::stop) or a failed
    /// request.
    #[must_use]
    pub const fn stopped(&self) -> bool {
        self.stopped
    }

    /// Stops sending, because the queue pair is in error or reset.
    pub const fn stop(&mut self) {
        self.stopped = true;
    }

    /// Returns the PSN of the next packet.
    #[must_use]
    pub const fn psn(&self) -> Psn {
        self.psn
    }

    /// Returns the counts since the last call to [`take_counters`](Self::take_counters).
    #[must_use]
    pub const fn counters(&self) -> &Counters {
        &self.counters
    }

    /// Returns the counters and resets them to zero, for a caller that keeps running totals. If
    /// only sent and received packets were counted, returns `None` and resets nothing. The call is
    /// therefore cheap enough for every packet.
    pub fn take_counters(&mut self) -> Option<Counters> {
        self.counters.take_reasons()
    }

    /// Returns the next packets to send, if any. Their payload is written to the beginning of
    /// `room`, which must have space for at least one full packet.
    pub fn poll_transmit<Q: Work + ?Sized>(
        &mut self,
        work: &mut Q,
        room: &mut [u8],
    ) -> Option<Burst> {
        while !self.stopped && work.admitted().wrapping_sub(self.next).cast_signed() > 0 {
            let n = self.next;
            match work.request(n) {
                Wqe::Local => match work.execute_local(n) {
                    Ok(()) => self.done(work),
                    Err(status) => self.fail(status, work),
                },
                Wqe::Invalid(status) => {
                    self.fail(status, work);
                    return None;
                }
                Wqe::Remote { start, end, .. } => {
                    if end.length > MAX_MESSAGE_BYTES || start.kind.fetches() {
                        self.fail(WcStatus::LOC_QP_OP_ERR, work);
                        return None;
                    }
                    let outbound = Outbound {
                        connection: self.connection,
                        service: Service::Uc,
                        start: &start,
                        end: &end,
                        packet: self.packet,
                        psn: self.psn,
                    };
                    let run = outbound.remainder().run(&self.connection, u32::MAX, room.len())?;
                    if let Err(status) = outbound.gather(&run, n, work, room) {
                        self.fail(status, work);
                        return None;
                    }
                    self.advance(&run, work);
                    return Some(outbound.burst(&run, false));
                }
            }
        }
        None
    }

    fn advance<Q: Work + ?Sized>(&mut self, run: &PacketRun, work: &mut Q) {
        self.counters.sent(run.segments());
        self.psn = self.psn.wrapping_add(run.packets);
        self.packet = self.packet.wrapping_add(run.packets);
        if run.ends {
            self.done(work);
        }
    }

    fn done<Q: Work + ?Sized>(&mut self, work: &mut Q) {
        let n = self.next;
        (self.next, self.packet) = (n.wrapping_add(1), 0);
        work.done(n);
    }

    fn fail<Q: Work + ?Sized>(&mut self, status: WcStatus, work: &mut Q) {
        self.stopped = true;
        work.failed(self.next, status);
    }
}

/// The responder of an unreliable connection. It sends no answers.
#[derive(Debug)]
pub struct UnreliableResponder {
    connection: Connection,
    expected: Psn,
    message: Option<Message>,
    counters: Counters,
}

impl UnreliableResponder {
    /// Creates a responder whose [`expected`](Self::expected) PSN is `psn`. The first message may
    /// still begin with any PSN.
    #[must_use]
    pub fn new(connection: Connection, psn: Psn) -> Self {
        Self { connection, expected: psn, message: None, counters: Counters::default() }
    }

    /// Returns the PSN of the packet that is expected next.
    #[must_use]
    pub const fn expected(&self) -> Psn {
        self.expected
    }

    /// Returns the counts since the last call to [`take_counters`](Self::take_counters).
    #[must_use]
    pub const fn counters(&self) -> &Counters {
        &self.counters
    }

    /// Returns the counters and resets them to zero, for a caller that keeps running totals. If
    /// only sent and received packets were counted, returns `None` and resets nothing. The call is
    /// therefore cheap enough for every packet.
    pub fn take_counters(&mut self) -> Option<Counters> {
        self.counters.take_reasons()
    }

    /// Receives packets from the connected queue pair.
    ///
    /// The first packet of a message is accepted with any PSN. A later packet is accepted only if
    /// it has the next PSN; otherwise its message is dropped. A message that is incomplete, too
    /// long, or refused by the host is abandoned (IBTA chapter 9, unreliable connections).
    pub fn receive<H: Host + ?Sized>(&mut self, burst: &Burst, payload: &[u8], host: &mut H) {
        for (headers, payload) in burst.packets(payload) {
            count(&mut self.counters.rcvd_pkts);
            if headers.bth.opcode.service() != Service::Uc {
                count(&mut self.counters.wrong_opcode);
            } else if let Err(stop) = self.receive_packet(&headers, payload, host) {
                self.counters.dropped(stop);
                self.abandon(host);
            }
        }
    }

    /// Processes a packet. Returns an error if the packet and its message must be dropped.
    fn receive_packet<H: Host + ?Sized>(
        &mut self,
        headers: &Headers,
        payload: &[u8],
        host: &mut H,
    ) -> Result<(), Stop> {
        let psn = headers.bth.psn;
        let begins = sequence::begins(headers.bth.opcode.operation());
        let follows = psn == self.expected && self.message.is_some();
        self.expected = psn.wrapping_add(1);
        if begins || !follows {
            self.abandon(host);
        }
        if !begins && !follows {
            count(&mut self.counters.out_of_seq_request);
            return Ok(());
        }
        let step = sequence::check(&self.connection, self.message.as_ref(), headers, payload);
        let Ok(Step::Data { message: Message { start, at }, begins, end }) = step else {
            return Err(Stop::Nak(Nak::InvalidRequest));
        };
        self.message = Some(Message { start, at: at.saturating_add(self.connection.mtu.bytes()) });
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
        }
        Ok(())
    }

    fn abandon<H: Host + ?Sized>(&mut self, host: &mut H) {
        if self.message.take().is_some() {
            host.abandon();
        }
    }
}
