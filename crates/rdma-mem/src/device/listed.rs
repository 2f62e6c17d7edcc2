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

// SAFETY: SAFETY.md F9: a listed device does not change, and verbs on it may come from any thread.
unsafe impl Send for Device {}
// SAFETY: SAFETY.md F9: as above.
unsafe impl Sync for Device {}

/// The array that `ibv_get_device_list` returned. Its devices are valid until it is freed.
struct RawList {
    raw: NonNull<*mut ibv_device>,
    verbs: &'static Verbs,
    process: Process,
}

// SAFETY: SAFETY.md F9: it is only read, and freed when its last owner is dropped.
unsafe impl Send for RawList {}
// SAFETY: SAFETY.md F9: as above.
unsafe impl Sync for RawList {}

impl Drop for RawList {
    fn drop(&mut self) {
        if !self.process.is_current() {
            return;
        }
        // SAFETY: SAFETY.md F2, F6: the list of this table; every device holds an `Arc` of it.
        unsafe { (self.verbs.free_device_list)(self.raw.as_ptr()) };
    }
}

impl Device {
    /// Lists the devices of one provider.
    ///
    /// # Safety
    /// The contract is that of [`rdma_sys::register`]: the functions of the table are those of one
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

    /// Returns the device at this address, from a new list that keeps it alive.
    ///
    /// # Safety
    /// The contract is that of [`list`](Self::list), and the device is live and of this table.
    pub(crate) unsafe fn find(verbs: &'static Verbs, raw: *mut ibv_device) -> Result<Self, Error> {
        // SAFETY: SAFETY.md F2: the same contract.
        let devices = unsafe { Self::list(verbs) }?;
        if let Some(device) = devices.iter().find(|device| ptr::eq(device.as_raw(), raw)) {
            return Ok(device.clone());
        }
        // SAFETY: SAFETY.md F1, F2: the same contract.
        let name = unsafe { name_of(verbs, raw) }.unwrap_or_default();
        let known = devices.iter().map(|device| device.name().to_owned()).collect();
        Err(Box::new(UnknownDevice { name, known, errors: Vec::new() }).into())
    }

    fn at(list: &Arc<RawList>, index: usize) -> Option<Self> {
        // SAFETY: SAFETY.md F1: the caller counts to what `ibv_get_device_list` returned.
        let place = unsafe { list.raw.add(index) };
        // SAFETY: SAFETY.md F1: the entry is within the array, which lives as long as `list`.
        let raw = NonNull::new(unsafe { place.read() })?;
        // SAFETY: SAFETY.md F1, F2: a device of this table's list, which is live.
        let name = unsafe { name_of(list.verbs, raw.as_ptr()) }?;
        Some(Self { raw, name: Arc::from(name), list: Arc::clone(list) })
    }

    /// Returns the device's name: `mlx5_0`, `rxe0`, `soft0`.
    #[doc(alias = "ibv_get_device_name")]
    #[must_use]
    pub fn name(&self) -> &str {
        &self.name
    }

    /// Returns the name of the device's file in `/dev/infiniband`, such as `uverbs0`.
    pub(crate) fn file_name(&self) -> Option<String> {
        // SAFETY: SAFETY.md F6: alive by `self.list`, and it does not change.
        text_of(unsafe { (*self.raw.as_ptr()).dev_name })
    }

    /// Returns the NUMA node that the device is attached to. A program has the fastest access to the device if its
    /// threads and memory are on that node. `None` for a device without a node: a software device, or one of a machine
    /// with a single node.
    ///
    /// The kernel reports it in `numa_node` of the device's folder in `/sys/class/infiniband`.
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
        // SAFETY: SAFETY.md F6: alive by `self.list`, and it does not change.
        text_of(unsafe { (*self.raw.as_ptr()).ibdev_path }).filter(|folder| !folder.is_empty())
    }

    /// Returns the GUID of the device (the node GUID of InfiniBand).
    #[doc(alias = "ibv_get_device_guid")]
    #[must_use]
    pub fn guid(&self) -> Guid {
        // SAFETY: SAFETY.md F2, F6: a device of this table, alive by `self.list`.
        Guid::from_be(unsafe { (self.verbs().get_device_guid)(self.raw.as_ptr()) })
    }

    /// Returns the kind of node that the device is; for an InfiniBand or RoCE device
    /// [`NodeType::CA`].
    #[must_use]
    pub fn node_type(&self) -> NodeType {
        // SAFETY: SAFETY.md F6: alive by `self.list`, and it does not change.
        NodeType::from_raw(unsafe { (*self.raw.as_ptr()).node_type }.0)
    }

    /// Returns its transport; for an InfiniBand or RoCE device [`TransportType::IB`].
    #[must_use]
    pub fn transport_type(&self) -> TransportType {
        // SAFETY: SAFETY.md F6: alive by `self.list`, and it does not change.
        TransportType::from_raw(unsafe { (*self.raw.as_ptr()).transport_type }.0)
    }

    /// Returns the number that the kernel assigned, which is never used for another device. `None` for a device that is
    /// not the kernel's, and from a libibverbs before rdma-core 30.
    #[doc(alias = "ibv_get_device_index")]
    #[must_use]
    pub fn index(&self) -> Option<u32> {
        let index = self.verbs().get_device_index?;
        // SAFETY: SAFETY.md F2, F6: a device of this table, alive by `self.list`.
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

    /// Returns the C object, which lives as long as `self` or a clone.
    #[must_use]
    pub const fn as_raw(&self) -> *mut ibv_device {
        self.raw.as_ptr()
    }
}

/// Returns the text in an array of C, up to its zero byte.
fn text_of<const N: usize>(text: [c_char; N]) -> Option<String> {
    let bytes = text.map(|byte| byte.to_ne_bytes()[0]);
    CStr::from_bytes_until_nul(&bytes).ok()?.to_str().ok().map(str::to_owned)
}

/// Returns the node in a file. The kernel writes -1 if there is none.
fn numa_node_in(file: &Path) -> Option<u32> {
    fs::read_to_string(file).ok()?.trim().parse().ok()
}

/// Returns the name of a device, or `None` if it has no name.
///
/// # Safety
/// The device is live and of this table, which is one provider's.
unsafe fn name_of(verbs: &'static Verbs, raw: *mut ibv_device) -> Option<String> {
    // SAFETY: SAFETY.md F1, F2: a live device of this table, by this function's contract.
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
