//! Where a queue pair is: port addresses and the path between two of them.

use rdma_types::{Gid, GidType};

/// One row of a port's GID table.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct GidEntry {
    pub(crate) gid: Gid,
    pub(crate) kind: GidType,
}

/// The address of a port, as far as a packet needs it.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Address {
    Lid(u16),
    Gid(GidEntry),
}

/// From here to there; the way back has them exchanged.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Path {
    pub(crate) local: Address,
    pub(crate) remote: Address,
}

impl Path {
    pub(crate) fn is_reverse_of(&self, other: &Path) -> bool {
        self.local == other.remote && self.remote == other.local
    }
}
