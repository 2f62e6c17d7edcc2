//! The facts about a device, read from sysfs and, if the device can be opened, from its attributes.

use std::collections::BTreeSet;

use rdma::device::{Context, Error, Gid, GidType, PortAttributes};

use super::dcb;
use super::facts::{Device, Fact, Interface, Kind, Pci, Port, PortGid};
use super::features;
use super::networks::Networks;
use super::root::Root;
use crate::devices::interface_name;

/// The folder of the kernel's RDMA devices.
pub(crate) const CLASS: &str = "sys/class/infiniband";

/// The maximum number of GID table entries that are read.
const MAX_GIDS: u32 = 1024;

/// Returns a device of the kernel, with the facts that its files contain.
pub(crate) fn of_kernel(root: &Root, name: &str) -> Device {
    let folder = format!("{CLASS}/{name}");
    let at = |file: &str| format!("{folder}/{file}");
    let verbs = root.names("sys/class/infiniband_verbs");
    let file = verbs.into_iter().find(|file| {
        let path = format!("sys/class/infiniband_verbs/{file}/ibdev");
        root.text(&path).value().is_some_and(|text| text == name)
    });
    let networks = Networks::read(root);
    let ports = root.names(&at("ports")).iter().filter_map(|port| port.parse().ok()).collect();
    let ports: BTreeSet<u8> = ports;
    let driver = root.link_name(&at("device/driver"));
    let driver_version = match driver.value() {
        Some(driver) => root.text(&format!("sys/module/{driver}/version")),
        None => Fact::Unknown("the driver is not known".to_owned()),
    };
    Device {
        name: name.to_owned(),
        kind: Kind::Kernel,
        file: match file {
            Some(file) => Fact::Value(file),
            None => Fact::Unknown("/sys/class/infiniband_verbs has no file for it".to_owned()),
        },
        open_error: None,
        queue_pair_error: None,
        driver_version,
        driver,
        firmware: root.text(&at("fw_ver")),
        hardware: root.text(&at("hca_type")),
        board: root.text(&at("board_id")),
        numa_node: root.value(&at("device/numa_node")),
        iommu_type: root.text(&at("device/iommu_group/type")),
        pci: pci(root, &at("device")),
        ports: ports.iter().map(|&number| port(root, &networks, &folder, number)).collect(),
        missing_features: Fact::Unknown("the device was not opened".to_owned()),
    }
}

/// Returns a software device, which has no files. [`add_attributes`] adds its ports.
pub(crate) fn of_software(name: &str) -> Device {
    fn none<T>() -> Fact<T> {
        Fact::Unknown("a software device has none".to_owned())
    }
    Device {
        name: name.to_owned(),
        kind: Kind::Software,
        file: none(),
        open_error: None,
        queue_pair_error: None,
        driver: none(),
        driver_version: none(),
        firmware: none(),
        hardware: none(),
        board: none(),
        numa_node: none(),
        iommu_type: none(),
        pci: Pci {
            link_speed: none(),
            max_link_speed: none(),
            link_width: none(),
            max_link_width: none(),
            relaxed_ordering: none(),
        },
        ports: Vec::new(),
        missing_features: none(),
    }
}

/// Adds the attributes of an open device. They replace the facts from its files.
pub(crate) fn add_attributes(
    root: &Root,
    device: &mut Device,
    context: &Context,
) -> Result<(), Error> {
    let attributes = context.query_device()?;
    device.firmware = Fact::Value(attributes.firmware_version.clone());
    let gids = context.gid_table()?;
    for number in 1..=attributes.port_count {
        let port = context.query_port(number)?;
        let gids = gids.iter().filter(|gid| gid.port == number).map(|gid| PortGid {
            index: gid.index,
            gid: gid.gid,
            gid_type: gid.gid_type,
            interface: gid.netdev_index.and_then(interface_name),
            prefix_length: gid.prefix_length,
        });
        let gids = gids.collect();
        let path = format!("{CLASS}/{}", device.name);
        let described = described(root, &path, &port, gids);
        match device.ports.iter_mut().find(|known| known.number == number) {
            Some(known) => *known = described,
            None => device.ports.push(described),
        }
    }
    let (missing, error) = features::missing(context)?;
    device.missing_features = Fact::Value(missing);
    device.queue_pair_error = error;
    Ok(())
}

fn described(root: &Root, device: &str, port: &PortAttributes, gids: Vec<PortGid>) -> Port {
    let mtu = |mtu: Option<rdma::device::Mtu>, code| match mtu {
        Some(mtu) => Fact::Value(mtu.bytes()),
        None => Fact::Unknown(format!("the port reports the code {code}")),
    };
    Port {
        number: port.number,
        state: Fact::Value(port.state.to_string().to_lowercase()),
        physical_state: Fact::Value(port.physical_state.to_string()),
        link_layer: Fact::Value(port.link_layer.to_string()),
        rate: match port.rate_mbps() {
            Some(rate) => Fact::Value(format!("{} Gb/sec", f64::from(rate) / 1000.0)),
            None => Fact::Unknown("the port reports an unknown speed or width".to_owned()),
        },
        active_mtu: mtu(port.active_mtu, port.active_mtu_code),
        max_mtu: mtu(port.max_mtu, port.max_mtu_code),
        lid: Fact::Value(port.lid.to_string()),
        interfaces: interfaces(root, &gids),
        gids,
        traffic_class: traffic_class(root, device, port.number),
    }
}

fn port(root: &Root, networks: &Networks, device: &str, number: u8) -> Port {
    let at = |file: &str| format!("{device}/ports/{number}/{file}");
    // The text has a form such as "4: ACTIVE".
    let word = |text: String| match text.split_once(": ") {
        Some((_, word)) => word.to_lowercase(),
        None => text.to_lowercase(),
    };
    let gids = gids(root, networks, &at("gids"), &at("gid_attrs"));
    let attribute = || Fact::Unknown("the device was not opened".to_owned());
    Port {
        number,
        state: root.text(&at("state")).map(word),
        physical_state: root.text(&at("phys_state")).map(word),
        link_layer: root.text(&at("link_layer")),
        rate: root.text(&at("rate")),
        active_mtu: attribute(),
        max_mtu: attribute(),
        lid: root.text(&at("lid")),
        interfaces: interfaces(root, &gids),
        gids,
        traffic_class: traffic_class(root, device, number),
    }
}

fn gids(root: &Root, networks: &Networks, gids: &str, attributes: &str) -> Vec<PortGid> {
    let mut indices: Vec<u32> =
        root.names(gids).iter().filter_map(|index| index.parse().ok()).collect();
    indices.retain(|index| *index < MAX_GIDS);
    indices.sort_unstable();
    let entry = |index| {
        let gid: Gid = *root.value(&format!("{gids}/{index}")).value()?;
        if gid.is_zero() {
            return None;
        }
        let text = |of: &str| root.text(&format!("{attributes}/{of}/{index}"));
        // The type of an empty entry cannot be read, nor the type of a GID whose interface is in
        // another namespace.
        let gid_type = match text("types").value()?.as_str() {
            "RoCE v2" => GidType::ROCE_V2,
            _ if text("ndevs").value().is_some() => GidType::ROCE_V1,
            _ => GidType::IB,
        };
        let interface = text("ndevs").value().cloned();
        let prefix_length = networks.prefix_length(gid, interface.as_deref());
        Some(PortGid { index, gid, gid_type, interface, prefix_length })
    };
    indices.into_iter().filter_map(entry).collect()
}

/// Returns the interfaces to which the GIDs belong.
fn interfaces(root: &Root, gids: &[PortGid]) -> Vec<Interface> {
    let names: BTreeSet<_> = gids.iter().filter_map(|gid| gid.interface.as_deref()).collect();
    let interface = |name: &str| Interface {
        name: name.to_owned(),
        mtu: root.value(&format!("sys/class/net/{name}/mtu")),
        state: root.text(&format!("sys/class/net/{name}/operstate")),
        dcb: if root.is_copy() {
            Fact::Unknown(format!("{name}: --sysroot"))
        } else {
            dcb::query(name)
        },
    };
    names.into_iter().map(interface).collect()
}

fn traffic_class(root: &Root, device: &str, port: u8) -> Fact<String> {
    root.text(&format!("{device}/tc/{port}/traffic_class"))
}

fn pci(root: &Root, device: &str) -> Pci {
    let at = |file: &str| format!("{device}/{file}");
    Pci {
        link_speed: root.text(&at("current_link_speed")),
        max_link_speed: root.text(&at("max_link_speed")),
        link_width: root.value(&at("current_link_width")),
        max_link_width: root.value(&at("max_link_width")),
        relaxed_ordering: match root.bytes(&at("config")) {
            Ok(config) => relaxed_ordering(&config),
            Err(error) => Fact::Unknown(format!("/{}: {error}", at("config"))),
        },
    }
}

/// Reads whether a PCI device may use relaxed ordering. This is the bit "Enable Relaxed Ordering" in its PCI Express
/// capability (PCI Express Base Specification, section 7.5.3.4).
fn relaxed_ordering(config: &[u8]) -> Fact<bool> {
    const CAPABILITIES: usize = 0x34;
    const PCI_EXPRESS: u8 = 0x10;
    if config.len() <= 64 {
        let reason = "its PCI configuration beyond 64 bytes can be read by root alone";
        return Fact::Unknown(reason.to_owned());
    }
    let byte = |place: usize| config.get(place).copied();
    let mut place = byte(CAPABILITIES).map_or(0, usize::from);
    // A list with more entries than this must be circular.
    for _ in 0..48 {
        match (byte(place), byte(place + 1)) {
            (Some(PCI_EXPRESS), _) if place >= 0x40 => {
                return match byte(place + 8) {
                    Some(control) => Fact::Value(control & (1 << 4) != 0),
                    None => Fact::Unknown("its PCI configuration is cut off".to_owned()),
                };
            }
            (Some(_), Some(next)) if place >= 0x40 => place = usize::from(next & !3),
            _ => break,
        }
    }
    Fact::Unknown("it is not a PCI Express device".to_owned())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn relaxed_ordering_is_a_bit_of_the_capability_in_the_list() {
        let mut config = vec![0; 256];
        config[0x34] = 0x40;
        config[0x40..0x42].copy_from_slice(&[0x01, 0x60]);
        config[0x60..0x62].copy_from_slice(&[0x10, 0]);
        assert_eq!(relaxed_ordering(&config), Fact::Value(false));
        config[0x68] = 0x10;
        assert_eq!(relaxed_ordering(&config), Fact::Value(true));
        config[0x60..0x62].copy_from_slice(&[0x05, 0x40]);
        assert!(matches!(relaxed_ordering(&config), Fact::Unknown(_)), "a list in a circle");
        assert!(
            matches!(relaxed_ordering(&config[..64]), Fact::Unknown(why) if why.contains("root"))
        );
        for length in 65..256 {
            let _ = relaxed_ordering(&vec![0xff; length]);
        }
    }
}
