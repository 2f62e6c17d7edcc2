//! What a request leaves to be done once all locks are dropped.

use std::sync::Arc;

use crate::engine::queue_pair::QueuePair;
use crate::overflow;

/// Queue pairs that a request moved to the error state, whose queues are still to be flushed: at most
/// the requester and the responder of one request, since a requester in error executes no other.
#[derive(Debug, Default)]
#[must_use]
pub(crate) struct Aftermath {
    requester: Option<(Arc<QueuePair>, u32)>,
    responder: Option<(Arc<QueuePair>, u32)>,
}

impl Aftermath {
    #[cold]
    pub(crate) fn requester_failed(&mut self, queue_pair: &Arc<QueuePair>, incarnation: u32) {
        self.requester = Some((Arc::clone(queue_pair), incarnation));
    }

    #[cold]
    pub(crate) fn responder_failed(&mut self, queue_pair: &Arc<QueuePair>, incarnation: u32) {
        self.responder = Some((Arc::clone(queue_pair), incarnation));
    }

    /// Flushes, then moves the users of completion queues that overflowed meanwhile to error.
    #[inline]
    pub(crate) fn settle(self) {
        if self.requester.is_some() || self.responder.is_some() {
            self.flush();
        }
        overflow::settle();
    }

    #[cold]
    fn flush(self) {
        for (queue_pair, incarnation) in [self.requester, self.responder].into_iter().flatten() {
            queue_pair.enter_error(Some(incarnation));
            overflow::settle();
        }
    }
}
