//! Splitting messages and responses into packets.

use rdma_types::{Psn, WcStatus};

use crate::burst::{Burst, Last};
use crate::connection::Connection;
use crate::operation::{Kind, MessageEnd, MessageStart, Remote};
use crate::wire::{Headers, Ieth, ImmDt, Opcode, Operation, PadCount, Reth, Service};
use crate::work::Work;

/// The unsent part of a message or a response.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Remainder {
    /// The number of bytes left.
    pub(crate) bytes: u32,
    /// The number of packets left.
    pub(crate) packets: u32,
    /// Whether the next packet has headers that later packets lack.
    pub(crate) alone: bool,
    /// The size of the headers that only the last packet has, in bytes.
    pub(crate) extra: u32,
}

/// A run of packets with the same length, except that the last may be shorter.
#[derive(Clone, Copy, Debug)]
pub(crate) struct PacketRun {
    pub(crate) packets: u32,
    bytes: u32,
    /// Whether this is the last run.
    pub(crate) ends: bool,
}

impl Remainder {
    /// Returns the next packets: as many as fit into the buffer and can form one run, but at most
    /// `most`. Returns `None` if not even one fits, or if `most` is 0.
    #[inline]
    pub(crate) fn run(&self, connection: &Connection, most: u32, room: usize) -> Option<PacketRun> {
        let room = u32::try_from(room).unwrap_or(u32::MAX);
        let fits = if room >= self.bytes { self.packets } else { connection.full_packets(room) };
        let most = if self.alone { most.min(1) } else { most.min(u16::MAX.into()) };
        let mut packets = fits.min(most);
        if packets == 0 {
            return None;
        }
        if packets > 1 && packets == self.packets {
            let before = connection.offset(packets.wrapping_sub(1));
            let last = self.bytes.saturating_sub(before).saturating_add(self.extra);
            if last > connection.mtu.bytes() {
                packets = packets.wrapping_sub(1);
            }
        }
        let bytes = self.bytes.min(connection.offset(packets));
        Some(PacketRun { packets, bytes, ends: packets == self.packets })
    }
}

impl PacketRun {
    pub(crate) fn segments(&self) -> u16 {
        u16::try_from(self.packets).unwrap_or(u16::MAX)
    }

    /// Returns the space for the run's payload, at the beginning of the buffer.
    #[inline]
    pub(crate) fn payload<'a>(&self, room: &'a mut [u8]) -> &'a mut [u8] {
        room.get_mut(..self.bytes as usize).unwrap_or_default()
    }

    /// Builds the packets, and sets their pad counts. `headers` returns the headers of a packet,
    /// given its index in the run and whether it ends the message. If `asks` is true, the last
    /// packet of the run requests an acknowledgement.
    #[inline]
    pub(crate) fn burst(
        &self,
        connection: &Connection,
        asks: bool,
        headers: impl Fn(u32, bool) -> Headers,
    ) -> Burst {
        let before = self.packets.wrapping_sub(1);
        let mut header = headers(0, self.ends && before == 0);
        if before == 0 {
            header.bth.ack_request = asks;
            header.bth.pad_count = PadCount::of(self.bytes as usize);
            return Burst::single(header, self.bytes as usize);
        }
        let mut last = headers(before, self.ends);
        last.bth.ack_request = asks;
        // The packets before this one consist of whole words, so they need no pad.
        last.bth.pad_count = PadCount::of(self.bytes as usize);
        Burst {
            header,
            last: Some(Last::of(&last)),
            segment: u16::try_from(connection.mtu.bytes()).unwrap_or(u16::MAX),
            segments: self.segments(),
            length: self.bytes,
        }
    }
}

/// A SEND or a WRITE that is being sent.
#[derive(Debug)]
pub(crate) struct Outbound<'a> {
    pub(crate) connection: Connection,
    pub(crate) service: Service,
    pub(crate) start: &'a MessageStart,
    pub(crate) end: &'a MessageEnd,
    /// The index of the next packet in its message.
    pub(crate) packet: u32,
    /// The PSN of the next packet.
    pub(crate) psn: Psn,
}

impl Outbound<'_> {
    /// Returns the unsent part.
    #[inline]
    pub(crate) fn remainder(&self) -> Remainder {
        let Self { start, end, packet, .. } = *self;
        let has_word = end.immediate.is_some() || end.invalidate.is_some();
        Remainder {
            bytes: end.length.saturating_sub(self.connection.offset(packet)),
            packets: self.connection.packets(end.length).saturating_sub(packet),
            alone: packet == 0 && start.kind == Kind::Write,
            extra: if has_word { 4 } else { 0 },
        }
    }

    /// Copies the payload for a run of request `n` to the beginning of the buffer.
    #[inline]
    pub(crate) fn gather<Q: Work + ?Sized>(
        &self,
        run: &PacketRun,
        n: u32,
        work: &mut Q,
        room: &mut [u8],
    ) -> Result<(), WcStatus> {
        match run.payload(room) {
            [] => Ok(()),
            payload => work.gather(n, self.connection.offset(self.packet), payload),
        }
    }

    /// Builds the packets of a run.
    #[inline]
    pub(crate) fn burst(&self, run: &PacketRun, asks: bool) -> Burst {
        run.burst(&self.connection, asks, |ahead, ends| self.headers(ahead, ends))
    }

    /// Returns the headers of a packet: the next one if `ahead` is 0, or the one that many packets
    /// later. `ends` is true for the last packet of the message.
    #[inline]
    fn headers(&self, ahead: u32, ends: bool) -> Headers {
        let (start, end) = (self.start, self.end);
        let place = (self.packet.wrapping_add(ahead) == 0, ends);
        // UC has no SEND with invalidate (IBTA section 9.4).
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

/// Returns the operation of a SEND packet. `place` is whether the packet is the first, and whether
/// it is the last. A SEND cannot have both immediate data and a key to invalidate.
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

/// Like [`send`], but for a WRITE.
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
