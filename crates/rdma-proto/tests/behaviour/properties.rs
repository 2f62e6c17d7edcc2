//! Laws that hold for every packet, checked on all short ones and on random ones.

use proptest::prelude::*;
use rdma_proto::wire::{
    Aeth, Bth, CreditCount, EmitError, Headers, Ieth, ImmDt, IpHeader, Ipv4Header, Ipv6Header,
    Opcode, Packet, PadCount, ParseError, Syndrome, UdpHeader, icrc,
};
use rdma_types::{Psn, Qpn, Rkey};

fn opcodes() -> Vec<Opcode> {
    (0..=u8::MAX).filter_map(Opcode::from_code).collect()
}

/// The bytes that a sender would have written: zeros in reserved bits and in the pad.
fn canonical(datagram: &[u8]) -> Vec<u8> {
    let mut bytes = datagram.to_vec();
    bytes[4] &= 0xc0;
    bytes[8] &= 0x80;
    if bytes[0] >> 5 == 0b011 {
        bytes[16] = 0;
    }
    let (pad, end) = (usize::from(bytes[1] >> 4 & 3), bytes.len() - 4);
    bytes[end - pad..end].fill(0);
    bytes
}

/// Reads a packet, and checks that it is written unchanged.
fn read_and_write(datagram: &[u8]) -> Result<(), ParseError> {
    let packet = Packet::parse(datagram)?;
    let expected = canonical(datagram);
    let mut room = vec![0xaa; datagram.len()];
    assert_eq!(packet.emit(&mut room), Ok(&mut expected.clone()[..]));
    assert_eq!(Packet::parse(&room), Ok(packet));
    let short = expected.len() - 1;
    assert_eq!(packet.emit(&mut room[..short]), Err(EmitError::NoRoom));
    Ok(())
}

#[test]
fn opcode_length_and_pad_decide_whether_bytes_are_a_packet() {
    let lengths = |first, pad| (0..=64).map(move |len| (first, pad, len));
    let pads = |first| (0..4).flat_map(move |pad| lengths(first, pad));
    for (first, pad, len) in (0..=u8::MAX).flat_map(pads) {
        let mut datagram: Vec<u8> = (0xa5..).take(len).collect();
        for (byte, value) in datagram.iter_mut().zip([first, 0xc0 | pad << 4]) {
            *byte = value;
        }
        let least = Opcode::from_code(first).map(|opcode| {
            let headers: usize = opcode.headers().iter().map(|header| header.wire_len()).sum();
            16 + headers
        });
        let expected = match least {
            _ if len < 16 => Err(ParseError::Truncated),
            None => Err(ParseError::Opcode(first)),
            Some(least) if len < least => Err(ParseError::Truncated),
            Some(_) if len % 4 != 0 => Err(ParseError::Length(len)),
            Some(least) if len == least && pad > 0 => Err(ParseError::PadCount(pad)),
            Some(_) => Ok(()),
        };
        assert_eq!(read_and_write(&datagram), expected, "{first:#x} {pad} {len}");
    }
}

#[test]
fn headers_must_match_the_opcode() {
    let mut room = [0; 64];
    for opcode in opcodes() {
        let bytes = [[opcode.code(), 0, 0xff, 0xff], [0; 4], [0; 4]].concat();
        let (full, _) = Headers::parse(&[bytes, vec![0; 52]].concat()).unwrap();
        assert_eq!(full.emit(&mut room).unwrap().len(), 64 - full.wire_len());

        let bare = Headers::new(Bth::new(opcode, Qpn::default(), Psn::default()));
        let alone = bare.emit(&mut room).map(|_| ());
        let expected = if opcode.headers().is_empty() { Ok(()) } else { Err(EmitError::Headers) };
        assert_eq!(alone, expected, "{opcode}");

        // No opcode has both of these.
        let (imm, ieth) = (ImmDt { immediate: 0 }, Ieth { rkey: Rkey::new(0) });
        let both = Headers { imm: Some(imm), ieth: Some(ieth), ..full };
        assert_eq!(both.emit(&mut room), Err(EmitError::Headers), "{opcode}");
        // As many headers as required, but the wrong ones.
        let other = Headers { ieth: Some(ieth), ..bare };
        if opcode.headers().len() == 1 && full.ieth.is_none() {
            assert_eq!(other.emit(&mut room), Err(EmitError::Headers), "{opcode}");
        }
    }
}

#[test]
fn the_pad_must_match_the_payload() {
    let opcode = Opcode::from_code(0).unwrap();
    for (payload, announced) in (0..8).flat_map(|len| (0..8).map(move |other| (len, other))) {
        let bth = Bth::new(opcode, Qpn::default(), Psn::default());
        let bth = Bth { pad_count: PadCount::of(announced), ..bth };
        let packet = Packet { headers: Headers::new(bth), payload: &[1; 8][..payload], icrc: 0 };
        let written = packet.emit(&mut [0; 64]).map(|datagram| datagram.len());
        let fits = payload % 4 == announced % 4;
        let expected = if fits { Ok(packet.wire_len()) } else { Err(EmitError::PadCount) };
        assert_eq!(written, expected, "{payload} {announced}");
    }
}

#[test]
fn excess_bits_of_a_number_change_no_other_field() {
    let mut bytes = [0; Aeth::LEN];
    let syndrome = Syndrome::Ack(CreditCount::UNLIMITED);
    Aeth { syndrome, msn: 0xff00_0001 }.emit(&mut bytes);
    assert_eq!(bytes, [0x1f, 0, 0, 1]);

    let (_, udp, _) = sent();
    let ip = Ipv6Header::new([0; 16].into(), [0; 16].into(), &udp);
    let mut bytes = [0; Ipv6Header::LEN];
    Ipv6Header { traffic_class: 0xb7, flow_label: 0xfff0_0001, ..ip }.emit(&mut bytes);
    assert_eq!(bytes[..4], [0x6b, 0x70, 0, 1]);
}

/// A SEND of 21 bytes, and the headers that it had.
fn sent() -> (IpHeader, UdpHeader, Vec<u8>) {
    let datagram = crate::pcap::datagrams("rxe")[0];
    let (ip, carried) = IpHeader::parse(datagram).unwrap();
    let (udp, packet) = carried.split_first_chunk().unwrap();
    (ip, UdpHeader::parse(udp), packet[..packet.len() - 4].to_vec())
}

#[test]
fn the_icrc_covers_each_bit_of_the_packet_except_congestion_bits() {
    let (ip, udp, packet) = sent();
    let right = icrc(&ip, &udp, &packet);
    for bit in 0..packet.len() * 8 {
        let mut flipped = packet.clone();
        flipped[bit / 8] ^= 1 << (bit % 8);
        let same = icrc(&ip, &udp, &flipped) == right;
        assert_eq!(same, bit / 8 == 4, "bit {bit}");
    }
    // Too short for a packet, but no reason to panic.
    assert_ne!(icrc(&ip, &udp, &packet[..11]), icrc(&ip, &udp, &[]));
}

#[test]
fn the_icrc_covers_all_fields_that_routers_keep() {
    let (ip, udp, packet) = sent();
    let IpHeader::V4(v4) = ip else { panic!("{ip:?}") };
    let v6 = Ipv6Header::new("fe80::1".parse().unwrap(), "fe80::2".parse().unwrap(), &udp);
    let of_v4 = |v4| icrc(&IpHeader::V4(v4), &udp, &packet);
    let of_v6 = |v6| icrc(&IpHeader::V6(v6), &udp, &packet);
    let of_udp = |udp| icrc(&ip, &udp, &packet);

    let (right, right_v6) = (of_v4(v4), of_v6(v6));
    assert_eq!(of_v4(Ipv4Header { tos: 0xb7, ttl: 1, ..v4 }), right);
    assert_eq!(of_udp(UdpHeader { checksum: 0x1234, ..udp }), right);
    let moved = Ipv6Header { traffic_class: 0xb7, flow_label: 0xabcde, hop_limit: 1, ..v6 };
    assert_eq!(of_v6(moved), right_v6);

    let changed = [
        of_v4(Ipv4Header { total_length: 69, ..v4 }),
        of_v4(Ipv4Header { identification: 0, ..v4 }),
        of_v4(Ipv4Header { dont_fragment: false, ..v4 }),
        of_v4(Ipv4Header { source: v4.destination, ..v4 }),
        of_v4(Ipv4Header { destination: v4.source, ..v4 }),
        of_udp(UdpHeader { source_port: 1, ..udp }),
        of_udp(UdpHeader { destination_port: 1, ..udp }),
        of_udp(UdpHeader { length: 1, ..udp }),
    ];
    assert!(!changed.contains(&right), "{changed:x?}");
    let changed = [
        of_v6(Ipv6Header { payload_length: 1, ..v6 }),
        of_v6(Ipv6Header { source: v6.destination, ..v6 }),
        of_v6(Ipv6Header { destination: v6.source, ..v6 }),
    ];
    assert!(!changed.contains(&right_v6), "{changed:x?}");
}

#[test]
fn other_ip_datagrams_are_refused() {
    let datagram = crate::pcap::datagrams("rxe")[0];
    let with = |at: usize, value: u8| {
        let mut bytes = datagram.to_vec();
        bytes[at] = value;
        IpHeader::parse(&bytes).map(|_| ()).unwrap_err()
    };
    assert_eq!(with(0, 0x46), ParseError::Ipv4Options(6));
    assert_eq!(with(0, 0x55), ParseError::IpVersion(5));
    assert_eq!(with(6, 0x60), ParseError::Fragment);
    assert_eq!(with(7, 0x01), ParseError::Fragment);
    assert_eq!(with(8, 0x3f), ParseError::Ipv4Checksum);
    assert_eq!(with(9, 6), ParseError::Protocol(6));
    for len in 0..datagram.len() {
        assert_eq!(IpHeader::parse(&datagram[..len]), Err(ParseError::Truncated), "{len}");
    }
    let padded = [datagram, &[0; 6]].concat();
    let (_, carried) = IpHeader::parse(&padded).unwrap();
    assert_eq!(carried, &datagram[20..], "the padding of Ethernet is left out");
}

proptest! {
    #[test]
    fn bytes_of_a_packet_are_written_unchanged(
        opcode in prop::sample::select(opcodes()),
        flags: u8,
        p_key: [u8; 2],
        words in prop::collection::vec(any::<[u8; 4]>(), 11..80),
    ) {
        let first = [[opcode.code(), flags & 0xf0], p_key].concat();
        prop_assert_eq!(read_and_write(&[first, words.concat()].concat()), Ok(()));
    }

    #[test]
    fn any_bytes_are_read_without_panic(bytes in prop::collection::vec(any::<u8>(), 0..100)) {
        let _ = read_and_write(&bytes);
        let _ = IpHeader::parse(&bytes);
    }

    #[test]
    fn modified_captured_packets_are_written_unchanged(
        (name, _) in prop::sample::select(crate::pcap::CAPTURES.to_vec()),
        which: prop::sample::Index,
        changes in prop::collection::vec((0..60_usize, any::<u8>()), 1..4),
    ) {
        let mut bytes = which.get(&crate::pcap::datagrams(name)).to_vec();
        for (at, value) in changes {
            if let Some(byte) = bytes.get_mut(at) {
                *byte = value;
            }
        }
        if let Ok((_, carried)) = IpHeader::parse(&bytes) {
            let _ = read_and_write(carried.get(UdpHeader::LEN..).unwrap_or_default());
        }
        let _ = read_and_write(bytes.get(28..).unwrap_or_default());
    }

    #[test]
    fn ipv4_headers_are_written_unchanged(
        tos: u8,
        ttl: u8,
        dont_fragment: bool,
        total_length: u16,
        identification: u16,
        source: [u8; 4],
        destination: [u8; 4],
    ) {
        let (source, destination) = (source.into(), destination.into());
        let ip = Ipv4Header {
            tos, total_length, identification, dont_fragment, ttl, source, destination,
        };
        let mut bytes = [0; Ipv4Header::LEN];
        ip.emit(&mut bytes);
        prop_assert_eq!(Ipv4Header::parse(&bytes), Ok(ip));
    }

    #[test]
    fn ipv6_headers_are_written_unchanged(mut bytes: [u8; Ipv6Header::LEN]) {
        bytes[0] = 0x60 | bytes[0] & 0x0f;
        bytes[6] = 17;
        let mut again = [0; Ipv6Header::LEN];
        Ipv6Header::parse(&bytes).unwrap().emit(&mut again);
        prop_assert_eq!(again, bytes);
    }
}
