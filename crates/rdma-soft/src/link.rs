//! Link layers, and how packets go over them.

#[allow(dead_code)] // Nobody writes one yet.
pub(crate) mod frame;
pub(crate) mod memory;
pub(crate) mod model;

/// The link layer of a device's port.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
#[non_exhaustive]
pub enum Link {
    /// RoCE: addresses are GIDs (link-local and IPv4-mapped, for RoCE v1 and v2).
    #[default]
    Ethernet,
    /// InfiniBand: the address is a LID.
    InfiniBand,
}
