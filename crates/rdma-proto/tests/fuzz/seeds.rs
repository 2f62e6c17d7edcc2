//! The seeds of the fuzzers: the captured conversations and messages of the communication manager, as inputs of the
//! targets.

use std::collections::BTreeSet;

use rdma_proto::cm::wire::{MAD_LEN, Mad, Message, Offer, Query, Req, SidrReq};
use rdma_proto::cm::{CommId, IpCmHeader};
use rdma_proto::wire::{Headers, IpHeader, Operation, Packet, Service, UdpHeader};
use rdma_types::{Guid, Psn, Rkey};

use crate::flow::{Captured, FLOWS, conversation};
use crate::harness::{Answer, Ask, Poll, Post, RKEY, Setting, Tag, VA};
use crate::pcap::{self, CAPTURES};

/// A target, a name, and the input.
pub(crate) type Seed = (&'static str, String, Vec<u8>);

/// Longer inputs slow the fuzzer down.
const MOST_BYTES: usize = 4096;

pub(crate) fn all() -> Vec<Seed> {
    let mut seeds = packets();
    seeds.extend(mads());
    for flow in &FLOWS {
        let name = format!("{}-{}-{:x}", flow.capture, flow.requester, flow.to);
        let packets = conversation(flow);
        seeds.push(("responder", name.clone(), asked(0, &packets)));
        seeds.push(("responder", format!("{name}-raw"), raw(&packets)));
        seeds.push(("requester", name, answered(0, &packets)));
    }
    for (number, service) in [(2, Service::Uc), (3, Service::Ud)] {
        let packets = of_service(service);
        let name = format!("{service:?}").to_lowercase();
        seeds.push(("responder", name.clone(), asked(number, &packets)));
        seeds.push(("requester", name, answered(number, &packets)));
    }
    for (.., bytes) in &mut seeds {
        bytes.truncate(MOST_BYTES);
    }
    seeds
}

/// A datagram of each opcode and IP version.
fn packets() -> Vec<Seed> {
    let (mut seeds, mut seen) = (Vec::new(), BTreeSet::new());
    for datagram in CAPTURES.iter().flat_map(|(name, _)| pcap::datagrams(name)) {
        let Ok((ip, carried)) = IpHeader::parse(datagram) else { continue };
        let Some(opcode) = carried.get(UdpHeader::LEN) else { continue };
        let version = if matches!(ip, IpHeader::V4(_)) { 4 } else { 6 };
        if seen.insert((version, *opcode)) {
            seeds.push(("packet", format!("v{version}-{opcode:02x}"), datagram.to_vec()));
        }
    }
    // A checksum that a sender writes as 0.
    let header =
        [69, 0, 0, 52, 255, 255, 0, 0, 0, 17, 255, 255, 255, 255, 255, 255, 93, 93, 93, 93];
    seeds.push(("packet", "v4-checksum".to_owned(), [&header[..], &[0; 32]].concat()));
    seeds
}

/// A REQ and a SIDR_REQ with IP addresses, and an empty message of each other kind.
fn mads() -> Vec<Seed> {
    let header = IpCmHeader::new([10, 0, 0, 1].into(), [10, 0, 0, 2].into(), 7).unwrap();
    let mut private_data = [0; IpCmHeader::LEN];
    header.emit(&mut private_data);
    let offer = Offer { mtu_code: 3, private_data: &private_data, ..Offer::default() };
    let query = Query { private_data: &private_data, ..Query::default() };
    let (local_id, ca_guid) = (CommId::new(1), Guid::from_u64(1));
    let messages = [
        Message::Req(Req { local_id, ca_guid, offer }),
        Message::SidrReq(SidrReq { request_id: local_id, query }),
    ];
    let with_content = messages.map(|message| Mad { tid: 1, message }.emit().unwrap());
    let empty = (0x11..=0x18).map(|attribute| {
        let mut mad = [0; MAD_LEN];
        mad[..4].copy_from_slice(&[1, 7, 2, 3]);
        mad[17] = attribute;
        mad
    });
    let all = with_content.into_iter().chain(empty).enumerate();
    all.map(|(n, mad)| ("mad", format!("{n}-{:02x}", mad[17]), mad.to_vec())).collect()
}

/// The packets of a service that has no connections in the list of flows.
fn of_service(service: Service) -> Vec<Captured> {
    let datagrams = pcap::datagrams("rxe").into_iter();
    let packets = datagrams.filter_map(|datagram| {
        let (_, carried) = IpHeader::parse(datagram).ok()?;
        let Packet { headers, payload, .. } = Packet::parse(carried.get(UdpHeader::LEN..)?).ok()?;
        Some(Captured { headers, payload })
    });
    packets.filter(|packet| packet.headers.bth.opcode.service() == service).collect()
}

fn setting(service: u8, psn: Psn) -> Setting {
    let (timeout, retries, rnr_retries, window) = (14, 7, 1, 128);
    let (mtu, resources, psn) = (0, 16, psn.get());
    Setting { service, mtu, resources, psn, timeout, retries, rnr_retries, window }
}

fn number(operation: Operation) -> u8 {
    Operation::ALL.iter().position(|&other| other == operation).unwrap() as u8
}

/// The distance from another PSN, clamped to the range of an input.
fn ahead(psn: Psn, of: Psn) -> i8 {
    psn.offset_from(of).clamp(-128, 127) as i8
}

/// The memory address and the length of a request.
fn place(headers: &Headers) -> (u64, u32) {
    let reth = headers.reth.map(|reth| (reth.va, reth.length));
    let atomic = headers.atomic.map(|atomic| (atomic.va, 8));
    reth.or(atomic).unwrap_or_default()
}

/// The number of PSNs that the packet uses.
fn psns(packet: &Captured) -> u32 {
    match packet.operation() {
        Operation::RdmaReadRequest => place(&packet.headers).1.div_ceil(256).max(1),
        _ => 1,
    }
}

/// The requests, for a responder.
fn asked(service: u8, packets: &[Captured]) -> Vec<u8> {
    let first = packets[0].psn();
    let (mut bytes, mut expected) = (Vec::new(), first);
    setting(service, first).write(&mut bytes);
    receives(service, &mut bytes);
    for packet in packets.iter().filter(|packet| !packet.operation().is_response()) {
        let Captured { headers, payload } = packet;
        let (va, length) = place(headers);
        let operand = headers.atomic.map_or(0, |atomic| atomic.swap_or_add as u8);
        let ask = Ask {
            operation: number(packet.operation()),
            flags: u8::from(headers.bth.ack_request) | u8::from(headers.bth.solicited) << 1,
            ahead: ahead(packet.psn(), expected),
            at: va as u16 & 0xfff,
            length: length.min(0xfff0) as u16,
            payload: payload.len() as u16,
            operand,
            more: 0,
        };
        if packet.psn() == expected {
            expected = expected.wrapping_add(psns(packet));
        }
        bytes.push(Tag::Packet as u8);
        ask.write(&mut bytes);
        poll(&mut bytes);
    }
    bytes
}

fn receives(service: u8, bytes: &mut Vec<u8>) {
    let tag = if service == 3 { Tag::Next } else { Tag::Post };
    for _ in 0..24 {
        bytes.push(tag as u8);
        bytes.extend(2048_u16.to_le_bytes());
    }
}

fn poll(bytes: &mut Vec<u8>) {
    bytes.push(Tag::Poll as u8);
    Poll { times: 9, room: 16 }.write(bytes);
}

/// The same packets as raw bytes, with addresses of existing memory.
fn raw(packets: &[Captured]) -> Vec<u8> {
    let mut bytes = Vec::new();
    setting(0, packets[0].psn()).write(&mut bytes);
    receives(0, &mut bytes);
    for packet in packets.iter().filter(|packet| !packet.operation().is_response()) {
        let Captured { mut headers, payload } = *packet;
        if let Some(reth) = &mut headers.reth {
            (reth.va, reth.rkey) = (VA + (reth.va & 0xfff), RKEY);
        }
        if let Some(atomic) = &mut headers.atomic {
            (atomic.va, atomic.rkey) = (VA + (atomic.va & 0xfff), RKEY);
        }
        if let Some(ieth) = &mut headers.ieth {
            ieth.rkey = Rkey::new(7);
        }
        let mut room = [0; 512];
        let datagram = Packet { headers, payload, icrc: 0 }.emit(&mut room).unwrap();
        bytes.push(Tag::Raw as u8);
        bytes.extend((datagram.len() as u16).to_le_bytes());
        bytes.extend(&*datagram);
        poll(&mut bytes);
    }
    bytes
}

/// The requests as they were posted, and the answers, for a requester.
fn answered(service: u8, packets: &[Captured]) -> Vec<u8> {
    let first = packets[0].psn();
    let (mut bytes, mut end, mut messages) = (Vec::new(), first, 0);
    setting(service, first).write(&mut bytes);
    for (at, packet) in packets.iter().enumerate() {
        if packet.operation().is_response() {
            answer(packet, end, messages, &mut bytes);
        } else if packet.psn().is_before(end) {
            // A retransmission.
            bytes.push(Tag::Next as u8);
            bytes.extend([0; 4]);
        } else {
            end = packet.psn().wrapping_add(psns(packet));
            if packet.operation().starts_message() {
                messages += 1;
                post(&packets[at..], &mut bytes);
            }
        }
        poll(&mut bytes);
    }
    bytes
}

/// The request that begins with the first packet.
fn post(packets: &[Captured], bytes: &mut Vec<u8>) {
    let first = &packets[0];
    let requests = packets.iter().filter(|packet| !packet.operation().is_response());
    let mut sent = 0;
    for packet in requests {
        sent += packet.payload.len();
        if packet.operation().ends_message() {
            break;
        }
    }
    let (va, announced) = place(&first.headers);
    let is_read = first.operation() == Operation::RdmaReadRequest;
    let kind = match (first.operation(), first.headers.reth) {
        (Operation::CompareSwap, _) => 3,
        (Operation::FetchAdd, _) => 4,
        (_, Some(_)) => 1 + u8::from(is_read),
        (_, None) => 0,
    };
    let length = if first.headers.reth.is_some() { announced as usize } else { sent };
    bytes.push(Tag::Post as u8);
    let at = va as u16 & 0xfff;
    Post { kind, flags: 0, length: length.min(0xfff0) as u16, at }.write(bytes);
}

fn answer(packet: &Captured, end: Psn, messages: u32, bytes: &mut Vec<u8>) {
    let aeth = packet.headers.aeth;
    let msn = aeth.map_or(0, |aeth| aeth.msn.wrapping_sub(messages).cast_signed());
    let answer = Answer {
        operation: number(packet.operation()),
        flags: Answer::FROM_END,
        ahead: ahead(packet.psn(), end),
        syndrome: aeth.map_or(0, |aeth| aeth.syndrome.code()),
        msn: msn.clamp(-128, 127) as i8,
        payload: packet.payload.len() as u16,
        more: 0,
    };
    bytes.push(Tag::Packet as u8);
    answer.write(bytes);
}
