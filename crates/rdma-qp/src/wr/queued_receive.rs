//! Receives as C structs, ready to be posted in a list.
#![allow(unsafe_code)]

use std::fmt;
use std::marker::PhantomData;

use rdma_mem::{ProtectionDomain, ScatterElement};
use rdma_sys::ibv_recv_wr;

/// A receive with its WR ID. [`QueuePair::post_receive_batch`](crate::QueuePair::post_receive_batch) posts a slice of
/// such receives.
///
/// Created by [`ReceiveWorkRequest::with_id`](crate::ReceiveWorkRequest::with_id).
#[doc(alias = "ibv_recv_wr")]
#[repr(C)]
pub struct QueuedReceive<'wr, 'data> {
    pub(crate) wr: ibv_recv_wr,
    pub(crate) domains: &'wr [&'data ProtectionDomain],
    pub(super) borrow: PhantomData<&'wr mut [ScatterElement<'data>]>,
}

// SAFETY: SAFETY.md F12: it consists of numbers and the borrow of an array, which is `Send`. The pointers to other
// receives are set within one call and not used after it.
unsafe impl Send for QueuedReceive<'_, '_> {}
// SAFETY: SAFETY.md F12: methods that take `&self` change nothing.
unsafe impl Sync for QueuedReceive<'_, '_> {}

impl QueuedReceive<'_, '_> {
    /// Returns the WR ID of the receive's completion.
    #[inline]
    #[must_use]
    pub const fn wr_id(&self) -> u64 {
        self.wr.wr_id
    }

    /// Sets another WR ID.
    #[inline]
    pub const fn set_wr_id(&mut self, wr_id: u64) {
        self.wr.wr_id = wr_id;
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
