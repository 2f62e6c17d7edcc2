//! Addresses of queue pairs: port addresses, the path between two of them, and the contents of an address handle.

use rdma_types::{Gid, GidType};

/// One row of a port's GID table.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct GidEntry {
    pub(crate) gid: Gid,
    pub(crate) kind: GidType,
}

/// The address of a port, as a packet contains it.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Address {
    Lid(u16),
    Gid(GidEntry),
}

impl Address {
    /// Returns true if this is an address of the loopback interface, 127.0.0.0/8.
    pub(crate) fn is_loopback(&self) -> bool {
        match self {
            Self::Lid(_) => false,
            Self::Gid(entry) => entry.gid.to_ipv4().is_some_and(|ip| ip.is_loopback()),
        }
    }
}

/// The path from a local to a remote address; the reverse path swaps them.
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

/// The path to a port as a program describes it, before any checks (`struct ibv_ah_attr`).
#[derive(Debug, Clone, Copy, Default)]
pub(crate) struct AddressAttributes {
    pub(crate) destination: [u8; 16],
    pub(crate) flow_label: u32,
    /// The index of the local address in the port's GID table.
    pub(crate) source_index: u8,
    pub(crate) hop_limit: u8,
    pub(crate) traffic_class: u8,
    pub(crate) destination_lid: u16,
    pub(crate) service_level: u8,
    pub(crate) source_path_bits: u8,
    pub(crate) static_rate: u8,
    /// If this is not 0, packets have a global route header, built from `destination`, `flow_label`, `source_index`,
    /// `hop_limit` and `traffic_class`. The value is kept as the program passed it.
    pub(crate) is_global: u8,
    pub(crate) port: u8,
}

/// The destination of datagrams, and their header fields.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct AddressVector {
    /// The protection domain whose queue pairs may use this vector.
    pub(crate) pd: u64,
    pub(crate) path: Path,
    /// 4 bits.
    pub(crate) service_level: u8,
    /// The contents of the global route header; if `None`, packets have no such header.
    pub(crate) route: Option<Route>,
}

impl AddressVector {
    /// Returns the group to which multicast datagrams go, or `None` if the vector has no route. If the vector leads to
    /// a single port, the returned group has no members, because no queue pair can join it.
    pub(crate) fn group(&self) -> Option<Group> {
        let lid = match self.path.remote {
            Address::Lid(lid) => lid,
            Address::Gid(_) => 0,
        };
        self.route.map(|route| Group { gid: route.destination, lid })
    }
}

/// The address of a multicast group.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) struct Group {
    pub(crate) gid: Gid,
    /// 0 on Ethernet, where the number that a program passes has no meaning (IBTA volume 1, annex A16).
    pub(crate) lid: u16,
}

/// The header fields that routers between networks use (IBTA volume 1, 8.3).
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Route {
    pub(crate) source: GidEntry,
    pub(crate) destination: Gid,
    pub(crate) traffic_class: u8,
    /// 20 bits.
    pub(crate) flow_label: u32,
    pub(crate) hop_limit: u8,
}
