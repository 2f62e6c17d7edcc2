//! The files with which the kernel would describe the devices (`Documentation/ABI/stable/sysfs-class-infiniband`).

use std::fmt;
use std::fs;
use std::io;
use std::os::unix::fs::{MetadataExt, symlink};
use std::path::Path;

use anyhow::{Context as _, Result};
use rdma_mem::{Context, DeviceAttributes, GidEntry, PortAttributes};
use rdma_soft::{GidType, SoftDevice};
use rustix::fs::{major, minor};
use rustix::net::netdevice::index_to_name;
use rustix::net::{AddressFamily, SocketFlags, SocketType, socket_with};

/// The folder with a folder for each device.
pub(crate) const FOLDER: &str = "/sys/class/infiniband";
/// The folder with a file for each device.
pub(crate) const NODES: &str = "/dev/infiniband";
/// The folder with the kernel's classes of devices. Only the classes of RDMA devices are replaced.
pub(crate) const SYSFS: &str = "/sys/class";
/// The character device that replaces those of the devices. It accepts no commands.
pub(crate) const NULL: &str = "/dev/null";
/// The folders in [`SYSFS`] that contain the devices.
pub(crate) const CLASSES: [&str; 2] = ["infiniband", "infiniband_verbs"];

/// A device, and its files in [`FOLDER`].
#[derive(Debug)]
pub(crate) struct Device {
    name: String,
    /// The name of its file in [`NODES`].
    pub(crate) node: String,
    link_layer: String,
    files: Vec<(String, String)>,
}

impl fmt::Display for Device {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} ({})", self.name, self.link_layer)
    }
}

/// Returns the devices that the environment describes.
pub(crate) fn devices() -> Result<Vec<Device>> {
    rdma_soft::install();
    SoftDevice::all().map(|device| describe(device.name())).collect()
}

fn describe(name: &str) -> Result<Device> {
    let context =
        rdma_mem::open_device(name).with_context(|| format!("{name} cannot be opened"))?;
    let attributes = context.query_device()?;
    let mut files = files_of_device(name, &attributes);
    let gids = context.gid_table()?;
    let mut link_layer = String::new();
    for number in 1..=attributes.port_count {
        let port = context.query_port(number)?;
        link_layer = port.link_layer.to_string();
        let gids: Vec<_> = gids.iter().filter(|entry| entry.port == number).copied().collect();
        let files_of_port = files_of_port(&port).into_iter().chain(files_of_gids(&port, &gids));
        let pkeys = context.pkeys(number)?;
        let pkeys = pkeys.iter().enumerate();
        let pkeys = pkeys.map(|(index, pkey)| (format!("pkeys/{index}"), format!("{pkey}")));
        let named = |(file, text)| (format!("ports/{number}/{file}"), text);
        files.extend(files_of_port.chain(pkeys).map(named));
    }
    let node = node(&context).with_context(|| format!("{name} has no file name"))?;
    Ok(Device { name: name.to_owned(), node, link_layer, files })
}

fn node(context: &Context) -> Option<String> {
    context.device().file_name().filter(|name| !name.is_empty() && !name.contains('/'))
}

fn files_of_device(name: &str, device: &DeviceAttributes) -> Vec<(String, String)> {
    let processors = fs::read_to_string("/sys/devices/system/cpu/online").unwrap_or_default();
    let processors = processors.trim();
    let files = [
        ("node_type", "1: CA".to_owned()),
        ("node_guid", device.node_guid.to_string()),
        ("sys_image_guid", device.system_image_guid.to_string()),
        ("fw_ver", device.firmware_version.clone()),
        ("hw_rev", format!("{:x}", device.hardware_version)),
        ("node_desc", name.to_owned()),
        ("device/vendor", format!("{:#06x}", device.vendor_id)),
        ("device/device", format!("{:#06x}", device.vendor_part_id)),
        // The device is close to all processors.
        ("device/numa_node", "-1".to_owned()),
        ("device/local_cpulist", processors.to_owned()),
        ("device/local_cpus", mask(processors)),
    ];
    files.into_iter().map(|(name, text)| (name.to_owned(), text)).collect()
}

/// Converts a list of processors, such as `0-3,8`, to the kernel's mask: groups of 32 bits, the highest first.
fn mask(list: &str) -> String {
    let mut groups = vec![0_u32];
    for range in list.split(',') {
        let (first, last) = range.split_once('-').unwrap_or((range, range));
        let (Ok(first), Ok(last)) = (first.parse::<usize>(), last.parse::<usize>()) else {
            continue;
        };
        for processor in first..=last {
            if groups.len() <= processor / 32 {
                groups.resize(processor / 32 + 1, 0);
            }
            if let Some(group) = groups.get_mut(processor / 32) {
                *group |= 1 << (processor % 32);
            }
        }
    }
    let mut groups = groups.into_iter().rev();
    let first = format!("{:x}", groups.next().unwrap_or_default());
    groups.fold(first, |text, group| format!("{text},{group:08x}"))
}

fn files_of_port(port: &PortAttributes) -> Vec<(String, String)> {
    let state = match port.state.raw() {
        1 => "DOWN",
        2 => "INIT",
        3 => "ARMED",
        4 => "ACTIVE",
        5 => "ACTIVE_DEFER",
        _ => "NOP",
    };
    let physical = match port.physical_state.raw() {
        1 => "Sleep",
        2 => "Polling",
        3 => "Disabled",
        4 => "PortConfigurationTraining",
        5 => "LinkUp",
        6 => "LinkErrorRecovery",
        7 => "Phy Test",
        _ => "<unknown>",
    };
    let files = [
        ("state", format!("{}: {state}", port.state.raw())),
        ("phys_state", format!("{}: {physical}", port.physical_state.raw())),
        ("rate", rate(port)),
        ("lid", format!("{:#x}", port.lid.get())),
        ("lid_mask_count", port.lmc.to_string()),
        ("sm_lid", format!("{:#x}", port.sm_lid.get())),
        ("sm_sl", port.sm_service_level.to_string()),
        ("cap_mask", format!("{:#010x}", port.capability_flags)),
        ("link_layer", port.link_layer.to_string()),
    ];
    files.into_iter().map(|(name, text)| (name.to_owned(), text)).collect()
}

/// Returns the rate in the kernel's format, such as `100 Gb/sec (4X EDR)`.
fn rate(port: &PortAttributes) -> String {
    let mbps = port.rate_mbps().unwrap_or_default();
    let tenth = match mbps % 1000 / 100 {
        0 => String::new(),
        tenth => format!(".{tenth}"),
    };
    let speed = port.active_speed.to_string();
    let name = speed.rsplit_once('(').map_or("", |(_, name)| name.trim_end_matches(')'));
    format!("{}{tenth} Gb/sec ({} {name})", mbps / 1000, port.active_width)
}

/// Returns the files of the GID table. An empty entry has no files of attributes, because those of the kernel cannot be
/// read.
fn files_of_gids(port: &PortAttributes, gids: &[GidEntry]) -> Vec<(String, String)> {
    let mut files = Vec::new();
    for index in 0..port.gid_table_length {
        let entry = gids.iter().find(|entry| entry.index == index);
        let bytes = entry.map_or([0; 16], |entry| entry.gid.to_bytes());
        let groups = bytes.chunks(2).map(|pair| pair.iter().map(|byte| format!("{byte:02x}")));
        let groups: Vec<String> = groups.map(Iterator::collect).collect();
        files.push((format!("gids/{index}"), groups.join(":")));
        let Some(entry) = entry else { continue };
        let kind = if entry.gid_type == GidType::ROCE_V2 { "RoCE v2" } else { "IB/RoCE v1" };
        files.push((format!("gid_attrs/types/{index}"), kind.to_owned()));
        if let Some(interface) = entry.netdev_index.and_then(interface) {
            files.push((format!("gid_attrs/ndevs/{index}"), interface));
        }
    }
    files
}

fn interface(index: u32) -> Option<String> {
    let flags = SocketFlags::CLOEXEC;
    let socket = socket_with(AddressFamily::UNIX, SocketType::DGRAM, flags, None).ok()?;
    index_to_name(socket, index).ok()
}

/// Writes all files into the folder `files`, with their paths relative to `/`. A symbolic link replaces a file in
/// [`NODES`].
pub(crate) fn write_all(devices: &[Device], files: &Path) -> io::Result<()> {
    let within = |path: &str| files.join(path.trim_start_matches('/'));
    write(devices, &within(SYSFS))?;
    fs::create_dir_all(within(NODES))?;
    devices.iter().try_for_each(|device| symlink(NULL, within(NODES).join(&device.node)))
}

/// Writes the files of all devices into folders of `classes`.
pub(crate) fn write(devices: &[Device], classes: &Path) -> io::Result<()> {
    let number = fs::metadata(NULL)?.rdev();
    let (major, minor) = (major(number), minor(number));
    let [devices_class, verbs_class] = CLASSES.map(|class| classes.join(class));
    write_file(&verbs_class.join("abi_version"), "6")?;
    for device in devices {
        let folder = devices_class.join(&device.name);
        for (file, text) in &device.files {
            write_file(&folder.join(file), text)?;
        }
        let verbs = verbs_class.join(&device.node);
        write_file(&verbs.join("ibdev"), &device.name)?;
        write_file(&verbs.join("abi_version"), "1")?;
        write_file(&verbs.join("dev"), &format!("{major}:{minor}"))?;
        let target = Path::new("../..").join(CLASSES[0]).join(&device.name).join("device");
        symlink(target, verbs.join("device"))?;
    }
    Ok(())
}

fn write_file(path: &Path, text: &str) -> io::Result<()> {
    path.parent().map_or(Ok(()), fs::create_dir_all)?;
    fs::write(path, format!("{text}\n"))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_files_of_a_device_have_the_kernels_format() {
        let folder = tempfile::tempdir().unwrap();
        write(&devices().unwrap(), folder.path()).unwrap();
        let read = |path: &str| fs::read_to_string(folder.path().join(path)).unwrap_or_default();
        for (path, text) in [
            ("infiniband/soft0/node_type", "1: CA\n"),
            ("infiniband/soft0/ports/1/state", "4: ACTIVE\n"),
            ("infiniband/soft0/ports/1/phys_state", "5: LinkUp\n"),
            ("infiniband/soft0/ports/1/rate", "100 Gb/sec (4X EDR)\n"),
            ("infiniband/soft0/ports/1/lid", "0x0\n"),
            ("infiniband/soft0/ports/1/link_layer", "Ethernet\n"),
            ("infiniband/softib0/ports/1/link_layer", "InfiniBand\n"),
            ("infiniband/soft0/ports/1/pkeys/0", "0xffff\n"),
            ("infiniband/soft0/ports/1/gid_attrs/types/0", "IB/RoCE v1\n"),
            ("infiniband/soft0/ports/1/gid_attrs/types/1", "RoCE v2\n"),
            ("infiniband/soft0/ports/1/gid_attrs/ndevs/4", "lo\n"),
            ("infiniband/soft0/device/numa_node", "-1\n"),
            ("infiniband_verbs/uverbs8192/ibdev", "soft0\n"),
            ("infiniband_verbs/uverbs8192/dev", "1:3\n"),
            ("infiniband_verbs/uverbs8193/device/numa_node", "-1\n"),
        ] {
            assert_eq!(read(path), text, "{path}");
        }
        let gid = read("infiniband/soft0/ports/1/gids/0");
        assert!(gid.len() == 40 && gid.starts_with("fe80:0000:0000:0000:"), "{gid}");
        let guid = read("infiniband/soft0/node_guid");
        assert!(guid.len() == 20 && guid.matches(':').count() == 3, "{guid}");
    }

    #[test]
    fn a_list_of_processors_becomes_a_mask() {
        let masks = ["0", "0-1", "0-3,8", "0-31", "0-63", "33", ""].map(mask);
        let expected = ["1", "3", "10f", "ffffffff", "ffffffff,ffffffff", "2,00000000", "0"];
        assert_eq!(masks, expected);
    }
}
