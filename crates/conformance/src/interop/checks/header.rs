//! The 40 bytes before a received datagram, which contain the header that it arrived with.

use anyhow::{Result, ensure};
use rdma_sys::ibv_wc_flags as Flags;
use rdma_types::Gid;
use test_support::rig::datagram::HEADER;

use crate::interop::command::{Completion, Piece};
use crate::interop::scene::{A, B, Scene, Side};

/// The hop limit set by `rig::datagram::vector`.
const HOP_LIMIT: u8 = 61;
const FLOW_LABEL: u32 = 0x000a_bcde;

/// The number of UDP in the protocol field of an IP header.
const UDP: u8 = 17;
/// The number in the same field if the BTH follows directly, as in InfiniBand.
const IB: u8 = 0x1b;

/// Checks the header of a received message. The message has this length, and its header begins at
/// `at`.
pub(super) fn ensure(
    scene: &mut Scene<'_>,
    got: &Completion,
    (at, length): Piece,
    imm: bool,
) -> Result<()> {
    ensure!(got.flags & Flags::IBV_WC_GRH.0 != 0, "the completion should report a header");
    let sender = scene.destination(A)?.qpn;
    ensure!(got.source == sender, "the source should be {sender:#x}: {got:?}");
    let header = scene.bytes(B, (at, HEADER))?;
    let (from, to) =
        (Gid::from_bytes(scene.destination(A)?.gid), Gid::from_bytes(scene.destination(B)?.gid));
    // The BTH, the DETH, immediate data, the padded payload and the ICRC.
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
    ensure!(header[0] == 0x45 && header[9] == UDP, "not a header of IPv4 and UDP: {header:x?}");
    ensure!(header[12..] == *addresses, "the addresses should be {addresses:?}: {header:?}");
    let total = usize::from(u16::from_be_bytes([header[2], header[3]]));
    ensure!(total == 28 + packet, "the total length should be {}, not {total}", 28 + packet);
    ensure_hop_limit(scene, header[8])?;
    let words = header.chunks(2).map(|two| u32::from(two[0]) << 8 | u32::from(two[1]));
    let sum: u32 = words.sum();
    let right = (sum & 0xffff) + (sum >> 16) == 0xffff;
    // Packets that a device sends to itself do not go through a network stack.
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
    ensure!(header[0] >> 4 == 6 && header[6] == next, "not an IPv6 header: {header:x?}");
    ensure!(header[8..] == *addresses, "the addresses should be {addresses:x?}: {header:x?}");
    let length = usize::from(u16::from_be_bytes([header[4], header[5]]));
    let expected = packet + if next == UDP { 8 } else { 0 };
    // The length in an InfiniBand header covers everything after the header, including the ICRC.
    // The length in an IPv6 header does so too.
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
