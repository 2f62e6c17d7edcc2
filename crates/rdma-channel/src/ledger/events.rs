//! The `tracing` events of a channel. They are never emitted while a request is being ended, because subscribers run
//! arbitrary code.

use std::cell::{Cell, RefCell};

use super::Ledger;

/// The events that have already been emitted.
#[derive(Debug, Default)]
pub(super) struct Emitted {
    /// The connections whose closure has been reported by an event.
    closed: RefCell<Vec<usize>>,
    unmatched: Cell<u64>,
}

impl Ledger {
    /// Emits events for connections that were closed since the last call, and for completions that matched no request.
    #[cold]
    #[inline(never)]
    pub(crate) fn emit_events(&self) {
        let count = self.unmatched.get() - self.emitted.unmatched.replace(self.unmatched.get());
        if count > 0 {
            let channels = self.queues.len();
            tracing::debug!(channel = ?self.only(), channels, count, "completions matched no request");
        }
        for (peer, connection) in self.queues.iter().enumerate() {
            let Some(reason) = connection.closed() else { continue };
            if connection.is_absent() || self.emitted.closed.borrow().contains(&peer) {
                continue;
            }
            self.emitted.closed.borrow_mut().push(peer);
            tracing::debug!(channel = ?connection, %reason, "channel closed");
        }
    }
}

impl Emitted {
    /// Forgets that the closure of the previous connection in this place was reported.
    pub(super) fn forget(&self, peer: usize) {
        self.closed.borrow_mut().retain(|&closed| closed != peer);
    }
}

impl Drop for Ledger {
    fn drop(&mut self) {
        self.emit_events();
        for connection in self.queues.iter().filter(|one| one.closed().is_none()) {
            tracing::debug!(channel = ?connection, "channel dropped");
        }
    }
}
