//! What is said of a channel to who listens to `tracing`: never while a request is ended, since a subscriber may do
//! whatever it likes.

use std::cell::{Cell, RefCell};

use super::Ledger;

/// What was said already.
#[derive(Debug, Default)]
pub(super) struct Told {
    /// Of which connections that they are closed.
    closed: RefCell<Vec<usize>>,
    unmatched: Cell<u64>,
}

impl Ledger {
    /// Says which connections were closed since, and why; and how many completions matched no request.
    #[cold]
    #[inline(never)]
    pub(crate) fn say_news(&self) {
        let count = self.unmatched.get() - self.told.unmatched.replace(self.unmatched.get());
        if count > 0 {
            let channels = self.queues.len();
            tracing::debug!(channel = ?self.only(), channels, count, "completions matched no request");
        }
        for (peer, connection) in self.queues.iter().enumerate() {
            let Some(reason) = connection.closed() else { continue };
            if connection.is_absent() || self.told.closed.borrow().contains(&peer) {
                continue;
            }
            self.told.closed.borrow_mut().push(peer);
            tracing::debug!(channel = ?connection, %reason, "channel closed");
        }
    }
}

impl Told {
    /// There is another connection in that place.
    pub(super) fn forget(&self, peer: usize) {
        self.closed.borrow_mut().retain(|&told| told != peer);
    }
}

impl Drop for Ledger {
    fn drop(&mut self) {
        self.say_news();
        for connection in self.queues.iter().filter(|one| one.closed().is_none()) {
            tracing::debug!(channel = ?connection, "channel dropped");
        }
    }
}
