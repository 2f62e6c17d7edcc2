//! The devices of all providers.
#![allow(unsafe_code)]

use std::{env, slice};

use rdma_sys::{Verbs, providers};
use rdma_types::PortState;

use crate::device::context::Context;
use crate::device::listed::Device;
use crate::device::unknown::{ListError, UnknownDevice};
use crate::error::Error;

/// Lists the devices of all providers: those of the installed libibverbs, and software devices.
///
/// The environment variable `RDMA_PROVIDERS` selects and orders the providers
/// ([`rdma_sys::providers`]). A provider that fails does not hide the others; its error is in
/// [`DeviceList::errors`].
///
/// # Examples
/// ```
/// rdma_soft::install();
/// for device in &rdma_mem::list_devices() {
///     println!("{} {}", device.name(), device.guid());
/// }
/// ```
#[doc(alias = "ibv_get_device_list")]
#[must_use]
pub fn list_devices() -> DeviceList {
    let mut list = DeviceList { devices: Vec::new(), errors: Vec::new() };
    match providers() {
        Ok(providers) => {
            for provider in providers {
                match provider.verbs {
                    // SAFETY: SAFETY.md F2: each table in `providers` is libibverbs' own, or
                    // behaves like it, as the caller of `register` promised.
                    Ok(verbs) => unsafe { list.add(verbs) },
                    Err(error) => list.errors.push(ListError::Load(error)),
                }
            }
        }
        Err(error) => list.errors.push(ListError::UnknownProvider(error)),
    }
    list
}

/// Opens the first device with this name, in the order of [`list_devices`].
///
/// # Errors
/// [`Error::UnknownDevice`], with the known names, if no device has this name; [`Error::Verb`] if
/// the device cannot be opened.
///
/// # Examples
/// ```
/// rdma_soft::install();
/// let context = rdma_mem::open_device("soft0")?;
/// let error = rdma_mem::open_device("mlx5_7").unwrap_err();
/// assert!(error.to_string().contains("soft0"));
/// # Ok::<(), rdma_mem::Error>(())
/// ```
#[doc(alias = "ibv_open_device")]
pub fn open_device(name: impl AsRef<str>) -> Result<Context, Error> {
    let name = name.as_ref();
    let list = list_devices();
    match list.iter().find(|device| device.name() == name) {
        Some(device) => device.open(),
        None => Err(Error::UnknownDevice(Box::new(UnknownDevice {
            name: name.to_owned(),
            known: list.iter().map(|device| device.name().to_owned()).collect(),
            errors: list.errors,
        }))),
    }
}

/// Opens the device named by the environment variable `RDMA_DEVICE`. If the variable is not set or
/// is empty, opens the first libibverbs device with an active port. If no such device exists, opens
/// the first device of another provider (a software device, if installed), or else the first device
/// of libibverbs.
///
/// A `tracing` event reports the device and the reason for the choice.
///
/// # Errors
/// [`Error::UnknownDevice`] if `RDMA_DEVICE` names an unknown device; [`Error::NoDevice`] if the
/// list is empty; [`Error::Verb`] if the device cannot be opened. A NIC that cannot be opened or
/// queried is skipped with a warning.
///
/// # Examples
/// ```
/// rdma_soft::install();
/// let context = rdma_mem::open_default_device()?;
/// println!("{}", context.device().name());
/// # Ok::<(), rdma_mem::Error>(())
/// ```
#[doc(alias = "ibv_open_device")]
pub fn open_default_device() -> Result<Context, Error> {
    if let Some(name) = env::var_os(VARIABLE).filter(|name| !name.is_empty()) {
        let context = open_device(name.to_string_lossy())?;
        return Ok(chosen(context, "RDMA_DEVICE names it"));
    }
    let list = list_devices();
    let is_nic = |device: &&Device| device.verbs().name == "system";
    for device in list.iter().filter(is_nic) {
        match open_active(device) {
            Ok(Some(context)) => {
                return Ok(chosen(context, "it is the first NIC with an active port"));
            }
            Ok(None) => {}
            Err(error) => tracing::warn!(device = device.name(), %error, "skipped a NIC"),
        }
    }
    let other = list.iter().find(|device| !is_nic(device)).or_else(|| list.iter().next());
    let Some(other) = other else { return Err(Error::NoDevice { errors: list.errors }) };
    Ok(chosen(other.open()?, "no NIC has an active port"))
}

const VARIABLE: &str = "RDMA_DEVICE";

fn chosen(context: Context, reason: &str) -> Context {
    tracing::info!(device = context.device().name(), reason, "opens a device");
    context
}

/// Opens the device if one of its ports is active.
fn open_active(device: &Device) -> Result<Option<Context>, Error> {
    let context = device.open()?;
    for port in 1..=context.query_device()?.port_count {
        if context.query_port(port)?.state == PortState::ACTIVE {
            return Ok(Some(context));
        }
    }
    Ok(None)
}

/// A snapshot of the device list, with the errors of providers that could not list their devices.
/// The snapshot does not change when devices are added or removed.
///
/// # Examples
/// ```
/// # rdma_soft::install();
/// let devices = rdma_mem::list_devices();
/// for device in &devices {
///     println!("{} {}", device.name(), device.guid());
/// }
/// for error in devices.errors() {
///     println!("no others: {error}");
/// }
/// assert!(devices.iter().any(|device| device.name() == "soft0"));
/// ```
#[derive(Clone, Debug)]
pub struct DeviceList {
    devices: Vec<Device>,
    errors: Vec<ListError>,
}

impl DeviceList {
    /// Lists the devices of one provider, whether or not it is registered.
    ///
    /// # Safety
    /// The contract of [`rdma_sys::register`] applies. That is, each function in the table, called
    /// on the table's own objects, behaves like the libibverbs function with the same name
    /// (SAFETY.md F2). The tables of [`rdma_sys::system`] and of the software device meet this
    /// contract.
    #[must_use]
    pub unsafe fn of(verbs: &'static Verbs) -> Self {
        let mut list = Self { devices: Vec::new(), errors: Vec::new() };
        // SAFETY: SAFETY.md F2: by this function's contract.
        unsafe { list.add(verbs) };
        list
    }

    /// # Safety
    /// The contract of [`DeviceList::of`] applies.
    unsafe fn add(&mut self, verbs: &'static Verbs) {
        // SAFETY: SAFETY.md F2: by this function's contract.
        match unsafe { Device::list(verbs) } {
            Ok(devices) => self.devices.extend(devices),
            Err(source) => self.errors.push(ListError::Verb { provider: verbs.name, source }),
        }
    }

    /// Returns the number of devices.
    #[must_use]
    pub fn len(&self) -> usize {
        self.devices.len()
    }

    /// Returns true if the list is empty.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.devices.is_empty()
    }

    /// Returns the device at this index; `None` if the list is shorter.
    #[must_use]
    pub fn get(&self, index: usize) -> Option<&Device> {
        self.devices.get(index)
    }

    /// Returns the devices in order.
    pub fn iter(&self) -> slice::Iter<'_, Device> {
        self.devices.iter()
    }

    /// Returns the errors of the providers that could not list their devices. For example, a
    /// missing libibverbs is reported here; on a machine without RDMA hardware it is harmless.
    #[must_use]
    pub fn errors(&self) -> &[ListError] {
        &self.errors
    }
}

impl<'a> IntoIterator for &'a DeviceList {
    type Item = &'a Device;
    type IntoIter = slice::Iter<'a, Device>;

    fn into_iter(self) -> Self::IntoIter {
        self.iter()
    }
}

#[cfg(test)]
mod tests {
    use rdma_sys::Errno;

    use super::*;

    #[test]
    fn a_failing_provider_is_an_error_and_not_a_device() {
        static NONE: Verbs = Verbs::unsupported();
        // SAFETY: SAFETY.md F2: every function in this table just returns an error.
        let list = unsafe { DeviceList::of(&NONE) };
        assert!(list.is_empty());
        let [ListError::Verb { provider: "unsupported", source }] = list.errors() else {
            panic!("{:?}", list.errors());
        };
        assert_eq!((source.verb, source.errno), ("ibv_get_device_list", Errno::ENOSYS));
        assert!(source.to_string().contains("ib_uverbs"), "{source}");
    }
}
