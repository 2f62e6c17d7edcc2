//! The blocks that `ibv_device` pointers of ours point to.

use std::collections::BTreeMap;
use std::ffi::c_char;
use std::sync::Mutex;

use rdma_sys::{ibv_device, ibv_node_type, ibv_transport_type};

use crate::device::Device;
use crate::fabric::devices::INSTALLED;
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

/// The blocks of all devices, in the order in which they were installed. A device always has the same.
pub(super) fn blocks() -> Vec<&'static DeviceBlock> {
    let mut blocks = locked(&BLOCKS);
    let block = |device: &'static Device| -> &'static DeviceBlock {
        blocks
            .entry(std::ptr::from_ref(device).addr())
            .or_insert_with(|| Box::leak(Box::new(DeviceBlock::new(device))))
    };
    INSTALLED.all().into_iter().map(block).collect()
}

impl DeviceBlock {
    fn new(device: &'static Device) -> Self {
        let mut verbs = ibv_device::default();
        verbs.node_type = ibv_node_type::IBV_NODE_CA;
        verbs.transport_type = ibv_transport_type::IBV_TRANSPORT_IB;
        for field in [&mut verbs.name, &mut verbs.dev_name] {
            // The builder left space for the terminating zero.
            for (to, from) in field.iter_mut().zip(device.name.bytes()) {
                *to = c_char::from_ne_bytes([from]);
            }
        }
        Self { verbs, libibverbs: [0; 16], device }
    }

    pub(super) fn device(&self) -> &'static Device {
        self.device
    }
}
