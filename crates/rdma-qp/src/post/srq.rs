//! Posting to a shared receive queue.
#![allow(unsafe_code)]

use rdma_sys::ibv_post_srq_recv;

use crate::post::error::PostError;
use crate::post::list::{post_all, post_one, refused};
use crate::srq::queue::SharedReceiveQueue;
use crate::wr::queued_receive::QueuedReceive;
use crate::wr::receive::ReceiveWorkRequest;
use crate::wr::request::sealed::check_all;

/// The function that posts.
const VERB: &str = "ibv_post_srq_recv";

impl SharedReceiveQueue {
    /// Posts a receive.
    ///
    /// # Errors
    /// See [`PostError`]. A full queue returns [`WouldBlock`](crate::PostErrorKind::WouldBlock), until completions of
    /// its receives were polled.
    ///
    /// # Safety
    /// From a call that succeeds until the receive has completed, or the queue was destroyed, the
    /// memory of its elements stays allocated and registered. The device writes it, so no other
    /// code uses it: no reference to it exists or is created. For several requests into the same
    /// memory, and for [memory that is never a slice](rdma_mem::SharedElement), the rules of
    /// [`QueuePair::post`](crate::QueuePair::post) apply. The end of a queue pair does not end
    /// these conditions: another queue pair may use the receive by then.
    #[doc(alias = "ibv_post_srq_recv")]
    #[inline]
    pub unsafe fn post_receive(
        &self,
        request: ReceiveWorkRequest<'_, '_>,
        wr_id: u64,
    ) -> Result<(), PostError> {
        let request = request.with_id(wr_id);
        request.check(self.pd(), self.max_sge())?;
        // SAFETY: SAFETY.md F1, F12: a live queue, and one request, which ends the list; the rest is this
        // function's contract.
        let call = |wr, bad| unsafe { ibv_post_srq_recv(self.as_raw(), wr, bad) };
        post_one(request.wr, call, |returned, posted| refused(VERB, returned, posted))
    }

    /// Posts receives, in order, with one call of the provider (one doorbell).
    ///
    /// # Errors
    /// The errors are those of [`post_receive`](Self::post_receive). If a check here refuses one of the receives, none
    /// is posted.
    ///
    /// # Safety
    /// The contract is that of [`post_receive`](Self::post_receive), for each receive; after a
    /// failure, for the first [`PostError::posted`] of them.
    #[doc(alias = "ibv_post_srq_recv")]
    #[inline]
    pub unsafe fn post_receive_batch(
        &self,
        requests: &mut [QueuedReceive<'_, '_>],
    ) -> Result<(), PostError> {
        check_all(requests, |request| request.check(self.pd(), self.max_sge()))?;
        // SAFETY: SAFETY.md F1, F12: a live queue, and a list of the whole slice; the rest is this
        // function's contract.
        let call = |list, bad| unsafe { ibv_post_srq_recv(self.as_raw(), list, bad) };
        post_all(requests, call, |returned, posted| refused(VERB, returned, posted))
    }
}
