//! Shared receive queues.
#![allow(unsafe_code)]

use std::ptr::NonNull;
use std::sync::Arc;

use rdma_mem::{Errno, Handle, ObjectId, Ownership, ProtectionDomain, VerbError};
use rdma_sys::{ibv_srq, ibv_srq_attr, ibv_srq_attr_mask};

use crate::error::Error;

/// A shared receive queue (SRQ): receives for any number of queue pairs.
///
/// A message to one of these queue pairs takes the oldest receive. The receive completes in the completion queue of the
/// queue pair that took it, with that queue pair's QPN ([`WorkCompletion::qpn`](crate::WorkCompletion::qpn)).
/// Therefore, a server with thousands of clients does not need a full set of receives for each client. It needs only
/// enough for the messages that can arrive at a time.
///
/// Clones are cheap and refer to the same queue. Its queue pairs keep the queue alive.
///
/// # Examples
/// ```
/// use rdma_qp::{CompletionQueue, PollSlot, ReceiveWorkRequest, SendWorkRequest, prelude::*};
///
/// rdma_soft::install();
/// let context = rdma_mem::open_device("soft0")?;
/// let cq = CompletionQueue::create(&context, 64)?;
/// let pd = context.allocate_pd()?;
/// let srq = pd.create_srq().max_wr(8).build()?;
/// let mut buffer = pd.allocate_region(64)?;
/// let mut buffer = buffer.get_mut(0, 64).unwrap();
/// // SAFETY: the region is not used elsewhere until the receive has completed below.
/// unsafe { srq.post_receive(ReceiveWorkRequest::new(&mut [buffer.scatter_element()]), 1) }.unwrap();
///
/// # let connect = || -> Result<_, rdma_qp::Error> {
/// #     let client = pd.create_qp().send_cq(&cq).recv_cq(&cq).build()?;
/// let server = pd.create_qp().send_cq(&cq).recv_cq(&cq).srq(&srq).build()?;
/// #     let (client_end, server_end) = (client.endpoint(), server.endpoint());
/// #     Ok((client.handshake(server_end)?, server.handshake(client_end)?))
/// # };
/// # let (_one, (other, server)) = (connect()?, connect()?);
/// // SAFETY: no memory.
/// unsafe { other.post_send(SendWorkRequest::only_immediate(7), 2) }.unwrap();
/// # let (mut slots, mut left) = ([PollSlot::default(); 4], 2);
/// # while left > 0 {
/// for completion in cq.poll(&mut slots)? {
///     if completion.wr_id() == 1 {
///         assert_eq!(completion.qpn(), server.qpn());
///     }
/// #   left -= 1;
/// }
/// # }
/// # Ok::<(), rdma_qp::Error>(())
/// ```
#[doc(alias = "ibv_srq")]
#[derive(Clone, Debug)]
pub struct SharedReceiveQueue(Arc<Inner>);

#[derive(Debug)]
struct Inner {
    /// Queue pairs hold a clone of the queue, so it is destroyed after them.
    handle: Handle<ibv_srq, ProtectionDomain>,
    id: ObjectId,
    max_wr: u32,
    max_sge: u32,
}

/// The attributes of a shared receive queue, from [`SharedReceiveQueue::query`].
#[doc(alias = "ibv_srq_attr")]
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct SharedReceiveQueueAttributes {
    /// The maximum number of outstanding receives in the queue.
    pub max_wr: u32,
    /// The maximum number of elements in a receive.
    pub max_sge: u32,
    /// The limit that is set but not yet reached; 0 if none is set.
    pub limit: u32,
}

impl SharedReceiveQueue {
    /// Wraps a queue that was created elsewhere. Its [`id`](Self::id) is the user context that it was created with,
    /// which these crates only compare.
    ///
    /// # Errors
    /// Returns an error if the provider cannot query the size of the queue.
    ///
    /// # Safety
    /// The caller upholds the contract of [`Ownership`]. The queue belongs to this domain.
    ///
    /// # Examples
    /// ```
    /// use std::ptr::NonNull;
    /// use rdma_mem::Ownership;
    /// use rdma_qp::{ReceiveWorkRequest, SharedReceiveQueue};
    /// use rdma_sys::{ibv_srq_attr, ibv_srq_init_attr};
    ///
    /// rdma_soft::install();
    /// let pd = rdma_mem::open_device("soft0")?.allocate_pd()?;
    /// let attr = ibv_srq_attr { max_wr: 8, max_sge: 1, srq_limit: 0 };
    /// let mut init = ibv_srq_init_attr { attr, ..Default::default() };
    /// // SAFETY: a live domain of this table.
    /// let raw = unsafe { (pd.verbs().create_srq)(pd.as_raw(), &raw mut init) };
    /// let raw = NonNull::new(raw).unwrap();
    /// // SAFETY: just created in the domain, and not destroyed elsewhere.
    /// let srq = unsafe { SharedReceiveQueue::from_raw(raw, &pd, Ownership::Owned) }?;
    /// // SAFETY: no memory.
    /// unsafe { srq.post_receive(ReceiveWorkRequest::only_immediate(), 1) }?;
    /// # Ok::<(), rdma_qp::Error>(())
    /// ```
    pub unsafe fn from_raw(
        raw: NonNull<ibv_srq>,
        pd: &ProtectionDomain,
        ownership: Ownership,
    ) -> Result<Self, Error> {
        // SAFETY: SAFETY.md F1, F2: by this function's contract.
        let attributes = unsafe { query(raw.as_ptr(), pd) }?;
        let SharedReceiveQueueAttributes { max_wr, max_sge, .. } = attributes;
        // SAFETY: SAFETY.md F1: the queue is live. The field is set by its creator, and does not change.
        let id = ObjectId::from_context(unsafe { (*raw.as_ptr()).srq_context });
        let (destroy, verb) = (pd.verbs().destroy_srq, "ibv_destroy_srq");
        // SAFETY: SAFETY.md F2, F9: by this function's contract. The handle keeps the domain alive, and queue pairs
        // hold a clone of the queue (F6).
        let handle = unsafe { Handle::from_raw(raw, destroy, verb, pd.clone(), ownership) };
        Ok(Self::of(handle, id, max_wr, max_sge))
    }

    pub(super) fn of(
        handle: Handle<ibv_srq, ProtectionDomain>,
        id: ObjectId,
        max_wr: u32,
        max_sge: u32,
    ) -> Self {
        Self(Arc::new(Inner { handle, id, max_wr, max_sge }))
    }

    /// Requests one [`SRQ_LIMIT_REACHED`] event, which is sent when fewer than `limit` receives are left. A limit of 0
    /// requests no event. See `man ibv_modify_srq`.
    ///
    /// The event has the [`id`](Self::id) of this queue, and occurs once per request. If fewer receives are left
    /// already, some devices report the event at once. Others report it when the next receive is used, or never if none
    /// is left. Therefore, set the limit first, and then post at least `limit` receives.
    ///
    /// # Errors
    /// [`Error::LimitTooLarge`], or the provider's error.
    ///
    /// [`SRQ_LIMIT_REACHED`]: rdma_mem::AsyncEventKind::SRQ_LIMIT_REACHED
    ///
    /// # Examples
    /// ```
    /// # use rdma_qp::prelude::*;
    /// # rdma_soft::install();
    /// # let pd = rdma_mem::open_device("soft0")?.allocate_pd()?;
    /// let srq = pd.create_srq().max_wr(100).build()?;
    /// srq.set_limit(20)?;
    /// assert_eq!(srq.query()?.limit, 20);
    /// # Ok::<(), rdma_qp::Error>(())
    /// ```
    #[doc(alias = "ibv_modify_srq")]
    #[doc(alias = "IBV_SRQ_LIMIT")]
    pub fn set_limit(&self, limit: u32) -> Result<(), Error> {
        self.0.handle.check_process().map_err(rdma_mem::Error::from)?;
        let max_wr = self.max_wr();
        if limit > max_wr {
            return Err(Error::LimitTooLarge { limit, max_wr });
        }
        let mut attr = ibv_srq_attr { max_wr: 0, max_sge: 0, srq_limit: limit };
        let mask = ibv_srq_attr_mask::IBV_SRQ_LIMIT.0.cast_signed();
        // SAFETY: SAFETY.md F1, F2: the queue is live and belongs to this table, and the attributes are live.
        let returned =
            unsafe { (self.pd().verbs().modify_srq)(self.as_raw(), &raw mut attr, mask) };
        Ok(Errno::check(returned).map_err(|errno| VerbError::new("ibv_modify_srq", errno))?)
    }

    /// Queries the attributes from the device; see `man ibv_query_srq`.
    ///
    /// # Errors
    /// Returns an error if the provider refuses.
    #[doc(alias = "ibv_query_srq")]
    pub fn query(&self) -> Result<SharedReceiveQueueAttributes, Error> {
        self.0.handle.check_process().map_err(rdma_mem::Error::from)?;
        // SAFETY: SAFETY.md F1, F2: the queue is live and belongs to this table.
        unsafe { query(self.as_raw(), self.pd()) }
    }

    /// Returns the ID that identifies the queue in [asynchronous
    /// events](rdma_mem::AsyncEventSource::SharedReceiveQueue).
    #[inline]
    #[must_use]
    pub fn id(&self) -> ObjectId {
        self.0.id
    }

    /// Returns the maximum number of outstanding receives. The device may have set it higher than requested, but never
    /// lower.
    #[inline]
    #[must_use]
    pub fn max_wr(&self) -> u32 {
        self.0.max_wr
    }

    /// Returns the maximum number of elements in a receive. The device may have set it higher than requested, but never
    /// lower.
    #[inline]
    #[must_use]
    pub fn max_sge(&self) -> u32 {
        self.0.max_sge
    }

    /// Returns the protection domain of the memory that the receives can use. It may differ from the domains of the
    /// queue pairs.
    #[inline]
    #[must_use]
    pub fn pd(&self) -> &ProtectionDomain {
        self.0.handle.needs()
    }

    /// Returns true if both are clones of the same queue.
    #[must_use]
    pub fn is_same(&self, other: &Self) -> bool {
        Arc::ptr_eq(&self.0, &other.0)
    }

    /// Destroys the queue. After this, the device no longer uses the memory of its receives. A
    /// [borrowed](Ownership::Borrowed) queue and its receives stay unchanged.
    ///
    /// # Errors
    /// Returns the queue and an error: [`Error::StillUsed`] while a clone of the queue, or a queue pair that uses it,
    /// is alive; otherwise the provider's error.
    #[doc(alias = "ibv_destroy_srq")]
    pub fn close(self) -> Result<(), (Self, Error)> {
        match Arc::try_unwrap(self.0) {
            Ok(Inner { handle, id, max_wr, max_sge }) => {
                handle.close().map(drop).map_err(|(handle, error)| {
                    (Self(Arc::new(Inner { handle, id, max_wr, max_sge })), error.into())
                })
            }
            Err(shared) => Err((Self(shared), Error::StillUsed { what: "shared receive queue" })),
        }
    }

    /// Returns the C object, which stays alive while `self` or one of its clones exists.
    #[inline]
    #[must_use]
    pub fn as_raw(&self) -> *mut ibv_srq {
        self.0.handle.as_ptr()
    }
}

/// # Safety
/// The queue is live, and belongs to the domain's table.
unsafe fn query(
    srq: *mut ibv_srq,
    pd: &ProtectionDomain,
) -> Result<SharedReceiveQueueAttributes, Error> {
    let mut attr = ibv_srq_attr::default();
    // SAFETY: SAFETY.md F1, F2: by this function's contract. `attr` is live and writable.
    let returned = unsafe { (pd.verbs().query_srq)(srq, &raw mut attr) };
    Errno::check(returned).map_err(|errno| VerbError::new("ibv_query_srq", errno))?;
    let ibv_srq_attr { max_wr, max_sge, srq_limit } = attr;
    Ok(SharedReceiveQueueAttributes { max_wr, max_sge, limit: srq_limit })
}
