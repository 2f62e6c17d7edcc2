//! Link layers, and the transports that carry packets over them.

#[cfg(not(loom))] // models have one process
pub(crate) mod descriptor;
#[cfg(not(loom))]
mod driver;
#[cfg_attr(loom, allow(dead_code))] // models use only its words
pub(crate) mod executed;
#[cfg(not(loom))]
mod expendable;
#[cfg(not(loom))]
mod files;
pub(crate) mod frame;
#[cfg(not(loom))]
pub(crate) mod local;
pub(crate) mod memory;
pub(crate) mod model;
mod outbox;
pub(crate) mod pcap;
#[cfg_attr(loom, allow(dead_code))] // models use only its words
mod ring;
#[cfg_attr(loom, allow(dead_code))] // no model uses virtual time
pub(crate) mod simulation;
mod task_queue;
#[cfg(not(loom))]
pub(crate) mod udp;

/// The link layer of a device's port.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
#[non_exhaustive]
pub enum Link {
    /// RoCE: addresses are GIDs, by default link-local and IPv4-mapped ones for RoCE v1 and v2.
    #[default]
    Ethernet,
    /// InfiniBand: the address is a LID.
    InfiniBand,
}
