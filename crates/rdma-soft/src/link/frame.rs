//! Converts packets to bytes and back, including the link and network headers before them.
//!
//! ```text
//! RoCE v2      Ethernet   IPv4 | IPv6   UDP   BTH ...   payload   pad   ICRC
//! RoCE v1      Ethernet   GRH                 BTH ...   payload   pad   ICRC
//! InfiniBand   LRH        [GRH]               BTH ...   payload   pad   ICRC   VCRC
//! ```
//!
//! Devices of one process pass packets to each other as structs. Bytes are needed for captures, and for links that flip
//! bits. The module `link/udp/packet` writes packets to other hosts.

use std::ops::Range;

use rdma_proto::wire::{
    EmitError, Headers, IpHeader, Ipv4Header, Ipv6Header, Packet, ParseError, UdpHeader, icrc,
    icrc_behind,
};
use rdma_types::{Gid, GidType};

use crate::address::{Address, GidEntry, Path, Route};
use crate::engine::wire::letter::Datagram;
use crate::engine::wire::route_header::{self, IPV4_AT, NEXT_INFINIBAND};
use crate::link::Link;

/// The size of an Ethernet header.
const ETHERNET: usize = 14;
/// The EtherType of IPv4.
const TYPE_IPV4: u16 = 0x0800;
/// The EtherType of IPv6.
const TYPE_IPV6: u16 = 0x86dd;
/// The EtherType of RoCE v1.
const TYPE_ROCE_V1: u16 = 0x8915;
/// The size of the local route header (IBTA volume 1, 7.7).
const LRH: usize = 8;
/// The value of the LNH field if a BTH follows the LRH.
const NEXT_BTH: u8 = 2;
/// The value of the LNH field if a global route header follows the LRH.
const NEXT_GRH: u8 = 3;
/// The size of the global route header (IBTA volume 1, 8.3).
const GRH: usize = 40;
/// The size of the variant CRC (IBTA volume 1, 7.8.2).
const VCRC: usize = 2;
/// The hop limit of packets that belong to a connection.
const HOPS: u8 = 64;

/// Appends one packet to `out`, from its link header to its last checksum. The pad count of its BTH must match its
/// payload, as in the packets of a [`Burst`](rdma_proto::Burst).
///
/// For a datagram, the network header comes from the address handle. For a connection, its traffic class and flow label
/// are 0, and its hop limit is 64. A port has one Ethernet address for each of its GIDs, see [`mac`]. Packets to one
/// queue pair, or datagrams between two queue pairs, have the same UDP source port, so that routers keep them in order.
///
/// # Errors
///
/// Fails like [`Packet::emit`], and then appends nothing. The packets that devices send never cause an error.
pub(crate) fn write(
    path: &Path,
    datagram: Option<&Datagram>,
    headers: &Headers,
    payload: &[u8],
    out: &mut Vec<u8>,
) -> Result<(), EmitError> {
    let begin = out.len();
    let packet = Packet { headers: *headers, payload, icrc: 0 };
    let length = packet.wire_len();
    let udp = UdpHeader::new(source_port(headers), length).ok_or(EmitError::NoRoom)?;
    let header = datagram.and_then(|datagram| datagram.header);
    let (link, sealed) = match (path.local, path.remote) {
        (Address::Gid(from), Address::Gid(to)) => {
            put_ethernet(&from, &to, out);
            let way = Route {
                source: from,
                destination: to.gid,
                traffic_class: 0,
                flow_label: 0,
                hop_limit: HOPS,
            };
            let header = header.unwrap_or_else(|| route_header::of_packet(&way, length as u64));
            let is_ipv4 = ethertype(&from, &to) == TYPE_IPV4;
            out.extend_from_slice(&header[if is_ipv4 { IPV4_AT } else { 0 }..]);
            if from.kind == GidType::ROCE_V2 {
                let mut bytes = [0; UdpHeader::LEN];
                udp.emit(&mut bytes);
                out.extend_from_slice(&bytes);
            }
            (Link::Ethernet, 0)
        }
        (local, remote) => {
            let service_level = datagram.map_or(0, |datagram| datagram.source.service_level);
            let global = header.map_or(0, |_| GRH);
            let next = if global == 0 { NEXT_BTH } else { NEXT_GRH };
            let words = u16::try_from((LRH + global + length) / 4).unwrap_or(u16::MAX);
            out.extend_from_slice(&[0, service_level << 4 | next]);
            out.extend_from_slice(&lid(&remote).to_be_bytes());
            out.extend_from_slice(&words.to_be_bytes());
            out.extend_from_slice(&lid(&local).to_be_bytes());
            out.extend_from_slice(header.as_ref().map_or(&[][..], |header| header));
            (Link::InfiniBand, VCRC)
        }
    };
    let at = out.len();
    out.resize(at + length + sealed, 0);
    if let Err(error) = packet.emit(&mut out[at..]) {
        out.truncate(begin);
        return Err(error);
    }
    let frame = &mut out[begin..];
    let end = frame.len() - sealed;
    if let Ok((front, packet)) = split(link, frame) {
        let icrc = front.icrc(&frame[packet.start..end - Packet::ICRC_LEN]);
        frame[end - Packet::ICRC_LEN..end].copy_from_slice(&icrc.to_le_bytes());
    }
    if link == Link::InfiniBand {
        let vcrc = vcrc(&frame[..end]);
        frame[end..].copy_from_slice(&vcrc.to_le_bytes());
    }
    debug_assert_eq!(
        check(link, frame).map(|found| (found.headers, frame[found.payload].len())),
        Ok((*headers, payload.len()))
    );
    Ok(())
}

/// A packet that was parsed from a frame.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Checked {
    pub(crate) headers: Headers,
    /// The range of the payload within the frame, without padding.
    pub(crate) payload: Range<usize>,
}

/// The reason why a port drops a frame.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Damage {
    /// The frame carries no packet, or its length fields contradict each other.
    Link,
    /// The frame's link addresses do not match the ports in its network header.
    Station,
    /// The packet cannot be parsed.
    Packet(ParseError),
    Icrc,
    Vcrc,
}

impl From<ParseError> for Damage {
    fn from(error: ParseError) -> Self {
        Self::Packet(error)
    }
}

/// Parses a frame and verifies all its checksums, as a receiving port does.
///
/// Fields that no checksum covers may have changed. On Ethernet, these are FECN, BECN and the adjacent reserved bits.
/// With IPv6 or a GRH, traffic class, flow label and hop limit are not covered either. The UDP checksum is not
/// verified.
pub(crate) fn check(link: Link, frame: &[u8]) -> Result<Checked, Damage> {
    if link == Link::InfiniBand {
        let (covered, sum) = frame.split_last_chunk::<VCRC>().ok_or(Damage::Link)?;
        if vcrc(covered) != u16::from_le_bytes(*sum) {
            return Err(Damage::Vcrc);
        }
    }
    let (front, place) = split(link, frame)?;
    let bytes = frame.get(place.clone()).ok_or(Damage::Link)?;
    let covered = bytes.len().checked_sub(Packet::ICRC_LEN).ok_or(Damage::Link)?;
    let packet = Packet::parse(bytes)?;
    if packet.icrc != front.icrc(&bytes[..covered]) {
        return Err(Damage::Icrc);
    }
    let at = place.start + packet.headers.wire_len();
    Ok(Checked { headers: packet.headers, payload: at..at + packet.payload.len() })
}

/// The headers before a BTH, to the extent that the ICRC covers them.
enum Front {
    Udp(IpHeader, UdpHeader),
    /// The LRH, with all ones in place of the fields that may change in transit.
    Local([u8; LRH]),
    Global([u8; LRH + GRH]),
}

impl Front {
    fn icrc(&self, packet: &[u8]) -> u32 {
        match self {
            Self::Udp(ip, udp) => icrc(ip, udp, packet),
            Self::Local(front) => icrc_behind(front, packet),
            Self::Global(front) => icrc_behind(front, packet),
        }
    }
}

/// Returns the headers before the BTH, and the range of the packet, including its ICRC.
fn split(link: Link, frame: &[u8]) -> Result<(Front, Range<usize>), Damage> {
    match link {
        Link::Ethernet => behind_ethernet(frame),
        Link::InfiniBand => behind_lrh(frame),
    }
}

fn behind_ethernet(frame: &[u8]) -> Result<(Front, Range<usize>), Damage> {
    let (ethernet, carried) = frame.split_first_chunk::<ETHERNET>().ok_or(Damage::Link)?;
    let kind = u16::from_be_bytes([ethernet[12], ethernet[13]]);
    if kind == TYPE_ROCE_V1 {
        let (front, [from, to]) = global(carried, carried.len())?;
        is_between(ethernet, &from, &to)?;
        return Ok((Front::Global(front), ETHERNET + GRH..frame.len()));
    }
    let (ip, datagram) = IpHeader::parse(carried)?;
    let (expected, length, from, to) = match &ip {
        IpHeader::V4(ip) => {
            let [from, to] = [ip.source, ip.destination].map(Gid::from_ipv4);
            (TYPE_IPV4, Ipv4Header::LEN, from, to)
        }
        IpHeader::V6(ip) => {
            let [from, to] = [ip.source, ip.destination].map(|address| address.octets().into());
            (TYPE_IPV6, Ipv6Header::LEN, from, to)
        }
        _ => return Err(Damage::Link),
    };
    let (udp, packet) = datagram.split_first_chunk().ok_or(Damage::Link)?;
    let udp = UdpHeader::parse(udp);
    if kind != expected
        || udp.destination_port != UdpHeader::ROCE_V2_PORT
        || usize::from(udp.length) != datagram.len()
    {
        return Err(Damage::Link);
    }
    is_between(ethernet, &from, &to)?;
    // In a short frame, padding may follow the datagram.
    let end = ETHERNET + length + datagram.len();
    Ok((Front::Udp(ip, udp), end - packet.len()..end))
}

fn behind_lrh(frame: &[u8]) -> Result<(Front, Range<usize>), Damage> {
    let (lrh, carried) = frame.split_first_chunk::<LRH>().ok_or(Damage::Link)?;
    let words = usize::from(u16::from_be_bytes([lrh[4], lrh[5]]) & 0x7ff);
    let version = lrh[0] & 0x0f;
    if version != 0 || words * 4 + VCRC != frame.len() {
        return Err(Damage::Link);
    }
    let end = frame.len() - VCRC;
    match lrh[1] & 3 {
        NEXT_BTH => {
            let mut front = *lrh;
            front[0] |= 0xf0;
            Ok((Front::Local(front), LRH..end))
        }
        NEXT_GRH => {
            let (front, _) = global(carried, carried.len() - VCRC)?;
            Ok((Front::Global(front), LRH + GRH..end))
        }
        _ => Err(Damage::Link),
    }
}

/// Returns a global route header as the ICRC covers it, with its source and destination GIDs. `length` is the size of
/// the header and everything after it.
fn global(bytes: &[u8], length: usize) -> Result<([u8; LRH + GRH], [Gid; 2]), Damage> {
    let grh = bytes.first_chunk::<GRH>().ok_or(Damage::Link)?;
    let behind = usize::from(u16::from_be_bytes([grh[4], grh[5]]));
    if grh[0] >> 4 != 6 || grh[6] != NEXT_INFINIBAND || behind + GRH != length {
        return Err(Damage::Link);
    }
    let mut front = [0xff; LRH + GRH];
    front[LRH..].copy_from_slice(grh);
    // Masks the traffic class, the flow label and the hop limit.
    front[LRH] |= 0x0f;
    front[LRH + 1..LRH + 4].fill(0xff);
    front[LRH + 7] = 0xff;
    let gid = |at: usize| grh[at..].first_chunk::<16>().map_or(Gid::ZERO, |gid| (*gid).into());
    Ok((front, [gid(8), gid(24)]))
}

fn put_ethernet(from: &GidEntry, to: &GidEntry, out: &mut Vec<u8>) {
    out.extend_from_slice(&mac(&to.gid));
    out.extend_from_slice(&mac(&from.gid));
    out.extend_from_slice(&ethertype(from, to).to_be_bytes());
}

fn ethertype(from: &GidEntry, to: &GidEntry) -> u16 {
    match from.kind {
        GidType::ROCE_V2 if from.gid.is_ipv4_mapped() && to.gid.is_ipv4_mapped() => TYPE_IPV4,
        GidType::ROCE_V2 => TYPE_IPV6,
        _ => TYPE_ROCE_V1,
    }
}

fn is_between(ethernet: &[u8; ETHERNET], from: &Gid, to: &Gid) -> Result<(), Damage> {
    let same = ethernet[..6] == mac(to) && ethernet[6..12] == mac(from);
    same.then_some(()).ok_or(Damage::Station)
}

/// Returns the Ethernet address of a port, derived from one of its GIDs, so that no address resolution is needed. The
/// address is locally administered, so no real port has it. An IPv4 address gets the prefix `02:00`. For other GIDs,
/// the interface identifier, which was made from an Ethernet address with `ff:fe` in the middle, is converted back (RFC
/// 4291, appendix A). Groups have the addresses of IP multicast (RFC 1112, RFC 2464).
pub(crate) fn mac(gid: &Gid) -> [u8; 6] {
    let bytes = gid.as_bytes();
    if gid.is_multicast() {
        return match gid.is_ipv4_mapped() {
            true => [1, 0, 0x5e, bytes[13] & 0x7f, bytes[14], bytes[15]],
            false => [0x33, 0x33, bytes[12], bytes[13], bytes[14], bytes[15]],
        };
    }
    if gid.is_ipv4_mapped() {
        [2, 0, bytes[12], bytes[13], bytes[14], bytes[15]]
    } else {
        [2, bytes[9], bytes[10], bytes[13], bytes[14], bytes[15]]
    }
}

/// Returns a UDP source port from the upper quarter of the range, like RXE and mlx5. For a connection, the port depends
/// only on the destination, because a packet does not contain the number of the queue pair that sent it.
fn source_port(headers: &Headers) -> u16 {
    let to = headers.bth.destination.get();
    let from = headers.deth.map_or(0, |deth| deth.source.get());
    // The multiplication makes the upper bits depend on all lower ones.
    let hash = (to ^ from.rotate_left(16)).wrapping_mul(0x9e37_79b1);
    0xc000 | (hash >> 18 & 0x3fff) as u16
}

fn lid(address: &Address) -> u16 {
    match address {
        Address::Lid(lid) => *lid,
        Address::Gid(_) => 0,
    }
}

/// Computes the variant CRC (IBTA volume 1, 7.8.2), which covers the whole packet and changes at each switch.
fn vcrc(bytes: &[u8]) -> u16 {
    let step =
        |crc: u16, byte: &u8| crc >> 8 ^ VCRC_TABLE[usize::from(crc.to_le_bytes()[0] ^ byte)];
    !bytes.iter().fold(u16::MAX, step)
}

/// The contribution of each byte to the CRC. The polynomial is x^16 + x^12 + x^3 + x + 1, least significant bit first.
const VCRC_TABLE: [u16; 256] = {
    let mut table = [0; 256];
    let mut byte: u16 = 0;
    while byte < 256 {
        let mut crc = byte;
        let mut bit = 0;
        while bit < 8 {
            crc = if crc & 1 == 1 { crc >> 1 ^ 0xd008 } else { crc >> 1 };
            bit += 1;
        }
        table[byte as usize] = crc;
        byte += 1;
    }
    table
};

#[cfg(all(test, not(loom)))]
mod tests;
