//! Posting to a shared receive queue.
#![allow(unsafe_code)]

use rdma_sys::ibv_post_srq_recv;

use crate::post::error::PostError;
use crate::post::list::{post_all, post_one, refused};
use crate::srq::queue::SharedReceiveQueue;
use crate::wr::queued_receive::QueuedReceive;
use crate::wr::receive::ReceiveWorkRequest;
use crate::wr::request::sealed::check_all;

/// What posts.
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
    /// memory of its elements stays allocated and registered, and is nobody else's, since the
    /// device writes it: no reference to it exists or is made. Of several requests into the same
    /// memory, and of [memory that nobody sees as a slice](rdma_mem::SharedElement), holds what
    /// [`QueuePair::post`](crate::QueuePair::post) says. The end of a queue pair ends none of this:
    /// the receive may be another's by then.
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
    /// Same errors as [`post_receive`](Self::post_receive). If one of the receives is refused here, none is posted.
    ///
    /// # Safety
    /// Same contract as [`post_receive`](Self::post_receive), for each; after a failure for the first
    /// [`PostError::posted`] of them.
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
