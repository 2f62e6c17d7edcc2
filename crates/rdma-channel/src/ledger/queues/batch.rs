//! The requests of a batch.
#![allow(unsafe_code)]

use std::slice;

use rdma_connect::Operation;
use rdma_qp::{PostError, QueuePair, QueuedReceive, QueuedRequest};

use crate::request::BatchRequest;

/// A request of a batch, with memory borrowed for `'data`: a receive, or a send queue request of any kind.
pub(crate) trait InBatch<'data>: Sized {
    fn operation(&self) -> Operation;
    /// Returns true if both are known to have the same operation.
    fn is_like(&self, other: &Self) -> bool;
    fn is_signaled(&self) -> bool;
    fn number(&mut self, id: u64);
    fn signal(&mut self, signaled: bool);

    /// # Safety
    /// The contract of [`QueuePair::post_batch`] applies.
    unsafe fn post(batch: &mut [Self], qp: &QueuePair) -> Result<(), PostError>;
}

impl<'data> InBatch<'data> for BatchRequest<'_, 'data> {
    #[inline(always)]
    fn operation(&self) -> Operation {
        Operation::of(self.0.opcode())
    }

    #[inline(always)]
    fn is_like(&self, other: &Self) -> bool {
        self.0.is_of_same_kind(&other.0)
    }

    #[inline(always)]
    fn is_signaled(&self) -> bool {
        self.0.is_signaled()
    }

    #[inline(always)]
    fn number(&mut self, id: u64) {
        self.0.set_wr_id(id);
    }

    #[inline(always)]
    fn signal(&mut self, signaled: bool) {
        self.0.set_signaled(signaled);
    }

    #[inline(always)]
    unsafe fn post(batch: &mut [Self], qp: &QueuePair) -> Result<(), PostError> {
        let (first, count) = (batch.as_mut_ptr().cast::<QueuedRequest<'_, '_>>(), batch.len());
        // SAFETY: SAFETY.md F5: each item has the layout of the request that it wraps, and the new slice borrows
        // `batch`.
        let queued = unsafe { slice::from_raw_parts_mut(first, count) };
        // SAFETY: SAFETY.md F22: the contract of this function includes everything that `post_batch` requires.
        unsafe { qp.post_batch(queued) }
    }
}

impl<'data> InBatch<'data> for QueuedReceive<'_, 'data> {
    #[inline(always)]
    fn operation(&self) -> Operation {
        Operation::Receive
    }

    #[inline(always)]
    fn is_like(&self, _: &Self) -> bool {
        true
    }

    #[inline(always)]
    fn is_signaled(&self) -> bool {
        true
    }

    #[inline(always)]
    fn number(&mut self, id: u64) {
        self.set_wr_id(id);
    }

    /// Does nothing, because receives always create a completion.
    #[inline(always)]
    fn signal(&mut self, _: bool) {}

    #[inline(always)]
    unsafe fn post(batch: &mut [Self], qp: &QueuePair) -> Result<(), PostError> {
        // SAFETY: SAFETY.md F22: the contract of this function includes everything that `post_receive_batch` requires.
        unsafe { qp.post_receive_batch(batch) }
    }
}
