//! State that both halves of a connected queue pair use.

use rdma_types::{Mtu, Psn, Qpn};

use crate::wire::{Bth, Headers, Opcode};

/// The peer and the path to it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Connection {
    /// The peer's queue pair.
    pub peer: Qpn,
    /// The partition, [`Bth::DEFAULT_P_KEY`] on most networks.
    pub p_key: u16,
    /// The maximum payload of a packet. Each packet of a message except the last has exactly this
    /// size.
    pub mtu: Mtu,
}

impl Connection {
    /// Creates a connection to this queue pair, in the default partition.
    #[must_use]
    pub const fn new(peer: Qpn, mtu: Mtu) -> Self {
        Self { peer, p_key: Bth::DEFAULT_P_KEY, mtu }
    }

    /// Returns the number of packets in a message of `length` bytes. An empty message still takes
    /// one packet (IBTA chapter 9, packet sequence numbers).
    #[must_use]
    #[inline]
    pub fn packets(&self, length: u32) -> u32 {
        let full = length.saturating_add(self.mtu.bytes().wrapping_sub(1));
        (full >> self.shift()).max(1)
    }

    /// Returns the base-2 logarithm of the MTU.
    #[inline]
    const fn shift(&self) -> u32 {
        7_u32.wrapping_add(self.mtu.code() as u32)
    }

    /// Returns this packet's offset in its message, in bytes.
    #[inline]
    pub(crate) fn offset(&self, packet: u32) -> u32 {
        packet.wrapping_shl(self.shift())
    }

    /// Returns how many full packets fit into `bytes` bytes.
    #[inline]
    pub(crate) fn full_packets(&self, bytes: u32) -> u32 {
        bytes.wrapping_shr(self.shift())
    }

    /// Returns the headers of a packet to the peer.
    #[inline]
    pub(crate) fn headers(&self, opcode: Opcode, psn: Psn) -> Headers {
        Headers::new(Bth { p_key: self.p_key, ..Bth::new(opcode, self.peer, psn) })
    }
}
