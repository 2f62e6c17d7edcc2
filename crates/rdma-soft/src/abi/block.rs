//! The heap blocks behind the pointers that programs hold.
//!
//! Each begins with the C struct, so that the program's pointer is the block's (SAFETY.md F5, F11).
//! The C part belongs to the program's inline functions as much as to us and is only touched through
//! the raw pointer; what follows it is ours.

use std::collections::BTreeSet;
use std::mem::offset_of;
use std::os::fd::OwnedFd;
use std::sync::atomic::{AtomicU32, Ordering};
use std::sync::{Arc, Mutex};

use rdma_sys::{
    ibv_ah, ibv_comp_channel, ibv_context, ibv_cq, ibv_cq_ex, ibv_mr, ibv_mw, ibv_pd, ibv_qp,
    ibv_qp_ex, ibv_qp_init_attr, ibv_srq, verbs_context,
};

use super::completion::polled::Polled;
use super::work::batch::Batch;
use crate::address::AddressVector;
use crate::device::Device;
use crate::engine::Refusal;
use crate::engine::completion::CompletionQueue;
use crate::engine::critical_region::CriticalRegion;
use crate::engine::events::report::{AsyncEvent, Handle};
use crate::engine::events::{Acknowledgements, EventQueue};
use crate::engine::queue_pair::QueuePair;
use crate::engine::receive_queue::shared::SharedReceiveQueue;
use crate::memory::import::Imported;
use crate::memory::protection::{ProtectionDomain, Registration};
use crate::memory::window::Name;

/// How many objects were made from this one and are still there.
#[derive(Debug, Default)]
pub(super) struct Children(AtomicU32);

impl Children {
    pub(super) fn add(&self) {
        self.0.fetch_add(1, Ordering::Relaxed);
    }

    pub(super) fn remove(&self) {
        self.0.fetch_sub(1, Ordering::Release);
    }

    /// Refuses to destroy a parent before its children, as the kernel does.
    pub(super) fn none(&self) -> Result<(), Refusal> {
        if self.0.load(Ordering::Acquire) == 0 { Ok(()) } else { Err(Refusal::Busy) }
    }
}

/// Who holds a context: the program, until it closes it, and each object that was made from it.
#[derive(Debug)]
pub(super) struct Holders(AtomicU32);

impl Holders {
    /// The program alone.
    pub(super) fn new() -> Self {
        Self(AtomicU32::new(1))
    }

    pub(super) fn join(&self) {
        self.0.fetch_add(1, Ordering::Relaxed);
    }

    /// Whether there is more than one.
    pub(super) fn are_several(&self) -> bool {
        self.0.load(Ordering::Relaxed) > 1
    }

    /// One goes; whether it was the last, who frees the context.
    #[must_use]
    pub(super) fn leave(&self) -> bool {
        self.0.fetch_sub(1, Ordering::AcqRel) == 1
    }
}

#[repr(C)]
pub(super) struct ContextBlock {
    /// `verbs_context` grows at its low end: room, as zeroes, for what newer headers put before the
    /// bindings' first field, so that programs built against them find it and find it missing.
    pub(super) newer: [usize; 6],
    pub(super) verbs: verbs_context,
    pub(super) device: &'static Device,
    pub(super) holders: Holders,
    /// The numbers of its protection domains.
    pub(super) domains: Mutex<BTreeSet<u64>>,
    pub(super) events: Arc<EventQueue<AsyncEvent>>,
    /// What `cmd_fd` names: a descriptor that programs may duplicate and look at, and that does nothing.
    pub(super) command: OwnedFd,
}

#[repr(C)]
pub(super) struct PdBlock {
    pub(super) verbs: ibv_pd,
    pub(super) pd: Arc<ProtectionDomain>,
    pub(super) device: &'static Device,
    pub(super) children: Children,
}

#[repr(C)]
pub(super) struct MrBlock {
    pub(super) verbs: ibv_mr,
    pub(super) registration: Registration,
    /// Memory that came as a file; dropped, as all of the block, after the deregistration.
    pub(super) imported: Option<Imported>,
}

#[repr(C)]
pub(super) struct MwBlock {
    pub(super) verbs: ibv_mw,
    pub(super) window: Name,
}

#[repr(C)]
pub(super) struct AhBlock {
    pub(super) verbs: ibv_ah,
    pub(super) vector: AddressVector,
}

#[repr(C)]
pub(super) struct ChannelBlock {
    pub(super) verbs: ibv_comp_channel,
    pub(super) events: Arc<EventQueue<Handle>>,
    pub(super) children: Children,
}

#[repr(C)]
pub(super) struct CqBlock {
    pub(super) verbs: ibv_cq_ex,
    pub(super) queue: Arc<CompletionQueue>,
    pub(super) polling: CriticalRegion<Polled>,
    pub(super) children: Children,
    pub(super) completion_events: Acknowledgements,
    pub(super) async_events: Acknowledgements,
}

#[repr(C)]
pub(super) struct SrqBlock {
    pub(super) verbs: ibv_srq,
    pub(super) queue: Arc<SharedReceiveQueue>,
    pub(super) children: Children,
    pub(super) async_events: Acknowledgements,
}

#[repr(C)]
pub(super) struct QpBlock {
    pub(super) verbs: ibv_qp_ex,
    pub(super) queue_pair: Arc<QueuePair>,
    /// Only if it was created to post by function calls.
    pub(super) posting: Option<Box<CriticalRegion<Batch>>>,
    /// What it was created with.
    pub(super) init: ibv_qp_init_attr,
    pub(super) async_events: Acknowledgements,
}

/// The block behind a program's context.
///
/// # Safety
///
/// The context was opened by this provider and is not closed during the call.
pub(super) unsafe fn context_block(context: *mut ibv_context) -> *mut ContextBlock {
    let offset = offset_of!(ContextBlock, verbs) + offset_of!(verbs_context, context);
    // SAFETY: the pointer was made from the block's by going up just so far (SAFETY.md F5, F11).
    unsafe { context.byte_sub(offset).cast() }
}

macro_rules! block_of {
    ($name:ident, $verbs:ty, $block:ty, $field:ident: $part:ty) => {
        /// Our part of the block behind a program's object.
        ///
        /// # Safety
        ///
        /// The object was made by this provider and is not destroyed while the result is used.
        #[inline]
        pub(super) unsafe fn $name<'a>(object: *mut $verbs) -> &'a $part {
            // SAFETY: the object is the beginning of its block (SAFETY.md F11), and the field is only
            // written before the block is handed out.
            unsafe { &(*object.cast::<$block>()).$field }
        }
    };
}

block_of!(pd_of, ibv_pd, PdBlock, pd: Arc<ProtectionDomain>);
block_of!(pd_device, ibv_pd, PdBlock, device: &'static Device);
block_of!(pd_children, ibv_pd, PdBlock, children: Children);
block_of!(vector_of, ibv_ah, AhBlock, vector: AddressVector);
block_of!(queue_of, ibv_cq, CqBlock, queue: Arc<CompletionQueue>);
block_of!(queue_polling, ibv_cq_ex, CqBlock, polling: CriticalRegion<Polled>);
block_of!(queue_children, ibv_cq, CqBlock, children: Children);
block_of!(queue_completion_events, ibv_cq, CqBlock, completion_events: Acknowledgements);
block_of!(queue_async_events, ibv_cq, CqBlock, async_events: Acknowledgements);
block_of!(registration_of, ibv_mr, MrBlock, registration: Registration);
block_of!(window_of, ibv_mw, MwBlock, window: Name);
block_of!(channel_events, ibv_comp_channel, ChannelBlock, events: Arc<EventQueue<Handle>>);
block_of!(channel_children, ibv_comp_channel, ChannelBlock, children: Children);
block_of!(shared_queue_of, ibv_srq, SrqBlock, queue: Arc<SharedReceiveQueue>);
block_of!(shared_queue_children, ibv_srq, SrqBlock, children: Children);
block_of!(shared_queue_async_events, ibv_srq, SrqBlock, async_events: Acknowledgements);
block_of!(queue_pair_of, ibv_qp, QpBlock, queue_pair: Arc<QueuePair>);
block_of!(queue_pair_posting, ibv_qp_ex, QpBlock, posting: Option<Box<CriticalRegion<Batch>>>);
block_of!(queue_pair_async_events, ibv_qp, QpBlock, async_events: Acknowledgements);
block_of!(queue_pair_init, ibv_qp, QpBlock, init: ibv_qp_init_attr);

/// The device of a program's context.
///
/// # Safety
///
/// As for [`context_block`].
pub(super) unsafe fn device_of(context: *mut ibv_context) -> &'static Device {
    // SAFETY: this function's contract.
    let block = unsafe { context_block(context) };
    // SAFETY: a live block (SAFETY.md F11); the field is only written before it is handed out.
    unsafe { (*block).device }
}

/// The numbers of a context's protection domains.
///
/// # Safety
///
/// As for [`context_block`], while the result is used.
pub(super) unsafe fn context_domains<'a>(context: *mut ibv_context) -> &'a Mutex<BTreeSet<u64>> {
    // SAFETY: this function's contract.
    let block = unsafe { context_block(context) };
    // SAFETY: a live block (SAFETY.md F11); the set is only used through shared references.
    unsafe { &(*block).domains }
}

/// An object was made from a context, and holds it until [`release_context`].
///
/// # Safety
///
/// As for [`context_block`].
pub(super) unsafe fn hold_context(context: *mut ibv_context) {
    // SAFETY: this function's contract.
    let block = unsafe { context_block(context) };
    // SAFETY: a live block (SAFETY.md F11); the counter is only used through shared references.
    unsafe { &(*block).holders }.join();
}

/// An object that held a context is gone, or the program has closed it. The last of them frees it.
///
/// # Safety
///
/// The context was opened by this provider, the caller is one of its holders, and uses it no more.
pub(super) unsafe fn release_context(context: *mut ibv_context) {
    // SAFETY: it is live, since the caller holds it (SAFETY.md F11).
    let block = unsafe { context_block(context) };
    // SAFETY: as above; the counter is only used through shared references.
    if unsafe { &(*block).holders }.leave() {
        // SAFETY: made by `open_device`; nobody holds it any more, and this happens once (SAFETY.md F11).
        let block = unsafe { Box::from_raw(block) };
        let device = block.device;
        drop(block);
        device.close();
    }
}

/// Where the asynchronous events of a context go.
///
/// # Safety
///
/// As for [`context_block`], while the result is used.
pub(super) unsafe fn context_events<'a>(
    context: *mut ibv_context,
) -> &'a Arc<EventQueue<AsyncEvent>> {
    // SAFETY: this function's contract.
    let block = unsafe { context_block(context) };
    // SAFETY: a live block (SAFETY.md F11); the field is only written before it is handed out.
    unsafe { &(*block).events }
}
