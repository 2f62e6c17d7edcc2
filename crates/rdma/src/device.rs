//! The devices of the machine and, with the feature `soft`, the software devices.
//!
//! [`open_device`] opens the device with a given name, and never opens a software device in place of a missing one.
//! [`open_default_device`] opens the device named by `RDMA_DEVICE`, or else the first NIC with an active port, or else
//! a software device.

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

/// Lists the devices: first the devices of the installed libibverbs, then the software devices.
///
/// With the feature `soft`, this installs the software devices first, like `rdma::soft::install`. Without the feature,
/// it is the same as [`rdma_mem::list_devices`]. The environment variable `RDMA_PROVIDERS` overrides which providers
/// are listed and in which order (`system`, `soft,system` …). A provider that fails does not hide the others; its error
/// is in [`DeviceList::errors`].
///
/// # Examples
/// Finds the first device of libibverbs, which is a NIC or SoftRoCE:
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
/// With the feature `soft`, this installs the software devices first, whatever the name is, so that the error for an
/// unknown name also lists them.
///
/// # Errors
/// [`Error::UnknownDevice`], with the known names, if no device has this name; [`Error::Verb`] if the device cannot be
/// opened.
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

/// Opens the device named by `RDMA_DEVICE`, or else the first NIC with an active port, or else a software device.
///
/// With the feature `soft`, this installs the software devices first. See [`rdma_mem::open_default_device`], whose
/// `tracing` event contains the name of the device.
///
/// # Errors
/// Same errors as [`rdma_mem::open_default_device`].
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
