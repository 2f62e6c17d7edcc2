//! The blocks that `ibv_device` pointers of ours point to.

use std::collections::BTreeMap;
use std::ffi::c_char;
use std::sync::Mutex;

use rdma_sys::{ibv_device, ibv_node_type, ibv_transport_type};

use crate::device::Device;
use crate::device::subnet::INSTALLED;
use crate::sync::locked;

/// What a program's pointer to a device points to. It is never freed, as the device is not, and only read
/// once it is made.
///
/// Vendors' direct verbs look behind `ibv_device`, where libibverbs keeps its own part of
/// `struct verbs_device`, to see whose device it is: they find zeroes.
#[repr(C)]
pub(super) struct DeviceBlock {
    verbs: ibv_device,
    libibverbs: [u64; 16],
    device: &'static Device,
}

/// By the address of their device.
static BLOCKS: Mutex<BTreeMap<usize, &'static DeviceBlock>> = Mutex::new(BTreeMap::new());

/// The number of `uverbsN` of `soft0`, the same in each process. Numbers of the kernel's devices are less than this: it has
/// at most 8,192 ports in all (`RDMA_MAX_PORTS`).
const FIRST_NUMBER: usize = 8192;
/// Those that each process has, with the numbers from [`FIRST_NUMBER`] on.
const EVERYWHERE: [&str; 2] = ["soft0", "softib0"];

/// The blocks of all devices, in the order in which they were installed. A device always has the same.
pub(super) fn blocks() -> Vec<&'static DeviceBlock> {
    let mut blocks = locked(&BLOCKS);
    let block = |device: &'static Device| -> &'static DeviceBlock {
        let before = blocks.len();
        let number = EVERYWHERE.iter().position(|name| *name == device.name);
        let number = FIRST_NUMBER + number.unwrap_or(EVERYWHERE.len() + before);
        blocks
            .entry(std::ptr::from_ref(device).addr())
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
        // Where the kernel would describe the device; nothing is there.
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

/// Copies a text, as much of it as leaves space for a zero after it.
pub(super) fn put(field: &mut [c_char], text: &str) {
    let space = field.len() - 1;
    for (to, from) in field[..space].iter_mut().zip(text.bytes()) {
        *to = c_char::from_ne_bytes([from]);
    }
}
