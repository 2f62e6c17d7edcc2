//! What polling gives back.

use std::sync::Arc;

use crate::engine::completion::work_completion::Side;
use crate::engine::receive_queue::shared::SharedReceiveQueue;
use crate::sync::{AtomicU32, Line, Ordering};

/// How many requests of each queue have been given back by polled completions (free-running).
///
/// As on hardware, a slot is free again when its completion, or a later one of the same queue, was
/// polled, not when the request was executed.
#[derive(Debug, Default)]
pub(crate) struct Reclaimed {
    send: Line<AtomicU32>,
    receive: Line<AtomicU32>,
    /// Where the receive requests come from, if not from the queue pair's own queue.
    shared: Option<Arc<SharedReceiveQueue>>,
}

impl Reclaimed {
    pub(crate) fn new(shared: Option<&Arc<SharedReceiveQueue>>) -> Self {
        Self { shared: shared.map(Arc::clone), ..Self::default() }
    }

    /// The requests before `upto` are done with. The caller holds the pollers' lock of the queue where
    /// they complete, or no completion of them is there.
    #[inline(always)]
    pub(crate) fn give_back(&self, side: Side, upto: u32) {
        match (side, &self.shared) {
            (Side::Receive, Some(shared)) => {
                let before = self.receive.swap(upto, Ordering::AcqRel);
                shared.give_back(upto.wrapping_sub(before));
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
