//! The 40 bytes that precede a datagram: its global route header, or an IPv4 header in its place. The packets of
//! connections have the same headers.

use std::net::Ipv4Addr;

use rdma_types::GidType;

use crate::address::Route;
use crate::engine::operation::Opcode;

/// The value of the next header field of an IPv6 header for UDP, which carries an InfiniBand packet.
pub(crate) const NEXT_UDP: u8 = 17;
/// The value of the next header field of a global route header for an InfiniBand packet (IBTA volume 1, 8.3).
pub(crate) const NEXT_INFINIBAND: u8 = 0x1b;
/// The offset of the IPv4 header. The bytes before it are zero.
pub(crate) const IPV4_AT: usize = 20;
/// The length of the UDP header that precedes an InfiniBand packet.
const UDP_BYTES: u64 = 8;
/// The total length of the base header, the datagram header and the checksum at the end.
const FRAME_BYTES: u64 = 12 + 8 + 4;
const IMMEDIATE_BYTES: u64 = 4;
const DO_NOT_FRAGMENT: u16 = 0x4000;

/// Returns the header of the packet for a datagram with `length` bytes of data.
pub(crate) fn of(route: &Route, opcode: Opcode, length: u64) -> [u8; 40] {
    let immediate = if opcode == Opcode::SendWithImm { IMMEDIATE_BYTES } else { 0 };
    of_packet(route, FRAME_BYTES + immediate + length.next_multiple_of(4))
}

/// Returns the header for `packet` bytes, counted from the base header to the checksum.
pub(crate) fn of_packet(route: &Route, packet: u64) -> [u8; 40] {
    match route.source.kind {
        GidType::ROCE_V2 => {
            let addresses = route.source.gid.to_ipv4().zip(route.destination.to_ipv4());
            match addresses {
                Some((from, to)) => ipv4(route, from, to, UDP_BYTES + packet),
                None => global(route, NEXT_UDP, UDP_BYTES + packet),
            }
        }
        _ => global(route, NEXT_INFINIBAND, packet),
    }
}

/// Returns the service level for the completion of a RoCE datagram. It encodes the packet type, because Ethernet has no
/// service levels. Bit 3 is set if the packet has a UDP header. Bits 0 to 2 are 0 for a global route header (RoCE v1),
/// 1 for IPv6 and 2 for IPv4. mlx5 reports the same values, and UCX reads them.
pub(crate) fn packet_type(header: &[u8; 40]) -> u8 {
    const UDP: u8 = 1 << 3;
    match (header[0] >> 4, header[6]) {
        (6, NEXT_UDP) => UDP | 1,
        (6, _) => 0,
        _ => UDP | 2,
    }
}

/// Returns a global route header, which is an IPv6 header (IBTA volume 1, 8.3; RFC 8200).
fn global(route: &Route, next: u8, behind: u64) -> [u8; 40] {
    let mut header = [0; 40];
    let class = u32::from(route.traffic_class) << 20;
    let first = 6 << 28 | class | route.flow_label & 0x000f_ffff;
    header[..4].copy_from_slice(&first.to_be_bytes());
    header[4..6].copy_from_slice(&short(behind).to_be_bytes());
    (header[6], header[7]) = (next, route.hop_limit);
    header[8..24].copy_from_slice(route.source.gid.as_bytes());
    header[24..].copy_from_slice(route.destination.as_bytes());
    header
}

/// Returns an IPv4 header without options in the last 20 bytes (RFC 791; RoCE v2, IBTA annex A17).
fn ipv4(route: &Route, from: Ipv4Addr, to: Ipv4Addr, behind: u64) -> [u8; 40] {
    let mut header = [0; 40];
    let ip = &mut header[IPV4_AT..];
    (ip[0], ip[1]) = (0x45, route.traffic_class);
    ip[2..4].copy_from_slice(&short(behind + 20).to_be_bytes());
    ip[6..8].copy_from_slice(&DO_NOT_FRAGMENT.to_be_bytes());
    (ip[8], ip[9]) = (route.hop_limit, NEXT_UDP);
    ip[12..16].copy_from_slice(&from.octets());
    ip[16..].copy_from_slice(&to.octets());
    let sum = checksum(ip);
    ip[10..12].copy_from_slice(&sum.to_be_bytes());
    header
}

/// Converts the length of a packet. It fits, because a packet has at most 4096 bytes of data.
fn short(length: u64) -> u16 {
    u16::try_from(length).unwrap_or(u16::MAX)
}

/// Returns the checksum of a header whose checksum field is zero (RFC 1071). If the field holds the correct checksum,
/// returns zero.
pub(crate) fn checksum(header: &[u8]) -> u16 {
    let words =
        header.chunks_exact(2).map(|word| u32::from(u16::from_be_bytes([word[0], word[1]])));
    // There are so few words that the second fold has no carry.
    let fold = |sum: u32| (sum & 0xffff) + (sum >> 16);
    !((fold(fold(words.sum())) & 0xffff) as u16)
}

#[cfg(test)]
mod tests {
    use crate::address::GidEntry;

    use super::*;

    fn route(kind: GidType, source: &str, destination: &str) -> Route {
        let source = GidEntry { gid: source.parse().unwrap(), kind };
        let destination = destination.parse().unwrap();
        Route { source, destination, traffic_class: 0x5a, flow_label: 0x12_3456, hop_limit: 9 }
    }

    /// A message of five bytes is padded to eight. Headers and checksum add 24 bytes; the immediate data and the UDP
    /// header come on top.
    #[test]
    fn each_kind_of_port_has_its_header_with_the_length_that_follows() {
        let [ib, v2, v4] = [
            route(GidType::IB, "fe80::1", "fe80::2"),
            route(GidType::ROCE_V2, "fe80::1", "fe80::2"),
            route(GidType::ROCE_V2, "::ffff:10.0.1.1", "::ffff:10.0.1.2"),
        ];
        for (opcode, behind) in [(Opcode::Send, 32), (Opcode::SendWithImm, 36)] {
            for (route, next, behind) in [(&ib, 0x1b, behind), (&v2, 17, behind + 8)] {
                let header = of(route, opcode, 5);
                assert_eq!(header[..8], [0x65, 0xa2, 0x34, 0x56, 0, behind, next, 9]);
                assert_eq!(header[8..24], route.source.gid.to_bytes());
                assert_eq!(header[24..], route.destination.to_bytes());
            }
            let header = of(&v4, opcode, 5);
            assert_eq!(header[..20], [0; 20]);
            assert_eq!(header[20..30], [0x45, 0x5a, 0, 20 + 8 + behind, 0, 0, 0x40, 0, 9, 17]);
            assert_eq!(
                (&header[32..], checksum(&header[20..])),
                (&[10, 0, 1, 1, 10, 0, 1, 2][..], 0)
            );
        }
        assert_eq!(of(&ib, Opcode::Send, 4096)[4..6], (4096_u16 + 24).to_be_bytes());
    }

    #[test]
    fn the_checksum_is_that_of_a_captured_header() {
        // The header of a packet from the kernel's SoftRoCE.
        let captured = [
            0x45, 0, 0, 0x44, 0xa2, 0xb2, 0x40, 0, 0x40, 0x11, 0x81, 0xf4, 10, 0, 1, 1, 10, 0, 1, 2,
        ];
        assert_eq!(checksum(&captured), 0);
        let mut without = captured;
        without[10..12].fill(0);
        assert_eq!(checksum(&without), 0x81f4);
    }
}
