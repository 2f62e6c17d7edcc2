//! Posting: passing requests to the device. `docs/how-a-post-works.md` explains why posting is cheap.
#![allow(unsafe_code)]

mod bind;
pub(crate) mod bounds;
mod check;
pub(crate) mod error;
pub(crate) mod extended;
mod list;
pub(crate) mod operations;
mod service;
mod srq;
pub(crate) mod stand_in;
mod without_niche;

use crate::post::error::PostError;
use crate::qp::queue_pair::QueuePair;
use crate::wr::atomic::AtomicWorkRequest;
use crate::wr::queued::QueuedRequest;
use crate::wr::queued_receive::QueuedReceive;
use crate::wr::read::ReadWorkRequest;
use crate::wr::receive::ReceiveWorkRequest;
use crate::wr::request::WorkRequest;
use crate::wr::request::sealed::{Queued, check_all};
use crate::wr::send::SendWorkRequest;
use crate::wr::write::WriteWorkRequest;

/// # Posting
///
/// All of these methods except [`check`](Self::check) are `unsafe` for the same reason. The borrow of a request ends
/// when the call returns, but the device uses the memory until the request completes. Posting does not allocate, lock
/// or count. The requests in a queue start in the order in which they were posted, whichever threads posted them.
///
/// Methods without `raw` in their name refuse mistakes that can be detected before the device sees
/// the request; the [crate's page](crate#two-levels-of-posting) has the list.
// Always inlined: if the number and lengths of the elements are constants in the caller, the compiler evaluates most
// checks. If the call is not inlined, the request is passed in memory, which doubles the cost of a post.
impl QueuePair {
    /// Posts a request of any kind. Receives go to the receive queue, all others to the send queue.
    ///
    /// # Errors
    /// See [`PostError`].
    ///
    /// # Safety
    /// From a successful call until the request completes (or the queue pair is destroyed), the memory of its elements
    /// stays allocated and registered. [Inline data](SendWorkRequest::inline) is an exception: the call copies it
    /// before it returns, so it need only be borrowed during the call.
    ///
    /// - For a send or a write, no code writes that memory.
    /// - For a read, an atomic or a receive, the device writes that memory. No reference to it exists or is created
    ///   until all requests that name it have completed. If several requests write the same bytes, the final content is
    ///   undefined.
    /// - Neither condition applies to the memory of a [shared element](rdma_mem::SharedElement), to which no reference
    ///   exists. Peers, copies and other requests may read and write it during the request, and the device sends the
    ///   bytes that it finds.
    /// - For a [bind](crate::BindWindow), peers use the lent memory under the conditions of [`bind`](Self::bind). The
    ///   bind is posted only once: a second post could lend the memory again after the window became
    ///   [unbound](rdma_mem::MemoryWindow::unbound).
    /// - The [address handle](crate::AddressHandle) of a datagram stays alive until the request completes.
    ///
    /// A request has completed when its own completion has been polled. An unsignaled request has also completed when
    /// the completion of a later request of this send queue has been polled.
    ///
    /// # Examples
    /// ```
    /// use rdma_qp::{QueuePair, ReceiveWorkRequest, SendWorkRequest, WorkRequest};
    /// # use rdma_qp::{CompletionQueue, PollSlot, prelude::*};
    /// # rdma_soft::install();
    /// # let context = rdma_mem::open_device("soft0")?;
    /// # let cq = CompletionQueue::create(&context, 64)?;
    /// # let pd = context.allocate_pd()?;
    /// # let prepare = || pd.create_qp().send_cq(&cq).recv_cq(&cq).build();
    /// # let (one, other) = (prepare()?, prepare()?);
    /// # let (one_end, other_end) = (one.endpoint(), other.endpoint());
    /// # let (one, other) = (one.handshake(other_end)?, other.handshake(one_end)?);
    ///
    /// fn post(qp: &QueuePair, request: impl WorkRequest, wr_id: u64) {
    ///     // SAFETY: requests without memory.
    ///     unsafe { qp.post(request, wr_id) }.unwrap();
    /// }
    /// post(&other, ReceiveWorkRequest::only_immediate(), 1);
    /// post(&one, SendWorkRequest::only_immediate(7), 2);
    /// # Ok::<(), rdma_qp::Error>(())
    /// ```
    #[doc(alias = "ibv_post_send")]
    #[doc(alias = "ibv_post_recv")]
    #[inline(always)]
    pub unsafe fn post(&self, request: impl WorkRequest, wr_id: u64) -> Result<(), PostError> {
        let request = request.queue(wr_id);
        Queued::check(&request, self)?;
        // SAFETY: the caller upholds the same contract.
        unsafe { Queued::post(request, self) }
    }

    /// Checks a request of any kind like [`post`](Self::post), but does not post it. After this check, only the
    /// provider can refuse the request. Use it to check all requests of a group before posting the first, if the first
    /// must not be posted without the others.
    ///
    /// # Errors
    /// See [`PostError`]; a full queue is not detected.
    ///
    /// # Examples
    /// ```
    /// use rdma_qp::{InlineElement, PostErrorKind, SendWorkRequest};
    /// # use rdma_qp::{CompletionQueue, prelude::*};
    /// # rdma_soft::install();
    /// # let pd = rdma_mem::open_device("soft0")?.allocate_pd()?;
    /// # let cq = CompletionQueue::create(pd.context(), 64)?;
    /// # let prepared = pd.create_qp().send_cq(&cq).recv_cq(&cq).build()?;
    /// # let endpoint = prepared.endpoint();
    /// # let qp = prepared.handshake(endpoint)?; // to itself
    /// let long = [0; 1000];
    /// let error = qp.check(SendWorkRequest::inline(&[InlineElement::new(&long)])).unwrap_err();
    /// assert_eq!(error.kind(), PostErrorKind::TooMuchInline);
    /// # Ok::<(), rdma_qp::Error>(())
    /// ```
    #[inline]
    pub fn check(&self, request: impl WorkRequest) -> Result<(), PostError> {
        Queued::check(&request.queue(0), self)
    }

    /// Posts a request of any kind without checks: the device detects mistakes.
    ///
    /// # Errors
    /// See [`PostError`]. The only possible kinds ([`PostErrorKind`](crate::PostErrorKind)) are
    /// [`WouldBlock`](crate::PostErrorKind::WouldBlock), [`Refused`](crate::PostErrorKind::Refused) and, for a receive,
    /// [`SharedReceives`](crate::PostErrorKind::SharedReceives).
    ///
    /// # Safety
    /// The contract of [`post`](Self::post) applies, with two more conditions. Elements are not longer than the remote
    /// memory, unless the memory after it may be overwritten: the device writes there if the peer's region continues.
    /// On a UD queue pair, every request of the send queue is a send with [a destination](SendWorkRequest::to). On
    /// other queue pairs, no request has a destination. If this is violated, a provider uses other contents of the
    /// request as the handle.
    #[doc(alias = "ibv_post_send")]
    #[doc(alias = "ibv_post_recv")]
    #[inline(always)]
    pub unsafe fn post_raw(&self, request: impl WorkRequest, wr_id: u64) -> Result<(), PostError> {
        // SAFETY: the caller upholds the same contract.
        unsafe { Queued::post(request.queue(wr_id), self) }
    }

    /// Posts a send.
    ///
    /// # Errors
    /// See [`PostError`].
    ///
    /// # Safety
    /// The contract of [`post`](Self::post) applies.
    #[doc(alias = "ibv_post_send")]
    #[inline(always)]
    pub unsafe fn post_send(
        &self,
        request: SendWorkRequest<'_, '_>,
        wr_id: u64,
    ) -> Result<(), PostError> {
        // SAFETY: the caller upholds the same contract.
        unsafe { self.post(request, wr_id) }
    }

    /// Posts an RDMA write.
    ///
    /// # Errors
    /// See [`PostError`].
    ///
    /// # Safety
    /// The contract of [`post`](Self::post) applies.
    #[doc(alias = "ibv_post_send")]
    #[inline(always)]
    pub unsafe fn post_write(
        &self,
        request: WriteWorkRequest<'_, '_>,
        wr_id: u64,
    ) -> Result<(), PostError> {
        // SAFETY: the caller upholds the same contract.
        unsafe { self.post(request, wr_id) }
    }

    /// Posts an RDMA read.
    ///
    /// # Errors
    /// See [`PostError`].
    ///
    /// # Safety
    /// The contract of [`post`](Self::post) applies.
    #[doc(alias = "ibv_post_send")]
    #[inline(always)]
    pub unsafe fn post_read(
        &self,
        request: ReadWorkRequest<'_, '_>,
        wr_id: u64,
    ) -> Result<(), PostError> {
        // SAFETY: the caller upholds the same contract.
        unsafe { self.post(request, wr_id) }
    }

    /// Posts an atomic operation.
    ///
    /// # Errors
    /// See [`PostError`].
    ///
    /// # Safety
    /// The contract of [`post`](Self::post) applies.
    #[doc(alias = "ibv_post_send")]
    #[inline(always)]
    pub unsafe fn post_atomic(
        &self,
        request: AtomicWorkRequest<'_, '_>,
        wr_id: u64,
    ) -> Result<(), PostError> {
        // SAFETY: the caller upholds the same contract.
        unsafe { self.post(request, wr_id) }
    }

    /// Posts a receive.
    ///
    /// # Errors
    /// See [`PostError`].
    ///
    /// # Safety
    /// The contract of [`post`](Self::post) applies.
    #[doc(alias = "ibv_post_recv")]
    #[inline(always)]
    pub unsafe fn post_receive(
        &self,
        request: ReceiveWorkRequest<'_, '_>,
        wr_id: u64,
    ) -> Result<(), PostError> {
        // SAFETY: the caller upholds the same contract.
        unsafe { self.post(request, wr_id) }
    }

    /// Posts requests of any kind to the send queue, in order, with one call to the provider (one doorbell).
    ///
    /// # Errors
    /// See [`PostError`]. If a check here refuses one of the requests, none of them is posted.
    ///
    /// # Safety
    /// The contract of [`post`](Self::post) applies to each request. If this returns an error, it applies only to the
    /// first [`PostError::posted`] requests.
    ///
    /// # Examples
    /// ```no_run
    /// # use rdma_mem::{OwnedRegion, RemoteMemoryRegion};
    /// # use rdma_qp::{PostError, QueuePair, WriteWorkRequest};
    /// # fn example(qp: &QueuePair, region: &OwnedRegion, remote: RemoteMemoryRegion) -> Option<()> {
    /// let head = [region.get_ref(0, 64)?.gather_element()];
    /// let body = [region.get_ref(64, 4000)?.gather_element()];
    /// let mut batch = [
    ///     WriteWorkRequest::new(&body, remote.sub_region(64)?).signaled(false).with_id(1),
    ///     WriteWorkRequest::new(&head, remote).with_immediate(7).with_id(2),
    /// ];
    /// // SAFETY: the region is left alone until request 2 completes.
    /// unsafe { qp.post_batch(&mut batch) }.ok()?;
    /// # Some(())
    /// # }
    /// ```
    #[doc(alias = "ibv_post_send")]
    #[inline]
    pub unsafe fn post_batch(
        &self,
        requests: &mut [QueuedRequest<'_, '_>],
    ) -> Result<(), PostError> {
        check_all(requests, |request| request.check_in_batch(self))?;
        // SAFETY: the caller upholds the same contract; the additional conditions of raw posts were checked.
        unsafe { self.post_batch_raw(requests) }
    }

    /// Posts a batch like [`post_batch`](Self::post_batch), without checks.
    ///
    /// # Errors
    /// Same errors as [`post_raw`](Self::post_raw).
    ///
    /// # Safety
    /// The contract of [`post_raw`](Self::post_raw) applies to each request. If this returns an error, it applies only
    /// to the first [`PostError::posted`] requests.
    #[doc(alias = "ibv_post_send")]
    #[inline]
    pub unsafe fn post_batch_raw(
        &self,
        requests: &mut [QueuedRequest<'_, '_>],
    ) -> Result<(), PostError> {
        // SAFETY: the caller upholds the same contract.
        unsafe { Queued::post_batch(requests, self) }
    }

    /// Posts receives, in order, with one call to the provider (one doorbell).
    ///
    /// # Errors
    /// See [`PostError`]. If a check here refuses one of the receives, none of them is posted.
    ///
    /// # Safety
    /// The contract of [`post`](Self::post) applies to each receive. If this returns an error, it applies only to the
    /// first [`PostError::posted`] receives.
    #[doc(alias = "ibv_post_recv")]
    #[inline]
    pub unsafe fn post_receive_batch(
        &self,
        requests: &mut [QueuedReceive<'_, '_>],
    ) -> Result<(), PostError> {
        check_all(requests, |request| Queued::check(request, self))?;
        // SAFETY: the caller upholds the same contract; the additional conditions of raw posts were checked.
        unsafe { self.post_receive_batch_raw(requests) }
    }

    /// Posts receives like [`post_receive_batch`](Self::post_receive_batch), without checks.
    ///
    /// # Errors
    /// Same errors as [`post_raw`](Self::post_raw).
    ///
    /// # Safety
    /// The contract of [`post_raw`](Self::post_raw) applies to each receive. If this returns an error, it applies only
    /// to the first [`PostError::posted`] receives.
    #[doc(alias = "ibv_post_recv")]
    #[inline]
    pub unsafe fn post_receive_batch_raw(
        &self,
        requests: &mut [QueuedReceive<'_, '_>],
    ) -> Result<(), PostError> {
        // SAFETY: the caller upholds the same contract.
        unsafe { Queued::post_batch(requests, self) }
    }
}
