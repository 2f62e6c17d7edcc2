//! The device list, and the blocks to which its pointers point.

use std::collections::BTreeMap;
use std::ffi::{c_char, c_int};
use std::ptr;
use std::sync::Mutex;

use rdma_sys::{Errno, ibv_device, ibv_node_type, ibv_transport_type};

use crate::abi::convert::{int, put};
use crate::device::Device;
use crate::device::subnet::INSTALLED;
use crate::sync::locked;

/// The block that a program's device pointer points to. Like the device, the block is never freed. Nothing writes to it
/// after it was made.
///
/// To identify the vendor of a device, vendors' direct verbs read beyond `ibv_device`, where libibverbs keeps its own
/// part of `struct verbs_device`. Here they find zeroes.
#[repr(C)]
pub(super) struct DeviceBlock {
    verbs: ibv_device,
    libibverbs: [u64; 16],
    device: &'static Device,
}

/// The blocks, by the address of their device.
static BLOCKS: Mutex<BTreeMap<usize, &'static DeviceBlock>> = Mutex::new(BTreeMap::new());

/// The number N in `uverbsN` for `soft0`, the same in each process. The kernel's devices have lower numbers, because
/// the kernel has at most 8,192 ports in total (`RDMA_MAX_PORTS`).
const FIRST_NUMBER: usize = 8192;
/// The devices that `install` adds to each process, numbered from [`FIRST_NUMBER`].
const EVERYWHERE: [&str; 2] = ["soft0", "softib0"];

/// Returns the blocks of all devices, in installation order. A device always has the same block.
fn blocks() -> Vec<&'static DeviceBlock> {
    let mut blocks = locked(&BLOCKS);
    let block = |device: &'static Device| -> &'static DeviceBlock {
        let before = blocks.len();
        let number = EVERYWHERE.iter().position(|name| *name == device.name);
        let number = FIRST_NUMBER + number.unwrap_or(EVERYWHERE.len() + before);
        blocks
            .entry(ptr::from_ref(device).addr())
            .or_insert_with(|| Box::leak(Box::new(DeviceBlock::new(device, number))))
    };
    INSTALLED.all().into_iter().map(block).collect()
}

impl DeviceBlock {
    fn new(device: &'static Device, number: usize) -> Self {
        let mut verbs = ibv_device::default();
        verbs.node_type = ibv_node_type::IBV_NODE_CA;
        verbs.transport_type = ibv_transport_type::IBV_TRANSPORT_IB;
        let uverbs = format!("uverbs{number}");
        // The paths at which the kernel would describe the device. These paths do not exist.
        let dev_path = format!("/sys/class/infiniband_verbs/{uverbs}");
        let ibdev_path = format!("/sys/class/infiniband/{}", device.name);
        put(&mut verbs.name, &device.name);
        put(&mut verbs.dev_name, &uverbs);
        put(&mut verbs.dev_path, &dev_path);
        put(&mut verbs.ibdev_path, &ibdev_path);
        Self { verbs, libibverbs: [0; 16], device }
    }

    pub(super) fn device(&self) -> &'static Device {
        self.device
    }
}

pub(crate) unsafe extern "C" fn get_device_list(count: *mut c_int) -> *mut *mut ibv_device {
    let devices = blocks();
    // SAFETY: calloc has no precondition (SAFETY.md F15); the last entry stays NULL.
    let memory = unsafe { libc::calloc(devices.len() + 1, size_of::<*mut ibv_device>()) };
    let list = memory.cast::<*mut ibv_device>();
    if list.is_null() {
        Errno::ENOMEM.set();
        return list;
    }
    for (n, block) in devices.iter().enumerate() {
        let device = ptr::from_ref::<DeviceBlock>(block).cast_mut().cast();
        // SAFETY: `n` is less than the number of allocated entries (SAFETY.md F11).
        let entry = unsafe { list.add(n) };
        // SAFETY: the entry belongs to the list that was just allocated (SAFETY.md F11).
        unsafe { entry.write(device) };
    }
    if !count.is_null() {
        // SAFETY: the caller passes a valid pointer for the count, or NULL (SAFETY.md F1).
        unsafe { count.write(int(devices.len() as u64)) };
    }
    list
}

pub(crate) unsafe extern "C" fn free_device_list(list: *mut *mut ibv_device) {
    // SAFETY: `get_device_list` allocated the list with calloc (SAFETY.md F1).
    unsafe { libc::free(list.cast()) }
}

pub(crate) unsafe extern "C" fn get_device_name(device: *mut ibv_device) -> *const c_char {
    // SAFETY: devices exist as long as the process (SAFETY.md F11).
    let name = unsafe { &raw const (*device).name };
    name.cast()
}

/// # Safety
///
/// The device belongs to this provider.
pub(super) unsafe fn block<'a>(device: *mut ibv_device) -> &'a DeviceBlock {
    // SAFETY: an `ibv_device` of this provider is at the beginning of its block, which exists as long as the process
    // and is never written (SAFETY.md F11).
    unsafe { &*device.cast::<DeviceBlock>() }
}

pub(crate) unsafe extern "C" fn get_device_guid(device: *mut ibv_device) -> u64 {
    // SAFETY: the caller passes a live device (SAFETY.md F1).
    unsafe { block(device) }.device().guid().to_be()
}

pub(crate) unsafe extern "C" fn get_device_index(_device: *mut ibv_device) -> c_int {
    // The kernel numbers only its own devices (man ibv_get_device_index).
    -1
}
