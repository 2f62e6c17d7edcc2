//! Opening and closing a device.

use std::ffi::c_int;
use std::ptr;
use std::sync::Arc;

use rdma_sys::{ibv_context, ibv_device, verbs_context};

use super::block::{Children, ContextBlock, context_block};
use super::{cq_ex, data_path, device, minus_one, mw, pointer, port, qp_ex, srq};
use crate::device::DeviceBlock;
use crate::engine::Refusal;
use crate::engine::events::EventQueue;

/// The completion vectors that a context has.
pub(super) const COMPLETION_VECTORS: c_int = 1;
/// What the kernel writes for one (`struct ib_uverbs_async_event_desc`).
const ASYNC_EVENT_BYTES: usize = 16;

pub(super) unsafe extern "C" fn open_device(device: *mut ibv_device) -> *mut ibv_context {
    // SAFETY: a device of ours lives as long as the process (SAFETY.md F11).
    let block: &'static DeviceBlock = unsafe { &*device.cast::<DeviceBlock>() };
    let opened = EventQueue::new(ASYNC_EVENT_BYTES).map_err(|_| Refusal::NoRoom).map(|events| {
        let events = Arc::new(events);
        block.device().add_context(&events);
        let mut verbs = verbs_context::default();
        verbs.query_port = Some(port::query_port);
        verbs.query_device_ex = Some(device::query_device_ex);
        if block.device().limits.extended {
            verbs.query_rt_values = Some(device::query_rt_values);
            verbs.create_cq_ex = Some(cq_ex::create_cq_ex);
            verbs.create_qp_ex = Some(qp_ex::create_qp_ex);
        }
        verbs.sz = std::mem::offset_of!(ContextBlock, device);
        verbs.context.device = device;
        verbs.context.ops.alloc_mw = Some(mw::alloc_mw);
        verbs.context.ops.bind_mw = Some(mw::bind_mw);
        verbs.context.ops.dealloc_mw = Some(mw::dealloc_mw);
        verbs.context.ops.poll_cq = Some(data_path::poll_cq);
        verbs.context.ops.req_notify_cq = Some(data_path::req_notify_cq);
        verbs.context.ops.post_send = Some(data_path::post_send);
        verbs.context.ops.post_recv = Some(data_path::post_recv);
        verbs.context.ops.post_srq_recv = Some(srq::post_srq_recv);
        verbs.context.cmd_fd = -1;
        verbs.context.async_fd = events.fd();
        verbs.context.num_comp_vectors = COMPLETION_VECTORS;
        // What says that this is a `verbs_context` (`__VERBS_ABI_IS_EXTENDED`).
        verbs.context.abi_compat = ptr::without_provenance_mut(usize::MAX);
        let context = Box::into_raw(Box::new(ContextBlock {
            newer: [0; 6],
            verbs,
            device: block.device(),
            children: Children::default(),
            events,
        }));
        // SAFETY: the block was just made; no reference is formed, so that the pointer may go back to
        // all of the block (SAFETY.md F11).
        unsafe { &raw mut (*context).verbs.context }
    });
    pointer(opened)
}

pub(super) unsafe extern "C" fn close_device(context: *mut ibv_context) -> c_int {
    // SAFETY: the caller's context (SAFETY.md F1).
    let block = unsafe { context_block(context) };
    // SAFETY: a live block (SAFETY.md F11).
    let children = unsafe { (*block).children.none() };
    minus_one(children.map(|()| {
        // SAFETY: made by `open_device`, and the caller gives it up (SAFETY.md F11).
        drop(unsafe { Box::from_raw(block) });
    }))
}

#[cfg(test)]
mod tests {
    use super::*;
    use rdma_sys::ibv_context_ops;
    use std::mem::offset_of;

    /// What programs built against rdma-core 65, the largest known, expect; older ones look at less.
    #[test]
    fn the_context_is_where_every_header_looks() {
        let context = offset_of!(ContextBlock, verbs) + offset_of!(verbs_context, context);
        assert_eq!(context, 368);
        assert_eq!(offset_of!(ContextBlock, device), 696);
        assert_eq!(context - (offset_of!(ContextBlock, verbs) + offset_of!(verbs_context, sz)), 8);
        assert_eq!(context - offset_of!(ContextBlock, verbs), 320, "query_port");
        assert_eq!(size_of::<ibv_context>(), 328);
        assert_eq!(size_of::<ibv_context_ops>(), 256);
    }
}
