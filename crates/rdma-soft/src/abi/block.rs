//! The heap blocks to which a program's pointers point.
//!
//! Each block except a context's begins with the C struct, so the program's pointer is also a pointer to the block
//! (SAFETY.md F5, F11). The C part is shared with the program's inline functions, and is only accessed through the raw
//! pointer. The rest of the block belongs to this provider.

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

/// The number of existing objects that were created from this one.
#[derive(Debug, Default)]
pub(super) struct Children(AtomicU32);

impl Children {
    pub(super) fn add(&self) {
        self.0.fetch_add(1, Ordering::Relaxed);
    }

    pub(super) fn remove(&self) {
        self.0.fetch_sub(1, Ordering::Release);
    }

    /// Fails if there are children: like the kernel, the device refuses to destroy a parent before its children.
    pub(super) fn none(&self) -> Result<(), Refusal> {
        if self.0.load(Ordering::Acquire) == 0 { Ok(()) } else { Err(Refusal::Busy) }
    }
}

/// The number of holders of a context: the program, until it closes the context, and each object created from the
/// context.
#[derive(Debug)]
pub(super) struct Holders(AtomicU32);

impl Holders {
    /// Starts with the program as the only holder.
    pub(super) fn new() -> Self {
        Self(AtomicU32::new(1))
    }

    pub(super) fn join(&self) {
        self.0.fetch_add(1, Ordering::Relaxed);
    }

    /// Returns true if there is more than one holder.
    pub(super) fn are_several(&self) -> bool {
        self.0.load(Ordering::Relaxed) > 1
    }

    /// Removes a holder. Returns true if it was the last one, which must free the context.
    #[must_use]
    pub(super) fn leave(&self) -> bool {
        self.0.fetch_sub(1, Ordering::AcqRel) == 1
    }
}

#[repr(C)]
pub(super) struct ContextBlock {
    /// `verbs_context` grows at its low end. These zeroes are space for the fields that newer headers have before the
    /// first field of the bindings. For programs built against such headers, a zero means that the function is missing.
    pub(super) newer: [usize; 6],
    pub(super) verbs: verbs_context,
    pub(super) device: &'static Device,
    pub(super) holders: Holders,
    /// The numbers of the context's protection domains.
    pub(super) domains: Mutex<BTreeSet<u64>>,
    pub(super) events: Arc<EventQueue<AsyncEvent>>,
    /// The file that `cmd_fd` refers to. Programs may duplicate and inspect its descriptor, but the file does nothing.
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
    /// The memory, if it was imported as a file. It is dropped with the block, after the deregistration.
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
    /// Present only if the queue pair was created to post with function calls.
    pub(super) posting: Option<Box<CriticalRegion<Batch>>>,
    /// The attributes with which the queue pair was created.
    pub(super) init: ibv_qp_init_attr,
    pub(super) async_events: Acknowledgements,
}

/// Returns the block that contains a program's context.
///
/// # Safety
///
/// This provider opened the context, and it is not closed during the call.
pub(super) unsafe fn context_block(context: *mut ibv_context) -> *mut ContextBlock {
    let offset = offset_of!(ContextBlock, verbs) + offset_of!(verbs_context, context);
    // SAFETY: the pointer was made by adding exactly this offset to the block's address (SAFETY.md F5, F11).
    unsafe { context.byte_sub(offset).cast() }
}

macro_rules! block_of {
    ($name:ident, $verbs:ty, $block:ty, $field:ident: $part:ty) => {
        /// Returns a field of the block that contains a program's object.
        ///
        /// # Safety
        ///
        /// This provider created the object, and it is not destroyed while the result is used.
        #[inline]
        pub(super) unsafe fn $name<'a>(object: *mut $verbs) -> &'a $part {
            // SAFETY: the object is at the beginning of its block (SAFETY.md F11), and the field is only written before
            // the program gets the block.
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

/// Returns the device of a program's context.
///
/// # Safety
///
/// This provider opened the context, and it is not closed during the call.
pub(super) unsafe fn device_of(context: *mut ibv_context) -> &'static Device {
    // SAFETY: by this function's contract.
    let block = unsafe { context_block(context) };
    // SAFETY: the block is live (SAFETY.md F11), and the field is only written before the program gets the block.
    unsafe { (*block).device }
}

/// Returns the numbers of a context's protection domains.
///
/// # Safety
///
/// This provider opened the context, and it is not closed while the result is used.
pub(super) unsafe fn context_domains<'a>(context: *mut ibv_context) -> &'a Mutex<BTreeSet<u64>> {
    // SAFETY: by this function's contract.
    let block = unsafe { context_block(context) };
    // SAFETY: the block is live (SAFETY.md F11), and the set is only used through shared references.
    unsafe { &(*block).domains }
}

/// Records that an object was created from a context. The object holds the context until [`release_context`].
///
/// # Safety
///
/// This provider opened the context, and it is not closed during the call.
pub(super) unsafe fn hold_context(context: *mut ibv_context) {
    // SAFETY: by this function's contract.
    let block = unsafe { context_block(context) };
    // SAFETY: the block is live (SAFETY.md F11), and the counter is only used through shared references.
    unsafe { &(*block).holders }.join();
}

/// Removes a holder of a context: an object that was destroyed, or the program, which closed the context. The last
/// holder frees the context.
///
/// # Safety
///
/// This provider opened the context. The caller is one of its holders and does not use it afterwards.
pub(super) unsafe fn release_context(context: *mut ibv_context) {
    // SAFETY: the context is live, because the caller holds it (SAFETY.md F11).
    let block = unsafe { context_block(context) };
    // SAFETY: as above; the counter is only used through shared references.
    if unsafe { &(*block).holders }.leave() {
        // SAFETY: `open_device` made the block. The last holder has left, so no other call uses or frees the block
        // (SAFETY.md F11).
        let block = unsafe { Box::from_raw(block) };
        let device = block.device;
        drop(block);
        device.close();
    }
}

/// Returns the queue of a context's asynchronous events.
///
/// # Safety
///
/// This provider opened the context, and it is not closed while the result is used.
pub(super) unsafe fn context_events<'a>(
    context: *mut ibv_context,
) -> &'a Arc<EventQueue<AsyncEvent>> {
    // SAFETY: by this function's contract.
    let block = unsafe { context_block(context) };
    // SAFETY: the block is live (SAFETY.md F11), and the field is only written before the program gets the block.
    unsafe { &(*block).events }
}
