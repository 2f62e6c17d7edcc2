//! Packets that an input describes.

use rdma_proto::wire::{Header, Opcode, Operation, Service};
use test_support::rig::datagram::QKEY;

use super::input::Packet;
use super::world::{PROBE_QKEY, World};

/// A packet without its pad and its ICRC.
pub(crate) struct Piece {
    pub(crate) headers: Vec<u8>,
    pub(crate) payload: Vec<u8>,
}

/// The packets of a step: one, or a whole run that ends with an opcode.
pub(crate) fn pieces(world: &mut World, packet: &Packet, count: u8, last: u8) -> Vec<Piece> {
    let is_response = Opcode::from_code(packet.opcode).is_some_and(|o| o.operation().is_response());
    let victim = world.victim(packet.to);
    let base = if is_response { victim.own_psn } else { victim.next_psn };
    let psn = base
        .wrapping_add_signed(i32::from(packet.psn.cast_signed()))
        .wrapping_add(u32::from(packet.far) << 16);
    if !is_response && packet.psn == 0 && packet.far == 0 {
        victim.next_psn = (victim.next_psn + u32::from(count)) & 0x00ff_ffff;
    }
    let length = usize::from(packet.length) % 4200;
    let pieces = (0..count).map(|n| {
        let opcode = match n {
            0 => packet.opcode,
            n if n + 1 == count => last,
            _ => middle(packet.opcode),
        };
        let headers = headers(world, packet, opcode, psn.wrapping_add(n.into()));
        let payload = (0..length).map(|at| packet.fill.wrapping_add(at as u8)).collect();
        Piece { headers, payload }
    });
    pieces.collect()
}

/// The opcode of the packets between the first and the last.
pub(crate) fn middle(opcode: u8) -> u8 {
    let operation = match opcode & 0x1f {
        first if first == Operation::SendFirst as u8 => Operation::SendMiddle,
        first if first == Operation::RdmaWriteFirst as u8 => Operation::RdmaWriteMiddle,
        first if first == Operation::RdmaReadResponseFirst as u8 => {
            Operation::RdmaReadResponseMiddle
        }
        _ => return opcode,
    };
    opcode & 0xe0 | operation as u8
}

fn headers(world: &World, packet: &Packet, opcode: u8, psn: u32) -> Vec<u8> {
    let length = usize::from(packet.length) % 4200;
    let pad = (length.wrapping_neg() & 3) as u8;
    let flags = match packet.shape & Packet::OWN_PAD {
        0 => packet.bits & !0x30 | pad << 4,
        _ => packet.bits,
    };
    let p_key: u16 = match packet.p_key {
        0 => 0xffff,
        1 => 0x7fff,
        other => u16::from(other) << 8,
    };
    let mut bytes = bth(opcode, world.number(packet.to), psn);
    bytes[1] = flags;
    bytes[2..4].copy_from_slice(&p_key.to_be_bytes());
    bytes[8] = packet.ack;
    let (va, rkey) = (world.memory.address(packet.key, packet.at), world.memory.key(packet.key));
    for header in Opcode::from_code(opcode).map_or(&[][..], Opcode::headers) {
        match header {
            Header::Deth => {
                let own = packet.shape & Packet::OWN_QKEY != 0;
                let qkey = if own { packet.dma.into() } else { QKEY };
                bytes.extend(deth(qkey, packet.msn.into()));
            }
            Header::Reth => {
                bytes.extend(va.to_be_bytes());
                bytes.extend(rkey.to_be_bytes());
                bytes.extend(remote_length(packet.dma, length).to_be_bytes());
            }
            Header::AtomicEth => {
                bytes.extend(va.to_be_bytes());
                bytes.extend(rkey.to_be_bytes());
                bytes.extend(u64::from(packet.dma).to_be_bytes());
                bytes.extend(u64::from(packet.msn).to_be_bytes());
            }
            Header::Aeth => bytes.extend([packet.syndrome, 0, 0, packet.msn]),
            Header::AtomicAckEth => bytes.extend(u64::from(packet.dma).to_be_bytes()),
            Header::ImmDt => bytes.extend([packet.msn; 4]),
            Header::Ieth => bytes.extend(rkey.to_be_bytes()),
            other => panic!("cannot fill this header: {other:?}"),
        }
    }
    bytes
}

/// The length in a RETH: the actual one, or another.
fn remote_length(code: u16, length: usize) -> u32 {
    match code {
        0 => length as u32,
        0xffff => u32::MAX,
        0xfffe => 1 << 31,
        other => u32::from(other),
    }
}

fn bth(opcode: u8, to: u32, psn: u32) -> Vec<u8> {
    let mut bytes = vec![opcode, 0, 0xff, 0xff];
    bytes.extend((to & 0x00ff_ffff).to_be_bytes());
    bytes.extend((psn & 0x00ff_ffff).to_be_bytes());
    bytes
}

fn deth(qkey: u32, source: u32) -> [u8; 8] {
    let mut bytes = [0; 8];
    bytes[..4].copy_from_slice(&qkey.to_be_bytes());
    bytes[4..].copy_from_slice(&source.to_be_bytes());
    bytes
}

/// A datagram that marks the end of the data before it.
pub(crate) fn mark(world: &World) -> Piece {
    let opcode = Opcode::new(Service::Ud, Operation::SendOnlyWithImmediate).expect("datagrams do");
    let mut headers = bth(opcode.code(), world.probe(), 0);
    headers.extend(deth(PROBE_QKEY, 1));
    headers.extend(world.marks.to_be_bytes());
    Piece { headers, payload: Vec::new() }
}

/// Replaces a queue pair number that no input may name in raw bytes.
pub(crate) fn spare(world: &World, bytes: &mut [u8], at: usize) {
    if let Some(number) = bytes.get_mut(at + 5..at + 8) {
        let found = number.iter().fold(0, |all, byte| all << 8 | u32::from(*byte));
        if world.is_apart(found) {
            number.fill(0);
        }
    }
}

/// Applies the final changes to bytes that contain a packet.
pub(crate) fn reshape(packet: &Packet, bytes: &mut Vec<u8>, begin: usize) {
    if packet.shape & Packet::CUT != 0 {
        bytes.truncate(bytes.len().saturating_sub(packet.msn.into()));
    }
    if packet.shape & Packet::LONG != 0 {
        bytes.resize(bytes.len() + 4096, 0);
    }
    if packet.shape & Packet::DAMAGED != 0 && !bytes.is_empty() {
        let at = usize::from(packet.msn) * 17 % bytes.len();
        // Not the destination: the result might be a queue pair that no input may name.
        if !(begin + 4..begin + 8).contains(&at) {
            bytes[at] ^= 1 << (packet.fill % 8);
        }
    }
}
