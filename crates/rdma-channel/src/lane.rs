//! A queue pair with the places for its requests.

use std::cell::Cell;
use std::ops::Range;

use rdma_qp::QueuePair;

use crate::CloseReason;

/// The slots of one queue, in a ring.
#[derive(Debug)]
pub(crate) struct Ring {
    /// The slot for the next request. 0, where no request ever is, if the queue is closed.
    pub(crate) cursor: Cell<u32>,
    pub(crate) first: u32,
    pub(crate) count: u32,
}

impl Ring {
    pub(crate) const fn new(first: u32, count: u32) -> Self {
        let cursor = if count == 0 { 0 } else { first };
        Self { cursor: Cell::new(cursor), first, count }
    }

    pub(crate) const fn slots(&self) -> Range<usize> {
        self.first as usize..(self.first + self.count) as usize
    }
}

/// One queue pair of a table.
#[derive(Debug)]
pub(crate) struct Lane {
    /// `None` when it had to be destroyed.
    pub(crate) qp: Option<QueuePair>,
    pub(crate) send: Ring,
    pub(crate) receive: Ring,
    /// The id of the last request of the send queue, if that is silent; else 0.
    pub(crate) silent: Cell<u64>,
    /// How many silent requests are at the end of the send queue.
    pub(crate) run: Cell<u32>,
    pub(crate) closed: Cell<Option<CloseReason>>,
}

impl Lane {
    pub(crate) const fn new(qp: QueuePair, send: Ring, receive: Ring) -> Self {
        let (silent, run, closed) = (Cell::new(0), Cell::new(0), Cell::new(None));
        Self { qp: Some(qp), send, receive, silent, run, closed }
    }

    /// Takes no more requests. The first reason stays.
    #[cold]
    pub(crate) fn close(&self, reason: CloseReason) {
        if self.closed.get().is_none() {
            self.closed.set(Some(reason));
        }
        self.send.cursor.set(0);
        self.receive.cursor.set(0);
    }

    /// Whether one more silent request would leave no signaled one in half of the queue.
    #[inline]
    pub(crate) const fn has_to_signal(&self) -> bool {
        self.run.get() + 1 >= self.send.count / 2
    }
}
