#![allow(clippy::unwrap_used)] // A failing helper fails its test.

use rdma_proto::wire::{
    Aeth, Bth, CreditCount, Deth, ImmDt, Opcode, Operation, PadCount, Reth, Service, Syndrome,
};
use rdma_proto::{Burst, Last};
use rdma_types::{Psn, Qpn, Rkey};

use super::*;
use crate::engine::completion::work_completion::Source;
use crate::engine::operation::Opcode as Posted;

fn bth(service: Service, operation: Operation, length: usize) -> Bth {
    let opcode = Opcode::new(service, operation).unwrap();
    Bth {
        pad_count: PadCount::of(length),
        ..Bth::new(opcode, Qpn::masked(0x0012_3456), Psn::masked(7))
    }
}

fn gids(kind: GidType, from: &str, to: &str) -> Path {
    let [local, remote] = [from, to].map(|gid| {
        let gid = gid.parse().unwrap();
        Address::Gid(GidEntry { gid, kind })
    });
    Path { local, remote }
}

const LIDS: Path = Path { local: Address::Lid(0x17d2), remote: Address::Lid(0x375c) };

/// Returns a path for each kind of address, with the number of bytes before the BTH.
fn paths() -> [(Path, usize); 6] {
    let (v1, v2) = (GidType::ROCE_V1, GidType::ROCE_V2);
    let (one, other) = ("fe80::211:22ff:fe33:4455", "fe80::2aa:bbff:fecc:ddee");
    let (one4, other4) = ("::ffff:240.0.1.1", "::ffff:240.0.1.2");
    [
        (gids(v2, one4, other4), 14 + 20 + 8),
        (gids(v2, one, other), 14 + 40 + 8),
        (gids(v1, one4, other4), 14 + 40),
        (gids(v1, one, other), 14 + 40),
        (gids(GidType::IB, one, other), 14 + 40),
        (LIDS, 8),
    ]
}

/// Returns a datagram with a route header.
fn datagram(path: &Path, length: u64) -> Datagram {
    let gid = |at: u16| gids(GidType::IB, &format!("fe80::{at}"), "fe80::9").local;
    let (Address::Gid(source), Address::Gid(to)) = (match path.local {
        Address::Lid(lid) => (gid(lid), gid(1)),
        Address::Gid(_) => (path.local, path.remote),
    }) else {
        unreachable!()
    };
    let destination = to.gid;
    let way = Route { source, destination, traffic_class: 0x5a, flow_label: 0x54321, hop_limit: 3 };
    let source = Source { qpn: 0x99, lid: 1, service_level: 5, path_bits: 0 };
    let header = Some(route_header::of(&way, Posted::SendWithImm, length));
    Datagram { source, header, group: None }
}

fn link(path: &Path) -> Link {
    if *path == LIDS { Link::InfiniBand } else { Link::Ethernet }
}

fn written(path: &Path, with: Option<&Datagram>, headers: &Headers, payload: &[u8]) -> Vec<u8> {
    let mut out = vec![9; 3];
    write(path, with, headers, payload, &mut out).unwrap();
    assert_eq!(out[..3], [9; 3], "the frame is appended");
    out.split_off(3)
}

#[test]
fn written_frames_are_parsed_to_the_same_packets() {
    let payload: Vec<u8> = (0..4096).map(|n: u32| (n % 251) as u8).collect();
    let reth = Reth { va: 0x1122_3344_5566_7788, rkey: Rkey::new(0x99aa), length: 1 << 20 };
    let aeth = Aeth { syndrome: Syndrome::Ack(CreditCount::UNLIMITED), msn: 3 };
    for (path, front) in paths() {
        for length in [0, 1, 2, 3, 4, 1024, 4096] {
            let of = |operation| Headers::new(bth(Service::Rc, operation, length));
            let write = Headers { reth: Some(reth), ..of(Operation::RdmaWriteOnly) };
            let answer = Headers { aeth: Some(aeth), ..of(Operation::RdmaReadResponseLast) };
            for headers in [of(Operation::SendMiddle), write, answer] {
                let frame = written(&path, None, &headers, &payload[..length]);
                let found = check(link(&path), &frame).unwrap();
                assert_eq!(found.headers, headers);
                assert_eq!(found.payload.start, front + headers.wire_len());
                assert_eq!(frame[found.payload], payload[..length]);
            }
        }
    }
}

/// The route of the address handle precedes the datagram, even in an InfiniBand packet that would not need a route.
#[test]
fn a_datagram_has_the_route_of_its_address_handle() {
    let payload = [7; 33];
    for (path, front) in paths() {
        let headers = Headers {
            deth: Some(Deth { qkey: 0x1234, source: Qpn::masked(0x99) }),
            imm: Some(ImmDt { immediate: 5 }),
            ..Headers::new(bth(Service::Ud, Operation::SendOnlyWithImmediate, payload.len()))
        };
        let with = datagram(&path, payload.len() as u64);
        let frame = written(&path, Some(&with), &headers, &payload);
        let found = check(link(&path), &frame).unwrap();
        assert_eq!((found.headers, &frame[found.payload.clone()]), (headers, &payload[..]));
        let header = with.header.unwrap();
        let in_front = if path == LIDS { (0..8, 8..48) } else { (0..14, 14..front) };
        let written = &frame[in_front.1];
        let expected = if front == 42 { &header[20..] } else { &header[..] };
        assert_eq!(written[..expected.len()], *expected);
        if path == LIDS {
            assert_eq!(frame[in_front.0], [0, 0x53, 0x37, 0x5c, 0, 0x1c, 0x17, 0xd2]);
            let local = Datagram { header: None, ..with };
            let frame = written_without_route(&path, &local, &headers, &payload);
            assert_eq!(check(Link::InfiniBand, &frame).unwrap().headers, headers);
        }
    }
}

fn written_without_route(path: &Path, with: &Datagram, headers: &Headers, of: &[u8]) -> Vec<u8> {
    let frame = written(path, Some(with), headers, of);
    assert_eq!(frame[1] & 3, 2, "a BTH follows");
    frame
}

/// A flipped bit is found, except where routers may write and where no checksum applies.
#[test]
fn flipped_bits_are_found_unless_no_checksum_covers_them() {
    let payload = [0x5a; 6];
    let headers = Headers::new(bth(Service::Uc, Operation::SendOnly, payload.len()));
    for (path, front) in paths() {
        let frame = written(&path, None, &headers, &payload);
        let mut missed = Vec::new();
        for bit in 0..frame.len() * 8 {
            let mut damaged = frame.clone();
            damaged[bit / 8] ^= 1 << (bit % 8);
            if let Ok(found) = check(link(&path), &damaged) {
                assert_eq!(damaged[found.payload], payload);
                missed.push(bit / 8);
            }
        }
        missed.dedup();
        // Not covered: FECN and BECN; the UDP checksum; with IPv6 or a GRH, the traffic class, flow label and hop
        // limit.
        let way = [14, 15, 16, 17, 21];
        let expected = match front {
            8 => vec![],
            42 => vec![40, 41, front + 4],
            62 => [&way[..], &[60, 61, front + 4]].concat(),
            _ => [&way[..], &[front + 4]].concat(),
        };
        assert_eq!(missed, expected, "{path:?}");
    }
}

#[test]
fn bytes_that_are_not_a_frame_are_rejected() {
    let headers = Headers::new(bth(Service::Rc, Operation::SendOnly, 0));
    for (path, _) in paths() {
        let frame = written(&path, None, &headers, &[]);
        for length in 0..frame.len() {
            assert!(check(link(&path), &frame[..length]).is_err());
        }
        let other = if path == LIDS { Link::Ethernet } else { Link::InfiniBand };
        assert!(check(other, &frame).is_err());
    }
    let mut out = vec![1];
    let wrong = Headers { imm: Some(ImmDt { immediate: 0 }), ..headers };
    let result = write(&LIDS, None, &wrong, &[], &mut out);
    assert_eq!((result, &out[..]), (Err(EmitError::Headers), &[1][..]));
}

/// The packet and its ICRC are an example from the specification (volume 1, 7.8). Its VCRC, the last two bytes, was
/// computed separately, bit by bit.
#[test]
fn a_packet_of_the_specification_is_accepted() {
    let packet = [
        0x70, 0x12, 0x37, 0x5c, 0, 0x0e, 0x17, 0xd2, 0x0a, 0x20, 0x24, 0x87, 0, 0x87, 0xb1, 0xb3,
        0, 0x0d, 0xec, 0x2a, 1, 0x71, 0x0a, 0x1c, 1, 0x5d, 0x40, 2, 0x38, 0xf2, 0x7a, 5, 0, 0, 0,
        0x0e, 0xbb, 0x88, 0x4d, 0x85, 0xfd, 0x5c, 0xfb, 0xa4, 0x72, 0x8b, 0xc0, 0x69, 0x0e, 0xd4,
        0, 0, 0x96, 0x25, 0xb7, 0x5a, 0x45, 0xfa,
    ];
    let found = check(Link::InfiniBand, &packet).unwrap();
    assert_eq!(found.headers.bth.opcode.operation(), Operation::RdmaWriteOnly);
    assert_eq!(packet[found.payload].len(), 14);
}

/// Packets of the kernel's SoftRoCE are accepted once they have the Ethernet addresses that their ports would have
/// here.
#[test]
fn captured_packets_are_accepted() {
    let captures: [(&[u8], usize); 2] = [
        (include_bytes!("../../../../rdma-proto/tests/vectors/rxe.pcap"), 152),
        (include_bytes!("../../../../rdma-proto/tests/vectors/v6.pcap"), 5),
    ];
    for (capture, count) in captures {
        let mut rest = &capture[24..];
        let mut taken = 0;
        while !rest.is_empty() {
            let length = u32::from_le_bytes(rest[8..12].try_into().unwrap()) as usize;
            let (record, behind) = rest.split_at(16 + length);
            let mut frame = record[16..].to_vec();
            rest = behind;
            if frame[12] == 0x86 && frame[20] != 17 {
                // Skips the packets with which hosts discover their neighbours.
                continue;
            }
            assert_eq!(check(Link::Ethernet, &frame), Err(Damage::Station));
            let [from, to] = match frame[12..14] {
                [8, 0] => [26, 30].map(|at| {
                    let ip: [u8; 4] = frame[at..at + 4].try_into().unwrap();
                    Gid::from_ipv4(ip.into())
                }),
                _ => [22, 38].map(|at| Gid::from_bytes(frame[at..at + 16].try_into().unwrap())),
            };
            frame[..6].copy_from_slice(&mac(&to));
            frame[6..12].copy_from_slice(&mac(&from));
            check(Link::Ethernet, &frame).unwrap();
            taken += 1;
        }
        assert_eq!(taken, count);
    }
}

#[test]
fn packets_of_a_burst_are_frames_of_their_own() {
    let first = bth(Service::Rc, Operation::SendFirst, 256);
    let last = Bth { ack_request: true, ..bth(Service::Rc, Operation::SendLast, 87) };
    let burst = Burst {
        header: Headers::new(first),
        last: Some(Last::of(&Headers::new(last))),
        segment: 256,
        segments: 3,
        length: 599,
    };
    let payload: Vec<u8> = (0..599).map(|n: u32| (n % 251) as u8).collect();
    let mut received = Vec::new();
    for (n, (headers, payload)) in burst.packets(&payload).enumerate() {
        let frame = written(&LIDS, None, &headers, payload);
        let found = check(Link::InfiniBand, &frame).unwrap();
        assert_eq!(found.headers.bth.psn, first.psn.wrapping_add(u32::try_from(n).unwrap()));
        received.extend_from_slice(&frame[found.payload]);
    }
    assert_eq!(received, payload);
}

#[test]
fn an_ethernet_address_follows_from_each_gid() {
    let of = |gid: &str| mac(&gid.parse().unwrap());
    assert_eq!(of("::ffff:240.1.2.3"), [2, 0, 240, 1, 2, 3]);
    assert_eq!(of("fe80::211:22ff:fe33:4455"), [2, 0x11, 0x22, 0x33, 0x44, 0x55]);
    assert_eq!(of("2001:db8::11:22ff:fe33:4455"), [2, 0x11, 0x22, 0x33, 0x44, 0x55]);
}
