//! The 40 bytes in front of a datagram: the header that it came with.

use anyhow::{Result, ensure};
use rdma_sys::ibv_wc_flags as Flags;
use rdma_types::Gid;
use test_support::rig::datagram::HEADER;

use crate::interop::command::{Completion, Piece};
use crate::interop::scene::{A, B, Scene, Side};

/// What `rig::datagram::vector` asks for.
const HOP_LIMIT: u8 = 61;
const FLOW_LABEL: u32 = 0x000a_bcde;

/// Protocol numbers in front of a BTH, by UDP and as it is.
const UDP: u8 = 17;
const IB: u8 = 0x1b;

/// Of a message of that length whose header begins there.
pub(super) fn ensure(
    scene: &mut Scene<'_>,
    got: &Completion,
    (at, length): Piece,
    imm: bool,
) -> Result<()> {
    ensure!(got.flags & Flags::IBV_WC_GRH.0 != 0, "the completion should say that it is there");
    let sender = scene.destination(A)?.qpn;
    ensure!(got.source == sender, "it came from {sender:#x}: {got:?}");
    let header = scene.bytes(B, (at, HEADER))?;
    let (from, to) =
        (Gid::from_bytes(scene.destination(A)?.gid), Gid::from_bytes(scene.destination(B)?.gid));
    // BTH, DETH, immediate data, padded payload, ICRC.
    let packet = 12 + 8 + if imm { 4 } else { 0 } + length.next_multiple_of(4) + 4;
    match (from.to_ipv4(), to.to_ipv4()) {
        (Some(from), Some(to)) => {
            let addresses = [from.octets(), to.octets()].concat();
            ipv4(scene, &header[20..], &addresses, packet)
        }
        _ => ipv6(scene, &header, &[from.to_bytes(), to.to_bytes()].concat(), packet),
    }
}

fn ensure_hop_limit(scene: &mut Scene<'_>, found: u8) -> Result<()> {
    let expected = scene.expected(A, HOP_LIMIT, "hop-limit-is-the-routes", 64);
    ensure!(found == expected, "the hop limit should be {expected}, not {found}");
    Ok(())
}

fn ipv4(scene: &mut Scene<'_>, header: &[u8], addresses: &[u8], packet: usize) -> Result<()> {
    ensure!(header[0] == 0x45 && header[9] == UDP, "no header of IPv4 and UDP: {header:x?}");
    ensure!(header[12..] == *addresses, "the addresses should be {addresses:?}: {header:?}");
    let total = usize::from(u16::from_be_bytes([header[2], header[3]]));
    ensure!(total == 28 + packet, "the total length should be {}, not {total}", 28 + packet);
    ensure_hop_limit(scene, header[8])?;
    let words = header.chunks(2).map(|two| u32::from(two[0]) << 8 | u32::from(two[1]));
    let sum: u32 = words.sum();
    let right = (sum & 0xffff) + (sum >> 16) == 0xffff;
    // What a device sends to itself goes through no network stack.
    let looped = is_looped(scene);
    let right_expected =
        if looped { scene.expected(A, true, "checksum-of-looped-headers", false) } else { true };
    ensure!(right == right_expected, "the checksum: {header:x?}");
    Ok(())
}

fn is_looped(scene: &Scene<'_>) -> bool {
    let device = |side: Side| &scene.facts(side).device;
    device(A) == device(B)
}

fn ipv6(scene: &mut Scene<'_>, header: &[u8], addresses: &[u8], packet: usize) -> Result<()> {
    let next = if scene.facts(A).ethernet { UDP } else { IB };
    ensure!(header[0] >> 4 == 6 && header[6] == next, "no header of IPv6: {header:x?}");
    ensure!(header[8..] == *addresses, "the addresses should be {addresses:x?}: {header:x?}");
    let length = usize::from(u16::from_be_bytes([header[4], header[5]]));
    let expected = packet + if next == UDP { 8 } else { 0 };
    // That of InfiniBand counts the ICRC too, as that of IPv6 counts all behind it.
    ensure!(length == expected, "the payload's length should be {expected}, not {length}");
    ensure_hop_limit(scene, header[7])?;
    let label = u32::from_be_bytes([header[0], header[1], header[2], header[3]]) & 0x000f_ffff;
    if scene.differs_by_udp(A, "flow-label-of-udp") {
        return Ok(());
    }
    let expected = scene.expected(A, FLOW_LABEL, "flow-label-of-ipv6", 0);
    ensure!(label == expected, "the flow label should be {expected:#x}, not {label:#x}");
    Ok(())
}
