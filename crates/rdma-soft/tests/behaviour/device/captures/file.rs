//! Reads captures in the pcapng format, as far as a device writes it.

use std::path::Path;

use rdma_proto::wire::{IpHeader, Operation, Packet as Parsed, Service, UdpHeader};
use rdma_proto::wire::{icrc, icrc_behind};

use crate::device::rig::until;

const SECTION: u32 = 0x0a0d_0d0a;
const INTERFACE: u32 = 1;
const PACKET: u32 = 6;

pub(super) const ETHERNET: u16 = 1;
pub(super) const INFINIBAND: u16 = 197;

/// A packet as recorded in a file.
#[derive(Clone, Debug)]
pub(super) struct Packet {
    pub(super) device: String,
    pub(super) linktype: u16,
    pub(super) sent: bool,
    /// In nanoseconds since 1970.
    pub(super) time: u64,
    pub(super) frame: Vec<u8>,
}

/// Returns the packets of a file, once it has `count`: another thread may still be forwarding the last ones.
pub(super) fn read(path: &Path, count: usize) -> Vec<Packet> {
    let mut packets = Vec::new();
    until("the packets are in the file", || {
        let file = std::fs::read(path).unwrap();
        let is_whole = end(&file) == file.len();
        packets = if is_whole { all(&file) } else { Vec::new() };
        packets.len() >= count
    });
    assert_eq!(packets.len(), count);
    packets
}

/// The end of the last whole block.
fn end(file: &[u8]) -> usize {
    let mut end = 0;
    while file.len() >= end + 8 && file.len() >= end + u32_at(file, end + 4) as usize {
        end += u32_at(file, end + 4) as usize;
    }
    end
}

/// All packets of a complete file.
pub(super) fn all(file: &[u8]) -> Vec<Packet> {
    let mut rest = file;
    let mut devices = Vec::new();
    let mut packets = Vec::new();
    let mut first = true;
    while !rest.is_empty() {
        let (kind, length) = (u32_at(rest, 0), u32_at(rest, 4) as usize);
        let (block, behind) = rest.split_at(length);
        assert_eq!(u32_at(block, length - 4) as usize, length);
        let body = &block[8..length - 4];
        assert_eq!(std::mem::take(&mut first), kind == SECTION, "one section, at the beginning");
        match kind {
            SECTION => {
                assert_eq!((u32_at(body, 0), u32_at(body, 4)), (0x1a2b_3c4d, 1), "version 1.0");
                assert_eq!(body[8..16], [0xff; 8]);
                assert!(option(&body[16..], 4).unwrap().starts_with(b"rdma-soft "));
            }
            INTERFACE => {
                assert_eq!(option(&body[8..], 9).unwrap(), [9], "nanoseconds");
                let name = String::from_utf8(option(&body[8..], 2).unwrap()).unwrap();
                devices.push((name, u16_at(body, 0)));
            }
            PACKET => {
                let (device, linktype) = devices[u32_at(body, 0) as usize].clone();
                let time = u64::from(u32_at(body, 4)) << 32 | u64::from(u32_at(body, 8));
                let length = u32_at(body, 12) as usize;
                assert_eq!(length, u32_at(body, 16) as usize, "whole packets");
                let mut frame = body[20..20 + length].to_vec();
                if linktype == INFINIBAND {
                    // After a header that marks it, and repeats the time and the length.
                    let erf: Vec<u8> = frame.drain(..16).collect();
                    assert_eq!(erf[8..10], [21, 4]);
                    let length_at = |at| usize::from(u16_at(&erf, at).swap_bytes());
                    assert_eq!([10, 14].map(length_at), [length, length - 16]);
                    let [fraction, seconds] = [0, 4].map(|at| u64::from(u32_at(&erf, at)));
                    let erf_time = seconds * 1_000_000_000 + ((fraction * 1_000_000_000) >> 32);
                    assert!(time - erf_time < 2, "rounded down");
                }
                let options = &body[20 + length.next_multiple_of(4)..];
                let sent = match option(options, 2).unwrap()[..] {
                    [1, 0, 0, 0] => false,
                    [2, 0, 0, 0] => true,
                    ref other => panic!("flags {other:?}"),
                };
                packets.push(Packet { device, linktype, sent, time, frame });
            }
            other => panic!("a block of type {other:#x}"),
        }
        rest = behind;
    }
    packets
}

/// The option with that code.
fn option(options: &[u8], code: u16) -> Option<Vec<u8>> {
    let mut rest = options;
    while rest.len() >= 4 && u16_at(rest, 0) != 0 {
        let length = usize::from(u16_at(rest, 2));
        if u16_at(rest, 0) == code {
            return Some(rest[4..4 + length].to_vec());
        }
        rest = &rest[4 + length.next_multiple_of(4)..];
    }
    None
}

impl Packet {
    /// Parses the frame from its BTH on, and checks its ICRC.
    pub(super) fn parse(&self) -> Parsed<'_> {
        let frame = &self.frame[..];
        match (self.linktype, &frame[12..14]) {
            (ETHERNET, [0x89, 0x15]) => behind_grh(&frame[14..]),
            (ETHERNET, _) => {
                let (ip, datagram) = IpHeader::parse(&frame[14..]).unwrap();
                let (udp, packet) = datagram.split_first_chunk().unwrap();
                let udp = UdpHeader::parse(udp);
                assert_eq!(udp.destination_port, UdpHeader::ROCE_V2_PORT);
                assert!(udp.source_port >= 0xc000);
                sealed(packet, |covered| icrc(&ip, &udp, covered))
            }
            _ => {
                assert_eq!(self.linktype, INFINIBAND);
                let without_vcrc = &frame[..frame.len() - 2];
                match frame[1] & 3 {
                    2 => {
                        let mut front = frame[..8].to_vec();
                        front[0] |= 0xf0;
                        sealed(&without_vcrc[8..], |covered| icrc_behind(&front, covered))
                    }
                    3 => behind_grh(&without_vcrc[8..]),
                    other => panic!("{other} follows the LRH"),
                }
            }
        }
    }

    pub(super) fn service(&self) -> Service {
        self.parse().headers.bth.opcode.service()
    }

    pub(super) fn operation(&self) -> Operation {
        self.parse().headers.bth.opcode.operation()
    }
}

fn behind_grh(bytes: &[u8]) -> Parsed<'_> {
    let (grh, packet) = bytes.split_at(40);
    let mut front = [&[0xff; 8], grh].concat();
    front[8] |= 0x0f;
    for at in [9, 10, 11, 15] {
        front[at] = 0xff;
    }
    sealed(packet, |covered| icrc_behind(&front, covered))
}

fn sealed(packet: &[u8], icrc: impl FnOnce(&[u8]) -> u32) -> Parsed<'_> {
    let parsed = Parsed::parse(packet).unwrap();
    assert_eq!(parsed.icrc, icrc(&packet[..packet.len() - 4]), "{parsed:?}");
    parsed
}

fn u16_at(bytes: &[u8], at: usize) -> u16 {
    u16::from_le_bytes(bytes[at..at + 2].try_into().unwrap())
}

fn u32_at(bytes: &[u8], at: usize) -> u32 {
    u32::from_le_bytes(bytes[at..at + 4].try_into().unwrap())
}
