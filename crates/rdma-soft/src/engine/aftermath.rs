//! Work that a request postpones until all locks are released.

use std::sync::Arc;

use rdma_types::AsyncEventKind;

use crate::engine::station::{Owner, Station};
use crate::fabric::stalls;

/// The queue pairs that a request has moved to error and that still have to be flushed. These are the requester, stored
/// as its incarnation, and at most one responder, because a requester in error executes no further requests.
#[derive(Debug, Default)]
pub(crate) struct Aftermath {
    requester: Option<u32>,
    responder: Option<(Arc<dyn Owner>, u32, AsyncEventKind)>,
}

impl Aftermath {
    #[cold]
    pub(crate) fn requester_failed(&mut self, incarnation: u32) {
        self.requester = Some(incarnation);
    }

    #[cold]
    pub(crate) fn responder_failed(
        &mut self,
        own: &Station,
        incarnation: u32,
        event: AsyncEventKind,
    ) {
        self.responder = own.owner.upgrade().map(|owner| (owner, incarnation, event));
    }

    /// Returns true if a failed responder still has to be flushed. Until then, the caller must not fail another
    /// responder, because only one can be stored.
    pub(crate) fn is_full(&self) -> bool {
        self.responder.is_some()
    }

    /// Flushes the failed queue pairs, and then runs the run queue. For example, if a completion queue has overflowed
    /// in the meantime, its queue pairs move to error. The caller holds no lock.
    #[inline]
    pub(crate) fn settle(&mut self, requester: &Station) {
        self.flush(requester);
        requester.adapter.fabric.run_queue.run();
    }

    /// Flushes the failed queue pairs. The caller holds no lock except the receive side of an inbox.
    #[inline]
    pub(crate) fn flush(&mut self, requester: &Station) {
        if self.requester.is_some() || self.responder.is_some() {
            self.flush_failed(requester);
        }
    }

    #[cold]
    fn flush_failed(&mut self, requester: &Station) {
        stalls::here();
        if let incarnation @ Some(_) = self.requester.take()
            && let Some(requester) = requester.owner.upgrade()
        {
            requester.enter_error(incarnation, None);
        }
        if let Some((responder, incarnation, event)) = self.responder.take() {
            // This call completes requests that the peer executed before it sent the failed one. They have succeeded.
            Arc::clone(&responder).complete_executed();
            responder.enter_error(Some(incarnation), Some(event));
        }
    }
}
