//! The results of `ibv_query_device` and its successors.

use std::ffi::c_int;
use std::mem::offset_of;

use rdma_sys::{
    Errno, ibv_atomic_cap, ibv_context, ibv_device_attr, ibv_device_attr_ex, ibv_device_cap_flags,
    ibv_query_device_ex_input, ibv_values_ex, ibv_values_mask,
};

use crate::abi::block::device_of;
use crate::abi::convert::{fill, int, put};
use crate::device::Device;
use crate::fabric::clock;
use crate::limits::Limits;
use crate::memory::window::WindowKind;

/// The capabilities of the device, as flags of `enum ibv_device_cap_flags`.
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
/// Returns the supported kinds of windows, as flags of `enum ibv_device_cap_flags`.
fn windows(limits: &Limits) -> u32 {
    let flag = |there: bool, flag: ibv_device_cap_flags| if there { flag.0 } else { 0 };
    flag(limits.has_windows(WindowKind::One), ibv_device_cap_flags::IBV_DEVICE_MEM_WINDOW)
        | flag(
            limits.has_windows(WindowKind::Two),
            ibv_device_cap_flags::IBV_DEVICE_MEM_WINDOW_TYPE_2B,
        )
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
    attr.max_qp_rd_atom = limits.max_qp_rd_atom.into();
    attr.max_qp_init_rd_atom = attr.max_qp_rd_atom;
    attr.max_res_rd_atom = attr.max_qp.saturating_mul(attr.max_qp_rd_atom);
    attr.atomic_cap = match limits.features.atomics {
        true => ibv_atomic_cap::IBV_ATOMIC_GLOB,
        false => ibv_atomic_cap::IBV_ATOMIC_NONE,
    };
    attr.max_srq = int(limits.max_srq.into());
    attr.max_srq_wr = int(limits.max_srq_wr.into());
    attr.max_srq_sge = int(limits.max_srq_sge.into());
    attr.max_ah = int(limits.max_ah.into());
    if limits.max_mcast_grp > 0 {
        attr.max_mcast_grp = int(limits.max_mcast_grp.into());
        attr.max_mcast_qp_attach = int(limits.max_mcast_qp_attach.into());
        attr.max_total_mcast_qp_attach = int(limits.max_total_mcast_qp_attach.into());
    }
    attr.max_pkeys = 1;
    attr.phys_port_cnt = 1;
    attr
}

pub(crate) unsafe extern "C" fn query_device(
    context: *mut ibv_context,
    out: *mut ibv_device_attr,
) -> c_int {
    // SAFETY: the caller passes a live context (SAFETY.md F1).
    let attr = device_attr(unsafe { device_of(context) });
    // SAFETY: the caller passes a valid pointer for the attributes (SAFETY.md F1).
    unsafe { out.write(attr) };
    0
}

/// Returns all attributes, including the ones added after `ibv_query_device`. Attributes of missing features are zero.
fn device_attr_ex(device: &Device) -> ibv_device_attr_ex {
    let mut attr = ibv_device_attr_ex::default();
    attr.orig_attr = device_attr(device);
    attr.device_cap_flags_ex = attr.orig_attr.device_cap_flags.into();
    attr.phys_port_cnt_ex = attr.orig_attr.phys_port_cnt.into();
    if device.limits.features.timestamps {
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
    // SAFETY: the caller passes a readable input, or NULL (SAFETY.md F1).
    let asks_for_more = !input.is_null() && unsafe { (*input).comp_mask } != 0;
    // In the first header with this function, the struct ended before `odp_caps`.
    if asks_for_more || size < offset_of!(ibv_device_attr_ex, odp_caps) {
        return Errno::EINVAL.raw();
    }
    // SAFETY: the caller passes a live context (SAFETY.md F1).
    let attr = device_attr_ex(unsafe { device_of(context) });
    // SAFETY: the caller's struct has `size` bytes (SAFETY.md F1).
    unsafe { fill(&attr, out, size) };
    0
}

pub(super) unsafe extern "C" fn query_rt_values(
    context: *mut ibv_context,
    values: *mut ibv_values_ex,
) -> c_int {
    // SAFETY: the caller passes readable values (SAFETY.md F1).
    let asked = unsafe { (*values).comp_mask };
    let raw_clock = ibv_values_mask::IBV_VALUES_MASK_RAW_CLOCK.0;
    if asked & !raw_clock != 0 {
        return Errno::EINVAL.raw();
    }
    let mut found = ibv_values_ex { comp_mask: asked, ..ibv_values_ex::default() };
    if asked != 0 {
        // SAFETY: the caller passes a live context (SAFETY.md F1).
        let now = unsafe { device_of(context) }.fabric.clock.now();
        // This field contains the whole tick count, as for hardware clocks.
        found.raw_clock.tv_nsec = now.nanoseconds().cast_signed();
    }
    // SAFETY: as above.
    unsafe { values.write(found) };
    0
}
