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
    #[allow(unnameable_types)] // that is the point
    pub trait Sealed {}
    impl Sealed for rdma_mem::ProtectionDomain {}
    impl Sealed for rdma_mem::Context {}
}

/// Queue pairs and shared receive queues from a protection domain.
pub trait CreateQueuePair: sealed::Sealed {
    /// As [`QueuePair::builder`].
    #[doc(alias = "ibv_create_qp")]
    fn create_qp<'a>(&self) -> QueuePairBuilder<'a>;

    /// As [`SharedReceiveQueue::builder`].
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

/// Completion queues and channels from a context.
pub trait CreateCompletionQueue: sealed::Sealed {
    /// As [`CompletionQueue::create`].
    ///
    /// # Errors
    /// Same errors as [`CompletionQueue::create`].
    #[doc(alias = "ibv_create_cq")]
    fn create_cq(&self, min_capacity: u32) -> Result<CompletionQueue, Error>;

    /// As [`CompletionChannel::create`].
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
