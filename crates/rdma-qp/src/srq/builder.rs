//! The options of a shared receive queue, and its creation.
#![allow(unsafe_code)]

use rdma_mem::{Errno, Handle, ObjectId, ProtectionDomain, VerbError};
use rdma_sys::{ibv_srq_attr, ibv_srq_init_attr};

use crate::error::{Error, srq_hint};
use crate::srq::queue::SharedReceiveQueue;

/// A builder for shared receive queues, from `pd.create_srq()` of the [prelude](crate::prelude).
#[doc(alias = "ibv_srq_init_attr")]
#[must_use]
#[derive(Clone, Copy, Debug)]
pub struct SharedReceiveQueueBuilder<'a> {
    pd: &'a ProtectionDomain,
    max_wr: u32,
    max_sge: u32,
}

impl SharedReceiveQueueBuilder<'_> {
    /// Sets the maximum number of outstanding receives. Default: 16.
    pub fn max_wr(mut self, max_wr: u32) -> Self {
        self.max_wr = max_wr;
        self
    }

    /// Sets the maximum number of elements in a receive. Default: 4.
    pub fn max_sge(mut self, max_sge: u32) -> Self {
        self.max_sge = max_sge;
        self
    }

    /// Creates the queue; see `man ibv_create_srq`.
    ///
    /// # Errors
    /// Returns the provider's error, with the device's limits.
    #[doc(alias = "ibv_create_srq")]
    pub fn build(self) -> Result<SharedReceiveQueue, Error> {
        let Self { pd, max_wr, max_sge } = self;
        pd.context().check_process().map_err(rdma_mem::Error::from)?;
        let (verbs, id) = (pd.verbs(), ObjectId::unique());
        let fail = |errno| {
            let hint = pd.context().query_device().ok();
            let hint = hint.and_then(|device| srq_hint(errno, max_wr, max_sge, &device));
            VerbError::new("ibv_create_srq", errno).with_hint(hint)
        };
        let mut init = ibv_srq_init_attr {
            srq_context: id.to_context(),
            attr: ibv_srq_attr { max_wr, max_sge, srq_limit: 0 },
        };
        // SAFETY: SAFETY.md F1, F2: the domain is live and belongs to this table, and the attributes are live.
        let raw = unsafe { (verbs.create_srq)(pd.as_raw(), &raw mut init) };
        let raw = Errno::check_null(raw).map_err(fail)?;
        // SAFETY: SAFETY.md F2, F9: the queue was just created by this table. The handle keeps the domain alive, and
        // queue pairs hold a clone of the queue (F6).
        let handle = unsafe { Handle::new(raw, verbs.destroy_srq, "ibv_destroy_srq", pd.clone()) };
        let ibv_srq_attr { max_wr: holds, max_sge: takes, .. } = init.attr;
        if holds < max_wr || takes < max_sge {
            return Err(fail(Errno::EINVAL).into());
        }
        Ok(SharedReceiveQueue::of(handle, id, holds, takes))
    }
}

impl SharedReceiveQueue {
    /// Returns a builder for a queue, like `pd.create_srq()` of the [prelude](crate::prelude).
    pub fn builder(pd: &ProtectionDomain) -> SharedReceiveQueueBuilder<'_> {
        SharedReceiveQueueBuilder { pd, max_wr: 16, max_sge: 4 }
    }
}
