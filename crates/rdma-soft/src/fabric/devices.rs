//! The devices of a fabric, and who of them is where. Devices are never removed.

use std::sync::Mutex;

use crate::address::Address;
use crate::builder::{InstallError, Link};
use crate::device::Device;
use crate::sync::locked;

/// Far more than there are uses for, and far fewer than LIDs.
const MAX_DEVICES: usize = 4096;

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
