//! The options of a completion queue, and its creation.
#![allow(unsafe_code)]

use std::ffi::c_int;
use std::ptr::{NonNull, null_mut};

use rdma_mem::{Context, Errno, ObjectId, Ownership, VerbError};
use rdma_sys::{ibv_cq, ibv_cq_ex_to_cq, ibv_cq_init_attr_ex, ibv_create_cq_ex};

use crate::cq::channel::CompletionChannel;
use crate::cq::extended_poll::{FIELDS, polled};
use crate::cq::queue::CompletionQueue;
use crate::error::{Error, create_hint};
use crate::post::stand_in::Called;

/// A builder for completion queues with options other than the capacity.
///
/// # Examples
/// ```
/// use rdma_qp::CompletionQueue;
///
/// rdma_soft::install();
/// let context = rdma_mem::open_device("soft0")?;
/// let cq = CompletionQueue::builder(&context).timestamps(true).build(64)?;
/// assert!(cq.has_timestamps());
/// # Ok::<(), rdma_qp::Error>(())
/// ```
#[doc(alias = "ibv_cq_init_attr_ex")]
#[must_use]
#[derive(Clone, Debug)]
pub struct CompletionQueueBuilder<'a> {
    context: &'a Context,
    channel: Option<&'a CompletionChannel>,
    vector: u32,
    timestamps: bool,
}

impl<'a> CompletionQueueBuilder<'a> {
    fn new(context: &'a Context) -> Self {
        Self { context, channel: None, vector: 0, timestamps: false }
    }

    /// Sets the channel that receives the queue's events. It must belong to the same context. Default: none.
    pub fn channel(mut self, channel: &'a CompletionChannel) -> Self {
        self.channel = Some(channel);
        self
    }

    /// Sets the completion vector (interrupt) of the device, from 0; see [`Context::completion_vectors`]. Use different
    /// vectors for queues that are polled on different processors. Default: 0.
    pub fn vector(mut self, vector: u32) -> Self {
        self.vector = vector;
        self
    }

    /// Sets whether each completion has a [timestamp](crate::WorkCompletion::timestamp), which only some devices
    /// support. Timestamps make polling more expensive, because completions are then read one by one. Default: no.
    #[doc(alias = "IBV_WC_EX_WITH_COMPLETION_TIMESTAMP")]
    pub fn timestamps(mut self, timestamps: bool) -> Self {
        self.timestamps = timestamps;
        self
    }

    /// Creates the queue for at least `min_capacity` completions; see `man ibv_create_cq`, or with timestamps,
    /// `man ibv_create_cq_ex`.
    ///
    /// # Errors
    /// [`Error::NoSuchVector`]; [`Error::ForeignChannel`]; [`Error::NoTimestamps`] if the device does not support
    /// timestamps; otherwise the provider's error, with the device's limits.
    #[doc(alias = "ibv_create_cq")]
    #[doc(alias = "ibv_create_cq_ex")]
    pub fn build(self, min_capacity: u32) -> Result<CompletionQueue, Error> {
        CompletionQueue::build(&self, min_capacity)
    }
}

impl CompletionQueue {
    /// Creates a queue for at least `min_capacity` completions; see `man ibv_create_cq`.
    ///
    /// # Errors
    /// Returns the provider's error, with the device's limits.
    #[doc(alias = "ibv_create_cq")]
    pub fn create(context: &Context, min_capacity: u32) -> Result<Self, Error> {
        Self::builder(context).build(min_capacity)
    }

    /// Creates a queue that can send events to a channel, in the channel's context. `vector` is the completion vector
    /// (interrupt) of the device, from 0; see [`Context::completion_vectors`]. Use different vectors for queues that
    /// are polled on different processors.
    ///
    /// # Errors
    /// Same errors as [`create`](Self::create), and [`Error::NoSuchVector`].
    #[doc(alias = "ibv_create_cq")]
    pub fn create_with_channel(
        channel: &CompletionChannel,
        min_capacity: u32,
        vector: u32,
    ) -> Result<Self, Error> {
        Self::builder(channel.context()).channel(channel).vector(vector).build(min_capacity)
    }

    /// Returns a builder for a queue with other options.
    pub fn builder(context: &Context) -> CompletionQueueBuilder<'_> {
        CompletionQueueBuilder::new(context)
    }

    fn build(builder: &CompletionQueueBuilder<'_>, min_capacity: u32) -> Result<Self, Error> {
        let &CompletionQueueBuilder { context, channel, vector, timestamps } = builder;
        let count = context.completion_vectors();
        if vector >= count {
            return Err(Error::NoSuchVector { vector, count });
        }
        if channel.is_some_and(|channel| !channel.context().is_same(context)) {
            return Err(Error::ForeignChannel);
        }
        context.check_process().map_err(rdma_mem::Error::from)?;
        let verb = if timestamps { "ibv_create_cq_ex" } else { "ibv_create_cq" };
        let fail = |errno| {
            if timestamps && matches!(errno, Errno::EOPNOTSUPP | Errno::ENOSYS) {
                return Error::NoTimestamps { device: context.device().name().to_owned() };
            }
            let asked = format!("{min_capacity} completions");
            let hint = context.query_device().ok().and_then(|d| create_hint(errno, &asked, &d));
            VerbError::new(verb, errno).with_hint(hint).into()
        };
        let asked = c_int::try_from(min_capacity).map_err(|_| fail(Errno::EINVAL))?;
        let raw = create(builder, asked).map_err(fail)?;
        let called = if timestamps { polled(raw) } else { Called::itself(raw) };
        // SAFETY: SAFETY.md F2, F9, F20: the queue was just created by this table, from these objects, and is not used
        // elsewhere. `called` is the queue itself or, with timestamps, its stand-in.
        let queue = unsafe { Self::of(raw, context, channel, called, Ownership::Owned) };
        if queue.min_capacity() < min_capacity {
            return Err(fail(Errno::EINVAL));
        }
        Ok(queue)
    }
}

/// Creates the C object.
fn create(builder: &CompletionQueueBuilder<'_>, cqe: c_int) -> Result<NonNull<ibv_cq>, Errno> {
    let id = ObjectId::unique();
    let &CompletionQueueBuilder { context, channel, vector, timestamps } = builder;
    let channel = channel.map_or(null_mut(), CompletionChannel::as_raw);
    let raw = if timestamps {
        let mut attributes = ibv_cq_init_attr_ex {
            cqe: cqe.cast_unsigned(),
            cq_context: id.to_context(),
            channel,
            comp_vector: vector,
            wc_flags: FIELDS,
            ..Default::default()
        };
        // SAFETY: SAFETY.md F1: the context is live, and the channel is one of its channels or null.
        ibv_cq_ex_to_cq(unsafe { ibv_create_cq_ex(context.as_raw(), &raw mut attributes) })
    } else {
        let vector = c_int::try_from(vector).map_err(|_| Errno::EINVAL)?;
        let create = context.verbs().create_cq;
        // SAFETY: SAFETY.md F1, F2: the context is live and belongs to this table, and the channel is one of its
        // channels or null.
        unsafe { create(context.as_raw(), cqe, id.to_context(), channel, vector) }
    };
    Errno::check_null(raw)
}
