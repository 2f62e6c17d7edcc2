//! Completion queues.

use std::ffi::{c_int, c_void};
use std::sync::Arc;

use rdma_sys::{ibv_comp_channel, ibv_context, ibv_cq};

use super::block::{Children, CqBlock, context_children, device_of, queue_children};
use super::context::COMPLETION_VECTORS;
use super::{number, pointer};
use crate::device::Device;
use crate::engine::Refusal;
use crate::engine::completion::CompletionQueue;
use crate::overflow;

pub(super) unsafe extern "C" fn create_cq(
    context: *mut ibv_context,
    cqe: c_int,
    cq_context: *mut c_void,
    channel: *mut ibv_comp_channel,
    comp_vector: c_int,
) -> *mut ibv_cq {
    // SAFETY: the caller's context (SAFETY.md F1).
    let device = unsafe { device_of(context) };
    if !channel.is_null() {
        // There is no way to make one yet.
        return pointer(Err(Refusal::Unsupported));
    }
    pointer(check(device, cqe, comp_vector).map(|capacity| {
        overflow::reserve();
        let queue = Arc::new(CompletionQueue::new(capacity, device.deferred.as_ref()));
        // SAFETY: as above.
        unsafe { context_children(context) }.add();
        let mut verbs = ibv_cq::default();
        verbs.context = context;
        verbs.cq_context = cq_context;
        verbs.cqe = cqe;
        Box::into_raw(Box::new(CqBlock { verbs, queue, children: Children::default() })).cast()
    }))
}

fn check(device: &Device, cqe: c_int, comp_vector: c_int) -> Result<u32, Refusal> {
    let capacity = u32::try_from(cqe).ok().filter(|&n| n > 0 && n <= device.limits.max_cqe);
    let capacity = capacity.ok_or(Refusal::Invalid)?;
    if !(0..COMPLETION_VECTORS).contains(&comp_vector) {
        return Err(Refusal::Invalid);
    }
    device.completion_queues.take(device.limits.max_cq)?;
    Ok(capacity)
}

pub(super) unsafe extern "C" fn destroy_cq(cq: *mut ibv_cq) -> c_int {
    // SAFETY: the caller's completion queue (SAFETY.md F1).
    let free = unsafe { queue_children(cq) }.none();
    number(free.map(|()| {
        // SAFETY: made by `create_cq`, and the caller gives it up (SAFETY.md F11).
        let block = unsafe { Box::from_raw(cq.cast::<CqBlock>()) };
        overflow::unreserve();
        let context = block.verbs.context;
        // SAFETY: a context outlives what was made from it, since closing it would be refused.
        unsafe { device_of(context) }.completion_queues.give();
        // SAFETY: as above.
        unsafe { context_children(context) }.remove();
    }))
}
