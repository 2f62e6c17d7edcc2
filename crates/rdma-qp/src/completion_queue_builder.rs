//! The knobs of a completion queue.

use rdma_mem::Context;

use crate::{CompletionChannel, CompletionQueue, Error};

/// Makes a completion queue with more than a size.
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
    pub(crate) context: &'a Context,
    pub(crate) channel: Option<&'a CompletionChannel>,
    pub(crate) vector: u32,
    pub(crate) timestamps: bool,
}

impl<'a> CompletionQueueBuilder<'a> {
    pub(crate) fn new(context: &'a Context) -> Self {
        Self { context, channel: None, vector: 0, timestamps: false }
    }

    /// Where its events go, a channel of the same context. Default: it has none.
    pub fn channel(mut self, channel: &'a CompletionChannel) -> Self {
        self.channel = Some(channel);
        self
    }

    /// Which of the device's interrupts it uses, from 0: see [`Context::completion_vectors`]. Queues
    /// that are polled by different processors do well with different ones. Default: 0.
    pub fn vector(mut self, vector: u32) -> Self {
        self.vector = vector;
        self
    }

    /// Each completion says [when it came](crate::WorkCompletion::timestamp), which only some devices
    /// can. Polling costs more then: completions are taken one by one. Default: no.
    #[doc(alias = "IBV_WC_EX_WITH_COMPLETION_TIMESTAMP")]
    pub fn timestamps(mut self, timestamps: bool) -> Self {
        self.timestamps = timestamps;
        self
    }

    /// Creates the queue, for at least `min_capacity` completions; see `man ibv_create_cq`, and with
    /// timestamps `man ibv_create_cq_ex`.
    ///
    /// # Errors
    /// [`Error::NoSuchVector`]; [`Error::ForeignChannel`]; [`Error::NoTimestamps`] from a device that
    /// has none; or what the provider says, with the device's limits.
    #[doc(alias = "ibv_create_cq")]
    #[doc(alias = "ibv_create_cq_ex")]
    pub fn build(self, min_capacity: u32) -> Result<CompletionQueue, Error> {
        CompletionQueue::build(&self, min_capacity)
    }
}
