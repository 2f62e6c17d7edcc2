//! The device list, and what `ibv_query_device` says.

use std::ffi::{c_char, c_int};
use std::mem::offset_of;
use std::ptr;

use rdma_sys::{
    Errno, ibv_atomic_cap, ibv_context, ibv_device, ibv_device_attr, ibv_device_attr_ex,
    ibv_device_cap_flags, ibv_query_device_ex_input, ibv_values_ex, ibv_values_mask,
};

use super::block::device_of;
use super::device_block::{DeviceBlock, blocks, put};
use crate::device::Device;
use crate::engine::requester::side::MAX_MESSAGE_BYTES;
use crate::fabric::clock;
use crate::limits::Limits;
use crate::memory::window::Kind;

pub(super) unsafe extern "C" fn get_device_list(count: *mut c_int) -> *mut *mut ibv_device {
    let devices = blocks();
    // SAFETY: no precondition (SAFETY.md F15); the last entry stays NULL.
    let memory = unsafe { libc::calloc(devices.len() + 1, size_of::<*mut ibv_device>()) };
    let list = memory.cast::<*mut ibv_device>();
    if list.is_null() {
        Errno::ENOMEM.set();
        return list;
    }
    for (n, block) in devices.iter().enumerate() {
        let device = ptr::from_ref::<DeviceBlock>(block).cast_mut().cast();
        // SAFETY: `n` is less than the number of entries that were allocated (SAFETY.md F11).
        let entry = unsafe { list.add(n) };
        // SAFETY: an entry of the list just made (SAFETY.md F11).
        unsafe { entry.write(device) };
    }
    if !count.is_null() {
        // SAFETY: the caller's place for the count, or NULL (SAFETY.md F1).
        unsafe { count.write(int(devices.len() as u64)) };
    }
    list
}

pub(super) unsafe extern "C" fn free_device_list(list: *mut *mut ibv_device) {
    // SAFETY: made by `get_device_list` with calloc (SAFETY.md F1).
    unsafe { libc::free(list.cast()) }
}

pub(super) unsafe extern "C" fn get_device_name(device: *mut ibv_device) -> *const c_char {
    // SAFETY: devices live as long as the process (SAFETY.md F11).
    let name = unsafe { &raw const (*device).name };
    name.cast()
}

/// # Safety
///
/// The device is one of this provider's.
unsafe fn block<'a>(device: *mut ibv_device) -> &'a DeviceBlock {
    // SAFETY: an `ibv_device` of ours is the beginning of its block, lives as long as the process and
    // is never written (SAFETY.md F11).
    unsafe { &*device.cast::<DeviceBlock>() }
}

pub(super) unsafe extern "C" fn get_device_guid(device: *mut ibv_device) -> u64 {
    // SAFETY: the caller's device (SAFETY.md F1).
    unsafe { block(device) }.device().guid().to_be()
}

pub(super) unsafe extern "C" fn get_device_index(_device: *mut ibv_device) -> c_int {
    // The kernel numbers its devices; this one is none of them (man ibv_get_device_index).
    -1
}

/// Limits as C has them.
pub(super) fn int(number: u64) -> c_int {
    c_int::try_from(number).unwrap_or(c_int::MAX)
}

/// What the device can, of `enum ibv_device_cap_flags`.
const CAPABILITIES: ibv_device_cap_flags = {
    use ibv_device_cap_flags as Flags;
    ibv_device_cap_flags(
        Flags::IBV_DEVICE_BAD_QKEY_CNTR.0
            | Flags::IBV_DEVICE_CURR_QP_STATE_MOD.0
            | Flags::IBV_DEVICE_PORT_ACTIVE_EVENT.0
            | Flags::IBV_DEVICE_SYS_IMAGE_GUID.0
            | Flags::IBV_DEVICE_RC_RNR_NAK_GEN.0,
    )
};
/// Which windows there are, of the same flags.
fn windows(limits: &Limits) -> u32 {
    let flag = |there: bool, flag: ibv_device_cap_flags| if there { flag.0 } else { 0 };
    flag(limits.has_windows(Kind::One), ibv_device_cap_flags::IBV_DEVICE_MEM_WINDOW)
        | flag(limits.has_windows(Kind::Two), ibv_device_cap_flags::IBV_DEVICE_MEM_WINDOW_TYPE_2B)
}

fn device_attr(device: &Device) -> ibv_device_attr {
    let limits = &device.limits;
    let mut attr = ibv_device_attr::default();
    put(&mut attr.fw_ver, &device.model.firmware);
    attr.node_guid = device.guid().to_be();
    attr.sys_image_guid = attr.node_guid;
    attr.vendor_id = device.model.vendor;
    attr.vendor_part_id = device.model.part;
    attr.hw_ver = device.model.revision;
    attr.max_mr_size = u64::MAX >> 1;
    attr.page_size_cap = rustix::param::page_size() as u64;
    attr.max_qp = int(limits.max_qp.into());
    attr.max_qp_wr = int(limits.max_qp_wr.into());
    attr.device_cap_flags = CAPABILITIES.0 | windows(limits);
    attr.max_sge = int(limits.max_sge.into());
    attr.max_sge_rd = attr.max_sge;
    attr.max_cq = int(limits.max_cq.into());
    attr.max_cqe = int(limits.max_cqe.into());
    attr.max_mr = int(limits.max_mr.into());
    if windows(limits) != 0 {
        attr.max_mw = int(limits.max_mw.into());
    }
    attr.max_pd = int(limits.max_pd.into());
    attr.max_qp_rd_atom = limits.max_rd_atomic.into();
    attr.max_qp_init_rd_atom = attr.max_qp_rd_atom;
    attr.max_res_rd_atom = attr.max_qp.saturating_mul(attr.max_qp_rd_atom);
    attr.atomic_cap = match limits.atomics {
        true => ibv_atomic_cap::IBV_ATOMIC_GLOB,
        false => ibv_atomic_cap::IBV_ATOMIC_NONE,
    };
    attr.max_srq = int(limits.max_srq.into());
    attr.max_srq_wr = int(limits.max_srq_wr.into());
    attr.max_srq_sge = int(limits.max_srq_sge.into());
    attr.max_ah = int(limits.max_ah.into());
    if limits.max_groups > 0 {
        attr.max_mcast_grp = int(limits.max_groups.into());
        attr.max_mcast_qp_attach = int(limits.max_group_members.into());
        attr.max_total_mcast_qp_attach = int(limits.max_memberships.into());
    }
    attr.max_pkeys = 1;
    attr.phys_port_cnt = 1;
    attr
}

pub(super) unsafe extern "C" fn query_device(
    context: *mut ibv_context,
    out: *mut ibv_device_attr,
) -> c_int {
    // SAFETY: the caller's context (SAFETY.md F1).
    let attr = device_attr(unsafe { device_of(context) });
    // SAFETY: the caller's attributes (SAFETY.md F1).
    unsafe { out.write(attr) };
    0
}

/// What came after `ibv_query_device`. What the device does not have is zero.
fn device_attr_ex(device: &Device) -> ibv_device_attr_ex {
    let mut attr = ibv_device_attr_ex::default();
    attr.orig_attr = device_attr(device);
    attr.device_cap_flags_ex = attr.orig_attr.device_cap_flags.into();
    attr.phys_port_cnt_ex = attr.orig_attr.phys_port_cnt.into();
    if device.limits.timestamps {
        attr.completion_timestamp_mask = u64::MAX;
        attr.hca_core_clock = clock::KILOHERTZ;
    }
    attr
}

pub(super) unsafe extern "C" fn query_device_ex(
    context: *mut ibv_context,
    input: *const ibv_query_device_ex_input,
    out: *mut ibv_device_attr_ex,
    size: usize,
) -> c_int {
    // SAFETY: the caller's input, if there is one (SAFETY.md F1).
    let asks_for_more = !input.is_null() && unsafe { (*input).comp_mask } != 0;
    // The first header that had it ends with `comp_mask`.
    if asks_for_more || size < offset_of!(ibv_device_attr_ex, odp_caps) {
        return Errno::EINVAL.raw();
    }
    // SAFETY: the caller's context (SAFETY.md F1).
    let attr = device_attr_ex(unsafe { device_of(context) });
    // SAFETY: the caller's struct has `size` bytes (SAFETY.md F1).
    unsafe { fill(&attr, out, size) };
    0
}

/// Fills as much of a program's struct as both sides know, and zeroes the rest.
///
/// # Safety
///
/// `size` bytes may be written at `out`.
pub(super) unsafe fn fill<T: Copy>(known: &T, out: *mut T, size: usize) {
    // SAFETY: this function's contract.
    unsafe { out.cast::<u8>().write_bytes(0, size) };
    let common = size.min(size_of::<T>());
    // SAFETY: as above, and `common` is no more than either struct has.
    unsafe { out.cast::<u8>().copy_from_nonoverlapping(ptr::from_ref(known).cast(), common) };
}

pub(super) unsafe extern "C" fn query_rt_values(
    context: *mut ibv_context,
    values: *mut ibv_values_ex,
) -> c_int {
    // SAFETY: the caller's values (SAFETY.md F1).
    let asked = unsafe { (*values).comp_mask };
    let raw_clock = ibv_values_mask::IBV_VALUES_MASK_RAW_CLOCK.0;
    if asked & !raw_clock != 0 {
        return Errno::EINVAL.raw();
    }
    let mut found = ibv_values_ex { comp_mask: asked, ..ibv_values_ex::default() };
    if asked != 0 {
        // SAFETY: the caller's context (SAFETY.md F1).
        let now = unsafe { device_of(context) }.fabric.clock.now();
        // All ticks are in this field, as those of hardware's clocks are.
        found.raw_clock.tv_nsec = now.nanoseconds().cast_signed();
    }
    // SAFETY: as above.
    unsafe { values.write(found) };
    0
}

/// The longest message, as a port says it.
pub(super) const MAX_MESSAGE: u32 = (MAX_MESSAGE_BYTES & 0xffff_ffff) as u32;
