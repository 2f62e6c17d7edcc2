//! Requests in the form of C, ready to be posted in a list.
#![allow(unsafe_code)]

use std::ffi::c_int;
use std::fmt;
use std::marker::PhantomData;
use std::ptr::null_mut;

use rdma_mem::{GatherElement, RemoteMemoryRegion, ScatterElement};
use rdma_sys::{
    ibv_recv_wr, ibv_send_wr, ibv_send_wr__bindgen_ty_1, ibv_send_wr__bindgen_ty_2,
    ibv_send_wr__bindgen_ty_2__bindgen_ty_1, ibv_send_wr__bindgen_ty_3,
    ibv_send_wr__bindgen_ty_3__bindgen_ty_1, ibv_send_wr__bindgen_ty_4,
    ibv_send_wr__bindgen_ty_4__bindgen_ty_2, ibv_sge, ibv_wr_opcode,
};

use crate::post_error::Reason;
use crate::{ReadWorkRequest, ReceiveWorkRequest, SendWorkRequest, WriteWorkRequest};

/// A request of the send queue, of any kind, with its number: what
/// [`QueuePair::post_batch`](crate::QueuePair::post_batch) takes a slice of.
///
/// Made by `with_id` of each request.
#[doc(alias = "ibv_send_wr")]
#[repr(C)]
pub struct QueuedRequest<'wr, 'data> {
    wr: ibv_send_wr,
    /// How many bytes the elements have.
    bytes: u64,
    /// How many bytes the peer's memory has.
    remote: u64,
    borrow: PhantomData<(&'wr [GatherElement<'data>], &'wr mut [ScatterElement<'data>])>,
}

/// A receive with its number: what
/// [`QueuePair::post_receive_batch`](crate::QueuePair::post_receive_batch) takes a slice of.
///
/// Made by [`ReceiveWorkRequest::with_id`].
#[doc(alias = "ibv_recv_wr")]
#[repr(C)]
pub struct QueuedReceive<'wr, 'data> {
    wr: ibv_recv_wr,
    borrow: PhantomData<&'wr mut [ScatterElement<'data>]>,
}

// SAFETY: SAFETY.md F12: it stands for numbers and the borrow of an array, which is `Send`. The
// pointers to other requests are set in one call and not used after it.
unsafe impl Send for QueuedRequest<'_, '_> {}
// SAFETY: SAFETY.md F12: nothing is done through `&self`.
unsafe impl Sync for QueuedRequest<'_, '_> {}
// SAFETY: SAFETY.md F12: as above.
unsafe impl Send for QueuedReceive<'_, '_> {}
// SAFETY: SAFETY.md F12: as above.
unsafe impl Sync for QueuedReceive<'_, '_> {}

/// The length as C has it. What does not fit is more than any device takes, and is refused by it.
#[inline]
fn count(elements: usize) -> c_int {
    c_int::try_from(elements).unwrap_or(c_int::MAX)
}

#[inline]
fn gathered(elements: &[GatherElement<'_>]) -> (*mut ibv_sge, c_int, u64) {
    let bytes = elements.iter().map(|element| u64::from(element.length())).sum();
    // C has no `const` here, and does not write.
    (elements.as_ptr().cast_mut().cast(), count(elements.len()), bytes)
}

#[inline]
fn scattered(elements: &mut [ScatterElement<'_>]) -> (*mut ibv_sge, c_int, u64) {
    let bytes = elements.iter().map(|element| u64::from(element.length())).sum();
    (elements.as_mut_ptr().cast(), count(elements.len()), bytes)
}

impl QueuedRequest<'_, '_> {
    #[inline]
    fn new(
        wr_id: u64,
        opcode: ibv_wr_opcode,
        (sg_list, num_sge, bytes): (*mut ibv_sge, c_int, u64),
        immediate: Option<u32>,
        remote: Option<RemoteMemoryRegion>,
        send_flags: u32,
    ) -> Self {
        let (address, rkey, room) = match remote {
            Some(remote) => (remote.address(), remote.rkey().get(), remote.length() as u64),
            None => (0, 0, u64::MAX),
        };
        // Each part by itself, and of a union no more than is used: zeros for the whole would be made
        // elsewhere first and copied then, which takes longer than the post.
        let wr = ibv_send_wr {
            wr_id,
            next: null_mut(),
            sg_list,
            num_sge,
            opcode,
            send_flags,
            __bindgen_anon_1: ibv_send_wr__bindgen_ty_1 {
                imm_data: immediate.unwrap_or(0).to_be(),
            },
            wr: ibv_send_wr__bindgen_ty_2 {
                rdma: ibv_send_wr__bindgen_ty_2__bindgen_ty_1 { remote_addr: address, rkey },
            },
            qp_type: ibv_send_wr__bindgen_ty_3 {
                xrc: ibv_send_wr__bindgen_ty_3__bindgen_ty_1 { remote_srqn: 0 },
            },
            __bindgen_anon_2: ibv_send_wr__bindgen_ty_4 {
                tso: ibv_send_wr__bindgen_ty_4__bindgen_ty_2 { hdr: null_mut(), hdr_sz: 0, mss: 0 },
            },
        };
        Self { wr, bytes, remote: room, borrow: PhantomData }
    }

    /// The number that its completion will have.
    #[inline]
    #[must_use]
    pub const fn wr_id(&self) -> u64 {
        self.wr.wr_id
    }

    /// That the elements are no longer than the peer's memory.
    #[inline]
    pub(crate) const fn check(&self) -> Result<(), Reason> {
        if self.bytes <= self.remote {
            Ok(())
        } else {
            Err(Reason::RemoteTooShort { elements: self.bytes, remote: self.remote })
        }
    }

    #[inline]
    pub(crate) fn as_raw(&mut self) -> *mut ibv_send_wr {
        &raw mut self.wr
    }

    #[inline]
    pub(crate) fn into_raw(self) -> ibv_send_wr {
        self.wr
    }
}

impl QueuedReceive<'_, '_> {
    /// The number that its completion will have.
    #[inline]
    #[must_use]
    pub const fn wr_id(&self) -> u64 {
        self.wr.wr_id
    }

    #[inline]
    pub(crate) fn as_raw(&mut self) -> *mut ibv_recv_wr {
        &raw mut self.wr
    }
}

impl<'wr, 'data> SendWorkRequest<'wr, 'data> {
    /// The request, for a batch, with the number that its completion will have.
    #[inline]
    #[must_use]
    pub fn with_id(self, wr_id: u64) -> QueuedRequest<'wr, 'data> {
        let opcode = match self.immediate {
            None => ibv_wr_opcode::IBV_WR_SEND,
            Some(_) => ibv_wr_opcode::IBV_WR_SEND_WITH_IMM,
        };
        let elements = gathered(self.elements);
        QueuedRequest::new(wr_id, opcode, elements, self.immediate, None, self.flags)
    }
}

impl<'wr, 'data> WriteWorkRequest<'wr, 'data> {
    /// The request, for a batch, with the number that its completion will have.
    #[inline]
    #[must_use]
    pub fn with_id(self, wr_id: u64) -> QueuedRequest<'wr, 'data> {
        let opcode = match self.immediate {
            None => ibv_wr_opcode::IBV_WR_RDMA_WRITE,
            Some(_) => ibv_wr_opcode::IBV_WR_RDMA_WRITE_WITH_IMM,
        };
        let elements = gathered(self.elements);
        QueuedRequest::new(wr_id, opcode, elements, self.immediate, Some(self.remote), self.flags)
    }
}

impl<'wr, 'data> ReadWorkRequest<'wr, 'data> {
    /// The request, for a batch, with the number that its completion will have.
    #[inline]
    #[must_use]
    pub fn with_id(self, wr_id: u64) -> QueuedRequest<'wr, 'data> {
        let elements = scattered(self.elements);
        let opcode = ibv_wr_opcode::IBV_WR_RDMA_READ;
        QueuedRequest::new(wr_id, opcode, elements, None, Some(self.remote), self.flags)
    }
}

impl<'wr, 'data> ReceiveWorkRequest<'wr, 'data> {
    /// The receive, for a batch, with the number that its completion will have.
    #[inline]
    #[must_use]
    pub fn with_id(self, wr_id: u64) -> QueuedReceive<'wr, 'data> {
        let (sg_list, num_sge, _) = scattered(self.elements);
        let wr = ibv_recv_wr { wr_id, next: null_mut(), sg_list, num_sge };
        QueuedReceive { wr, borrow: PhantomData }
    }
}

impl fmt::Debug for QueuedRequest<'_, '_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("QueuedRequest")
            .field("wr_id", &self.wr_id())
            .field("opcode", &self.wr.opcode.0)
            .field("bytes", &self.bytes)
            .finish_non_exhaustive()
    }
}

impl fmt::Debug for QueuedReceive<'_, '_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("QueuedReceive")
            .field("wr_id", &self.wr_id())
            .field("elements", &self.wr.num_sge)
            .finish_non_exhaustive()
    }
}
