//! Completion queues.
#![allow(unsafe_code)]

use std::ffi::c_int;
use std::ptr::null_mut;
use std::sync::Arc;

use rdma_mem::{Context, Errno, Handle, VerbError};
use rdma_sys::{ibv_cq, ibv_poll_cq};

use crate::error::create_hint;
use crate::{Error, PollSlot, PolledCompletions};

/// A completion queue (CQ): where the device says which work requests are done.
///
/// Any number of queue pairs can share one. If more completions arrive than it holds, it and its queue
/// pairs fail, so it has to be as large as all their queues together; the builder of a queue pair
/// checks its own. Clones are cheap and name the same queue.
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
pub struct CompletionQueue(Arc<Inner>);

#[derive(Debug)]
struct Inner {
    handle: Handle<ibv_cq, Context>,
    capacity: u32,
}

impl CompletionQueue {
    /// Creates a queue for at least `min_capacity` completions; see `man ibv_create_cq`.
    ///
    /// # Errors
    /// If the provider refuses, with the device's limits.
    #[doc(alias = "ibv_create_cq")]
    pub fn create(context: &Context, min_capacity: u32) -> Result<Self, Error> {
        context.check_process().map_err(rdma_mem::Error::from)?;
        let verb = "ibv_create_cq";
        let fail = |errno| {
            let asked = format!("{min_capacity} completions");
            let hint = context.query_device().ok().and_then(|d| create_hint(errno, &asked, &d));
            VerbError::new(verb, errno).with_hint(hint)
        };
        let asked = c_int::try_from(min_capacity).map_err(|_| fail(Errno::EINVAL))?;
        let verbs = context.verbs();
        // SAFETY: SAFETY.md F1, F2: a live context of this table; no channel, and vector 0 exists.
        let raw = unsafe { (verbs.create_cq)(context.as_raw(), asked, null_mut(), null_mut(), 0) };
        let raw = Errno::check_null(raw).map_err(fail)?;
        let needs = context.clone();
        // SAFETY: SAFETY.md F2, F9: just created by this table; it needs the context. Queue pairs hold
        // a clone of the queue (F6).
        let handle = unsafe { Handle::new(raw, verbs.destroy_cq, "ibv_destroy_cq", needs) };
        // SAFETY: SAFETY.md F1: live by `handle`.
        let capacity = unsafe { (*raw.as_ptr()).cqe };
        let capacity = u32::try_from(capacity).unwrap_or(0);
        if capacity < min_capacity {
            return Err(fail(Errno::EINVAL).into());
        }
        Ok(Self(Arc::new(Inner { handle, capacity })))
    }

    /// Takes completions off the queue, as many as there are and `slots` has room for, without
    /// waiting; see `man ibv_poll_cq`.
    ///
    /// # Errors
    /// If the queue has failed, for example because it overflowed. That is not a completion: no
    /// request is done by it.
    #[doc(alias = "ibv_poll_cq")]
    #[inline]
    pub fn poll<'s>(&self, slots: &'s mut [PollSlot]) -> Result<PolledCompletions<'s>, PollError> {
        let room = c_int::try_from(slots.len()).unwrap_or(c_int::MAX);
        // SAFETY: SAFETY.md F1, F12: a live queue, and so many completions to write to; a slot is
        // laid out as one (F5).
        let returned = unsafe { ibv_poll_cq(self.as_raw(), room, slots.as_mut_ptr().cast()) };
        match Errno::check_poll(returned) {
            Ok(count) => Ok(PolledCompletions::new(slots.get(..count).unwrap_or(slots))),
            Err(_) => Err(PollError),
        }
    }

    /// How many completions it holds: what the device gave, never less than was asked for.
    #[inline]
    #[must_use]
    pub fn min_capacity(&self) -> u32 {
        self.0.capacity
    }

    /// The context that it was made from.
    #[must_use]
    pub fn context(&self) -> &Context {
        self.0.handle.needs()
    }

    /// Whether both are clones of one queue.
    #[must_use]
    pub fn is_same(&self, other: &Self) -> bool {
        Arc::ptr_eq(&self.0, &other.0)
    }

    /// Destroys the queue.
    ///
    /// # Errors
    /// With the queue: [`Error::StillUsed`] if a clone or a queue pair of it is alive, or what the
    /// provider says.
    #[doc(alias = "ibv_destroy_cq")]
    pub fn close(self) -> Result<(), (Self, Error)> {
        match Arc::try_unwrap(self.0) {
            Ok(Inner { handle, capacity }) => {
                handle.close().map(drop).map_err(|(handle, error)| {
                    (Self(Arc::new(Inner { handle, capacity })), error.into())
                })
            }
            Err(shared) => Err((Self(shared), Error::StillUsed { what: "completion queue" })),
        }
    }

    /// The C object, live as long as `self` or a clone.
    #[inline]
    #[must_use]
    pub fn as_raw(&self) -> *mut ibv_cq {
        self.0.handle.as_ptr()
    }
}

/// A completion queue that failed.
///
/// It holds no memory, so that the way to a completion does not have to free it.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error(
    "ibv_poll_cq failed: the completion queue has failed, most often because it overflowed: make it \
     as large as the queues of all its queue pairs together"
)]
#[non_exhaustive]
pub struct PollError;
