//! What both halves of a connected queue pair know of it.

use rdma_types::{Mtu, Psn, Qpn};

use crate::wire::{Bth, Headers, Opcode};

/// The far end, and the path to it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Connection {
    /// The queue pair there.
    pub peer: Qpn,
    /// The partition, [`Bth::DEFAULT_P_KEY`] on most networks.
    pub p_key: u16,
    /// How much payload a packet has at most, and one that others of its message follow has exactly.
    pub mtu: Mtu,
}

impl Connection {
    /// To that queue pair, in the default partition.
    #[must_use]
    pub const fn new(peer: Qpn, mtu: Mtu) -> Self {
        Self { peer, p_key: Bth::DEFAULT_P_KEY, mtu }
    }

    /// How many packets a message of so many bytes has: even no bytes have one (IBTA chapter 9, packet sequence numbers).
    #[must_use]
    #[inline]
    pub fn packets(&self, length: u32) -> u32 {
        let full = length.saturating_add(self.mtu.bytes().wrapping_sub(1));
        (full >> self.shift()).max(1)
    }

    /// The logarithm of the MTU.
    #[inline]
    const fn shift(&self) -> u32 {
        7_u32.wrapping_add(self.mtu.code() as u32)
    }

    /// Where the packet with that index begins in its message, in bytes.
    #[inline]
    pub(crate) fn offset(&self, packet: u32) -> u32 {
        packet.wrapping_shl(self.shift())
    }

    /// How many packets a buffer of so many bytes holds.
    #[inline]
    pub(crate) fn full_packets(&self, bytes: u32) -> u32 {
        bytes.wrapping_shr(self.shift())
    }

    /// The headers of a packet to the peer.
    #[inline]
    pub(crate) fn headers(&self, opcode: Opcode, psn: Psn) -> Headers {
        Headers::new(Bth { p_key: self.p_key, ..Bth::new(opcode, self.peer, psn) })
    }
}
