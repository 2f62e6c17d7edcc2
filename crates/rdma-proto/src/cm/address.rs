//! The peer of a connection: its address and its communication ID.

use core::fmt;

use rdma_types::{Gid, Lid};

/// The number that one end gives to a connection (IBTA tables 106 to 113). A SIDR_REQ names its
/// request the same way.
#[derive(Clone, Copy, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct CommId(u32);

impl CommId {
    /// The ID in messages whose sender does not know it.
    pub const NONE: Self = Self(0);

    /// Creates the ID with this number.
    #[must_use]
    pub const fn new(id: u32) -> Self {
        Self(id)
    }

    /// Returns the number.
    #[must_use]
    pub const fn get(self) -> u32 {
        self.0
    }

    /// Returns the slot: the upper 12 bits. All IDs of a [`Manager`](super::Manager) have its slot.
    ///
    /// A caller with several managers passes a REQ or SIDR_REQ to the one that listens to the
    /// service. It passes any other message to the one with the slot of the receiver's ID. A REJ
    /// that withdraws a REQ may have no such ID ([`NONE`](Self::NONE)): it goes to each manager, and
    /// at most one of them matches it.
    #[must_use]
    pub const fn slot(self) -> u16 {
        let [_, _, high, low] = (self.0 >> 20).to_be_bytes();
        u16::from_be_bytes([high, low])
    }
}

impl fmt::Debug for CommId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "CommId({self})")
    }
}

impl fmt::Display for CommId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{:#010x}", self.0)
    }
}

/// The source of a received MAD, or the destination of one to send. The source is that of the
/// packet's headers, never one in the MAD.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
#[non_exhaustive]
pub enum Address {
    /// The GID in the route header. All packets of RoCE have one.
    Gid(Gid),
    /// The LID, for packets of InfiniBand without a route header.
    Lid(Lid),
}
