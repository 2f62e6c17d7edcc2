//! Sends answers in PSN order.

use rdma_types::Psn;

use super::Responder;
use super::resources::Resource;
use crate::burst::Burst;
use crate::connection::Connection;
use crate::host::Host;
use crate::operation::{Nak, Stop};
use crate::wire::{Aeth, AtomicAckEth, CreditCount, Headers, NakCode, Opcode, Operation, Syndrome};

/// The answer that is owed in addition to the responses to READs and atomics. One slot is enough:
/// an acknowledgement is cumulative, and a negative one concerns the expected packet. No other
/// packet is accepted before that one.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(super) enum Owed {
    Nothing,
    /// Everything up to the newest SEND or WRITE is accepted.
    Ack,
    /// The expected packet is missing.
    OutOfSequence,
    /// The expected packet arrived, but no receive was posted.
    NotReady,
    /// The packet with this PSN is refused.
    Refused(Psn, Nak),
}

/// An error: the memory of a READ is no longer accessible.
struct Unreadable {
    psn: Psn,
    nak: Nak,
    /// Whether the READ was answered before.
    repeats: bool,
}

impl Responder {
    /// Returns the next answer packets, if an answer is owed. The payload of a READ response is
    /// written to the beginning of `room`, which must have space for at least one full packet.
    ///
    /// Responses are sent in PSN order. An acknowledgement waits until the responses to earlier
    /// READs are sent. An acknowledgement of packets before a READ is not needed, because the
    /// response acknowledges them too (IBTA section 9.7.5.1.2). Pending acknowledgements therefore
    /// merge into one.
    pub fn poll_transmit<H: Host + ?Sized>(
        &mut self,
        host: &mut H,
        room: &mut [u8],
    ) -> Option<Burst> {
        while !self.resources.owes_nothing() {
            match self.response(host, room) {
                Ok(burst) => return burst,
                // The READ was answered before, and the peer has requested it again. If the peer
                // has received the first answer meanwhile, the key may have been invalidated since.
                // The peer then ignores the NAK, which arrives too late. Therefore this end does
                // not enter the error state.
                Err(Unreadable { psn, nak, repeats: true }) => {
                    self.resources.give_up();
                    return Some(self.negative(psn, nak));
                }
                Err(Unreadable { psn, nak, .. }) => {
                    // The memory was deregistered during the response.
                    self.resources.forget();
                    self.refuse(psn, nak, host);
                }
            }
        }
        self.acknowledgement()
    }

    fn negative(&mut self, psn: Psn, nak: Nak) -> Burst {
        self.counters.sent(1);
        self.answer(psn, Syndrome::Nak(nak.code()))
    }

    /// Returns the RNR NAK for an expected packet that found no receive.
    pub(super) fn rnr_nak(&self) -> Burst {
        self.answer(self.expected, Syndrome::RnrNak(self.min_rnr_timer))
    }

    #[inline]
    fn answer(&self, psn: Psn, syndrome: Syndrome) -> Burst {
        let mut headers = self.connection.headers(Opcode::reliable(Operation::Acknowledge), psn);
        headers.aeth = Some(Aeth { syndrome, msn: self.msn });
        Burst::single(headers, 0)
    }

    #[inline]
    fn acknowledgement(&mut self) -> Option<Burst> {
        let (psn, syndrome) = match core::mem::replace(&mut self.owed, Owed::Nothing) {
            Owed::Nothing => return None,
            Owed::Ack => (self.accepted, Syndrome::Ack(CreditCount::UNLIMITED)),
            Owed::OutOfSequence => (self.expected, Syndrome::Nak(NakCode::PsnSequence)),
            Owed::NotReady => (self.expected, Syndrome::RnrNak(self.min_rnr_timer)),
            Owed::Refused(psn, nak) => (psn, Syndrome::Nak(nak.code())),
        };
        self.counters.sent(1);
        Some(self.answer(psn, syndrome))
    }

    /// Returns the next packets of the oldest response that is owed.
    fn response<H: Host + ?Sized>(
        &mut self,
        host: &mut H,
        room: &mut [u8],
    ) -> Result<Option<Burst>, Unreadable> {
        let connection = &self.connection;
        let Some(resource) = self.resources.owing() else { return Ok(None) };
        let burst = if resource.start.kind.is_atomic() {
            atomic(connection, resource)
        } else {
            let run = resource.remainder(connection).run(connection, u32::MAX, room.len());
            let Some(run) = run else { return Ok(None) };
            let payload = run.payload(room);
            let at = resource.offset(connection);
            if !payload.is_empty()
                && let Err(stop) = host.fetch(&resource.start, at, payload)
            {
                let nak = match stop {
                    Stop::Nak(nak) => nak,
                    Stop::NotReady | Stop::Drop => Nak::RemoteOperational,
                };
                return Err(Unreadable {
                    psn: resource.next_psn(),
                    nak,
                    repeats: resource.repeats,
                });
            }
            run.burst(connection, false, |ahead, ends| read(connection, resource, ahead, ends))
        };
        self.counters.sent(burst.segments);
        resource.next = resource.next.wrapping_add(burst.segments.into());
        if !resource.owes() {
            self.resources.answered();
        }
        Ok(Some(burst))
    }
}

/// Returns the packet with the result of an atomic. A duplicate gets the same result again.
fn atomic(connection: &Connection, resource: &Resource) -> Burst {
    let mut headers = response_headers(connection, resource, Operation::AtomicAcknowledge, 0);
    headers.atomic_ack = Some(AtomicAckEth { original: resource.original });
    Burst::single(headers, 0)
}

/// Returns the headers of a packet in a READ response.
fn read(connection: &Connection, resource: &Resource, ahead: u32, ends: bool) -> Headers {
    let begins = ahead == 0 && resource.begins();
    let operation = match (begins, ends) {
        (true, true) => Operation::RdmaReadResponseOnly,
        (true, false) => Operation::RdmaReadResponseFirst,
        (false, true) => Operation::RdmaReadResponseLast,
        (false, false) => Operation::RdmaReadResponseMiddle,
    };
    response_headers(connection, resource, operation, ahead)
}

/// Returns the headers of a packet in a response: the next packet if `ahead` is 0, or the one that
/// many packets later.
fn response_headers(
    connection: &Connection,
    resource: &Resource,
    operation: Operation,
    ahead: u32,
) -> Headers {
    let psn = resource.next_psn().wrapping_add(ahead);
    let mut headers = connection.headers(Opcode::reliable(operation), psn);
    if operation != Operation::RdmaReadResponseMiddle {
        let syndrome = Syndrome::Ack(CreditCount::UNLIMITED);
        headers.aeth = Some(Aeth { syndrome, msn: resource.msn });
    }
    headers
}
