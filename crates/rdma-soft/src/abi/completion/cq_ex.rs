//! Creates extended completion queues.

use rdma_sys::{
    ibv_context, ibv_cq_ex, ibv_cq_init_attr_ex, ibv_cq_init_attr_mask, ibv_create_cq_attr_flags,
    ibv_create_cq_wc_flags as Fields,
};

use super::cq::create;
use super::poll_ex::functions;
use super::polled::TIMESTAMPS;
use crate::abi::block::device_of;
use crate::abi::convert::int;
use crate::abi::errno::pointer;
use crate::engine::Refusal;
use crate::limits::Limits;

/// The fields that completions of this device can have.
const FIELDS: u64 = (Fields::IBV_WC_EX_WITH_BYTE_LEN.0
    | Fields::IBV_WC_EX_WITH_IMM.0
    | Fields::IBV_WC_EX_WITH_QP_NUM.0
    | Fields::IBV_WC_EX_WITH_SRC_QP.0
    | Fields::IBV_WC_EX_WITH_SLID.0
    | Fields::IBV_WC_EX_WITH_SL.0
    | Fields::IBV_WC_EX_WITH_DLID_PATH_BITS.0) as u64
    | TIMESTAMPS;

pub(crate) unsafe extern "C" fn create_cq_ex(
    context: *mut ibv_context,
    attr: *mut ibv_cq_init_attr_ex,
) -> *mut ibv_cq_ex {
    // SAFETY: the caller passes valid attributes (SAFETY.md F1).
    let attr = unsafe { attr.read() };
    let verbs = ibv_cq_ex {
        context,
        channel: attr.channel,
        cq_context: attr.cq_context,
        cqe: int(attr.cqe.into()),
        ..functions()
    };
    let vector = int(attr.comp_vector.into());
    // SAFETY: as above.
    let limits = &unsafe { device_of(context) }.limits;
    pointer(check(limits, &attr).and_then(|()| {
        // SAFETY: the caller passes a live context, and `attr.channel` is live or NULL (SAFETY.md F1).
        unsafe { create(verbs, vector, attr.wc_flags) }
    }))
}

/// Refuses options and fields that the device lacks. The option for polling from a single thread is accepted, but has
/// no effect. The option to ignore overflows is refused, because a queue that overflows always goes to error.
fn check(limits: &Limits, attr: &ibv_cq_init_attr_ex) -> Result<(), Refusal> {
    let with_flags = ibv_cq_init_attr_mask::IBV_CQ_INIT_ATTR_MASK_FLAGS.0;
    let single_threaded = ibv_create_cq_attr_flags::IBV_CREATE_CQ_ATTR_SINGLE_THREADED.0;
    let flags = if attr.comp_mask & with_flags != 0 { attr.flags } else { 0 };
    let fields = if limits.features.timestamps { FIELDS } else { FIELDS & !TIMESTAMPS };
    let known = attr.comp_mask & !with_flags == 0
        && flags & !single_threaded == 0
        && attr.wc_flags & !fields == 0;
    if known { Ok(()) } else { Err(Refusal::Unsupported) }
}
