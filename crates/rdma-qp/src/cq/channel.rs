//! Completion channels, on which programs sleep until a request completes.
#![allow(unsafe_code)]

use std::collections::HashMap;
use std::mem;
use std::os::fd::{AsFd, BorrowedFd};
use std::ptr::{NonNull, null_mut};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use rdma_mem::{Context, Errno, EventFile, Handle, ObjectId, Ownership, VerbError};
use rdma_sys::{ibv_comp_channel, ibv_cq};

use crate::error::Error;

/// The number of events of a queue that are counted before they are acknowledged in one call. Each call takes a lock in
/// the provider.
const BATCH: u32 = 256;

/// A completion channel, on which a program sleeps until one of its completion queues has a completion.
///
/// A queue that was [created with the channel](crate::CompletionQueue::create_with_channel) sends one event for each
/// [request](crate::CompletionQueue::req_notify), at the next completion. Completions that are already in the queue
/// send no event. Therefore, request the event, poll again, and sleep only if the queue is empty. After an event, poll
/// until the queue is empty.
///
/// Any number of queues can share a channel. Clones are cheap and refer to the same channel. All methods take `&self`
/// and can be called from any thread. If several threads wait, each event goes to only one of them.
///
/// The channel [has a file](AsFd) that is readable while the channel has events, for `poll`, `epoll` and runtimes that
/// use them. The file never blocks. It may be readable without an event. Whenever it is readable, call
/// [`try_get_event`](Self::try_get_event), which may first execute what has arrived at a software device. Read events
/// only through these methods: an event read in another way is never acknowledged, and destroying its queue waits for
/// the acknowledgement.
///
/// An event is a plain value. The channel counts the events of each queue and acknowledges them before the queue is
/// destroyed, so events do not delay its destruction.
///
/// # Examples
/// ```
/// use rdma_qp::{CompletionChannel, CompletionQueue, PollSlot, SendWorkRequest, prelude::*};
///
/// rdma_soft::install();
/// let context = rdma_mem::open_device("soft0")?;
/// let channel = CompletionChannel::create(&context)?;
/// let cq = CompletionQueue::create_with_channel(&channel, 64, 0)?;
/// # let pd = context.allocate_pd()?;
/// # let prepare = || pd.create_qp().send_cq(&cq).recv_cq(&cq).build();
/// # let (one, other) = (prepare()?, prepare()?);
/// # let (one_end, other_end) = (one.endpoint(), other.endpoint());
/// # let (qp, other) = (one.handshake(other_end)?, other.handshake(one_end)?);
/// # // SAFETY: no memory.
/// # unsafe { other.post_receive(rdma_qp::ReceiveWorkRequest::only_immediate(), 1) }.unwrap();
/// # // SAFETY: no memory.
/// # unsafe { qp.post_send(SendWorkRequest::only_immediate(7), 2) }.unwrap();
/// let mut slots = [PollSlot::default(); 16];
/// let mut left = 2;
/// while left > 0 {
///     let mut done = cq.poll(&mut slots)?;
///     if done.is_empty() {
///         cq.req_notify(false)?;
///         done = cq.poll(&mut slots)?; // earlier completions send no event
///     }
///     if done.is_empty() {
///         assert_eq!(channel.get_event()?, cq.id()); // sleeps
///         continue;
///     }
///     for completion in done {
///         println!("{}: {:?}", completion.wr_id(), completion.result());
///         left -= 1;
///     }
/// }
/// # Ok::<(), rdma_qp::Error>(())
/// ```
#[doc(alias = "ibv_comp_channel")]
#[derive(Clone, Debug)]
pub struct CompletionChannel(Arc<Inner>);

#[derive(Debug)]
struct Inner {
    /// The number of unacknowledged events of each queue, by the address of its C object. The user context is not used
    /// as the key, because foreign queues of the channel may have any user context.
    taken: Mutex<HashMap<usize, u32>>,
    file: EventFile,
    handle: Handle<ibv_comp_channel, Context>,
}

impl CompletionChannel {
    /// Creates a channel; see `man ibv_create_comp_channel`.
    ///
    /// # Errors
    /// Returns the provider's error, most often because too many files are open.
    #[doc(alias = "ibv_create_comp_channel")]
    pub fn create(context: &Context) -> Result<Self, Error> {
        context.check_process().map_err(rdma_mem::Error::from)?;
        let verbs = context.verbs();
        // SAFETY: SAFETY.md F1, F2: the context is live and belongs to this table.
        let raw = unsafe { (verbs.create_comp_channel)(context.as_raw()) };
        let verb = "ibv_create_comp_channel";
        let raw = Errno::check_null(raw).map_err(|errno| {
            let hint = "too many open files: raise `ulimit -n`";
            let full = matches!(errno, Errno::EMFILE | Errno::ENFILE).then(|| hint.into());
            VerbError::new(verb, errno).with_hint(full)
        })?;
        // SAFETY: SAFETY.md F2: the channel was just created by this table, and its file has not been read. Its users
        // treat EAGAIN as no event, because `from_raw` makes the file non-blocking.
        unsafe { verbs.wake_early(raw.as_ptr()) };
        // SAFETY: SAFETY.md F2, F9: the channel was just created by this table, from this context, and is not used
        // elsewhere.
        let channel = unsafe { Self::from_raw(raw, context, Ownership::Owned) };
        if channel.is_err() {
            // SAFETY: SAFETY.md F2: `from_raw` failed, so this function still owns the channel.
            unsafe { (verbs.destroy_comp_channel)(raw.as_ptr()) };
        }
        channel
    }

    /// Wraps a completion channel that was created elsewhere. Makes the channel's file non-blocking, also for code that
    /// uses the channel elsewhere.
    ///
    /// The channel's queues may belong to other libraries. An event of such a queue is acknowledged at once, and
    /// identifies the queue by its user context ([`ObjectId::from_context`]). Each event goes only to the first reader,
    /// whether it reads through this value or elsewhere.
    ///
    /// # Errors
    /// Returns an error if the kernel refuses to make the file non-blocking.
    ///
    /// # Safety
    /// The caller upholds the contract of [`Ownership`]. The channel belongs to this context.
    ///
    /// # Examples
    /// ```
    /// use std::ptr::NonNull;
    /// use rdma_mem::Ownership;
    /// use rdma_qp::{CompletionChannel, CompletionQueue};
    ///
    /// rdma_soft::install();
    /// let context = rdma_mem::open_device("soft0")?;
    /// // SAFETY: a live context of this table.
    /// let raw = unsafe { (context.verbs().create_comp_channel)(context.as_raw()) };
    /// let raw = NonNull::new(raw).unwrap();
    /// // SAFETY: just created from the context, and not destroyed elsewhere.
    /// let channel = unsafe { CompletionChannel::from_raw(raw, &context, Ownership::Owned) }?;
    /// let cq = CompletionQueue::create_with_channel(&channel, 64, 0)?;
    /// cq.req_notify(false)?;
    /// assert_eq!(channel.try_get_event()?, None);
    /// # Ok::<(), rdma_qp::Error>(())
    /// ```
    pub unsafe fn from_raw(
        raw: NonNull<ibv_comp_channel>,
        context: &Context,
        ownership: Ownership,
    ) -> Result<Self, Error> {
        // SAFETY: SAFETY.md F1: the channel is live, and its file does not change.
        let fd = unsafe { (*raw.as_ptr()).fd };
        // SAFETY: SAFETY.md F6: only the channel closes this file, and one struct owns the channel and the `EventFile`.
        let file = unsafe { EventFile::new(fd) }?;
        let destroy = context.verbs().destroy_comp_channel;
        let (verb, needs) = ("ibv_destroy_comp_channel", context.clone());
        // SAFETY: SAFETY.md F2, F9: by this function's contract. The handle keeps the context alive, and queues hold a
        // clone of the channel (F6).
        let handle = unsafe { Handle::from_raw(raw, destroy, verb, needs, ownership) };
        Ok(Self(Arc::new(Inner { taken: Mutex::default(), file, handle })))
    }

    /// Sleeps until an event arrives, and returns the [`CompletionQueue::id`](crate::CompletionQueue::id) of the
    /// event's queue.
    ///
    /// # Errors
    /// Returns the provider's error, most often because the device was removed.
    #[doc(alias = "ibv_get_cq_event")]
    pub fn get_event(&self) -> Result<ObjectId, Error> {
        loop {
            if let Some(id) = self.0.file.wait(None, || self.try_get_event())? {
                return Ok(id);
            }
        }
    }

    /// Like [`get_event`](Self::get_event), but with a time limit. Returns `None` if no event arrives in time.
    ///
    /// # Errors
    /// Same errors as [`get_event`](Self::get_event).
    pub fn get_event_timeout(&self, timeout: Duration) -> Result<Option<ObjectId>, Error> {
        self.0.file.wait(Some(timeout), || self.try_get_event())
    }

    /// Returns an event if one is available. Does not block.
    ///
    /// # Errors
    /// Same errors as [`get_event`](Self::get_event).
    pub fn try_get_event(&self) -> Result<Option<ObjectId>, Error> {
        self.0.handle.check_process().map_err(rdma_mem::Error::from)?;
        let (mut cq, mut context) = (null_mut(), null_mut());
        let get = self.context().verbs().get_cq_event;
        loop {
            // SAFETY: SAFETY.md F1, F2: the channel is live and belongs to this table, and the pointers are writable.
            let returned = unsafe { get(self.as_raw(), &raw mut cq, &raw mut context) };
            match Errno::check_minus_one(returned) {
                Ok(_) => break,
                Err(Errno::EINTR) => {}
                Err(Errno::EAGAIN) => return Ok(None),
                Err(errno) => return Err(VerbError::new("ibv_get_cq_event", errno).into()),
            }
        }
        let id = ObjectId::from_context(context);
        let due = match self.taken().get_mut(&cq.addr()) {
            Some(count) if *count < BATCH => {
                *count += 1;
                return Ok(Some(id));
            }
            Some(count) => mem::take(count) + 1,
            // The queue is being destroyed and waits for this event, or it does not belong to these crates.
            None => 1,
        };
        // SAFETY: SAFETY.md F1: the queue is live, because the event that was just read is one of those acknowledged
        // here.
        unsafe { (self.context().verbs().ack_cq_events)(cq, due) };
        Ok(Some(id))
    }

    /// Returns the context that the channel was created from.
    #[must_use]
    pub fn context(&self) -> &Context {
        self.0.handle.needs()
    }

    /// Returns true if both are clones of the same channel.
    #[must_use]
    pub fn is_same(&self, other: &Self) -> bool {
        Arc::ptr_eq(&self.0, &other.0)
    }

    /// Destroys the channel.
    ///
    /// # Errors
    /// Returns the channel and an error: [`Error::StillUsed`] while a clone of the channel, or a queue that uses it, is
    /// alive; otherwise the provider's error.
    #[doc(alias = "ibv_destroy_comp_channel")]
    pub fn close(self) -> Result<(), (Self, Error)> {
        match Arc::try_unwrap(self.0) {
            Ok(Inner { taken, file, handle }) => {
                handle.close().map(drop).map_err(|(handle, error)| {
                    (Self(Arc::new(Inner { taken, file, handle })), error.into())
                })
            }
            Err(shared) => Err((Self(shared), Error::StillUsed { what: "completion channel" })),
        }
    }

    /// Returns the C object, which stays alive while `self` or one of its clones exists.
    #[must_use]
    pub fn as_raw(&self) -> *mut ibv_comp_channel {
        self.0.handle.as_ptr()
    }

    fn taken(&self) -> MutexGuard<'_, HashMap<usize, u32>> {
        self.0.taken.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl AsFd for CompletionChannel {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.0.file.as_fd()
    }
}

/// A queue's registration with its channel. Dropping it acknowledges the queue's events. It must be dropped before the
/// queue is destroyed, because `ibv_destroy_cq` waits for unacknowledged events.
#[derive(Debug)]
pub(crate) struct Subscription {
    pub(crate) channel: CompletionChannel,
    cq: NonNull<ibv_cq>,
}

// SAFETY: SAFETY.md F9: the pointer is used only to acknowledge events, which any thread may do.
unsafe impl Send for Subscription {}
// SAFETY: SAFETY.md F9: same argument as above.
unsafe impl Sync for Subscription {}

impl Subscription {
    /// Starts to count the events of a queue.
    ///
    /// # Safety
    /// The queue belongs to this channel and is in no other subscription. It is destroyed only after this subscription
    /// is dropped.
    pub(crate) unsafe fn new(channel: CompletionChannel, cq: NonNull<ibv_cq>) -> Self {
        channel.taken().insert(cq.addr().get(), 0);
        Self { channel, cq }
    }
}

impl Drop for Subscription {
    fn drop(&mut self) {
        // A forked child destroys nothing; its parent acknowledges the events.
        if self.channel.0.handle.check_process().is_err() {
            return;
        }
        // A thread that reads an event after this does not find the queue in the map, and acknowledges the event at
        // once.
        let count = self.channel.taken().remove(&self.cq.addr().get()).unwrap_or(0);
        if count > 0 {
            let acknowledge = self.channel.context().verbs().ack_cq_events;
            // SAFETY: SAFETY.md F1, F2: the queue is live by the contract of `new`, and `count` events were read.
            unsafe { acknowledge(self.cq.as_ptr(), count) };
        }
    }
}

#[cfg(test)]
mod tests {
    use crate::cq::queue::CompletionQueue;

    use super::*;

    #[test]
    fn a_forked_child_waits_for_no_lock_of_its_parent() {
        rdma_soft::install();
        let context = rdma_mem::open_device("soft0").unwrap();
        let channel = CompletionChannel::create(&context).unwrap();
        let cq = CompletionQueue::create_with_channel(&channel, 16, 0).unwrap();
        let held = channel.taken();
        // SAFETY: SAFETY.md F15: the child waits for no other thread, and ends below.
        let pid = unsafe { libc::fork() };
        assert!(pid >= 0, "no child");
        if pid == 0 {
            // SAFETY: SAFETY.md F15: the alarm ends this child if it hangs.
            unsafe { libc::alarm(120) };
            let failed = cq.close().is_err();
            // SAFETY: SAFETY.md F15: nothing else runs in this child.
            unsafe { libc::_exit(i32::from(!failed)) };
        }
        let mut status = 0;
        // SAFETY: SAFETY.md F15: `pid` is a child of this process, and `status` may be written.
        assert_eq!(unsafe { libc::waitpid(pid, &raw mut status, 0) }, pid);
        drop(held);
        assert_eq!(status, 0);
        cq.close().unwrap();
    }
}
