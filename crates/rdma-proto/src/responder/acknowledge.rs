//! What is answered, in the order of PSNs.

use rdma_types::Psn;

use super::Responder;
use super::resources::Resource;
use crate::counters::count;
use crate::wire::{
    Aeth, AtomicAckEth, CreditCount, Headers, NakCode, Opcode, Operation, PadCount, Syndrome,
};
use crate::{Burst, Connection, Host, Last, Nak, Stop};

/// What is owed besides the responses of READs and atomics. One place is enough: an acknowledgement is
/// cumulative, and a negative one is about the expected packet, which none can follow before that came.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(super) enum Owed {
    Nothing,
    /// All before the expected packet was taken.
    Ack,
    /// The expected packet is missing.
    OutOfSequence,
    /// The expected packet found no receive.
    NotReady,
    /// The packet with that PSN was refused.
    Refused(Psn, Nak),
}

impl Responder {
    /// The next packets to answer with, if an answer is owed. Their payload, of READs, is at the beginning
    /// of `room`, which has to hold a full packet at least.
    ///
    /// Responses leave in the order of their PSNs: an acknowledgement waits behind the response of a READ
    /// before it, and is not needed where such a response follows, which says the same (IBTA sections
    /// 9.7.5.1 and 9.7.5.1.2). So acknowledgements that nobody fetched yet become one.
    pub fn poll_transmit<H: Host + ?Sized>(
        &mut self,
        host: &mut H,
        room: &mut [u8],
    ) -> Option<Burst> {
        if self.resources.owes_nothing() {
            return self.acknowledgement();
        }
        match self.response(host, room) {
            Ok(burst) => burst,
            Err((psn, nak)) => {
                self.fetch_failed(host, psn, nak);
                self.acknowledgement()
            }
        }
    }

    /// The memory of a READ was taken away in the middle of its response.
    fn fetch_failed<H: Host + ?Sized>(&mut self, host: &mut H, psn: Psn, nak: Nak) {
        self.resources.forget();
        self.owed = Owed::Refused(psn, nak);
        if !self.failed {
            self.failed = true;
            host.fail(nak);
        }
    }

    #[inline]
    fn acknowledgement(&mut self) -> Option<Burst> {
        let before = self.expected.wrapping_sub(1);
        let (psn, syndrome) = match core::mem::replace(&mut self.owed, Owed::Nothing) {
            Owed::Nothing => return None,
            Owed::Ack => (before, Syndrome::Ack(CreditCount::UNLIMITED)),
            Owed::OutOfSequence => (self.expected, Syndrome::Nak(NakCode::PsnSequence)),
            Owed::NotReady => (self.expected, self.not_ready()),
            Owed::Refused(psn, nak) => (psn, Syndrome::Nak(nak.code())),
        };
        let mut headers = self.connection.headers(Opcode::reliable(Operation::Acknowledge), psn);
        headers.aeth = Some(Aeth { syndrome, msn: self.msn });
        self.counters.sent(1);
        Some(Burst::single(headers, 0))
    }

    fn not_ready(&mut self) -> Syndrome {
        count(&mut self.counters.send_rnr_err);
        Syndrome::RnrNak(self.min_rnr_timer)
    }

    /// The next packets of the oldest response that is owed.
    fn response<H: Host + ?Sized>(
        &mut self,
        host: &mut H,
        room: &mut [u8],
    ) -> Result<Option<Burst>, (Psn, Nak)> {
        let connection = &self.connection;
        let Some(resource) = self.resources.owing() else { return Ok(None) };
        let burst = if resource.start.kind.is_atomic() {
            atomic(connection, resource)
        } else {
            let Some(burst) = read(connection, resource, room.len()) else { return Ok(None) };
            let at = resource.offset(connection);
            let payload = room.get_mut(..burst.length as usize).unwrap_or_default();
            if !payload.is_empty()
                && let Err(stop) = host.fetch(&resource.start, at, payload)
            {
                let nak = match stop {
                    Stop::Nak(nak) => nak,
                    Stop::NotReady | Stop::Drop => Nak::RemoteOperational,
                };
                return Err((burst.header.bth.psn, nak));
            }
            burst
        };
        self.counters.sent(burst.segments);
        resource.next = resource.next.wrapping_add(burst.segments.into());
        if !resource.owes() {
            self.resources.answered();
        }
        Ok(Some(burst))
    }
}

/// What an atomic found, again if it is a duplicate.
fn atomic(connection: &Connection, resource: &Resource) -> Burst {
    let mut headers = response_headers(connection, resource, Operation::AtomicAcknowledge, 0);
    headers.atomic_ack = Some(AtomicAckEth { original: resource.original });
    Burst::single(headers, 0)
}

const AETH_BYTES: u32 = 4;

/// As much of the response of a READ as has packets of one length and fits the room. The first and the
/// last have an AETH, so that the first is alone, and the last if it is full.
fn read(connection: &Connection, resource: &Resource, room: usize) -> Option<Burst> {
    let mtu = connection.mtu.bytes();
    let at = resource.offset(connection);
    let rest = resource.start.length.unwrap_or_default().saturating_sub(at);
    let room = u32::try_from(room).unwrap_or(u32::MAX);
    let left = resource.packets.wrapping_sub(resource.next);
    let fits = if room >= rest { left } else { connection.full_packets(room) };
    let mut count = fits.min(u16::MAX.into());
    if count == 0 {
        return None;
    }
    let only = left == 1;
    let operation = match (resource.next == resource.first, only) {
        (true, true) => Operation::RdmaReadResponseOnly,
        (true, false) => Operation::RdmaReadResponseFirst,
        (false, true) => Operation::RdmaReadResponseLast,
        (false, false) => Operation::RdmaReadResponseMiddle,
    };
    let mut header = response_headers(connection, resource, operation, 0);
    header.bth.pad_count = PadCount::of(rest.min(mtu) as usize);
    if count == 1 || operation != Operation::RdmaReadResponseMiddle {
        return Some(Burst::single(header, rest.min(mtu) as usize));
    }
    let mut operation = operation;
    if count == left {
        let last = rest.saturating_sub(connection.offset(count.wrapping_sub(1)));
        if last.saturating_add(AETH_BYTES) > mtu {
            count = count.wrapping_sub(1);
        } else {
            operation = Operation::RdmaReadResponseLast;
        }
    }
    let length = rest.min(connection.offset(count));
    let mut last = response_headers(connection, resource, operation, count.wrapping_sub(1));
    last.bth.pad_count = PadCount::of(length as usize);
    Some(Burst {
        header,
        last: (count > 1).then(|| Last::of(&last)),
        segment: u16::try_from(mtu).unwrap_or(u16::MAX),
        segments: u16::try_from(count).unwrap_or(u16::MAX),
        length,
    })
}

/// The headers of the packet that many behind the next one of a response.
fn response_headers(
    connection: &Connection,
    resource: &Resource,
    operation: Operation,
    ahead: u32,
) -> Headers {
    let psn = resource.psn.wrapping_add(resource.next).wrapping_add(ahead);
    let mut headers = connection.headers(Opcode::reliable(operation), psn);
    if operation != Operation::RdmaReadResponseMiddle {
        let syndrome = Syndrome::Ack(CreditCount::UNLIMITED);
        headers.aeth = Some(Aeth { syndrome, msn: resource.msn });
    }
    headers
}
