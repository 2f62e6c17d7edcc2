//! Completion queues.

use std::ffi::{c_int, c_void};
use std::sync::atomic::{AtomicI32, Ordering};
use std::sync::{Arc, OnceLock};

use rdma_sys::{ibv_comp_channel, ibv_context, ibv_cq, ibv_cq_ex};

use super::poll_ex::functions;
use super::polled::{Polled, has_timestamps};
use crate::abi::block::{
    Children, CqBlock, channel_children, channel_events, context_events, device_of, hold_context,
    queue_async_events, queue_children, queue_completion_events, queue_of, release_context,
};
use crate::abi::errno::{number, pointer};
use crate::device::Device;
use crate::engine::Refusal;
use crate::engine::completion::{CompletionQueue, Notifier};
use crate::engine::critical_region::CriticalRegion;
use crate::engine::events::Acknowledgements;
use crate::engine::events::report::{Element, Handle, Reporter};
use crate::faults::Verb;

/// The number of completion vectors of a context.
pub(crate) const COMPLETION_VECTORS: c_int = 1;

pub(crate) unsafe extern "C" fn create_cq(
    context: *mut ibv_context,
    cqe: c_int,
    cq_context: *mut c_void,
    channel: *mut ibv_comp_channel,
    comp_vector: c_int,
) -> *mut ibv_cq {
    let verbs = ibv_cq_ex { context, channel, cq_context, cqe, ..functions() };
    // SAFETY: the caller passes a live context, and a channel that is live or NULL (SAFETY.md F1).
    let created = unsafe { create(verbs, comp_vector, 0) };
    pointer(created).cast()
}

/// Creates a completion queue. `verbs` is the program's part of the queue, and `fields` are the fields of its extended
/// completions.
///
/// # Safety
///
/// The context is live and belongs to this provider. The channel is NULL, or it is live and belongs to this provider.
pub(super) unsafe fn create(
    verbs: ibv_cq_ex,
    comp_vector: c_int,
    fields: u64,
) -> Result<*mut ibv_cq_ex, Refusal> {
    let ibv_cq_ex { context, channel, cqe, .. } = verbs;
    // SAFETY: by this function's contract.
    let device = unsafe { device_of(context) };
    device.count_call(Verb::CreateCq)?;
    let capacity = check_capacity(device, cqe)?;
    if !(0..COMPLETION_VECTORS).contains(&comp_vector) {
        return Err(Refusal::Invalid);
    }
    device.completion_queues.take(device.limits.max_cq)?;
    let queue = CompletionQueue::new(device.fabric, capacity, device.deferred.as_ref())
        .inspect_err(|_| device.completion_queues.give())?;
    // SAFETY: by this function's contract.
    let notifier = unsafe { notifier(channel) };
    // SAFETY: by this function's contract.
    let events = Arc::clone(unsafe { context_events(context) });
    let reporter = Reporter::new(events, Element::CompletionQueue);
    let queue = queue.with_events(notifier, reporter).with_timestamps(has_timestamps(fields));
    let queue = Arc::new(queue);
    // SAFETY: by this function's contract.
    unsafe { hold_context(context) };
    let block = Box::into_raw(Box::new(CqBlock {
        verbs,
        queue: Arc::clone(&queue),
        polling: CriticalRegion::new(Polled::new(device, fields)),
        children: Children::default(),
        completion_events: Acknowledgements::default(),
        async_events: Acknowledgements::default(),
    }));
    queue.name(Handle(block.cast()));
    Ok(block.cast())
}

/// # Safety
///
/// The channel is NULL, or is live and belongs to this provider.
unsafe fn notifier(channel: *mut ibv_comp_channel) -> Option<Notifier> {
    if channel.is_null() {
        return None;
    }
    // SAFETY: by this function's contract.
    unsafe { channel_children(channel) }.add();
    // SAFETY: by this function's contract.
    let events = unsafe { channel_events(channel) };
    Some(Notifier { channel: Arc::clone(events), handle: OnceLock::new() })
}

fn check_capacity(device: &Device, cqe: c_int) -> Result<u32, Refusal> {
    let capacity = u32::try_from(cqe).ok().filter(|&n| n > 0 && n <= device.limits.max_cqe);
    capacity.ok_or(Refusal::Invalid)
}

pub(crate) unsafe extern "C" fn resize_cq(cq: *mut ibv_cq, cqe: c_int) -> c_int {
    // SAFETY: the caller passes a live completion queue (SAFETY.md F1).
    let queue = unsafe { queue_of(cq) };
    // SAFETY: as above; nothing writes the context field after the queue was made.
    let context = unsafe { (*cq).context };
    // SAFETY: the queue holds its context (SAFETY.md F11).
    let device = unsafe { device_of(context) };
    // SAFETY: the caller passes a live completion queue (SAFETY.md F1), and it is at the beginning of a live block
    // (F11).
    let size = unsafe { &raw mut (*cq).cqe };
    // SAFETY: as above, and the field is aligned (SAFETY.md F5). Other threads that resize the same queue may write it
    // at the same time. Programs read the size non-atomically, but only while no thread resizes the queue (F9).
    let size = unsafe { AtomicI32::from_ptr(size) };
    number(
        check_capacity(device, cqe)
            .and_then(|capacity| queue.resize(capacity, || size.store(cqe, Ordering::Relaxed))),
    )
}

pub(crate) unsafe extern "C" fn destroy_cq(cq: *mut ibv_cq) -> c_int {
    // SAFETY: the caller passes a live completion queue (SAFETY.md F1).
    let free = unsafe { queue_children(cq) }.none();
    number(free.map(|()| {
        // SAFETY: the caller passes a live completion queue, which no other thread uses any more (SAFETY.md F1).
        let queue = unsafe { queue_of(cq) };
        queue.withdraw_events();
        // SAFETY: as above. Other threads may still acknowledge delivered events.
        unsafe { queue_completion_events(cq) }.wait();
        // SAFETY: as above.
        unsafe { queue_async_events(cq) }.wait();
        // SAFETY: `create_cq` made the queue, and the caller gives it up (SAFETY.md F11).
        let block = unsafe { Box::from_raw(cq.cast::<CqBlock>()) };
        if !block.verbs.channel.is_null() {
            // SAFETY: a channel outlives its queues (SAFETY.md F11).
            unsafe { channel_children(block.verbs.channel) }.remove();
        }
        let context = block.verbs.context;
        // SAFETY: the queue holds its context (SAFETY.md F11).
        unsafe { device_of(context) }.completion_queues.give();
        // SAFETY: as above, and the queue does not use its context after this.
        unsafe { release_context(context) };
    }))
}
