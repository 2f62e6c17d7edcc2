//! The methods that this crate adds to types of `rdma-mem`.
//!
//! ```
//! use rdma_qp::prelude::*;
//! ```

use rdma_mem::{Context, ProtectionDomain};

use crate::cq::channel::CompletionChannel;

use crate::cq::queue::CompletionQueue;

use crate::error::Error;

use crate::qp::builder::QueuePairBuilder;

use crate::qp::queue_pair::QueuePair;

use crate::srq::builder::SharedReceiveQueueBuilder;

use crate::srq::queue::SharedReceiveQueue;

mod sealed {
    #[allow(unnameable_types)] // intended
    pub trait Sealed {}
    impl Sealed for rdma_mem::ProtectionDomain {}
    impl Sealed for rdma_mem::Context {}
}

/// Creates queue pairs and shared receive queues in a protection domain.
pub trait CreateQueuePair: sealed::Sealed {
    /// Returns a builder for a queue pair, like [`QueuePair::builder`].
    #[doc(alias = "ibv_create_qp")]
    fn create_qp<'a>(&self) -> QueuePairBuilder<'a>;

    /// Returns a builder for a shared receive queue, like [`SharedReceiveQueue::builder`].
    #[doc(alias = "ibv_create_srq")]
    fn create_srq(&self) -> SharedReceiveQueueBuilder<'_>;
}

impl CreateQueuePair for ProtectionDomain {
    fn create_qp<'a>(&self) -> QueuePairBuilder<'a> {
        QueuePair::builder(self)
    }

    fn create_srq(&self) -> SharedReceiveQueueBuilder<'_> {
        SharedReceiveQueue::builder(self)
    }
}

/// Creates completion queues and completion channels in a context.
pub trait CreateCompletionQueue: sealed::Sealed {
    /// Creates a completion queue, like [`CompletionQueue::create`].
    ///
    /// # Errors
    /// Same errors as [`CompletionQueue::create`].
    #[doc(alias = "ibv_create_cq")]
    fn create_cq(&self, min_capacity: u32) -> Result<CompletionQueue, Error>;

    /// Creates a completion channel, like [`CompletionChannel::create`].
    ///
    /// # Errors
    /// Same errors as [`CompletionChannel::create`].
    #[doc(alias = "ibv_create_comp_channel")]
    fn create_completion_channel(&self) -> Result<CompletionChannel, Error>;
}

impl CreateCompletionQueue for Context {
    fn create_cq(&self, min_capacity: u32) -> Result<CompletionQueue, Error> {
        CompletionQueue::create(self, min_capacity)
    }

    fn create_completion_channel(&self) -> Result<CompletionChannel, Error> {
        CompletionChannel::create(self)
    }
}
