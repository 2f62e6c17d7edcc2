//! ICRC: the checksum over everything that routers do not change.

pub(super) mod identification;

use crc32fast::Hasher;

use super::bytes::Writer;
use super::headers::bth::Bth;
use super::ip::{IpHeader, Ipv4Header, Ipv6Header};
use super::udp::UdpHeader;

/// Byte offsets, each with the bits that count as ones, because routers may change them.
type Mask = &'static [(usize, u8)];

/// TOS, TTL and checksum. The ICRC covers the identification, the flags and the lengths.
const IPV4: Mask = &[(1, 0xff), (8, 0xff), (10, 0xff), (11, 0xff)];

/// Traffic class, flow label and hop limit.
const IPV6: Mask = &[(0, 0x0f), (1, 0xff), (2, 0xff), (3, 0xff), (7, 0xff)];

/// The checksum.
const UDP: Mask = &[(6, 0xff), (7, 0xff)];

/// FECN, BECN and the adjacent reserved bits (Resv8a).
const BTH: Mask = &[(4, 0xff)];

/// The number of bytes after the BTH that are copied to one buffer, together with the headers. For a short packet, one pass
/// over this buffer takes less time than a pass over each header.
const SHORT: usize = 64;

/// The size of that buffer.
const FRONT: usize = 8 + Ipv6Header::LEN + UdpHeader::LEN + Bth::LEN + SHORT;

/// Returns the invariant CRC of a packet (IBTA chapter 7 and annex A17). It is Ethernet's CRC-32
/// over the network headers and the packet, where all bits that may change in transit count as
/// ones.
///
/// `packet` is everything from the BTH to the end of the pad, without the ICRC itself. Eight bytes
/// of ones precede the IP header, in place of InfiniBand's local route header.
///
/// `ip` and `udp` must be the headers on the wire. The ICRC also covers the IPv4 identification,
/// which a UDP socket does not report.
///
/// # Examples
///
/// A SEND of 21 bytes, as SoftRoCE sent it:
///
/// ```
/// use rdma_proto::wire::{IpHeader, Ipv4Header, Packet, UdpHeader, icrc};
///
/// let mut datagram = [0; 40];
/// datagram[..12].copy_from_slice(&[0x04, 0x30, 0xff, 0xff, 0, 0, 0, 0x11, 0x80, 0x10, 0, 0]);
/// for (at, byte) in (0..21).enumerate() {
///     datagram[12 + at] = byte;
/// }
/// datagram[36..].copy_from_slice(&[0x65, 0xbe, 0xc9, 0x58]);
///
/// let udp = UdpHeader::new(0xc121, datagram.len()).unwrap();
/// let ip = Ipv4Header::new([10, 0, 1, 1].into(), [10, 0, 1, 2].into(), &udp).unwrap();
/// let ip = IpHeader::V4(Ipv4Header { identification: 0xa2b2, ..ip });
/// assert_eq!(Packet::parse(&datagram)?.icrc, icrc(&ip, &udp, &datagram[..36]));
/// # Ok::<(), rdma_proto::wire::ParseError>(())
/// ```
#[must_use]
pub fn icrc(ip: &IpHeader, udp: &UdpHeader, packet: &[u8]) -> u32 {
    let mut front = [0; FRONT];
    let mut covered = Writer::new(&mut front);
    covered.array([0xff; 8]);
    match ip {
        IpHeader::V4(ip) => {
            let mut bytes = [0; Ipv4Header::LEN];
            ip.emit_without_checksum(&mut bytes);
            covered.array(masked(bytes, IPV4));
        }
        IpHeader::V6(ip) => {
            let mut bytes = [0; Ipv6Header::LEN];
            ip.emit(&mut bytes);
            covered.array(masked(bytes, IPV6));
        }
    }
    let mut bytes = [0; UdpHeader::LEN];
    udp.emit(&mut bytes);
    covered.array(masked(bytes, UDP));
    let mut rest = packet;
    if let Some((bth, behind)) = packet.split_first_chunk::<{ Bth::LEN }>() {
        covered.array(masked(*bth, BTH));
        rest = behind;
    }
    let (begin, rest) = rest.split_at(rest.len().min(SHORT));
    covered.padded(begin, begin.len());
    let unused = covered.room();
    let mut crc = Hasher::new();
    crc.update(front.split_at(FRONT.saturating_sub(unused)).0);
    crc.update(rest);
    crc.finalize()
}

/// Returns the invariant CRC of a packet without IP and UDP headers (IBTA chapter 7). Its outer headers are
/// InfiniBand's local route header, a global route header, or both.
///
/// `front` is everything before the BTH, with ones for all bits that may change in transit. A
/// global route header must follow 8 bytes of ones, which take the place of a local route header,
/// if any. If the packet has only a local route header, `front` is that header with ones for its
/// virtual lane. `packet` has the same meaning as for [`icrc`].
///
/// # Examples
///
/// An RDMA WRITE on an InfiniBand subnet, from an example in the specification:
///
/// ```
/// use rdma_proto::wire::icrc_behind;
///
/// let lrh = [0x70, 0x12, 0x37, 0x5c, 0, 0x0e, 0x17, 0xd2];
/// let packet = [
///     0x0a, 0x20, 0x24, 0x87, 0, 0x87, 0xb1, 0xb3, 0, 0x0d, 0xec, 0x2a, // BTH
///     1, 0x71, 0x0a, 0x1c, 1, 0x5d, 0x40, 2, 0x38, 0xf2, 0x7a, 5, 0, 0, 0, 0x0e, // RETH
///     0xbb, 0x88, 0x4d, 0x85, 0xfd, 0x5c, 0xfb, 0xa4, 0x72, 0x8b, 0xc0, 0x69, 0x0e, 0xd4, // payload
///     0, 0, // pad
/// ];
/// let virtual_lane = 0xf0;
/// let front = [lrh[0] | virtual_lane, lrh[1], lrh[2], lrh[3], lrh[4], lrh[5], lrh[6], lrh[7]];
/// assert_eq!(icrc_behind(&front, &packet).to_le_bytes(), [0x96, 0x25, 0xb7, 0x5a]);
/// ```
#[must_use]
pub fn icrc_behind(front: &[u8], packet: &[u8]) -> u32 {
    let mut crc = Hasher::new();
    crc.update(front);
    let rest = match packet.split_first_chunk::<{ Bth::LEN }>() {
        Some((bth, rest)) => {
            crc.update(&masked(*bth, BTH));
            rest
        }
        None => packet,
    };
    crc.update(rest);
    crc.finalize()
}

fn masked<const N: usize>(mut bytes: [u8; N], mask: Mask) -> [u8; N] {
    for &(at, ones) in mask {
        if let Some(byte) = bytes.get_mut(at) {
            *byte |= ones;
        }
    }
    bytes
}
