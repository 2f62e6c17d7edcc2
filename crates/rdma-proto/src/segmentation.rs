//! Messages and responses cut into packets.

use rdma_types::{Psn, WcStatus};

use crate::wire::{Headers, Ieth, ImmDt, Opcode, Operation, PadCount, Reth, Service};
use crate::{Burst, Connection, End, Kind, Last, Remote, Start, Work};

/// The next packets of a message or a response of which `rest` bytes are left, in `left` packets: at most
/// `most`, and as many as have the same length and fit the room. `None` if there is no room for one.
///
/// `headers` says those of the packet that many behind the next one, and is told whether it is the last. The
/// pad count is set here.
#[inline]
pub(crate) fn cut(
    connection: &Connection,
    rest: u32,
    left: u32,
    most: u32,
    room: usize,
    headers: impl Fn(u32, bool) -> Headers,
) -> Option<Burst> {
    let mtu = connection.mtu.bytes();
    let room = u32::try_from(room).unwrap_or(u32::MAX);
    let fits = if room >= rest { left } else { connection.full_packets(room) };
    let mut count = fits.min(most).min(u16::MAX.into());
    if count == 0 {
        return None;
    }
    let padded = |ahead: u32, payload: u32| {
        let mut headers = headers(ahead, ahead.wrapping_add(1) == left);
        headers.bth.pad_count = PadCount::of(payload as usize);
        headers
    };
    let header = padded(0, rest.min(mtu));
    // It is alone if it has a header that those behind it have not.
    if count == 1 || header.reth.is_some() || header.aeth.is_some() {
        return Some(Burst::single(header, rest.min(mtu) as usize));
    }
    let before = connection.offset(count.wrapping_sub(1));
    let mut length = rest.min(connection.offset(count));
    let mut last = padded(count.wrapping_sub(1), length.saturating_sub(before));
    let longest = header.wire_len().saturating_add(mtu as usize);
    if last.wire_len().saturating_add(length.saturating_sub(before) as usize) > longest {
        (count, length) = (count.wrapping_sub(1), before);
        last = padded(count.wrapping_sub(1), mtu);
    }
    Some(Burst {
        header,
        last: (count > 1).then(|| Last::of(&last)),
        segment: u16::try_from(mtu).unwrap_or(u16::MAX),
        segments: u16::try_from(count).unwrap_or(u16::MAX),
        length,
    })
}

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
    /// The next packets, at most that many. See [`cut`].
    #[inline]
    pub(crate) fn burst(&self, most: u32, room: usize) -> Option<Burst> {
        let rest = self.end.length.saturating_sub(self.connection.offset(self.packet));
        let left = self.connection.packets(self.end.length).saturating_sub(self.packet);
        cut(self.connection, rest, left, most, room, |ahead, ends| self.headers(ahead, ends))
    }

    /// Their payload, from the request with that number, to the beginning of the room.
    #[inline]
    pub(crate) fn gather<Q: Work + ?Sized>(
        &self,
        burst: &Burst,
        n: u32,
        work: &mut Q,
        room: &mut [u8],
    ) -> Result<(), WcStatus> {
        match room.get_mut(..burst.length as usize) {
            None | Some([]) => Ok(()),
            Some(payload) => work.gather(n, self.connection.offset(self.packet), payload),
        }
    }

    /// The headers of the packet that many behind the next one. `ends` says whether it is the last.
    #[inline]
    fn headers(&self, ahead: u32, ends: bool) -> Headers {
        let (start, end) = (self.start, self.end);
        let place = (self.packet.wrapping_add(ahead) == 0, ends);
        // UC has no Invalidate (IBTA section 9.4.1).
        let invalidate = end.invalidate.filter(|_| self.service == Service::Rc);
        let operation = match start.kind {
            Kind::Write => write(place, end.immediate.is_some()),
            _ => send(place, end.immediate.is_some(), invalidate.is_some()),
        };
        let opcode = Opcode::new(self.service, operation).unwrap_or(Opcode::reliable(operation));
        let mut headers = self.connection.headers(opcode, self.psn.wrapping_add(ahead));
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
