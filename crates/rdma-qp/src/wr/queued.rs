//! Requests as C structs, ready to be posted in a list.
#![allow(unsafe_code)]

use std::fmt;
use std::marker::PhantomData;
use std::mem::MaybeUninit;
use std::ptr::null_mut;

use rdma_mem::{ProtectionDomain, RemoteMemoryRegion, ScatterElement};
use rdma_sys::{
    ibv_send_wr__bindgen_ty_1, ibv_send_wr__bindgen_ty_2, ibv_send_wr__bindgen_ty_2__bindgen_ty_1,
    ibv_wr_opcode,
};
use rdma_types::WcOpcode;

use crate::post::bounds::Bounds;
use crate::wr::elements::{Data, Elements};
use crate::wr::flags::SIGNALED;
use crate::wr::send_wr::SendWr;

/// A request of the send queue, of any kind, with its WR ID. [`QueuePair::post_batch`](crate::QueuePair::post_batch)
/// posts a slice of such requests.
///
/// Created by the `with_id` method of each kind of request.
#[doc(alias = "ibv_send_wr")]
#[repr(C)]
pub struct QueuedRequest<'wr, 'data> {
    pub(crate) wr: SendWr,
    /// The lengths of the elements and of the peer's memory.
    pub(crate) bounds: Bounds,
    /// See [`Elements::domains`].
    pub(crate) domains: &'wr [&'data ProtectionDomain],
    borrow: PhantomData<(Data<'wr, 'data>, &'wr mut [ScatterElement<'data>])>,
}

// SAFETY: SAFETY.md F12: it consists of numbers and of borrows of an array, a handle or a window, which are all `Send`.
// The pointers to other requests are set within one call and not used after it.
unsafe impl Send for QueuedRequest<'_, '_> {}
// SAFETY: SAFETY.md F12: methods that take `&self` change nothing.
unsafe impl Sync for QueuedRequest<'_, '_> {}

impl<'wr, 'data> QueuedRequest<'wr, 'data> {
    /// Creates a request without immediate data or remote memory.
    #[inline]
    pub(crate) fn new(
        wr_id: u64,
        opcode: ibv_wr_opcode,
        send_flags: u32,
        elements: Elements<'wr, 'data>,
    ) -> Self {
        let Elements { sg_list, num_sge, bytes, domains, inline } = elements;
        // The fields are set one by one, and in each union only one variant. Otherwise the compiler builds a zeroed
        // struct elsewhere and copies it, which takes longer than the post.
        let wr = SendWr {
            wr_id,
            next: null_mut(),
            sg_list,
            num_sge,
            opcode,
            send_flags: send_flags | inline,
            __bindgen_anon_1: ibv_send_wr__bindgen_ty_1 { imm_data: 0 },
            wr: ibv_send_wr__bindgen_ty_2 {
                rdma: ibv_send_wr__bindgen_ty_2__bindgen_ty_1 { remote_addr: 0, rkey: 0 },
            },
            qp_type: MaybeUninit::uninit(),
            bind: MaybeUninit::uninit(),
        };
        Self { wr, bounds: Bounds::of(bytes), domains, borrow: PhantomData }
    }

    #[inline]
    pub(super) fn immediate(mut self, immediate: Option<u32>) -> Self {
        self.wr.__bindgen_anon_1.imm_data = immediate.unwrap_or(0).to_be();
        self
    }

    #[inline]
    pub(super) fn rdma(mut self, remote: RemoteMemoryRegion) -> Self {
        let (remote_addr, rkey) = (remote.address(), remote.rkey().get());
        self.wr.wr.rdma = ibv_send_wr__bindgen_ty_2__bindgen_ty_1 { remote_addr, rkey };
        self.bounds = self.bounds.within(remote);
        self
    }

    /// Returns the WR ID of the request's completion.
    #[inline]
    #[must_use]
    pub const fn wr_id(&self) -> u64 {
        self.wr.wr_id
    }

    /// Returns the opcode of the completion if the request succeeds.
    #[inline]
    #[must_use]
    pub const fn opcode(&self) -> WcOpcode {
        match self.wr.opcode {
            ibv_wr_opcode::IBV_WR_RDMA_WRITE | ibv_wr_opcode::IBV_WR_RDMA_WRITE_WITH_IMM => {
                WcOpcode::RDMA_WRITE
            }
            ibv_wr_opcode::IBV_WR_RDMA_READ => WcOpcode::RDMA_READ,
            ibv_wr_opcode::IBV_WR_ATOMIC_CMP_AND_SWP => WcOpcode::COMP_SWAP,
            ibv_wr_opcode::IBV_WR_ATOMIC_FETCH_AND_ADD => WcOpcode::FETCH_ADD,
            ibv_wr_opcode::IBV_WR_LOCAL_INV => WcOpcode::LOCAL_INV,
            ibv_wr_opcode::IBV_WR_BIND_MW => WcOpcode::BIND_MW,
            _ => WcOpcode::SEND,
        }
    }

    /// Returns true if both requests have the same opcode, except that a request with immediate data differs from one
    /// without. Cheaper than comparing [`opcode`](Self::opcode)s.
    #[inline]
    #[must_use]
    pub const fn is_of_same_kind(&self, other: &Self) -> bool {
        self.wr.opcode.0 == other.wr.opcode.0
    }

    /// Sets another WR ID.
    #[inline]
    pub const fn set_wr_id(&mut self, wr_id: u64) {
        self.wr.wr_id = wr_id;
    }

    /// Sets whether a successful request creates a completion; see
    /// [`WriteWorkRequest::signaled`](crate::WriteWorkRequest::signaled).
    #[inline]
    pub const fn set_signaled(&mut self, signaled: bool) {
        let others = self.wr.send_flags & !SIGNALED;
        self.wr.send_flags = if signaled { others | SIGNALED } else { others };
    }

    /// Returns true if a successful request creates a completion.
    #[inline]
    #[must_use]
    pub const fn is_signaled(&self) -> bool {
        self.wr.send_flags & SIGNALED != 0
    }
}

impl fmt::Debug for QueuedRequest<'_, '_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("QueuedRequest")
            .field("wr_id", &self.wr_id())
            .field("opcode", &self.wr.opcode.0)
            .field("bytes", &self.bounds.bytes())
            .finish_non_exhaustive()
    }
}
