//! The header that precedes the payload of each burst between two processes. A message is a sequence of up to [`MOST`]
//! bursts with such headers, so an acknowledgement can travel with the data that is sent next.
//!
//! | bytes | what |
//! |---|---|
//! | 0 | [`VERSION`] |
//! | 1 | [flags](WITH_LAST) |
//! | 2, 3 | the index of the sender's GID, and of the receiver's; 0 on InfiniBand |
//! | 4 to 7 | payload of each packet except the last, number of packets (little endian, like all later fields) |
//! | 8 to 11 | payload of all packets |
//! | 12 to 15 | datagrams: service level; requests: the [key](WordKey) of the word that shows their progress |
//! | 16 to 55 | headers of the first packet, from its BTH on, as on a wire |
//! | 56 to 95 | headers of the last packet, if there are several; or the route header of a datagram |
//! | 56 to 59 | with [`PLACED`]: the number of [placed](Letter::placed) bytes |
//!
//! Both processes have the same device, so an index means the same address in both. A peer may have written anything,
//! so everything is checked before it is used.

use rdma_proto::wire::{Aeth, Bth, Headers, Opcode, Operation, Reth, Service, Syndrome};
use rdma_proto::{Burst, Last, MAX_MESSAGE_BYTES};

use crate::address::{Address, Path};
use crate::device::Device;
use crate::engine::completion::work_completion::Source;
use crate::engine::wire::TURN;
use crate::engine::wire::letter::{BURST_BYTES, Datagram, Letter};
use crate::engine::wire::word::WordKey;

mod single;

pub(super) use self::single::{
    AFTER_GAP, SINGLE_HEAD, SingleHead, decode_single, encode_single, is_single,
};

/// The version of the message format, and of socket names. Processes with different versions do not find each other.
pub(super) const VERSION: u8 = 9;

/// The size of a header in bytes.
pub(super) const HEAD: usize = 96;
/// The maximum number of bursts per message.
pub(super) const MOST: usize = 8;
/// The maximum number of bytes in a message after its first header.
pub(super) const LONGEST_MESSAGE: usize = BURST_BYTES;
const HEADERS: usize = 40;
const FIRST: usize = 16;
const SECOND: usize = FIRST + HEADERS;

/// The burst has several packets.
const WITH_LAST: u8 = 1;
/// The burst is a datagram.
const DATAGRAM: u8 = 2;
/// The burst is a datagram with a route header.
const ROUTED: u8 = 4;
/// The burst is a void refusal: the RNR NAK for a packet that can now be sent again, because a receive request has been
/// posted. A void refusal is not a packet.
const VOID: u8 = 8;
/// The burst is the last packet of a WRITE with immediate data. The sender has written the bytes before it itself.
const PLACED: u8 = 16;

/// The contents of a decoded header.
pub(super) type Decoded = (Path, Burst, Option<Datagram>);

/// Encodes the header of a burst. Returns `None` if an address of its path is not shared, or if its headers cannot be
/// written.
pub(super) fn encode(device: &Device, letter: &Letter) -> Option<[u8; HEAD]> {
    let Letter { path, burst, datagram, .. } = letter;
    let mut head = [0; HEAD];
    let last = burst.last.filter(|_| burst.segments > 1);
    let header = datagram.and_then(|datagram| datagram.header);
    head[0] = VERSION;
    head[1] = if last.is_some() { WITH_LAST } else { 0 }
        | if datagram.is_some() { DATAGRAM } else { 0 }
        | if header.is_some() { ROUTED } else { 0 }
        | if letter.is_void { VOID } else { 0 }
        | if letter.placed > 0 { PLACED } else { 0 };
    head[2] = index_of(device, &path.local)?;
    head[3] = index_of(device, &path.remote)?;
    head[4..6].copy_from_slice(&burst.segment.to_le_bytes());
    head[6..8].copy_from_slice(&burst.segments.to_le_bytes());
    head[8..12].copy_from_slice(&burst.length.to_le_bytes());
    match (datagram, letter.word) {
        (Some(datagram), _) => head[12] = datagram.source.service_level,
        (None, Some(word)) => head[12..16].copy_from_slice(&word.raw().to_le_bytes()),
        (None, None) => {}
    }
    burst.header.emit(&mut head[FIRST..SECOND]).ok()?;
    if let Some(last) = last {
        headers_of(&burst.header.bth, last).emit(&mut head[SECOND..]).ok()?;
    } else if let Some(header) = header {
        head[SECOND..].copy_from_slice(&header);
    } else if letter.placed > 0 {
        head[SECOND..SECOND + 4].copy_from_slice(&letter.placed.to_le_bytes());
    }
    Some(head)
}

/// Returns the key of the word that shows how far the connection's requests are executed, if the connection has such a
/// word.
pub(super) fn word_of(head: &[u8; HEAD]) -> Option<WordKey> {
    let raw = u32::from_le_bytes([head[12], head[13], head[14], head[15]]);
    WordKey::of(raw).filter(|_| head[1] & DATAGRAM == 0)
}

/// Decodes a burst, whose payload may be shorter than the header announces. Returns `None` if no device sends such a
/// burst.
pub(super) fn decode(device: &Device, head: &[u8; HEAD]) -> Option<Decoded> {
    let number = |at: usize| u16::from_le_bytes([head[at], head[at + 1]]);
    let (flags, segment, segments) = (head[1], number(4), number(6));
    let announced = u32::from_le_bytes([head[8], head[9], head[10], head[11]]);
    let known = flags & !(WITH_LAST | DATAGRAM | ROUTED | VOID | PLACED) == 0;
    let length = announced as usize;
    if head[0] != VERSION || !known || segments == 0 {
        return None;
    }
    let path = Path { local: address_at(device, head[2])?, remote: address_at(device, head[3])? };
    let (header, _) = Headers::parse(&head[FIRST..SECOND]).ok()?;
    if is_void(head) && !(flags == VOID && length == 0 && is_refusal(&header)) {
        return None;
    }
    if flags & PLACED != 0 && !(flags == PLACED && is_last_of_placed(&header, placed(head))) {
        return None;
    }
    let is_datagram = flags & DATAGRAM != 0;
    if is_datagram != (header.bth.opcode.service() == Service::Ud) {
        return None;
    }
    let last = if flags & WITH_LAST == 0 {
        // A single packet, whose payload has at most the maximum length.
        if segments != 1 || usize::from(segment) != length || length > LONGEST {
            return None;
        }
        None
    } else {
        let (last, _) = Headers::parse(&head[SECOND..]).ok()?;
        let segment = usize::from(segment);
        // The last packet's headers must be ones that the last of several packets can have.
        let usual = headers_of(&last.bth, Last::of(&last)) == last;
        if !usual || last.bth.opcode.service() != header.bth.opcode.service() {
            return None;
        }
        // The burst has at most as many packets as a device sends at once, so the receiver executes all of them in one
        // turn. Each payload except the last is at least the smallest MTU and at most the largest.
        let is_turn = (2..=TURN).contains(&u32::from(segments));
        if is_datagram || !is_turn || !(SHORTEST..=LONGEST).contains(&segment) {
            return None;
        }
        if length.div_ceil(segment) != usize::from(segments) {
            return None;
        }
        Some(Last::of(&last))
    };
    let burst = Burst { header, last, segment, segments, length: announced };
    if !is_datagram {
        return Some((path, burst, None));
    }
    let lid = match path.local {
        Address::Lid(lid) => lid,
        Address::Gid(_) => 0,
    };
    let qpn = header.deth?.source.get();
    let source = Source { qpn, lid, service_level: head[12] & 0x0f, path_bits: 0 };
    let header = head[SECOND..].first_chunk().copied().filter(|_| flags & ROUTED != 0);
    Some((path, burst, Some(Datagram { source, header, group: None })))
}

/// Returns true if a [decoded](decode) header is that of a [void refusal](Letter::void).
pub(super) fn is_void(head: &[u8; HEAD]) -> bool {
    head[1] & VOID != 0
}

/// Returns the number of bytes that the sender has [placed](Letter::placed), according to a [decoded](decode) header.
pub(super) fn placed(head: &[u8; HEAD]) -> u32 {
    match head[1] & PLACED {
        0 => 0,
        _ => head[SECOND..].first_chunk().map_or(0, |bytes| u32::from_le_bytes(*bytes)),
    }
}

/// Returns true if a packet can follow `placed` bytes of its message, which has an address and a length.
fn is_last_of_placed(header: &Headers, placed: u32) -> bool {
    let fits = |reth: Reth| {
        let length = placed.checked_add(reth.length);
        reth.va >= placed.into() && length.is_some_and(|length| length <= MAX_MESSAGE_BYTES)
    };
    header.bth.opcode == Opcode::reliable(Operation::RdmaWriteOnlyWithImmediate)
        && placed > 0
        && header.reth.is_some_and(fits)
}

fn is_refusal(header: &Headers) -> bool {
    let is_rnr_nak = |aeth: Aeth| matches!(aeth.syndrome, Syndrome::RnrNak(_));
    header.bth.opcode == Opcode::reliable(Operation::Acknowledge)
        && header.aeth.is_some_and(is_rnr_nak)
}

/// The longest payload of a packet.
pub(super) const LONGEST: usize = 4096;

/// The shortest payload of each packet in a burst except the last: the smallest MTU.
const SHORTEST: usize = 256;

/// Returns the headers of the last of several packets; [`Last`] contains the parts that differ from the first packet.
fn headers_of(first: &Bth, last: Last) -> Headers {
    let Last { opcode, solicited, ack_request, pad_count, aeth, imm, ieth } = last;
    let bth = Bth { opcode, solicited, ack_request, pad_count, ..*first };
    Headers { aeth, imm, ieth, ..Headers::new(bth) }
}

fn index_of(device: &Device, address: &Address) -> Option<u8> {
    match address {
        Address::Lid(lid) => (*lid == device.identity.lid).then_some(0),
        Address::Gid(entry) => {
            let mut gids = device.identity.shared().iter();
            gids.position(|own| own == entry).and_then(|place| u8::try_from(place).ok())
        }
    }
}

fn address_at(device: &Device, index: u8) -> Option<Address> {
    match device.link {
        crate::link::Link::InfiniBand => Some(Address::Lid(device.identity.lid)),
        crate::link::Link::Ethernet => {
            let entry = device.identity.shared().get(usize::from(index))?;
            (!entry.gid.is_zero()).then_some(Address::Gid(*entry))
        }
    }
}

#[cfg(test)]
#[allow(clippy::unwrap_used)] // A failing helper fails its test.
mod tests;
