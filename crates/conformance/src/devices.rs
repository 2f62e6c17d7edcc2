//! The devices of a run.

use std::env;
use std::net::Ipv4Addr;
use std::path::Path;

use rdma_soft::{Builder, Link, Peers, Profile, Schedule};
use test_support::rig::memory::use_files;
use test_support::rig::{Provider, use_provider};

use crate::device::{Device, Kind};

/// The way in which messages are transferred.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Way {
    /// Copies within the process.
    Direct,
    /// Packets through memory.
    Packets,
    /// Packets through the sockets that connect processes.
    Sockets,
    /// The link between processes, with mapped regions.
    Mapped,
    /// Packets over UDP.
    Network,
    /// Packets over UDP, with a loss of one percent.
    LossyNetwork,
}

/// The software devices: name, link, schedule, and how messages are transferred.
const SOFTWARE: [(&str, Link, Schedule, Way); 8] = [
    ("soft0", Link::Ethernet, Schedule::Immediate, Way::Direct),
    ("soft0-deferred", Link::Ethernet, Schedule::Deferred { seed: 1 }, Way::Direct),
    ("soft0-wire", Link::Ethernet, Schedule::Immediate, Way::Packets),
    ("soft0-local", Link::Ethernet, Schedule::Immediate, Way::Sockets),
    ("soft0-mapped", Link::Ethernet, Schedule::Immediate, Way::Mapped),
    ("soft0-udp", Link::Ethernet, Schedule::Immediate, Way::Network),
    ("softib0", Link::InfiniBand, Schedule::Immediate, Way::Direct),
    ("softib0-local", Link::InfiniBand, Schedule::Immediate, Way::Sockets),
];

/// Additional devices, which run only if they are named: a lossy network, InfiniBand with another
/// schedule or in packets, and packets with a deferred schedule.
const MORE: [(&str, Link, Schedule, Way); 5] = [
    ("soft0-lossy", Link::Ethernet, Schedule::Immediate, Way::LossyNetwork),
    ("softib0-deferred", Link::InfiniBand, Schedule::Deferred { seed: 1 }, Way::Direct),
    ("softib0-wire", Link::InfiniBand, Schedule::Immediate, Way::Packets),
    ("soft0-wire-deferred", Link::Ethernet, Schedule::Deferred { seed: 1 }, Way::Packets),
    ("softib0-wire-deferred", Link::InfiniBand, Schedule::Deferred { seed: 1 }, Way::Packets),
];

/// The prefix of the names of devices that imitate hardware.
const LIKE: &str = "like-";
/// The imitated devices that every run includes.
const LIKE_IN_EACH_RUN: [Profile; 2] = [Profile::CONNECTX_7, Profile::INTEL_E810];

/// Returns the profile of the device with this name.
fn profile(name: &str) -> Option<Profile> {
    name.strip_prefix(LIKE).and_then(Profile::named)
}

/// The environment variable that names further devices to run on: `NAME` or `NAME:all`, separated
/// by commas.
pub(crate) const VARIABLE: &str = "RDMA_TEST_DEVICES";

/// A device of this run.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Wanted {
    pub(crate) name: String,
    /// Whether to also run the cases that overflow, exhaust or break something.
    pub(crate) all: bool,
}

/// Returns the software devices, followed by the named ones.
pub(crate) fn wanted() -> Vec<Wanted> {
    let software = SOFTWARE.iter().map(|(name, ..)| (*name).to_owned());
    let like = LIKE_IN_EACH_RUN.iter().map(|profile| format!("{LIKE}{}", profile.name()));
    let software = software.chain(like).map(|name| Wanted { name, all: true });
    software.chain(named()).collect()
}

/// Returns the devices that the environment variable names.
pub(crate) fn named() -> Vec<Wanted> {
    let named = env::var(VARIABLE).unwrap_or_default();
    named.split(',').filter(|name| !name.is_empty()).map(named_device).collect()
}

fn named_device(text: &str) -> Wanted {
    let text = text.trim();
    match text.strip_suffix(":all") {
        Some(name) => Wanted { name: name.to_owned(), all: true },
        None => Wanted { name: text.to_owned(), all: is_software(text) },
    }
}

/// Returns true if the device with this name is SoftRoCE. The kernel has the file `parent`, which
/// names the network interface, only for SoftRoCE.
pub(crate) fn is_rxe(name: &str) -> bool {
    Path::new("/sys/class/infiniband").join(name).join("parent").is_file()
}

/// Returns true if the software device with this name loses unacknowledged messages.
pub(crate) fn is_lossy(name: &str) -> bool {
    MORE.iter().any(|&(own, .., way)| own == name && way == Way::LossyNetwork)
}

/// Returns the software device with this name, if a run can include it.
fn software(name: &str) -> Option<&'static (&'static str, Link, Schedule, Way)> {
    SOFTWARE.iter().chain(&MORE).find(|software| software.0 == name)
}

/// Returns true if a run can include the software device with this name.
pub(crate) fn is_software(name: &str) -> bool {
    software(name).is_some() || profile(name).is_some()
}

/// Returns true if the software device with this name sends messages over UDP.
pub(crate) fn is_by_network(name: &str) -> bool {
    software(name).is_some_and(|(.., way)| matches!(way, Way::Network | Way::LossyNetwork))
}

/// Returns a loopback address on which no other process of this machine listens.
fn own_address() -> String {
    Ipv4Addr::from_bits(0x7f40_0000 | std::process::id() & 0x3f_ffff).to_string()
}

/// Prepares this process's device. If no software device has this name, libibverbs provides the
/// device.
pub(crate) fn prepare(name: &str) -> Device {
    if let Some(profile) = profile(name) {
        rdma_soft::install();
        Builder::new(name).like(profile).install().unwrap();
        use_provider(Provider { verbs: rdma_soft::verbs(), slow: false });
        return Device::new(name.to_owned(), Kind::Profile);
    }
    let kind = match software(name) {
        Some(&(_, link, schedule, way)) => {
            let by_packets = way != Way::Direct;
            // Some of these devices exist by default, under the same name.
            rdma_soft::install();
            if rdma_soft::SoftDevice::find(name).is_none() {
                let builder = Builder::new(name).link(link).schedule(schedule);
                let builder = match way {
                    Way::Direct | Way::Mapped => builder,
                    _ => builder.force_wire(),
                };
                let builder = match way {
                    Way::Sockets => builder.peers(Peers::SameUser),
                    Way::Mapped => builder.peers(Peers::SameUser).mapped(true).between_processes(),
                    Way::Network => builder.gids([]).listen(own_address()),
                    Way::LossyNetwork => {
                        let seed = u64::from(std::process::id());
                        builder.gids([]).listen(own_address()).lossy(0.01, seed)
                    }
                    Way::Direct | Way::Packets => builder,
                };
                builder.install().unwrap();
            }
            // Packets are retransmitted after a timeout, which a busy machine may exceed.
            use_provider(Provider { verbs: rdma_soft::verbs(), slow: by_packets });
            if way == Way::Mapped {
                use_files();
            }
            match way {
                Way::Direct => Kind::Software,
                Way::Packets => Kind::Packets,
                Way::Sockets | Way::Mapped => Kind::Sockets,
                Way::Network | Way::LossyNetwork => Kind::Network,
            }
        }
        None => {
            use_provider(Provider { verbs: rdma_sys::system().unwrap(), slow: true });
            if is_rxe(name) { Kind::Rxe } else { Kind::Other }
        }
    };
    Device::new(name.to_owned(), kind)
}
