//! One RDMA device, before it is opened.
#![allow(unsafe_code)]

use std::ffi::{CStr, c_char};
use std::path::Path;
use std::ptr::{self, NonNull};
use std::sync::Arc;
use std::{fmt, fs};

use rdma_sys::{Errno, Process, Verbs, ibv_device};
use rdma_types::{Guid, NodeType, TransportType};

use crate::device::unknown::UnknownDevice;
use crate::error::Error;
use crate::error::hint;
use crate::error::verb::VerbError;
use crate::object::forked::{self, Forked};

/// An RDMA device that [`list_devices`](crate::list_devices) found.
///
/// Clones are cheap. A device can be opened any number of times.
#[doc(alias = "ibv_device")]
#[derive(Clone)]
pub struct Device {
    raw: NonNull<ibv_device>,
    name: Arc<str>,
    list: Arc<RawList>,
}

// SAFETY: SAFETY.md F9: a listed device does not change, and any thread may call verbs on it.
unsafe impl Send for Device {}
// SAFETY: SAFETY.md F9: same argument as above.
unsafe impl Sync for Device {}

/// The array that `ibv_get_device_list` returned. Its devices are valid until the array is freed.
struct RawList {
    raw: NonNull<*mut ibv_device>,
    verbs: &'static Verbs,
    process: Process,
}

// SAFETY: SAFETY.md F9: the array is only read, and the last owner frees it on drop.
unsafe impl Send for RawList {}
// SAFETY: SAFETY.md F9: same argument as above.
unsafe impl Sync for RawList {}

impl Drop for RawList {
    fn drop(&mut self) {
        if !self.process.is_current() {
            return;
        }
        // SAFETY: SAFETY.md F2, F6: this table returned the list, and every device holds an `Arc`
        // of it.
        unsafe { (self.verbs.free_device_list)(self.raw.as_ptr()) };
    }
}

impl Device {
    /// Lists the devices of one provider.
    ///
    /// # Safety
    /// The contract of [`rdma_sys::register`] applies: all functions in the table come from one
    /// provider (SAFETY.md F2).
    pub(crate) unsafe fn list(verbs: &'static Verbs) -> Result<Vec<Self>, VerbError> {
        let mut count = 0;
        // SAFETY: SAFETY.md F1, F2: `count` is alive during the call.
        let raw = unsafe { (verbs.get_device_list)(&raw mut count) };
        let raw = Errno::check_null(raw).map_err(|errno| {
            VerbError::new("ibv_get_device_list", errno).with_hint(hint::open(errno, None))
        })?;
        let list = Arc::new(RawList { raw, verbs, process: Process::current() });
        let count = usize::try_from(count).unwrap_or(0);
        Ok((0..count).filter_map(|index| Self::at(&list, index)).collect())
    }

    /// Finds the device with this address in a new list, which keeps it alive.
    ///
    /// # Safety
    /// The contract of [`list`](Self::list) applies. The device is live and belongs to this table.
    pub(crate) unsafe fn find(verbs: &'static Verbs, raw: *mut ibv_device) -> Result<Self, Error> {
        // SAFETY: SAFETY.md F2: the caller upholds the same contract.
        let devices = unsafe { Self::list(verbs) }?;
        if let Some(device) = devices.iter().find(|device| ptr::eq(device.as_raw(), raw)) {
            return Ok(device.clone());
        }
        // SAFETY: SAFETY.md F1, F2: the caller upholds the same contract.
        let name = unsafe { name_of(verbs, raw) }.unwrap_or_default();
        let known = devices.iter().map(|device| device.name().to_owned()).collect();
        Err(Box::new(UnknownDevice { name, known, errors: Vec::new() }).into())
    }

    fn at(list: &Arc<RawList>, index: usize) -> Option<Self> {
        // SAFETY: SAFETY.md F1: the caller's index is below the count that `ibv_get_device_list`
        // returned.
        let place = unsafe { list.raw.add(index) };
        // SAFETY: SAFETY.md F1: the entry is within the array, which `list` keeps alive.
        let raw = NonNull::new(unsafe { place.read() })?;
        // SAFETY: SAFETY.md F1, F2: the device is in this table's list, which is live.
        let name = unsafe { name_of(list.verbs, raw.as_ptr()) }?;
        Some(Self { raw, name: Arc::from(name), list: Arc::clone(list) })
    }

    /// Returns the device's name, such as `mlx5_0`, `rxe0` or `soft0`.
    #[doc(alias = "ibv_get_device_name")]
    #[must_use]
    pub fn name(&self) -> &str {
        &self.name
    }

    /// Returns the name of the device's file in `/dev/infiniband`, such as `uverbs0`. A software
    /// device has a name without a file.
    ///
    /// ```
    /// # rdma_soft::install();
    /// let soft = rdma_mem::open_device("soft0")?;
    /// assert_eq!(soft.device().file_name().as_deref(), Some("uverbs8192"));
    /// # Ok::<(), rdma_mem::Error>(())
    /// ```
    #[must_use]
    pub fn file_name(&self) -> Option<String> {
        // SAFETY: SAFETY.md F6: `self.list` keeps the device alive, and the device does not change.
        text_of(unsafe { (*self.raw.as_ptr()).dev_name })
    }

    /// Returns the NUMA node to which the device is attached. Threads and memory on that node have
    /// the fastest access to the device. `None` for a software device, and if the kernel reports no
    /// node (-1), as it may on a machine with a single node.
    ///
    /// The kernel reports the node in `device/numa_node` in the device's folder in
    /// `/sys/class/infiniband`.
    ///
    /// ```
    /// # rdma_soft::install();
    /// let soft = rdma_mem::open_device("soft0")?;
    /// assert_eq!(soft.device().numa_node(), None);
    /// # Ok::<(), rdma_mem::Error>(())
    /// ```
    #[must_use]
    pub fn numa_node(&self) -> Option<u32> {
        numa_node_in(&Path::new(&self.folder()?).join("device/numa_node"))
    }

    /// Returns the device's folder in `/sys/class/infiniband`; `None` for a software device.
    pub(crate) fn folder(&self) -> Option<String> {
        // SAFETY: SAFETY.md F6: `self.list` keeps the device alive, and the device does not change.
        text_of(unsafe { (*self.raw.as_ptr()).ibdev_path }).filter(|folder| !folder.is_empty())
    }

    /// Returns the device's GUID (InfiniBand's node GUID).
    #[doc(alias = "ibv_get_device_guid")]
    #[must_use]
    pub fn guid(&self) -> Guid {
        // SAFETY: SAFETY.md F2, F6: the device belongs to this table, and `self.list` keeps it
        // alive.
        Guid::from_be(unsafe { (self.verbs().get_device_guid)(self.raw.as_ptr()) })
    }

    /// Returns the device's node type: [`NodeType::CA`] for an InfiniBand or RoCE device.
    #[must_use]
    pub fn node_type(&self) -> NodeType {
        // SAFETY: SAFETY.md F6: `self.list` keeps the device alive, and the device does not change.
        NodeType::from_raw(unsafe { (*self.raw.as_ptr()).node_type }.0)
    }

    /// Returns the device's transport: [`TransportType::IB`] for an InfiniBand or RoCE device.
    #[must_use]
    pub fn transport_type(&self) -> TransportType {
        // SAFETY: SAFETY.md F6: `self.list` keeps the device alive, and the device does not change.
        TransportType::from_raw(unsafe { (*self.raw.as_ptr()).transport_type }.0)
    }

    /// Returns the number that the kernel assigned to the device and never reuses. `None` if the
    /// kernel does not know the device, or with a libibverbs before rdma-core 30.
    #[doc(alias = "ibv_get_device_index")]
    #[must_use]
    pub fn index(&self) -> Option<u32> {
        let index = self.verbs().get_device_index?;
        // SAFETY: SAFETY.md F2, F6: the device belongs to this table, and `self.list` keeps it
        // alive.
        u32::try_from(unsafe { index(self.raw.as_ptr()) }).ok()
    }

    /// Checks that this process listed the device.
    pub(crate) fn check_process(&self) -> Result<(), Forked> {
        forked::check(self.list.process)
    }

    /// Returns the functions of the device's provider.
    #[must_use]
    pub fn verbs(&self) -> &'static Verbs {
        self.list.verbs
    }

    /// Returns the C object, which stays alive while `self` or one of its clones exists.
    #[must_use]
    pub const fn as_raw(&self) -> *mut ibv_device {
        self.raw.as_ptr()
    }
}

/// Returns the text in a C array, up to its zero byte.
fn text_of<const N: usize>(text: [c_char; N]) -> Option<String> {
    let bytes = text.map(|byte| byte.to_ne_bytes()[0]);
    CStr::from_bytes_until_nul(&bytes).ok()?.to_str().ok().map(str::to_owned)
}

/// Reads a NUMA node from a file; `None` for -1, which the kernel writes for a device without a
/// node.
fn numa_node_in(file: &Path) -> Option<u32> {
    fs::read_to_string(file).ok()?.trim().parse().ok()
}

/// Returns a device's name, or `None` if it has no name.
///
/// # Safety
/// The device is live and belongs to this table, whose functions come from one provider.
unsafe fn name_of(verbs: &'static Verbs, raw: *mut ibv_device) -> Option<String> {
    // SAFETY: SAFETY.md F1, F2: the device is live and belongs to this table, by this function's
    // contract.
    let name = unsafe { (verbs.get_device_name)(raw) };
    // SAFETY: SAFETY.md F1: a name is a C string that lives as long as the device.
    (!name.is_null()).then(|| unsafe { CStr::from_ptr(name) }.to_string_lossy().into_owned())
}

impl fmt::Debug for Device {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Device")
            .field("name", &self.name)
            .field("provider", &self.verbs().name)
            .finish_non_exhaustive()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_node_is_what_the_kernel_writes_but_minus_one() {
        let folder = tempfile::tempdir().unwrap();
        let file = folder.path().join("numa_node");
        assert_eq!(numa_node_in(&file), None, "no such file");
        for (written, node) in [("1\n", Some(1)), ("-1\n", None), ("", None)] {
            fs::write(&file, written).unwrap();
            assert_eq!(numa_node_in(&file), node, "{written:?}");
        }
    }
}
