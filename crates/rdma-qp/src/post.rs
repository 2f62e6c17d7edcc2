//! Posting: handing requests to the device. `docs/how-a-post-works.md` explains what makes it
//! cheap.
#![allow(unsafe_code)]

mod bind;
pub(crate) mod bounds;
mod check;
pub(crate) mod error;
pub(crate) mod extended;
mod list;
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
/// All of these are `unsafe` for the same reason: the borrow of a request ends when the call returns,
/// and the device uses the memory until the request has completed. Nothing here allocates, locks or
/// counts. Requests of a queue start in the order in which they were posted, from whatever thread.
///
/// Those without `raw` in their name refuse what can be known to be wrong before the device sees it;
/// the [crate's page](crate#two-levels-of-posting) has the list.
// Always inlined: where the caller knows how many elements there are and how long, most checks are done
// by the compiler. Out of line, the request goes through memory, which doubles the cost of a post.
impl QueuePair {
    /// Posts a request of any kind: a receive to the receive queue, the others to the send queue.
    ///
    /// # Errors
    /// See [`PostError`].
    ///
    /// # Safety
    /// From a call that succeeds until the request has completed (or the queue pair was destroyed), the memory of its
    /// elements stays allocated and registered. [Inline data](SendWorkRequest::inline) is excepted: the call copies
    /// it before it returns, so that its borrow is enough.
    ///
    /// - For a send or a write, no code writes that memory.
    /// - For a read, an atomic or a receive, the device writes that memory: no reference to it exists or
    ///   is made until all requests that name it have completed. If several of them write the same bytes,
    ///   it is undefined which bytes stay.
    /// - Neither concerns the memory of a [shared element](rdma_mem::SharedElement), to which no reference
    ///   exists: peers, copies and other requests may read and write it meanwhile, and the device sends the
    ///   bytes that it finds.
    /// - For a [bind](crate::BindWindow), peers use the memory that is lent, as [`bind`](Self::bind) says.
    ///   It is posted once: a second one would lend the memory again, after the window is believed
    ///   [unbound](rdma_mem::MemoryWindow::unbound).
    /// - The [address handle](crate::AddressHandle) of a datagram lives until then.
    ///
    /// A request has completed when its own completion was polled; an unsignaled one also when that of
    /// a later request of this send queue was.
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
        // SAFETY: the same contract.
        unsafe { Queued::post(request, self) }
    }

    /// Checks a request of any kind like [`post`](Self::post), and posts nothing. After that, only the provider can
    /// refuse the request. Use it before a request that must not be posted alone.
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

    /// Posts a request of any kind without checks: the device finds the mistakes.
    ///
    /// # Errors
    /// See [`PostError`]; of [`PostErrorKind`](crate::PostErrorKind) only
    /// [`WouldBlock`](crate::PostErrorKind::WouldBlock) and
    /// [`Refused`](crate::PostErrorKind::Refused).
    ///
    /// # Safety
    /// Same contract as [`post`](Self::post). Elements that are longer than the remote memory overwrite what lies
    /// behind it, if the peer's region goes on there. To a UD queue pair a request of the send
    /// queue is a send that says [where it goes](SendWorkRequest::to), and to no other queue pair
    /// it is: a provider takes for a handle whatever the request holds instead.
    #[doc(alias = "ibv_post_send")]
    #[doc(alias = "ibv_post_recv")]
    #[inline(always)]
    pub unsafe fn post_raw(&self, request: impl WorkRequest, wr_id: u64) -> Result<(), PostError> {
        // SAFETY: the same contract.
        unsafe { Queued::post(request.queue(wr_id), self) }
    }

    /// Posts a send.
    ///
    /// # Errors
    /// See [`PostError`].
    ///
    /// # Safety
    /// Same contract as [`post`](Self::post).
    #[doc(alias = "ibv_post_send")]
    #[inline(always)]
    pub unsafe fn post_send(
        &self,
        request: SendWorkRequest<'_, '_>,
        wr_id: u64,
    ) -> Result<(), PostError> {
        // SAFETY: the same contract.
        unsafe { self.post(request, wr_id) }
    }

    /// Posts an RDMA write.
    ///
    /// # Errors
    /// See [`PostError`].
    ///
    /// # Safety
    /// Same contract as [`post`](Self::post).
    #[doc(alias = "ibv_post_send")]
    #[inline(always)]
    pub unsafe fn post_write(
        &self,
        request: WriteWorkRequest<'_, '_>,
        wr_id: u64,
    ) -> Result<(), PostError> {
        // SAFETY: the same contract.
        unsafe { self.post(request, wr_id) }
    }

    /// Posts an RDMA read.
    ///
    /// # Errors
    /// See [`PostError`].
    ///
    /// # Safety
    /// Same contract as [`post`](Self::post).
    #[doc(alias = "ibv_post_send")]
    #[inline(always)]
    pub unsafe fn post_read(
        &self,
        request: ReadWorkRequest<'_, '_>,
        wr_id: u64,
    ) -> Result<(), PostError> {
        // SAFETY: the same contract.
        unsafe { self.post(request, wr_id) }
    }

    /// Posts an atomic operation.
    ///
    /// # Errors
    /// See [`PostError`].
    ///
    /// # Safety
    /// Same contract as [`post`](Self::post).
    #[doc(alias = "ibv_post_send")]
    #[inline(always)]
    pub unsafe fn post_atomic(
        &self,
        request: AtomicWorkRequest<'_, '_>,
        wr_id: u64,
    ) -> Result<(), PostError> {
        // SAFETY: the same contract.
        unsafe { self.post(request, wr_id) }
    }

    /// Posts a receive.
    ///
    /// # Errors
    /// See [`PostError`].
    ///
    /// # Safety
    /// Same contract as [`post`](Self::post).
    #[doc(alias = "ibv_post_recv")]
    #[inline(always)]
    pub unsafe fn post_receive(
        &self,
        request: ReceiveWorkRequest<'_, '_>,
        wr_id: u64,
    ) -> Result<(), PostError> {
        // SAFETY: the same contract.
        unsafe { self.post(request, wr_id) }
    }

    /// Posts requests of any kind to the send queue, in order, with one call of the provider (one
    /// doorbell).
    ///
    /// # Errors
    /// See [`PostError`]. If one of the requests is refused here, none is posted.
    ///
    /// # Safety
    /// Same contract as [`post`](Self::post), for each; after a failure for the first [`PostError::posted`] of them.
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
    /// // SAFETY: the region is left alone until the completion of 2.
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
        // SAFETY: the same contract; what raw posts ask for beside it was checked.
        unsafe { self.post_batch_raw(requests) }
    }

    /// Posts a batch like [`post_batch`](Self::post_batch), without checks.
    ///
    /// # Errors
    /// Same errors as [`post_raw`](Self::post_raw).
    ///
    /// # Safety
    /// Same contract as [`post_raw`](Self::post_raw), for each; after a failure for the first [`PostError::posted`] of
    /// them.
    #[doc(alias = "ibv_post_send")]
    #[inline]
    pub unsafe fn post_batch_raw(
        &self,
        requests: &mut [QueuedRequest<'_, '_>],
    ) -> Result<(), PostError> {
        // SAFETY: the same contract.
        unsafe { Queued::post_batch(requests, self) }
    }

    /// Posts receives, in order, with one call of the provider (one doorbell).
    ///
    /// # Errors
    /// See [`PostError`]. If one of the receives is refused here, none is posted.
    ///
    /// # Safety
    /// Same contract as [`post`](Self::post), for each; after a failure for the first [`PostError::posted`] of them.
    #[doc(alias = "ibv_post_recv")]
    #[inline]
    pub unsafe fn post_receive_batch(
        &self,
        requests: &mut [QueuedReceive<'_, '_>],
    ) -> Result<(), PostError> {
        check_all(requests, |request| Queued::check(request, self))?;
        // SAFETY: the same contract; what raw posts ask for beside it was checked.
        unsafe { self.post_receive_batch_raw(requests) }
    }

    /// Posts receives like [`post_receive_batch`](Self::post_receive_batch), without checks.
    ///
    /// # Errors
    /// Same errors as [`post_raw`](Self::post_raw).
    ///
    /// # Safety
    /// Same contract as [`post_raw`](Self::post_raw), for each; after a failure for the first [`PostError::posted`] of
    /// them.
    #[doc(alias = "ibv_post_recv")]
    #[inline]
    pub unsafe fn post_receive_batch_raw(
        &self,
        requests: &mut [QueuedReceive<'_, '_>],
    ) -> Result<(), PostError> {
        // SAFETY: the same contract.
        unsafe { Queued::post_batch(requests, self) }
    }
}
