//! An opened device.
#![allow(unsafe_code)]

use std::ptr::{self, NonNull};
use std::sync::{Arc, OnceLock};

use rdma_sys::{
    Errno, Verbs, ibv_context, ibv_device_attr_ex, ibv_port_attr, ibv_values_ex, ibv_values_mask,
};

use rdma_types::{AccessFlags, AtomicCapability};

use crate::device::attributes::DeviceAttributes;
use crate::device::extended_attributes::ExtendedAttributes;
use crate::device::interface::Networks;
use crate::device::listed::Device;
use crate::device::port::PortAttributes;
use crate::error::Error;
use crate::error::hint;
use crate::error::verb::VerbError;
use crate::event::log::EventLog;
use crate::object::forked::Forked;
use crate::object::handle::Handle;
use crate::object::ownership::Ownership;

/// An opened device, from which all other objects are created.
///
/// Clones are cheap and refer to the same context. The context is closed once all clones and all
/// objects created from it have been dropped.
///
/// # Examples
/// ```
/// rdma_soft::install();
/// let context = rdma_mem::open_device("soft0")?;
/// let device = context.query_device()?;
/// for number in 1..=device.port_count {
///     println!("port {number} is {}", context.query_port(number)?.state);
/// }
/// # Ok::<(), rdma_mem::Error>(())
/// ```
#[doc(alias = "ibv_context")]
#[derive(Clone, Debug)]
pub struct Context(Arc<Handle<ibv_context, Opened>>);

/// The device of a context, which the context keeps alive, the log of the device's events, and values that are not read
/// for each use.
#[derive(Debug)]
struct Opened {
    device: Device,
    events: EventLog,
    networks: Networks,
    /// The number of entries of all GID tables, which is constant.
    gid_places: OnceLock<usize>,
}

impl Opened {
    fn new(device: Device) -> Self {
        let (events, networks) = (EventLog::default(), Networks::default());
        Self { device, events, networks, gid_places: OnceLock::new() }
    }
}

impl Context {
    /// Opens a device, like [`Device::open`].
    ///
    /// # Errors
    /// Returns the provider's error, with a hint, if the device cannot be opened.
    #[doc(alias = "ibv_open_device")]
    pub fn open(device: &Device) -> Result<Self, Error> {
        device.check_process()?;
        let verbs = device.verbs();
        // SAFETY: SAFETY.md F2: the device comes from this table's list, which `device` keeps
        // alive.
        let raw = unsafe { (verbs.open_device)(device.as_raw()) };
        let raw = Errno::check_null(raw).map_err(|errno| {
            VerbError::new("ibv_open_device", errno)
                .with_hint(hint::open(errno, device.file_name().as_deref()))
        })?;
        let needs = Opened::new(device.clone());
        // SAFETY: SAFETY.md F2, F9: the context has just been opened through this table, and
        // `needs` keeps its device alive. Objects created from the context hold a clone of it (F6).
        let handle = unsafe { Handle::new(raw, verbs.close_device, "ibv_close_device", needs) };
        Ok(Self(Arc::new(handle)))
    }

    /// Returns an error if `access` includes remote atomics and the device has no atomics. The
    /// provider itself would return an error that does not name the cause, or none at all.
    pub(crate) fn check_atomics(&self, access: AccessFlags) -> Result<(), Error> {
        let wants = access.contains(AccessFlags::REMOTE_ATOMIC);
        if wants && self.query_device()?.atomic_capability == AtomicCapability::NONE {
            return Err(Error::NoAtomics { device: self.device().name().to_owned() });
        }
        Ok(())
    }

    /// Wraps a context that was opened elsewhere.
    ///
    /// [`async_events`](Self::async_events) and [`events_of`](Self::events_of) make the context's
    /// `async_fd` non-blocking, also for code that uses the context elsewhere. If that code calls
    /// `ibv_get_async_event`, each event reaches either that code or these functions. To find the
    /// event that caused a failure, the channels of `rdma-channel` call `events_of` after a flushed
    /// request. Its servers also call it after a client disconnects.
    ///
    /// # Errors
    /// Returns an error if the provider cannot list its devices, or if the context's device was
    /// removed ([`Error::UnknownDevice`]).
    ///
    /// # Safety
    /// The caller upholds the contract of [`Ownership`]. The context was opened with the
    /// `ibv_open_device` of `verbs`. All functions in `verbs` come from one provider: see
    /// [`DeviceList::of`](crate::DeviceList::of).
    ///
    /// # Examples
    /// ```
    /// use std::ptr::NonNull;
    /// use rdma_mem::{Context, Ownership};
    ///
    /// rdma_soft::install();
    /// let verbs = rdma_soft::verbs();
    /// # let devices = rdma_mem::list_devices();
    /// # let device = devices.iter().find(|device| device.name() == "soft0").unwrap().as_raw();
    /// // SAFETY: a listed device of this table.
    /// let raw = NonNull::new(unsafe { (verbs.open_device)(device) }).unwrap();
    /// // SAFETY: just opened, and not used elsewhere.
    /// let context = unsafe { Context::from_raw(raw, verbs, Ownership::Owned) }?;
    /// assert_eq!(context.device().name(), "soft0");
    /// # Ok::<(), rdma_mem::Error>(())
    /// ```
    pub unsafe fn from_raw(
        raw: NonNull<ibv_context>,
        verbs: &'static Verbs,
        ownership: Ownership,
    ) -> Result<Self, Error> {
        // SAFETY: SAFETY.md F1: the context is live, and its device never changes.
        let device = unsafe { (*raw.as_ptr()).device };
        // SAFETY: SAFETY.md F1, F2: the device belongs to a live context of this table.
        let device = unsafe { Device::find(verbs, device) }?;
        let needs = Opened::new(device);
        let (close, verb) = (verbs.close_device, "ibv_close_device");
        // SAFETY: SAFETY.md F2, F6, F9: by this function's contract; `needs` keeps the device
        // alive.
        let handle = unsafe { Handle::from_raw(raw, close, verb, needs, ownership) };
        Ok(Self(Arc::new(handle)))
    }

    /// Returns the device.
    #[must_use]
    pub fn device(&self) -> &Device {
        &self.0.needs().device
    }

    /// Returns the log of the device's events.
    pub(crate) fn log(&self) -> &EventLog {
        &self.0.needs().events
    }

    /// Returns the networks of the GIDs. Like the log, they must not be used in a forked child.
    pub(crate) fn networks(&self) -> &Networks {
        &self.0.needs().networks
    }

    /// Returns the number of entries of all GID tables, once it is known.
    pub(crate) fn gid_places(&self) -> &OnceLock<usize> {
        &self.0.needs().gid_places
    }

    /// Queries the attributes of the device; see `man ibv_query_device`. For the extended
    /// attributes, see [`query_device_extended`](Self::query_device_extended).
    ///
    /// # Errors
    /// Returns an error if the provider refuses.
    #[doc(alias = "ibv_query_device")]
    pub fn query_device(&self) -> Result<DeviceAttributes, Error> {
        let all = self.query_device_raw()?;
        Ok(DeviceAttributes::from_raw(&all.orig_attr, all.device_cap_flags_ex))
    }

    /// Queries the extended attributes of the device; see `man ibv_query_device_ex`. They are all 0
    /// if the provider does not report them.
    ///
    /// # Errors
    /// Returns an error if the provider refuses.
    ///
    /// # Examples
    /// ```
    /// rdma_soft::install();
    /// let context = rdma_mem::open_device("soft0")?;
    /// let attributes = context.query_device_extended()?;
    /// assert_eq!(attributes.odp.to_string(), "none");
    /// # Ok::<(), rdma_mem::Error>(())
    /// ```
    #[doc(alias = "ibv_query_device_ex")]
    pub fn query_device_extended(&self) -> Result<ExtendedAttributes, Error> {
        Ok(ExtendedAttributes::from_raw(&self.query_device_raw()?))
    }

    fn query_device_raw(&self) -> Result<ibv_device_attr_ex, Error> {
        self.check_process()?;
        let mut attributes = ibv_device_attr_ex::default();
        // SAFETY: SAFETY.md F1: the context is live and belongs to this table, and the attributes
        // may be written.
        let returned = unsafe {
            rdma_sys::ibv_query_device_ex(
                self.verbs(),
                self.as_raw(),
                ptr::null(),
                &raw mut attributes,
            )
        };
        check("ibv_query_device_ex", returned)?;
        Ok(attributes)
    }

    /// Reads the device's clock, in ticks. Completion timestamps come from the same clock; see `man
    /// ibv_query_rt_values_ex`.
    ///
    /// # Errors
    /// Returns an error if the device has no clock, or the provider refuses.
    ///
    /// # Examples
    /// ```
    /// rdma_soft::install();
    /// let context = rdma_mem::open_device("soft0")?;
    /// let before = context.raw_clock()?;
    /// assert!(before <= context.raw_clock()?);
    /// # Ok::<(), rdma_mem::Error>(())
    /// ```
    #[doc(alias = "ibv_query_rt_values_ex")]
    pub fn raw_clock(&self) -> Result<u64, Error> {
        self.check_process()?;
        let mask = ibv_values_mask::IBV_VALUES_MASK_RAW_CLOCK.0;
        let mut values = ibv_values_ex { comp_mask: mask, ..Default::default() };
        // SAFETY: SAFETY.md F1: the context is live, and the values may be written.
        let returned = unsafe { rdma_sys::ibv_query_rt_values_ex(self.as_raw(), &raw mut values) };
        // The provider sets the mask bits of the fields that it has filled in.
        let filled = values.comp_mask & mask != 0;
        let returned = if returned == 0 && !filled { Errno::EOPNOTSUPP.raw() } else { returned };
        check("ibv_query_rt_values_ex", returned)?;
        // Providers store all ticks in `tv_nsec`. The sum is also right for one that fills in both
        // fields.
        let (seconds, ticks) = (values.raw_clock.tv_sec, values.raw_clock.tv_nsec);
        let whole = seconds.cast_unsigned().wrapping_mul(1_000_000_000);
        Ok(whole.wrapping_add(ticks.cast_unsigned()))
    }

    /// Queries the attributes of a port; see `man ibv_query_port`. Ports are numbered from 1.
    ///
    /// # Errors
    /// Returns an error if the port does not exist, or the provider refuses.
    #[doc(alias = "ibv_query_port")]
    pub fn query_port(&self, port: u8) -> Result<PortAttributes, Error> {
        self.check_process()?;
        let mut attributes = ibv_port_attr::default();
        // SAFETY: SAFETY.md F1: the context is live and belongs to this table, and the attributes
        // may be written.
        let returned = unsafe {
            rdma_sys::ibv_query_port(self.verbs(), self.as_raw(), port, &raw mut attributes)
        };
        check("ibv_query_port", returned)?;
        Ok(PortAttributes::from_raw(port, &attributes))
    }

    /// Returns the number of completion vectors (the device's interrupts). Each completion queue
    /// uses one.
    #[doc(alias = "num_comp_vectors")]
    #[must_use]
    pub fn completion_vectors(&self) -> u32 {
        // SAFETY: SAFETY.md F1, F6: the context is live, and its number of vectors never changes.
        u32::try_from(unsafe { (*self.as_raw()).num_comp_vectors }).unwrap_or(0)
    }

    /// Closes the device.
    ///
    /// # Errors
    /// Returns the context and an error: [`Error::StillUsed`] while a clone of the context, or an
    /// object created from it, is alive; otherwise the provider's error.
    #[doc(alias = "ibv_close_device")]
    pub fn close(self) -> Result<(), (Self, Error)> {
        Handle::close_last(self.0, "context").map_err(|(handle, error)| (Self(handle), error))
    }

    /// Checks that this process created the object. Call this before you pass
    /// [`as_raw`](Self::as_raw) to a verb outside the data path.
    ///
    /// # Errors
    /// Returns an error in a child that was forked after the object was created.
    #[inline]
    pub fn check_process(&self) -> Result<(), Forked> {
        self.0.check_process()
    }

    /// Returns the functions of the context's provider.
    #[inline]
    #[must_use]
    pub fn verbs(&self) -> &'static Verbs {
        self.device().verbs()
    }

    /// Returns the C object, which stays alive while `self` or one of its clones exists.
    #[inline]
    #[must_use]
    pub fn as_raw(&self) -> *mut ibv_context {
        self.0.as_ptr()
    }

    /// Returns true if both values are clones of the same context.
    #[must_use]
    pub fn is_same(&self, other: &Self) -> bool {
        Arc::ptr_eq(&self.0, &other.0)
    }
}

impl Device {
    /// Opens the device; see `man ibv_open_device`.
    ///
    /// # Errors
    /// [`Error::Verb`] if the provider refuses. The usual cause, which the hint then names, is a
    /// missing permission for `/dev/infiniband`.
    ///
    /// # Examples
    /// ```
    /// rdma_soft::install();
    /// let devices = rdma_mem::list_devices();
    /// let soft0 = devices.iter().find(|device| device.name() == "soft0").unwrap();
    /// let context = soft0.open()?;
    /// assert_eq!(context.device().guid(), soft0.guid());
    /// # Ok::<(), rdma_mem::Error>(())
    /// ```
    #[doc(alias = "ibv_open_device")]
    pub fn open(&self) -> Result<Context, Error> {
        let context = Context::open(self)?;
        tracing::debug!(device = self.name(), provider = self.verbs().name, "device opened");
        Ok(context)
    }
}

fn check(verb: &'static str, returned: i32) -> Result<(), VerbError> {
    Errno::check(returned).map_err(|errno| VerbError::new(verb, errno))
}

/// Checks a pointer that a verb returned. Returns the error in `errno` if it is NULL.
pub(crate) fn check_null<T>(verb: &'static str, returned: *mut T) -> Result<NonNull<T>, VerbError> {
    Errno::check_null(returned)
        .map_err(|errno| VerbError::new(verb, errno).with_hint(hint::create(errno)))
}
