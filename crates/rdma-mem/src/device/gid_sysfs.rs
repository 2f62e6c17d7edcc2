//! GID types from sysfs, for a libibverbs (rdma-core before 32) that does not report them.

use std::fs;
use std::path::Path;

use rdma_types::{GidType, LinkLayer};

use crate::device::context::Context;
use crate::device::gid::GidEntry;
use crate::device::port::PortAttributes;
use crate::error::Error;

const CLASS: &str = "/sys/class/infiniband";

pub(crate) fn query(context: &Context, ports: &[PortAttributes]) -> Result<Vec<GidEntry>, Error> {
    let device = Path::new(CLASS).join(context.device().name());
    let mut table = Vec::new();
    for port in ports {
        let attributes = device.join(format!("ports/{}/gid_attrs", port.number));
        let has_types = attributes.join("types").is_dir();
        for index in 0..port.gid_table_length {
            let gid = context.query_gid(port.number, index)?;
            if gid.is_zero() {
                continue;
            }
            let read = |of: &str| fs::read_to_string(attributes.join(format!("{of}/{index}"))).ok();
            let Some(gid_type) = gid_type(read("types").as_deref(), has_types, port.link_layer)
            else {
                continue;
            };
            let netdev_index = read("ndevs").and_then(|name| netdev_index(name.trim()));
            let port = port.number;
            table.push(GidEntry { port, index, gid, gid_type, netdev_index, prefix_length: None });
        }
    }
    Ok(table)
}

/// Returns the type of a GID from the text of its sysfs file; `None` if the GID cannot be used
/// here. The kernel writes "IB/RoCE v1" both for IB and for RoCE v1. On an Ethernet port, a file
/// that exists but cannot be read belongs to an interface in another network namespace. `has_types`
/// is whether the port has such files. Without them, GIDs of Ethernet ports are RoCE v1; some
/// InfiniBand ports have none either.
fn gid_type(text: Option<&str>, has_types: bool, link: LinkLayer) -> Option<GidType> {
    match (text.map(str::trim), link == LinkLayer::ETHERNET) {
        (Some("RoCE v2"), _) => Some(GidType::ROCE_V2),
        (None, true) if has_types => None,
        (_, true) => Some(GidType::ROCE_V1),
        (_, false) => Some(GidType::IB),
    }
}

fn netdev_index(name: &str) -> Option<u32> {
    fs::read_to_string(Path::new("/sys/class/net").join(name).join("ifindex"))
        .ok()?
        .trim()
        .parse()
        .ok()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_kernels_words() {
        let ethernet = LinkLayer::ETHERNET;
        assert_eq!(gid_type(Some("RoCE v2\n"), true, ethernet), Some(GidType::ROCE_V2));
        assert_eq!(gid_type(Some("IB/RoCE v1\n"), true, ethernet), Some(GidType::ROCE_V1));
        let infiniband = LinkLayer::INFINIBAND;
        assert_eq!(gid_type(Some("IB/RoCE v1\n"), true, infiniband), Some(GidType::IB));
        assert_eq!(gid_type(None, true, infiniband), Some(GidType::IB));
    }

    #[test]
    fn an_entry_whose_type_cannot_be_read_is_left_out_of_an_ethernet_ports_table() {
        assert_eq!(gid_type(None, true, LinkLayer::ETHERNET), None);
        assert_eq!(gid_type(None, false, LinkLayer::ETHERNET), Some(GidType::ROCE_V1));
    }

    #[test]
    fn the_loopback_interface_has_a_number() {
        assert!(netdev_index("lo").is_none_or(|index| index > 0));
        assert_eq!(netdev_index("no such interface"), None);
    }
}
