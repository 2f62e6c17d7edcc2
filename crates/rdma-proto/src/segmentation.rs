//! Messages cut into packets.

use rdma_types::Psn;

use crate::wire::{Headers, Ieth, ImmDt, Opcode, Operation, PadCount, Reth, Service};
use crate::{Burst, Connection, End, Kind, Last, Remote, Start};

/// A SEND or a WRITE that is to be sent, and the packet that is next.
#[derive(Debug)]
pub(crate) struct Outbound<'a> {
    pub(crate) connection: &'a Connection,
    pub(crate) service: Service,
    pub(crate) start: &'a Start,
    pub(crate) end: &'a End,
    /// The index of the next packet in its message.
    pub(crate) packet: u32,
    /// Its PSN.
    pub(crate) psn: Psn,
}

impl Outbound<'_> {
    /// The next packets: at most `most`, and as many as have the same length and fit the room. `None` if
    /// there is no room for one.
    #[inline]
    pub(crate) fn burst(&self, most: u32, room: usize) -> Option<Burst> {
        let (connection, mtu) = (self.connection, self.connection.mtu.bytes());
        let in_all = connection.packets(self.end.length);
        let rest = self.end.length.saturating_sub(connection.offset(self.packet));
        let room = u32::try_from(room).unwrap_or(u32::MAX);
        let left = in_all.saturating_sub(self.packet);
        let fits = if room >= rest { left } else { connection.full_packets(room) };
        let count = fits.min(most).min(u32::from(u16::MAX));
        if count == 0 {
            return None;
        }
        let header = self.headers(0, in_all, rest.min(mtu));
        if count == 1 || header.reth.is_some() {
            return Some(Burst::single(header, rest.min(mtu) as usize));
        }
        let before = connection.offset(count.wrapping_sub(1));
        let mut length = rest.min(connection.offset(count));
        let mut count = count;
        let mut last = self.headers(count.wrapping_sub(1), in_all, length.saturating_sub(before));
        if last.wire_len().saturating_add(length.saturating_sub(before) as usize)
            > header.wire_len().saturating_add(mtu as usize)
        {
            count = count.wrapping_sub(1);
            length = before;
            last = self.headers(count.wrapping_sub(1), in_all, mtu);
        }
        Some(Burst {
            header,
            last: (count > 1).then(|| Last::of(&last)),
            segment: u16::try_from(mtu).unwrap_or(u16::MAX),
            segments: u16::try_from(count).unwrap_or(u16::MAX),
            length,
        })
    }

    /// The headers of the packet that many behind the next one.
    #[inline]
    fn headers(&self, ahead: u32, in_all: u32, payload: u32) -> Headers {
        let (start, end) = (self.start, self.end);
        let packet = self.packet.wrapping_add(ahead);
        let place = (packet == 0, packet.wrapping_add(1) == in_all);
        // UC has no Invalidate (IBTA section 9.4.1).
        let invalidate = end.invalidate.filter(|_| self.service == Service::Rc);
        let operation = match start.kind {
            Kind::Write => write(place, end.immediate.is_some()),
            _ => send(place, end.immediate.is_some(), invalidate.is_some()),
        };
        let opcode = Opcode::new(self.service, operation).unwrap_or(Opcode::reliable(operation));
        let mut headers = self.connection.headers(opcode, self.psn.wrapping_add(ahead));
        headers.bth.pad_count = PadCount::of(payload as usize);
        if place.0 && start.kind == Kind::Write {
            let Remote { va, rkey } = start.remote;
            headers.reth = Some(Reth { va, rkey, length: end.length });
        }
        if place.1 {
            headers.bth.solicited = end.solicited;
            headers.imm = end.immediate.map(|immediate| ImmDt { immediate });
            if matches!(
                operation,
                Operation::SendOnlyWithInvalidate | Operation::SendLastWithInvalidate
            ) {
                headers.ieth = invalidate.map(|rkey| Ieth { rkey });
            }
        }
        headers
    }
}

/// The packet of a SEND that is first, last, both or neither. Immediate data and a key to invalidate
/// exclude each other.
#[inline]
const fn send(place: (bool, bool), immediate: bool, invalidate: bool) -> Operation {
    match (place, immediate, invalidate) {
        ((true, true), true, _) => Operation::SendOnlyWithImmediate,
        ((true, true), _, true) => Operation::SendOnlyWithInvalidate,
        ((true, true), ..) => Operation::SendOnly,
        ((true, false), ..) => Operation::SendFirst,
        ((false, false), ..) => Operation::SendMiddle,
        ((false, true), true, _) => Operation::SendLastWithImmediate,
        ((false, true), _, true) => Operation::SendLastWithInvalidate,
        ((false, true), ..) => Operation::SendLast,
    }
}

/// The same of a WRITE.
const fn write(place: (bool, bool), immediate: bool) -> Operation {
    match (place, immediate) {
        ((true, true), true) => Operation::RdmaWriteOnlyWithImmediate,
        ((true, true), false) => Operation::RdmaWriteOnly,
        ((true, false), _) => Operation::RdmaWriteFirst,
        ((false, false), _) => Operation::RdmaWriteMiddle,
        ((false, true), true) => Operation::RdmaWriteLastWithImmediate,
        ((false, true), false) => Operation::RdmaWriteLast,
    }
}
