//! Opens and closes a device.

use std::collections::BTreeSet;
use std::ffi::c_int;
use std::io::{self, Write};
use std::os::fd::AsRawFd;
use std::ptr;
use std::sync::Mutex;

use rdma_sys::{ibv_context, ibv_device, verbs_context};
use rdma_types::QpAttributes;
use rustix::event::{EventfdFlags, eventfd};

use super::{list, port, query};
use crate::abi::block::{
    ContextBlock, Holders, context_block, context_domains, device_of, release_context,
};
use crate::abi::completion::cq::COMPLETION_VECTORS;
use crate::abi::completion::{cq_ex, poll};
use crate::abi::errno::pointer;
use crate::abi::memory::mw;
use crate::abi::queue_pair::{qp_ex, srq};
use crate::abi::work::post;
use crate::device::Device;
use crate::engine::Refusal;
use crate::engine::events::EventQueue;
use crate::engine::queue_pair::membership;
use crate::engine::queue_pair::settings::Settings;
use crate::faults::Verb;
use crate::sync::locked;

pub(crate) unsafe extern "C" fn open_device(device: *mut ibv_device) -> *mut ibv_context {
    // SAFETY: a device of this provider exists as long as the process (SAFETY.md F11).
    let block = unsafe { list::block(device) };
    if let Some(error) = &block.device().unusable {
        // Standard error is the only way to report the reason to a C program. A write error is ignored.
        let _ =
            writeln!(io::stderr(), "rdma-soft: `{}` is not opened: {error}", block.device().name);
        return pointer(Err(Refusal::Unusable));
    }
    let flags = EventfdFlags::CLOEXEC | EventfdFlags::NONBLOCK;
    let files =
        EventQueue::new(block.device().fabric).and_then(|events| Ok((events, eventfd(0, flags)?)));
    let files = files.map_err(Refusal::without_files);
    let files = block.device().count_call(Verb::OpenDevice).and(files);
    let opened = files.and_then(|files| block.device().open().map(|()| files));
    let opened = opened.map(|(events, command)| {
        block.device().add_context(&events);
        let mut verbs = verbs_context::default();
        verbs.query_port = Some(port::query_port);
        verbs.query_device_ex = Some(query::query_device_ex);
        let features = &block.device().limits.features;
        verbs.query_rt_values = features.timestamps.then_some(query::query_rt_values);
        verbs.create_cq_ex = features.extended_cq.then_some(cq_ex::create_cq_ex);
        verbs.create_qp_ex = features.extended_qp.then_some(qp_ex::create_qp_ex);
        verbs.sz = std::mem::offset_of!(ContextBlock, device);
        verbs.context.device = device;
        verbs.context.ops.alloc_mw = Some(mw::alloc_mw);
        verbs.context.ops.bind_mw = Some(mw::bind_mw);
        verbs.context.ops.dealloc_mw = Some(mw::dealloc_mw);
        verbs.context.ops.poll_cq = Some(poll::poll_cq);
        verbs.context.ops.req_notify_cq = Some(poll::req_notify_cq);
        verbs.context.ops.post_send = Some(post::post_send);
        verbs.context.ops.post_recv = Some(post::post_recv);
        verbs.context.ops.post_srq_recv = Some(srq::post_srq_recv);
        verbs.context.cmd_fd = command.as_raw_fd();
        verbs.context.async_fd = events.fd();
        verbs.context.num_comp_vectors = COMPLETION_VECTORS;
        // This value marks a `verbs_context` (`__VERBS_ABI_IS_EXTENDED`).
        verbs.context.abi_compat = ptr::without_provenance_mut(usize::MAX);
        let context = Box::into_raw(Box::new(ContextBlock {
            newer: [0; 6],
            verbs,
            device: block.device(),
            holders: Holders::new(),
            domains: Mutex::default(),
            events,
            command,
        }));
        // SAFETY: the block was just allocated. No reference is created, so the pointer can be converted back to the
        // whole block (SAFETY.md F11).
        unsafe { &raw mut (*context).verbs.context }
    });
    pointer(opened)
}

/// Succeeds even if objects of the context still exist, as libibverbs does. Such objects can no longer be used: the
/// queue pairs among them are reset, so that the device accesses no memory for them. (The kernel likewise destroys all
/// objects when the file is closed.) The program can still destroy the objects, and the last one frees the context.
pub(crate) unsafe extern "C" fn close_device(context: *mut ibv_context) -> c_int {
    // SAFETY: the caller passes a live context (SAFETY.md F1).
    let block = unsafe { context_block(context) };
    // SAFETY: the block is live, because the program holds it until below (SAFETY.md F11). The counter is only used
    // through shared references.
    if unsafe { &(*block).holders }.are_several() {
        // SAFETY: as above.
        let device = unsafe { device_of(context) };
        // SAFETY: as above.
        reset_queue_pairs(device, unsafe { context_domains(context) });
    }
    // SAFETY: the program has held the context since it opened it, and gives it up now (SAFETY.md F1).
    unsafe { release_context(context) };
    0
}

/// Resets the queue pairs of all protection domains of a context, and removes them from their groups.
#[cold]
fn reset_queue_pairs(device: &Device, domains: &Mutex<BTreeSet<u64>>) {
    let domains = std::mem::take(&mut *locked(domains));
    for queue_pair in device.all_queue_pairs() {
        if domains.contains(&queue_pair.pd_number) {
            // Every state allows a transition to RESET.
            let _ = queue_pair.modify(&Settings::default(), QpAttributes::STATE);
            membership::leave_all(&queue_pair);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use rdma_sys::ibv_context_ops;
    use std::mem::offset_of;

    /// Programs built against rdma-core 65, the newest known version, expect this layout. Older programs use only a
    /// part of it.
    #[test]
    fn the_context_has_the_layout_of_every_header() {
        // The context contains a mutex of the C library, which has 40 bytes on x86-64 and 48 on aarch64.
        let larger = if cfg!(target_arch = "aarch64") { 8 } else { 0 };
        let context = offset_of!(ContextBlock, verbs) + offset_of!(verbs_context, context);
        assert_eq!(context, 368);
        assert_eq!(offset_of!(ContextBlock, device), 696 + larger);
        assert_eq!(context - (offset_of!(ContextBlock, verbs) + offset_of!(verbs_context, sz)), 8);
        assert_eq!(context - offset_of!(ContextBlock, verbs), 320, "query_port");
        assert_eq!(size_of::<ibv_context>(), 328 + larger);
        assert_eq!(size_of::<ibv_context_ops>(), 256);
    }
}
