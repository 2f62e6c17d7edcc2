//! Closing a connection to further requests, and the reason.

use rdma_connect::{CloseReason, cause_of};
use rdma_qp::AsyncEventKind;

use super::Connection;

impl Connection {
    /// Returns why the connection accepts no requests, if it is closed.
    #[inline]
    pub(crate) const fn closed(&self) -> Option<CloseReason> {
        self.closed.get()
    }

    /// Returns the cause of flushed requests, if the device has reported it.
    pub(crate) const fn cause(&self) -> Option<AsyncEventKind> {
        self.cause.get()
    }

    /// Queries the device for the cause of flushed requests, unless it is already known.
    #[cold]
    pub(crate) fn query_cause(&self) -> Option<AsyncEventKind> {
        if self.cause.get().is_none() {
            self.cause.set(self.qp().and_then(cause_of));
        }
        self.cause.get()
    }

    /// Closes the connection to further requests. If it is already closed, the first reason is kept.
    #[cold]
    pub(crate) fn close(&self, reason: CloseReason) {
        if self.closed.get().is_none() {
            self.closed.set(Some(reason));
        }
        self.disable_cursors();
    }

    pub(super) fn disable_cursors(&self) {
        self.send.cursor.set(self.dead);
        self.receive.cursor.set(self.dead);
    }
}
