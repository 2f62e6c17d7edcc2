//! Any bytes, as an IP datagram and as the payload of a UDP datagram: everything that can be read is written unchanged.

use rdma_proto::Burst;
use rdma_proto::wire::{
    EmitError, Headers, IpHeader, Ipv4Header, Ipv6Header, Packet, Service, UdpHeader, icrc,
};

pub(crate) fn run(bytes: &[u8]) {
    datagram(bytes);
    packet(bytes);
}

/// Reads an IP datagram, and writes it again.
fn datagram(bytes: &[u8]) {
    let Ok((ip, carried)) = IpHeader::parse(bytes) else { return };
    let (len, announced) = match ip {
        IpHeader::V4(ip) => (Ipv4Header::LEN, usize::from(ip.total_length) - Ipv4Header::LEN),
        IpHeader::V6(ip) => (Ipv6Header::LEN, usize::from(ip.payload_length)),
        _ => panic!("{ip:?}"),
    };
    let mut room = [0xaa; Ipv6Header::LEN];
    let left = ip.emit(&mut room).expect("room for either").len();
    assert_eq!(left, Ipv6Header::LEN - len);
    let mut expected = bytes[..len].to_vec();
    if let IpHeader::V4(_) = ip
        && expected[10..12] == [0xff; 2]
    {
        // An equivalent encoding of a checksum of 0 (RFC 1624).
        expected[10..12].fill(0);
    }
    assert_eq!(room[..len], expected, "{ip:?}");
    assert_eq!(ip.emit(&mut room[..len - 1]), Err(EmitError::NoRoom));
    assert_eq!(carried, &bytes[len..][..announced]);

    let Some((udp_bytes, carried)) = carried.split_first_chunk() else { return };
    let udp = UdpHeader::parse(udp_bytes);
    let mut again = [0; UdpHeader::LEN];
    udp.emit(&mut again);
    assert_eq!(again, *udp_bytes);
    if packet(carried).is_some() {
        seal(&ip, &udp, carried);
    }
}

/// Reads a packet, and writes it again.
fn packet(bytes: &[u8]) -> Option<()> {
    let packet = Packet::parse(bytes).ok()?;
    let expected = canonical(bytes, &packet);
    assert_eq!(packet.wire_len(), bytes.len());
    let mut room = vec![0xaa; bytes.len() + 3];
    assert_eq!(packet.emit(&mut room), Ok(&mut expected.clone()[..]));
    assert_eq!(room[bytes.len()..], [0xaa; 3], "nothing is written after its end");
    assert_eq!(Packet::parse(&expected), Ok(packet));
    assert_eq!(packet.emit(&mut room[..bytes.len() - 1]), Err(EmitError::NoRoom));

    let Packet { headers, payload, .. } = packet;
    let burst = Burst::single(headers, payload.len());
    let packets: Vec<_> = burst.packets(payload).collect();
    assert_eq!(packets, [(headers, payload)]);
    without_one(&headers);
    Some(())
}

/// The bytes that a sender would have written: zeros in reserved bits and in the pad.
fn canonical(bytes: &[u8], packet: &Packet<'_>) -> Vec<u8> {
    let mut bytes = bytes.to_vec();
    bytes[4] &= 0xc0;
    bytes[8] &= 0x80;
    if packet.headers.bth.opcode.service() == Service::Ud {
        bytes[16] = 0;
    }
    let (end, pad) = (bytes.len() - Packet::ICRC_LEN, packet.headers.bth.pad_count.get());
    bytes[end - usize::from(pad)..end].fill(0);
    bytes
}

/// Checks that headers are not written if one is missing.
fn without_one(headers: &Headers) {
    let asked = headers.bth.opcode.headers().len();
    let bare = Headers::new(headers.bth);
    let written = bare.emit(&mut [0; 64]).map(|_| ());
    assert_eq!(written, if asked == 0 { Ok(()) } else { Err(EmitError::Headers) });
}

/// Checks that each changed bit changes the ICRC, except those that routers change.
fn seal(ip: &IpHeader, udp: &UdpHeader, packet: &[u8]) {
    let (covered, _) = packet.split_last_chunk::<4>().expect("it was read");
    let right = icrc(ip, udp, covered);
    let mut other = covered.to_vec();
    let bit = right as usize % (other.len() * 8);
    other[bit / 8] ^= 1 << (bit % 8);
    assert_eq!(icrc(ip, udp, &other) == right, bit / 8 == 4, "bit {bit}");
    let mut hops = *ip;
    match &mut hops {
        IpHeader::V4(ip) => ip.ttl = ip.ttl.wrapping_sub(1),
        IpHeader::V6(ip) => ip.hop_limit = ip.hop_limit.wrapping_sub(1),
        _ => {}
    }
    assert_eq!(icrc(&hops, udp, covered), right);
}
