//! Devices: those of the machine, and with the feature `soft` the software devices behind them.
//!
//! [`open_device`] opens the device that it names, and never a software device in place of one that is not there.
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

/// Lists the devices: first those of the installed libibverbs, last the software devices.
///
/// With the feature `soft` it installs the software devices first, as `rdma::soft::install` does;
/// without it, it is [`rdma_mem::list_devices`]. The environment variable `RDMA_PROVIDERS` chooses and
/// orders the providers instead (`system`, `soft,system` …). A provider that fails does not hide the
/// others; what it said is in [`DeviceList::errors`].
///
/// # Examples
/// The first device that libibverbs has, a NIC or SoftRoCE:
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

/// Opens the first device of this name, in the order of [`list_devices`].
///
/// With the feature `soft` it installs the software devices first, whatever the name: so the error
/// for an unknown one lists them, too.
///
/// # Errors
/// [`Error::UnknownDevice`] if there is none, with the names that there are; [`Error::Verb`] if it
/// cannot be opened.
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

/// Opens the device that `RDMA_DEVICE` names, else the first NIC with an active port, else a software device.
///
/// With the feature `soft` it installs the software devices first. See [`rdma_mem::open_default_device`], whose event of
/// `tracing` says which device it is.
///
/// # Errors
/// Those of [`rdma_mem::open_default_device`].
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
