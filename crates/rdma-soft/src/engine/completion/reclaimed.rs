//! Counts of the slots that polling has released.

use std::sync::Arc;

use crate::engine::completion::work_completion::Side;
use crate::engine::receive_queue::shared::SharedReceiveQueue;
use crate::sync::{AtomicU32, Line, Ordering};

/// For each of a queue pair's queues, the number of requests whose slots were released by polling completions
/// (free-running).
///
/// A slot becomes free when its completion, or a later completion of the same queue, is polled. Executing the request
/// does not free the slot. Hardware behaves in the same way.
#[derive(Debug, Default)]
pub(crate) struct Reclaimed {
    send: Line<AtomicU32>,
    receive: Line<AtomicU32>,
    /// The queue that receive requests are taken from, if it is not the queue pair's own.
    shared: Option<Arc<SharedReceiveQueue>>,
}

impl Reclaimed {
    pub(crate) fn new(shared: Option<&Arc<SharedReceiveQueue>>) -> Self {
        Self { shared: shared.map(Arc::clone), ..Self::default() }
    }

    /// Releases the slots of the requests before `upto`. Either the caller holds the pollers' lock in the completion
    /// queue of these requests, or that queue holds none of their completions.
    #[inline(always)]
    pub(crate) fn release(&self, side: Side, upto: u32) {
        match (side, &self.shared) {
            (Side::Receive, Some(shared)) => {
                let before = self.receive.swap(upto, Ordering::AcqRel);
                shared.release_slots(upto.wrapping_sub(before));
            }
            _ => self.of(side).store(upto, Ordering::Release),
        }
    }

    #[inline]
    pub(crate) fn of(&self, side: Side) -> &AtomicU32 {
        match side {
            Side::Send => &self.send,
            Side::Receive => &self.receive,
        }
    }
}
