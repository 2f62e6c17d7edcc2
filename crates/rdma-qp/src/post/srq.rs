//! Posting to a shared receive queue.
#![allow(unsafe_code)]

use rdma_sys::ibv_post_srq_recv;

use crate::post::error::PostError;
use crate::post::list::{post_all, post_one, refused};
use crate::srq::queue::SharedReceiveQueue;
use crate::wr::queued_receive::QueuedReceive;
use crate::wr::receive::ReceiveWorkRequest;
use crate::wr::request::sealed::check_all;

/// The verb that error messages name.
const VERB: &str = "ibv_post_srq_recv";

impl SharedReceiveQueue {
    /// Posts a receive.
    ///
    /// # Errors
    /// See [`PostError`]. Its kind is [`WouldBlock`](crate::PostErrorKind::WouldBlock) while the queue is full: poll
    /// completions of its receives first.
    ///
    /// # Safety
    /// From a successful call until the receive completes, or the queue is destroyed, the memory of its elements stays
    /// allocated and registered. The device writes that memory, so no other code uses it: no reference to it exists or
    /// is created. If several requests use the same memory, and for [memory that is never a
    /// slice](rdma_mem::SharedElement), the rules of [`QueuePair::post`](crate::QueuePair::post) apply. These
    /// conditions still apply after a queue pair is destroyed, because another queue pair may take the receive.
    #[doc(alias = "ibv_post_srq_recv")]
    #[inline]
    pub unsafe fn post_receive(
        &self,
        request: ReceiveWorkRequest<'_, '_>,
        wr_id: u64,
    ) -> Result<(), PostError> {
        let request = request.with_id(wr_id);
        request.check(self.pd(), self.max_sge())?;
        // SAFETY: SAFETY.md F1, F12: the queue is live, and the list ends after one request. The caller upholds the
        // rest of the contract.
        let call = |wr, bad| unsafe { ibv_post_srq_recv(self.as_raw(), wr, bad) };
        post_one(request.wr, call, |returned, posted| refused(VERB, returned, posted))
    }

    /// Posts receives, in order, with one call to the provider (one doorbell).
    ///
    /// # Errors
    /// Same errors as [`post_receive`](Self::post_receive). If a check here refuses one of the receives, none of them
    /// is posted.
    ///
    /// # Safety
    /// The contract of [`post_receive`](Self::post_receive) applies to each receive. If this returns an error, it
    /// applies only to the first [`PostError::posted`] receives.
    #[doc(alias = "ibv_post_srq_recv")]
    #[inline]
    pub unsafe fn post_receive_batch(
        &self,
        requests: &mut [QueuedReceive<'_, '_>],
    ) -> Result<(), PostError> {
        check_all(requests, |request| request.check(self.pd(), self.max_sge()))?;
        // SAFETY: SAFETY.md F1, F12: the queue is live, and the list contains the whole slice. The caller upholds the
        // rest of the contract.
        let call = |list, bad| unsafe { ibv_post_srq_recv(self.as_raw(), list, bad) };
        post_all(requests, call, |returned, posted| refused(VERB, returned, posted))
    }
}
