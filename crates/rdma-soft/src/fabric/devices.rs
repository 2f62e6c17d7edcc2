//! The devices of a fabric, and who of them is where. Devices are never removed.

use std::path::PathBuf;
use std::sync::Mutex;

use crate::address::Address;
use crate::device::Device;
use crate::link::Link;
use crate::sync::locked;

/// Far more than there are uses for, and far fewer than LIDs.
const MAX_DEVICES: usize = 4096;

/// Why a device was not installed.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum InstallError {
    /// There is a device of this name; devices live as long as the process.
    #[error("a software device named `{0}` is already installed: choose another name")]
    NameTaken(String),
    /// The name does not fit into `struct ibv_device`, or could not be typed on a command line.
    #[error(
        "`{0}` is no device name: use 1 to 63 of the characters a-z, A-Z, 0-9, `_`, `-` and `.`"
    )]
    BadName(String),
    /// Devices live as long as the process, and there is room for so many.
    #[error("there are {0} software devices in this process already: use one of them")]
    TooMany(usize),
    /// The system gave no random numbers, without which keys could be guessed.
    #[error("no random numbers from the system: let the process call getrandom(2)")]
    NoRandomness,
    /// The capture file that [`Builder::pcap`](crate::Builder::pcap) or the environment names cannot be written.
    #[error(
        "the capture file `{path}` cannot be written ({reason}): name a file in a folder that exists, which this \
         process may write to, by `RDMA_SOFT_PCAP` or `Builder::pcap`"
    )]
    NoCapture {
        /// The file.
        path: PathBuf,
        /// What the system said.
        reason: String,
    },
}

/// Devices in the order in which they were installed.
#[derive(Debug)]
pub(crate) struct Devices(Mutex<Vec<&'static Device>>);

impl Devices {
    pub(super) const fn new() -> Self {
        Self(Mutex::new(Vec::new()))
    }

    /// All devices, in the order in which they were installed.
    pub(crate) fn all(&self) -> Vec<&'static Device> {
        locked(&self.0).clone()
    }

    /// Adds a device that was made for this fabric, unless there is one of that name. Its identity is drawn
    /// again until no other device here shares an address with it: 16 bits of LID alone collide soon.
    pub(crate) fn add(&self, mut device: Device) -> Result<&'static Device, InstallError> {
        let mut devices = locked(&self.0);
        if devices.iter().any(|other| other.name == device.name) {
            return Err(InstallError::NameTaken(device.name));
        }
        // So that an identity is always found soon.
        if devices.len() >= MAX_DEVICES {
            return Err(InstallError::TooMany(MAX_DEVICES));
        }
        while devices.iter().any(|other| other.shares_address_with(&device)) {
            device.identity.redraw(device.link);
        }
        let device: &'static Device = Box::leak(Box::new(device));
        devices.push(device);
        Ok(device)
    }

    pub(crate) fn named(&self, name: &str) -> Option<&'static Device> {
        locked(&self.0).iter().copied().find(|device| device.name == name)
    }

    /// The device with that port address on that kind of link.
    pub(crate) fn at(&self, link: Link, address: &Address) -> Option<&'static Device> {
        let devices = locked(&self.0);
        devices.iter().copied().find(|device| device.link == link && device.has_address(address))
    }
}
