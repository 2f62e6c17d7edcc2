//! The format of captures: pcapng, because a pcapng file can contain both RoCE and InfiniBand packets, and records the
//! device of each packet.
//!
//! A file consists of blocks of 32-bit words: one at the beginning, one for each device, and one for each packet. This
//! format is simple enough not to need a crate.

use crate::link::Link;

// The block types, and the numbers of their options.
const SECTION: u32 = 0x0a0d_0d0a;
const INTERFACE: u32 = 1;
const PACKET: u32 = 6;
const SECTION_APPLICATION: u16 = 4;
const INTERFACE_NAME: u16 = 2;
const INTERFACE_RESOLUTION: u16 = 9;
const PACKET_FLAGS: u16 = 2;
const LAST_OPTION: u16 = 0;

/// The linktype of packets that begin with an Ethernet header.
const LINKTYPE_ETHERNET: u16 = 1;
/// The linktype of the Extensible Record Format, whose header specifies the type of the packet. Wireshark does not
/// support 247, the linktype for InfiniBand alone.
const LINKTYPE_ERF: u16 = 197;

/// The size of an ERF header in bytes.
const ERF: usize = 16;
/// The ERF record type for InfiniBand packets.
const ERF_INFINIBAND: u8 = 21;
/// An ERF record flag: the length of the record varies with its packet.
const ERF_VARYING: u8 = 4;

/// A device that is recorded in a file.
#[derive(Debug)]
pub(super) struct Interface {
    /// The index of the device in the file.
    pub(super) number: u32,
    pub(super) link: Link,
}

/// The direction of a packet.
#[derive(Debug, Clone, Copy)]
pub(super) enum Direction {
    In = 1,
    Out = 2,
}

/// Appends the block that starts a file.
pub(super) fn put_section(out: &mut Vec<u8>) {
    put_block(SECTION, out, |out| {
        // Readers detect the byte order from this number.
        put(out, &0x1a2b_3c4d_u32.to_le_bytes());
        let version = [1, 0, 0, 0];
        put(out, &version);
        let length_unknown = [0xff; 8];
        put(out, &length_unknown);
        let name = concat!("rdma-soft ", env!("CARGO_PKG_VERSION"));
        put_option(SECTION_APPLICATION, name.as_bytes(), out);
        put_option(LAST_OPTION, &[], out);
    });
}

pub(super) fn put_interface(name: &str, link: Link, out: &mut Vec<u8>) {
    let linktype = match link {
        Link::Ethernet => LINKTYPE_ETHERNET,
        Link::InfiniBand => LINKTYPE_ERF,
    };
    put_block(INTERFACE, out, |out| {
        put(out, &linktype.to_le_bytes());
        put(out, &[0; 2]);
        let whole_packets = [0; 4];
        put(out, &whole_packets);
        put_option(INTERFACE_NAME, name.as_bytes(), out);
        let nanoseconds = 9;
        put_option(INTERFACE_RESOLUTION, &[nanoseconds], out);
        put_option(LAST_OPTION, &[], out);
    });
}

/// Appends a packet with a time in nanoseconds since 1970. `frame` appends the packet's bytes. If that fails, the
/// caller must discard everything that was appended.
pub(super) fn put_packet<E>(
    interface: &Interface,
    direction: Direction,
    time: u64,
    out: &mut Vec<u8>,
    frame: impl FnOnce(&mut Vec<u8>) -> Result<(), E>,
) -> Result<(), E> {
    put_block(PACKET, out, |out| {
        put(out, &interface.number.to_le_bytes());
        put(out, &word(time >> 32));
        put(out, &word(time));
        let lengths = out.len();
        put(out, &[0; 8]);
        let begin = out.len();
        if interface.link == Link::InfiniBand {
            put(out, &[0; ERF]);
        }
        frame(out)?;
        if interface.link == Link::InfiniBand {
            let erf = erf(time, out.len() - begin);
            out[begin..begin + ERF].copy_from_slice(&erf);
        }
        let length = word((out.len() - begin) as u64);
        out[lengths..lengths + 4].copy_from_slice(&length);
        out[lengths + 4..begin].copy_from_slice(&length);
        pad(out);
        put_option(PACKET_FLAGS, &(direction as u32).to_le_bytes(), out);
        put_option(LAST_OPTION, &[], out);
        Ok(())
    })
}

/// Returns the ERF header for a record of `length` bytes, which includes the header.
fn erf(time: u64, length: usize) -> [u8; ERF] {
    let (seconds, nanoseconds) = (time / 1_000_000_000, time % 1_000_000_000);
    let fraction = (nanoseconds << 32) / 1_000_000_000;
    let short = |length: usize| u16::try_from(length).unwrap_or(u16::MAX).to_be_bytes();
    let mut erf = [0; ERF];
    erf[..8].copy_from_slice(&(seconds << 32 | fraction).to_le_bytes());
    (erf[8], erf[9]) = (ERF_INFINIBAND, ERF_VARYING);
    erf[10..12].copy_from_slice(&short(length));
    erf[14..].copy_from_slice(&short(length - ERF));
    erf
}

/// Appends a block, which has its length at both ends.
fn put_block<R>(kind: u32, out: &mut Vec<u8>, body: impl FnOnce(&mut Vec<u8>) -> R) -> R {
    let begin = out.len();
    put(out, &kind.to_le_bytes());
    put(out, &[0; 4]);
    let result = body(out);
    let length = word((out.len() - begin + 4) as u64);
    put(out, &length);
    out[begin + 4..begin + 8].copy_from_slice(&length);
    result
}

fn put_option(code: u16, value: &[u8], out: &mut Vec<u8>) {
    put(out, &code.to_le_bytes());
    put(out, &word(value.len() as u64)[..2]);
    put(out, value);
    pad(out);
}

fn put(out: &mut Vec<u8>, bytes: &[u8]) {
    out.extend_from_slice(bytes);
}

/// Pads to a whole number of words, so that each block starts at a word boundary.
fn pad(out: &mut Vec<u8>) {
    out.resize(out.len().next_multiple_of(4), 0);
}

/// Returns the lower 32 bits, which suffice for every length.
fn word(number: u64) -> [u8; 4] {
    ((number & 0xffff_ffff) as u32).to_le_bytes()
}
