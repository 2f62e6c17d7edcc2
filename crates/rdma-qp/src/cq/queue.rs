//! Completion queues.
#![allow(unsafe_code)]

use std::cell::Cell;
use std::ffi::c_int;
use std::ptr::NonNull;
use std::sync::atomic::{AtomicI32, AtomicU32, Ordering};
use std::sync::{Arc, Mutex, PoisonError};

use rdma_mem::{Context, Errno, Handle, ObjectId, Ownership, VerbError};
use rdma_sys::{
    ibv_cq, ibv_cq_attr_mask, ibv_moderate_cq, ibv_modify_cq, ibv_modify_cq_attr, ibv_poll_cq,
    ibv_req_notify_cq,
};

use crate::cq::channel::{CompletionChannel, Subscription};
use crate::cq::completion::{PollSlot, PolledCompletions};
use crate::cq::needed::NeededCapacity;
use crate::cq::poll_error::PollError;
use crate::error::{Error, create_hint, moderate_hint};
use crate::post::stand_in::{Called, CalledAddress};

/// A completion queue (CQ), in which the device reports completed work requests.
///
/// Any number of queue pairs can share a completion queue. If it overflows, it fails, and so do its queue pairs. That
/// cannot happen if it is at least as large as all queues of its queue pairs together, which
/// [`strict_cq`](crate::QueuePairBuilder::strict_cq) enforces. A smaller one must be polled in time. Clones are cheap
/// and share the queue.
///
/// # Examples
/// ```
/// use rdma_qp::{CompletionQueue, PollSlot};
///
/// rdma_soft::install();
/// let context = rdma_mem::open_device("soft0")?;
/// let cq = CompletionQueue::create(&context, 64)?;
/// let mut slots = [PollSlot::default(); 16];
/// for completion in cq.poll(&mut slots)? {
///     println!("{}: {:?}", completion.wr_id(), completion.result());
/// }
/// # Ok::<(), rdma_qp::Error>(())
/// ```
#[doc(alias = "ibv_cq")]
#[derive(Clone, Debug)]
pub struct CompletionQueue {
    inner: Arc<Inner>,
    /// The object that polls use, copied here so that a poll need not dereference `inner`.
    polled: CalledAddress<ibv_cq>,
}

#[derive(Debug)]
struct Inner {
    /// Dropped before the queue is destroyed.
    subscription: Option<Subscription>,
    handle: Handle<ibv_cq, Needs>,
    id: ObjectId,
    /// The actual capacity, as set by the device, in completions.
    capacity: AtomicU32,
    /// Held during a resize of the queue.
    resizing: Mutex<()>,
    /// The capacity that the queue pairs of this queue may need.
    needed: NeededCapacity,
    polled: Called<ibv_cq>,
}

/// The objects that a completion queue must not outlive.
#[derive(Debug)]
struct Needs {
    channel: Option<CompletionChannel>,
    context: Context,
}

impl Needs {
    /// # Safety
    /// The queue belongs to `self.channel`, if that is set. The queue is in no other subscription, and it is destroyed
    /// only after the subscription is dropped.
    unsafe fn subscribe(&self, cq: NonNull<ibv_cq>) -> Option<Subscription> {
        let channel = self.channel.clone()?;
        // SAFETY: the caller upholds the same contract.
        Some(unsafe { Subscription::new(channel, cq) })
    }
}

impl CompletionQueue {
    /// Wraps a queue that was created elsewhere. Pass its channel if this value is to request events.
    ///
    /// The queue is polled through `ibv_poll_cq`, and has no timestamps. Its [`id`](Self::id) is the user context that
    /// it was created with, which these crates only compare. This crate counts and acknowledges only events that are
    /// read through it.
    ///
    /// # Safety
    /// The caller upholds the contract of [`Ownership`]. The queue belongs to this context, and `ibv_poll_cq` can be
    /// called on it. `channel` is the channel that it was created with, or `None`. If a channel is passed, no other
    /// value wraps the queue. Only one value and its clones resize the queue, and C does not resize it at the same
    /// time. If the queue is owned, events that other code has read must be acknowledged, because destroying the queue
    /// waits for them.
    ///
    /// # Examples
    /// ```
    /// use std::ptr::{NonNull, null_mut};
    /// use rdma_mem::Ownership;
    /// use rdma_qp::{CompletionQueue, PollSlot};
    ///
    /// rdma_soft::install();
    /// let context = rdma_mem::open_device("soft0")?;
    /// let create = context.verbs().create_cq;
    /// // SAFETY: a live context of this table.
    /// let raw = unsafe { create(context.as_raw(), 64, null_mut(), null_mut(), 0) };
    /// let raw = NonNull::new(raw).unwrap();
    /// // SAFETY: just created from the context, and not destroyed elsewhere.
    /// let cq = unsafe { CompletionQueue::from_raw(raw, &context, None, Ownership::Owned) };
    /// assert!(cq.poll(&mut [PollSlot::default()])?.is_empty());
    /// assert!(cq.min_capacity() >= 64);
    /// # Ok::<(), rdma_qp::Error>(())
    /// ```
    #[must_use]
    pub unsafe fn from_raw(
        raw: NonNull<ibv_cq>,
        context: &Context,
        channel: Option<&CompletionChannel>,
        ownership: Ownership,
    ) -> Self {
        // SAFETY: SAFETY.md F1: by this function's contract, which also allows the queue itself to be polled.
        unsafe { Self::of(raw, context, channel, Called::itself(raw), ownership) }
    }

    fn shared(inner: Arc<Inner>) -> Self {
        Self { polled: inner.polled.address(), inner }
    }

    /// # Safety
    /// The contract of [`from_raw`](Self::from_raw) applies, and the queue can be polled through `polled`.
    pub(super) unsafe fn of(
        raw: NonNull<ibv_cq>,
        context: &Context,
        channel: Option<&CompletionChannel>,
        polled: Called<ibv_cq>,
        ownership: Ownership,
    ) -> Self {
        let needs = Needs { channel: channel.cloned(), context: context.clone() };
        let (destroy, verb) = (context.verbs().destroy_cq, "ibv_destroy_cq");
        // SAFETY: SAFETY.md F2, F9: by this function's contract. `needs` keeps the context and the channel alive, and
        // queue pairs hold a clone of the queue (F6).
        let handle = unsafe { Handle::from_raw(raw, destroy, verb, needs, ownership) };
        // SAFETY: SAFETY.md F6: by this function's contract, the queue belongs to this channel and is in no other
        // value. The subscription is a field that is dropped before the handle.
        let subscription = unsafe { handle.needs().subscribe(raw) };
        // SAFETY: SAFETY.md F1: `handle` keeps the queue alive. The field is set by the queue's creator, and does not
        // change.
        let id = ObjectId::from_context(unsafe { (*raw.as_ptr()).cq_context });
        // SAFETY: SAFETY.md F6: `handle` keeps the queue alive.
        let capacity = unsafe { size(raw.as_ptr()) }.into();
        let resizing = Mutex::new(());
        let needed = NeededCapacity::default();
        Self::shared(Arc::new(Inner {
            subscription,
            handle,
            id,
            capacity,
            resizing,
            needed,
            polled,
        }))
    }

    /// Polls as many completions as are available and fit into `slots`, without blocking; see `man ibv_poll_cq`.
    ///
    /// # Errors
    /// Returns an error if the queue has failed, for example because it overflowed. The error is not a completion: it
    /// does not complete any request.
    #[doc(alias = "poll_cq")]
    #[doc(alias = "ibv_poll_cq")]
    #[inline]
    pub fn poll<'s>(&self, slots: &'s mut [PollSlot]) -> Result<PolledCompletions<'s>, PollError> {
        let most = c_int::try_from(slots.len()).unwrap_or(c_int::MAX);
        let queue = self.polled.as_ptr();
        // SAFETY: SAFETY.md F1, F12: the queue is live, and `slots` has room for `most` completions; a slot is laid out
        // as a completion (F5).
        let returned = unsafe { ibv_poll_cq(queue, most, slots.as_mut_ptr().cast()) };
        match Errno::check_poll(returned) {
            Ok(count) => Ok(PolledCompletions::new(slots.get(..count).unwrap_or(slots))),
            Err(_) => Err(PollError),
        }
    }

    /// Polls like [`poll`](Self::poll), into slots that are reused without being cleared for each poll. Returns the
    /// number of slots that were filled, beginning with the first. [`PollSlot::last`] returns the completion in a slot.
    ///
    /// # Errors
    /// Same errors as [`poll`](Self::poll).
    ///
    /// # Examples
    /// ```
    /// use std::cell::Cell;
    /// use std::slice;
    /// use rdma_qp::{CompletionQueue, PollSlot};
    ///
    /// rdma_soft::install();
    /// let context = rdma_mem::open_device("soft0")?;
    /// let cq = CompletionQueue::create(&context, 64)?;
    /// let slot = Cell::new(PollSlot::default());
    /// while cq.poll_into(slice::from_ref(&slot))? > 0 {
    ///     println!("{:?}", slot.get().last());
    /// }
    /// # Ok::<(), rdma_qp::Error>(())
    /// ```
    #[doc(alias = "ibv_poll_cq")]
    #[inline(always)]
    pub fn poll_into(&self, slots: &[Cell<PollSlot>]) -> Result<usize, PollError> {
        let most = c_int::try_from(slots.len()).unwrap_or(c_int::MAX);
        let queue = self.polled.as_ptr();
        // SAFETY: SAFETY.md F1, F12: the queue is live, and `slots` has room for `most` completions, to which no
        // reference exists; a cell of a slot is laid out as a completion (F5).
        let returned = unsafe { ibv_poll_cq(queue, most, slots.as_ptr().cast_mut().cast()) };
        if returned > 0 {
            Ok((returned.cast_unsigned() as usize).min(slots.len()))
        } else if returned == 0 {
            Ok(0)
        } else {
            Err(PollError)
        }
    }

    /// Returns true if completions of the queue have timestamps.
    #[inline]
    #[must_use]
    pub fn has_timestamps(&self) -> bool {
        self.inner.polled.stands_in()
    }

    /// Requests one event on the channel, for the next completion. With `solicited_only`, the event is sent only for a
    /// failed completion, or for one that the peer [solicited](crate::SendWorkRequest::solicited); see `man
    /// ibv_req_notify_cq`.
    ///
    /// Completions that are already in the queue send no event, so poll again after this call, before you sleep. If an
    /// event is requested twice before it arrives, the request that covers more completions applies.
    ///
    /// # Errors
    /// [`Error::NoCompletionChannel`] for a queue that was created without a channel, or the provider's error.
    #[doc(alias = "ibv_req_notify_cq")]
    #[inline]
    pub fn req_notify(&self, solicited_only: bool) -> Result<(), Error> {
        if self.inner.subscription.is_none() {
            return Err(Error::NoCompletionChannel);
        }
        // SAFETY: SAFETY.md F1: the queue is live.
        let returned = unsafe { ibv_req_notify_cq(self.as_raw(), c_int::from(solicited_only)) };
        Errno::check(returned).map_err(|errno| VerbError::new("ibv_req_notify_cq", errno).into())
    }

    /// Returns the completion channel that the queue was created with.
    #[must_use]
    pub fn channel(&self) -> Option<&CompletionChannel> {
        self.inner.handle.needs().channel.as_ref()
    }

    /// Returns the ID that identifies the queue in events of its channel, and in [asynchronous
    /// events](rdma_mem::AsyncEventSource::CompletionQueue).
    #[inline]
    #[must_use]
    pub fn id(&self) -> ObjectId {
        self.inner.id
    }

    /// Returns the capacity of the queue in completions. The device may have set it higher than requested, but never
    /// lower.
    #[inline]
    #[must_use]
    pub fn min_capacity(&self) -> u32 {
        self.inner.capacity.load(Ordering::Relaxed)
    }

    /// Sets the capacity of the queue to at least `min_capacity` completions; see `man ibv_resize_cq`. Other threads
    /// and the device can use the queue during this call. Completions in the queue are kept, in order.
    ///
    /// The device may set a larger capacity, which [`min_capacity`](Self::min_capacity) returns. If a queue is smaller
    /// than the queues of its queue pairs together, it overflows unless it is polled in time. Creating a queue pair can
    /// check this ([`strict_cq`](crate::QueuePairBuilder::strict_cq)); this call does not.
    ///
    /// # Errors
    /// Returns an error, and leaves the queue unchanged, if it contains more completions than `min_capacity`. The same
    /// applies if the device does not support that capacity (`EINVAL` or the provider's error), or cannot resize queues
    /// (`EOPNOTSUPP`, `ENOSYS`).
    ///
    /// # Examples
    /// ```
    /// use rdma_qp::CompletionQueue;
    ///
    /// rdma_soft::install();
    /// let context = rdma_mem::open_device("soft0")?;
    /// let cq = CompletionQueue::create(&context, 64)?;
    /// cq.resize(1000)?;
    /// assert!(cq.min_capacity() >= 1000);
    /// # Ok::<(), rdma_qp::Error>(())
    /// ```
    #[doc(alias = "ibv_resize_cq")]
    pub fn resize(&self, min_capacity: u32) -> Result<(), Error> {
        self.inner.handle.check_process().map_err(rdma_mem::Error::from)?;
        let context = self.context();
        let fail = |errno| {
            let asked = format!("{min_capacity} completions");
            let hint = context.query_device().ok().and_then(|d| create_hint(errno, &asked, &d));
            Error::from(VerbError::new("ibv_resize_cq", errno).with_hint(hint))
        };
        let asked = c_int::try_from(min_capacity).map_err(|_| fail(Errno::EINVAL))?;
        let _alone = self.inner.resizing.lock().unwrap_or_else(PoisonError::into_inner);
        // SAFETY: SAFETY.md F2, F9: the queue is live and belongs to this table. Other threads may use it during the
        // call.
        let returned = unsafe { (context.verbs().resize_cq)(self.as_raw(), asked) };
        Errno::check(returned).map_err(fail)?;
        // SAFETY: SAFETY.md F6: the handle keeps the queue alive.
        let given = unsafe { size(self.as_raw()) };
        self.inner.capacity.store(given, Ordering::Relaxed);
        Ok(())
    }

    /// Makes the device delay events on the channel. The device then sends an event after `max_count` completions, or
    /// `max_period_us` microseconds after the first of them. See `man ibv_modify_cq`. Polls are not delayed.
    ///
    /// [`ExtendedAttributes`](rdma_mem::ExtendedAttributes) contains the device's maximum values
    /// (`cq_moderation_max_count`, `cq_moderation_max_us`), which are 0 if the device does not moderate events.
    /// Software devices and SoftRoCE do not.
    ///
    /// # Errors
    /// Leaves the queue unchanged, and returns the provider's error and a hint. `EOPNOTSUPP` means that the device does
    /// not moderate events, and `EINVAL` that a value is above the device's limits.
    ///
    /// # Examples
    /// ```
    /// use rdma_qp::{CompletionQueue, Errno, Error};
    ///
    /// rdma_soft::install();
    /// let context = rdma_mem::open_device("soft0")?;
    /// let cq = CompletionQueue::create(&context, 64)?;
    /// match cq.moderate(16, 100) {
    ///     Ok(()) => println!("one event for 16 completions, or after 100 us"),
    ///     Err(Error::Verb(error)) if error.errno == Errno::EOPNOTSUPP => println!("{error}"),
    ///     Err(error) => return Err(error),
    /// }
    /// # Ok::<(), rdma_qp::Error>(())
    /// ```
    #[doc(alias("ibv_modify_cq", "IBV_CQ_ATTR_MODERATE"))]
    pub fn moderate(&self, max_count: u16, max_period_us: u16) -> Result<(), Error> {
        self.inner.handle.check_process().map_err(rdma_mem::Error::from)?;
        let mut attributes = ibv_modify_cq_attr {
            attr_mask: ibv_cq_attr_mask::IBV_CQ_ATTR_MODERATE.0,
            moderate: ibv_moderate_cq { cq_count: max_count, cq_period: max_period_us },
        };
        // SAFETY: SAFETY.md F1: the queue is live, and the attributes outlive the call.
        let returned = unsafe { ibv_modify_cq(self.as_raw(), &raw mut attributes) };
        Errno::check(returned).map_err(|errno| {
            let hint = moderate_hint(errno, (max_count, max_period_us), self.context());
            VerbError::new("ibv_modify_cq", errno).with_hint(hint).into()
        })
    }

    pub(crate) fn needed(&self) -> &NeededCapacity {
        &self.inner.needed
    }

    /// Returns the context that the queue was created from.
    #[must_use]
    pub fn context(&self) -> &Context {
        &self.inner.handle.needs().context
    }

    /// Returns true if both are clones of the same queue.
    #[must_use]
    pub fn is_same(&self, other: &Self) -> bool {
        Arc::ptr_eq(&self.inner, &other.inner)
    }

    /// Destroys the queue.
    ///
    /// # Errors
    /// Returns the queue and an error: [`Error::StillUsed`] while a clone of the queue, or a queue pair that uses it,
    /// is alive; otherwise the provider's error.
    #[doc(alias = "ibv_destroy_cq")]
    pub fn close(self) -> Result<(), (Self, Error)> {
        // In a forked child, the channel's lock may never become free.
        if let Err(forked) = self.inner.handle.check_process() {
            return Err((self, rdma_mem::Error::from(forked).into()));
        }
        match Arc::try_unwrap(self.inner) {
            Ok(Inner { subscription, handle, id, capacity, resizing, needed, polled }) => {
                drop(subscription);
                handle.close().map(drop).map_err(|(handle, error)| {
                    let cq = NonNull::new(handle.as_ptr());
                    // SAFETY: SAFETY.md F6: the queue is unchanged, and its subscription was dropped above, so this
                    // creates a new one.
                    let again = |cq| unsafe { handle.needs().subscribe(cq) };
                    let subscription = cq.and_then(again);
                    let inner =
                        Inner { subscription, handle, id, capacity, resizing, needed, polled };
                    (Self::shared(Arc::new(inner)), error.into())
                })
            }
            Err(shared) => {
                Err((Self::shared(shared), Error::StillUsed { what: "completion queue" }))
            }
        }
    }

    /// Returns the C object, which stays alive while `self` or one of its clones exists.
    #[inline]
    #[must_use]
    pub fn as_raw(&self) -> *mut ibv_cq {
        self.inner.handle.as_ptr()
    }
}

/// Reads the capacity of a queue from its C struct.
///
/// # Safety
/// The queue is live.
unsafe fn size(cq: *mut ibv_cq) -> u32 {
    // SAFETY: SAFETY.md F1: by this function's contract, the queue is live, and so is its field.
    let size = unsafe { &raw mut (*cq).cqe };
    // SAFETY: SAFETY.md F5, F9: the field is live and aligned. This crate is not resizing the queue during the read. If
    // C may resize the queue, the contract of `from_raw` applies.
    let size = unsafe { AtomicI32::from_ptr(size) };
    u32::try_from(size.load(Ordering::Relaxed)).unwrap_or(0)
}
