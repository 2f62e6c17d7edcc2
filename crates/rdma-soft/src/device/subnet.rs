//! Subnets: sets of devices that can reach each other and share a fabric. A device is never removed from its subnet.
//! This module also contains the list of devices that programs see, from all subnets.

use std::ops::Deref;
use std::path::PathBuf;
use std::sync::{Arc, Mutex};

use crate::address::{Address, GidEntry};
use crate::device::Device;
use crate::fabric::Fabric;
#[cfg(loom)]
use crate::fabric::timers::model::ServedBy;
use crate::link::Link;
use crate::link::simulation::Links;
use crate::profile::Profile;
use crate::sync::locked;

/// The maximum number of devices: far more than programs need, but far fewer than there are LIDs.
const MAX_DEVICES: usize = 4096;

/// The allowed names of devices, for error messages.
pub(crate) const NAMES: &str =
    "use 1 to 63 of the characters a-z, A-Z, 0-9, `_`, `-` and `.` (not `.` or `..`)";

/// The reason why a device was not installed.
#[derive(Clone, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum InstallError {
    /// A device with this name already exists. A device keeps its name until its network is dropped or, without a
    /// network, until the process exits.
    #[error("a software device named `{0}` is already installed: choose another name")]
    NameTaken(String),
    /// The name does not fit into `struct ibv_device`, cannot be typed on a command line, or is `.` or `..`.
    #[error("`{0}` is not a valid device name: {names}", names = NAMES)]
    BadName(String),
    /// The process, or the network, already has the maximum number of devices. A device is never removed.
    #[error("there are {0} software devices in this process already: use one of them")]
    TooMany(usize),
    /// The system returned no random numbers, without which keys would be predictable.
    #[error("the system provided no random numbers: allow the process to call getrandom(2)")]
    NoRandomness,
    /// The device cannot be shared with other processes. Either the system does not identify its host and network
    /// namespace, or the [directory](crate::Builder::directory) cannot be used, for example because other users may
    /// enter it.
    #[error(
        "the device cannot be shared with other processes ({reason}): mount /proc, name another directory \
         (`RDMA_SOFT_DIRECTORY` or `Builder::directory`), or install it for `Peers::ThisProcess`"
    )]
    NotShared {
        /// The error from the system, or what is wrong with the directory.
        reason: String,
    },
    /// The device cannot listen at the place set by [`Builder::listen`](crate::Builder::listen) or the environment.
    #[error(
        "the device cannot listen at `{place}` (`RDMA_SOFT_LISTEN`, `RDMA_SOFT_DEVICES` or `Builder::listen`): \
         {reason}"
    )]
    CannotListen {
        /// The address or the interface.
        place: String,
        /// The reason and a remedy.
        reason: String,
    },
    /// `RDMA_SOFT_LIKE` does not contain the name of a [`Profile`](crate::Profile).
    #[error("`RDMA_SOFT_LIKE` is `{name}`, but the profiles are {}", profiles())]
    NoProfile {
        /// The name.
        name: String,
    },
    /// The value of an environment variable is wrong.
    #[error("`{variable}` has a mistake: {reason}")]
    BadVariable {
        /// The name of the variable.
        variable: &'static str,
        /// The wrong word, and the words that are allowed.
        reason: String,
    },
    /// The capture file set by [`Builder::pcap`](crate::Builder::pcap) or the environment cannot be written.
    #[error(
        "the capture file `{path}` cannot be written ({reason}): with `RDMA_SOFT_PCAP` or \
         `Builder::pcap`, name a file in an existing folder that this process may write to"
    )]
    NoCapture {
        /// The file.
        path: PathBuf,
        /// The error from the system.
        reason: String,
    },
}

rdma_types::debug_messages!(enum InstallError {
    NameTaken(it), BadName(it), TooMany(it), NoRandomness, NotShared { reason },
    CannotListen { place, reason }, NoProfile { name }, BadVariable { variable, reason }, NoCapture { path, reason },
});

/// Returns the names of all profiles.
pub(crate) fn profiles() -> String {
    Profile::ALL.map(Profile::name).join(", ")
}

/// The devices that programs see, in installation order.
#[derive(Debug)]
pub(crate) struct Installed {
    devices: Mutex<Vec<&'static Device>>,
    /// Subnets whose devices programs no longer see, kept reachable for leak checkers.
    gone: Mutex<Vec<&'static Subnet>>,
}

pub(crate) static INSTALLED: Installed =
    Installed { devices: Mutex::new(Vec::new()), gone: Mutex::new(Vec::new()) };

impl Installed {
    /// Adds a device to its subnet and to this list, unless the name is taken.
    pub(crate) fn add(&self, device: Device) -> Result<&'static Device, InstallError> {
        let mut installed = locked(&self.devices);
        if installed.iter().any(|other| other.name == device.name) {
            return Err(InstallError::NameTaken(device.adapter.name));
        }
        let device = device.subnet.add(device)?;
        installed.push(device);
        Ok(device)
    }

    pub(crate) fn remove_those_of(&self, subnet: &'static Subnet) {
        locked(&self.devices).retain(|device| !std::ptr::eq(device.subnet, subnet));
        locked(&self.gone).push(subnet);
        subnet.devices().for_each(Device::leave_network);
    }

    pub(crate) fn all(&self) -> Vec<&'static Device> {
        locked(&self.devices).clone()
    }

    pub(crate) fn named(&self, name: &str) -> Option<&'static Device> {
        locked(&self.devices).iter().copied().find(|device| device.name == name)
    }
}

/// A set of devices that can reach each other, and the fabric that they share.
pub(crate) struct Subnet {
    fabric: Fabric,
    devices: Mutex<Vec<&'static Device>>,
    /// The links between the devices, if time is virtual.
    pub(crate) links: Option<Arc<Links>>,
}

impl Deref for Subnet {
    type Target = Fabric;
    fn deref(&self) -> &Fabric {
        &self.fabric
    }
}

impl std::fmt::Debug for Subnet {
    /// Prints the subnet without its devices, because each device would print the subnet again.
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Subnet").finish_non_exhaustive()
    }
}

impl Subnet {
    #[cfg(not(loom))]
    pub(crate) const fn new() -> Self {
        Self::of(Fabric::new())
    }

    const fn of(fabric: Fabric) -> Self {
        Self { fabric, devices: Mutex::new(Vec::new()), links: None }
    }

    /// Creates a subnet in virtual time.
    #[cfg(not(loom))]
    pub(crate) fn simulated(seed: u64) -> Self {
        let links = Arc::new(Links::new(seed));
        let fabric = Fabric::simulated(seed, Arc::<Links>::clone(&links));
        Self { links: Some(links), ..Self::of(fabric) }
    }

    /// Returns the subnet of all devices that do not belong to a [network](crate::Network).
    pub(crate) fn of_process() -> &'static Self {
        #[cfg(not(loom))]
        static OF_PROCESS: Subnet = Subnet::new();
        // Models do not use this subnet, because its contents would outlive a single run of a model.
        #[cfg(loom)]
        static OF_PROCESS: std::sync::LazyLock<Subnet> =
            std::sync::LazyLock::new(|| Subnet::of(Fabric::with(ServedBy::Nobody)));
        &OF_PROCESS
    }

    /// Creates a subnet for one model, in which no timer ever expires. The subnet and its devices are never freed.
    #[cfg(all(test, loom))]
    pub(crate) fn of_model() -> &'static Self {
        Self::of_model_with(ServedBy::Nobody)
    }

    /// Creates a subnet for one model, with timers.
    #[cfg(all(test, loom))]
    pub(crate) fn of_model_with(served_by: ServedBy) -> &'static Self {
        Box::leak(Box::new(Self::of(Fabric::with(served_by))))
    }

    /// Creates a subnet for a test that sets the clock.
    #[cfg(all(test, not(loom)))]
    pub(crate) fn with_set_clock() -> Self {
        Self::of(Fabric::with_set_clock())
    }

    /// Adds a device that was created for this subnet, unless the name is taken. Draws its identity again until no
    /// other device in the subnet shares an address with it, because 16-bit LIDs soon collide. A device that several
    /// processes share keeps its identity.
    pub(crate) fn add(&self, mut device: Device) -> Result<&'static Device, InstallError> {
        let mut devices = locked(&self.devices);
        if devices.iter().any(|other| other.name == device.name) {
            return Err(InstallError::NameTaken(device.adapter.name));
        }
        // Limited, so that a free identity is always found quickly.
        if devices.len() >= MAX_DEVICES {
            return Err(InstallError::TooMany(MAX_DEVICES));
        }
        let others = |entry: &GidEntry| devices.iter().any(|other| other.identity.has_gid(entry));
        if let Some(entry) = device.identity.own().find(|entry| others(entry)) {
            let reason = "another device of this process listens there".to_owned();
            return Err(InstallError::CannotListen { place: entry.gid.to_string(), reason });
        }
        while device.host.is_none()
            && devices.iter().any(|other| other.shares_address_with(&device))
        {
            device.identity.redraw(device.adapter.link);
        }
        let device: &'static Device = Box::leak(Box::new(device));
        devices.push(device);
        Ok(device)
    }

    /// Returns all devices one by one. A list of them would allocate memory.
    pub(crate) fn devices(&self) -> impl Iterator<Item = &'static Device> {
        (0..).map_while(|n| locked(&self.devices).get(n).copied())
    }

    /// Returns the device that has this port address on this kind of link.
    pub(crate) fn at(&self, link: Link, address: &Address) -> Option<&'static Device> {
        let devices = locked(&self.devices);
        devices.iter().copied().find(|device| device.link == link && device.has_address(address))
    }
}

#[cfg(all(test, not(loom)))]
mod tests {
    use super::*;
    use crate::address::Address;
    use crate::fabric::random::Seed;
    use crate::limits::Limits;
    use crate::schedule::Schedule;

    fn add(subnet: &'static Subnet) -> Result<&'static Device, InstallError> {
        let (link, limits, schedule) = (Link::InfiniBand, Limits::default(), Schedule::Immediate);
        let seed = Seed::new(1);
        let device = Device::new(subnet, "twin".into(), link, Vec::new(), limits, schedule, &seed);
        subnet.add(device)
    }

    #[test]
    fn devices_of_two_subnets_share_neither_names_nor_addresses() {
        static SUBNETS: [Subnet; 2] = [const { Subnet::new() }; 2];
        let [one, other] = SUBNETS.each_ref().map(|subnet| add(subnet).unwrap());
        // Within one subnet, the name would be refused and the identity drawn again.
        assert_eq!(one.guid(), other.guid());
        let address = Address::Lid(one.identity.lid);
        for (subnet, device) in SUBNETS.iter().zip([one, other]) {
            assert!(matches!(add(subnet), Err(InstallError::NameTaken(_))));
            let found = subnet.at(device.link, &address);
            assert!(std::ptr::eq(found.unwrap(), device));
        }
    }
}
