//! The facts about a machine and its devices on which `rdmatool doctor` bases its findings.

use std::fmt;

use rdma::device::{Gid, GidType};
use serde::{Serialize, Serializer};

use super::dcb::Dcb;

/// A value, or the reason why it is unknown.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "lowercase")]
pub(crate) enum Fact<T> {
    Value(T),
    Unknown(String),
}

impl<T> Fact<T> {
    pub(crate) fn value(&self) -> Option<&T> {
        match self {
            Self::Value(value) => Some(value),
            Self::Unknown(_) => None,
        }
    }

    pub(crate) fn and_then<U>(self, then: impl FnOnce(T) -> Fact<U>) -> Fact<U> {
        match self {
            Self::Value(value) => then(value),
            Self::Unknown(reason) => Fact::Unknown(reason),
        }
    }

    pub(crate) fn map<U>(self, then: impl FnOnce(T) -> U) -> Fact<U> {
        self.and_then(|value| Fact::Value(then(value)))
    }
}

impl<T: fmt::Display> fmt::Display for Fact<T> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Value(value) => value.fmt(f),
            Self::Unknown(reason) => write!(f, "unknown ({reason})"),
        }
    }
}

#[derive(Debug, Serialize)]
pub(crate) struct Facts {
    pub(crate) machine: Machine,
    pub(crate) devices: Vec<Device>,
}

#[derive(Debug, Serialize)]
pub(crate) struct Machine {
    pub(crate) kernel: Fact<String>,
    /// The version of the installed rdma-core.
    pub(crate) rdma_core: Fact<String>,
    /// The folder with copied files that were read instead of this machine's files.
    pub(crate) sysroot: Option<String>,
    pub(crate) memlock: Fact<Memlock>,
    pub(crate) huge_pages: Fact<HugePages>,
    pub(crate) cores: Fact<Cores>,
    pub(crate) iommu: Iommu,
    /// The environment variables that affect this stack, as `NAME=value`.
    pub(crate) environment: Vec<String>,
}

#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub(crate) struct Memlock {
    /// The soft limit in bytes, or `None` if memory locking is not limited.
    pub(crate) limit: Option<u64>,
    /// Whether the process has `CAP_IPC_LOCK`, which lifts the limit.
    pub(crate) is_lifted: bool,
}

#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub(crate) struct HugePages {
    pub(crate) total: u64,
    pub(crate) free: u64,
    /// The size of one huge page, in KiB.
    pub(crate) size_kib: u64,
}

#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub(crate) struct Cores {
    /// The core on which the process ran when this was read.
    pub(crate) current: u32,
    /// The cores that the process may use, in the kernel's format.
    pub(crate) allowed: String,
    /// The machine's NUMA nodes: the number of each, and its cores in the kernel's format.
    pub(crate) nodes: Vec<(u32, String)>,
}

#[derive(Debug, Serialize)]
pub(crate) struct Iommu {
    /// The IOMMU units in `/sys/class/iommu`.
    pub(crate) units: Vec<String>,
    /// The options on the kernel's command line that concern the IOMMU or PCI.
    pub(crate) options: Fact<Vec<String>>,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "lowercase")]
pub(crate) enum Kind {
    /// A device of the kernel, with its files in `/sys/class/infiniband`.
    Kernel,
    /// A software device of this process.
    Software,
}

#[derive(Debug, Serialize)]
pub(crate) struct Device {
    pub(crate) name: String,
    pub(crate) kind: Kind,
    /// The name of the device's file in `/dev/infiniband`.
    pub(crate) file: Fact<String>,
    /// The reason why the device could not be opened or queried. `None` if both succeeded, or if
    /// they were not tried because of `--sysroot`.
    pub(crate) open_error: Option<String>,
    /// The reason why no queue pair for a reliable connection could be created. `None` if one
    /// could, or if this was not tried.
    pub(crate) queue_pair_error: Option<String>,
    pub(crate) driver: Fact<String>,
    pub(crate) driver_version: Fact<String>,
    pub(crate) firmware: Fact<String>,
    pub(crate) hardware: Fact<String>,
    pub(crate) board: Fact<String>,
    /// The NUMA node, or a negative number if the device belongs to none.
    pub(crate) numa_node: Fact<i64>,
    /// The type of the device's IOMMU group, such as `identity`, `DMA` or `DMA-FQ`.
    pub(crate) iommu_type: Fact<String>,
    pub(crate) pci: Pci,
    pub(crate) ports: Vec<Port>,
    pub(crate) missing_features: Fact<Vec<Missing>>,
}

#[derive(Debug, Serialize)]
pub(crate) struct Pci {
    pub(crate) link_speed: Fact<String>,
    pub(crate) max_link_speed: Fact<String>,
    pub(crate) link_width: Fact<u32>,
    pub(crate) max_link_width: Fact<u32>,
    /// Whether the device may use relaxed ordering.
    pub(crate) relaxed_ordering: Fact<bool>,
}

/// A feature of this stack that the device lacks.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub(crate) struct Missing {
    pub(crate) feature: &'static str,
    /// The substitute for the feature, which either this stack or the program provides.
    pub(crate) instead: &'static str,
}

#[derive(Debug, Serialize)]
pub(crate) struct Port {
    pub(crate) number: u8,
    /// The port's state. `active` means that the port can transfer data.
    pub(crate) state: Fact<String>,
    pub(crate) physical_state: Fact<String>,
    /// `Ethernet` or `InfiniBand`.
    pub(crate) link_layer: Fact<String>,
    pub(crate) rate: Fact<String>,
    /// The MTU in use, in bytes.
    pub(crate) active_mtu: Fact<u32>,
    /// The largest MTU that the port supports, in bytes.
    pub(crate) max_mtu: Fact<u32>,
    pub(crate) lid: Fact<String>,
    pub(crate) gids: Vec<PortGid>,
    pub(crate) interfaces: Vec<Interface>,
    pub(crate) traffic_class: Fact<String>,
}

impl Port {
    pub(crate) fn is_ethernet(&self) -> bool {
        self.link_layer.value().is_some_and(|layer| layer == "Ethernet")
    }

    pub(crate) fn is_active(&self) -> Option<bool> {
        self.state.value().map(|state| state == "active")
    }
}

#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub(crate) struct PortGid {
    pub(crate) index: u32,
    #[serde(serialize_with = "as_text")]
    pub(crate) gid: Gid,
    #[serde(serialize_with = "as_text", rename = "type")]
    pub(crate) gid_type: GidType,
    /// The network interface to which the GID's address belongs.
    pub(crate) interface: Option<String>,
    /// The number of leading bits of the GID that identify the network.
    pub(crate) prefix_length: Option<u8>,
}

impl PortGid {
    /// Returns the network of the GID, such as `10.0.0.0/24`.
    pub(crate) fn network(&self) -> Option<String> {
        let length = u32::from(self.prefix_length?);
        let mask = u128::MAX.checked_shl(128 - length.min(128)).unwrap_or(0);
        let network = (u128::from_be_bytes(self.gid.to_bytes()) & mask).to_be_bytes();
        Some(match Gid::from_bytes(network).to_ipv4() {
            Some(address) if length >= 96 => format!("{address}/{}", length - 96),
            _ => format!("{}/{length}", Gid::from_bytes(network).to_ipv6()),
        })
    }
}

/// A network interface whose addresses are among the GIDs of a port.
#[derive(Debug, Serialize)]
pub(crate) struct Interface {
    pub(crate) name: String,
    pub(crate) mtu: Fact<u32>,
    pub(crate) state: Fact<String>,
    pub(crate) dcb: Fact<Dcb>,
}

fn as_text<S: Serializer>(value: &impl fmt::Display, to: S) -> Result<S::Ok, S::Error> {
    to.collect_str(value)
}
