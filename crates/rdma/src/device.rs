//! Devices: those of the machine, followed by the software devices with the feature `soft`.
//!
//! [`open_device`] opens the named device, and never a software device in place of a missing one.
//! [`open_default_device`] opens a NIC if there is one, and a software device otherwise.

pub use rdma_mem::{
    AsyncEvent, AsyncEventSource, AsyncEvents, Context, Device, DeviceAttributes, DeviceList,
    Errno, Error, EventFile, ExtendedAttributes, ForkMode, ForkStatus, Forked, GidEntry, Handle,
    ListError, LoadError, ObjectId, Ownership, PortAttributes, Recovery, UnknownDevice,
    UnknownProvider, Unsupported, VerbError, Verbs, fork_support,
};
pub use rdma_types::{
    AsyncEventKind, AtomicCapability, DeviceCapabilities, Gid, GidType, Guid, Lid, LinkLayer,
    LinkSpeed, LinkWidth, MaximumTransferUnit, Mtu, NodeType, OdpCapabilities, OdpOperations,
    OutOfRangeError, ParseGidError, ParseGuidError, PhysicalState, Pkey, PortState,
    RawPacketCapabilities, TransportType,
};

/// Lists the devices: first those of the installed libibverbs, then the software devices.
///
/// With the feature `soft` it installs the software devices first, like `rdma::soft::install`; without this feature, it
/// is [`rdma_mem::list_devices`]. The environment variable `RDMA_PROVIDERS` selects and orders the providers instead
/// (`system`, `soft,system` …). A provider that fails does not hide the others; its error is in [`DeviceList::errors`].
///
/// # Examples
/// The first device of libibverbs, a NIC or SoftRoCE:
/// ```
/// let devices = rdma::device::list_devices();
/// let found = devices.iter().find(|device| device.verbs().name == "system");
/// match found {
///     Some(device) => println!("{} {}", device.name(), device.guid()),
///     None => println!("there are only {} software devices", devices.len()),
/// }
/// ```
#[doc(alias = "ibv_get_device_list")]
#[must_use]
pub fn list_devices() -> DeviceList {
    install();
    rdma_mem::list_devices()
}

/// Opens the first device with this name, in the order of [`list_devices`].
///
/// With the feature `soft` it installs the software devices first, for any name. Therefore the
/// error for an unknown name lists them too.
///
/// # Errors
/// [`Error::UnknownDevice`], with the known names, if no device has this name; [`Error::Verb`] if
/// it cannot be opened.
///
/// # Examples
/// ```
/// # if cfg!(feature = "soft") {
/// let pd = rdma::device::open_device("soft0")?.allocate_pd()?;
/// # drop(pd);
/// # }
/// assert!(rdma::device::open_device("mlx5_77").is_err());
/// # Ok::<(), rdma::device::Error>(())
/// ```
#[doc(alias = "ibv_open_device")]
pub fn open_device(name: impl AsRef<str>) -> Result<Context, Error> {
    install();
    rdma_mem::open_device(name)
}

/// Opens the device named by `RDMA_DEVICE`, or the first NIC with an active port, or a software device.
///
/// With the feature `soft` it installs the software devices first. See [`rdma_mem::open_default_device`], whose
/// `tracing` event names the device.
///
/// # Errors
/// The errors of [`rdma_mem::open_default_device`].
///
/// # Examples
/// ```
/// # if cfg!(feature = "soft") {
/// let context = rdma::device::open_default_device()?;
/// println!("{}", context.device().name());
/// # }
/// # Ok::<(), rdma::device::Error>(())
/// ```
#[doc(alias = "ibv_open_device")]
pub fn open_default_device() -> Result<Context, Error> {
    install();
    rdma_mem::open_default_device()
}

fn install() {
    #[cfg(feature = "soft")]
    rdma_soft::install();
}
