//! Handles of operations whose memory is borrowed.

use std::fmt;
use std::time::Duration;

use rdma_connect::{Operation, TransportError, WorkId};
use rdma_qp::WorkSuccess;

use crate::ledger::ticket::{Ticket, Unsettled};

/// The handle of an operation in flight.
///
/// If the handle is dropped, the operation continues, and the scope that borrowed the operation's memory waits until
/// the operation completes. A handle occupies its slot in the queue until it is dropped, even after the operation has
/// completed.
pub struct PendingWork<'l> {
    ticket: Ticket<'l>,
}

/// Formats the kind of the operation and its ID.
impl fmt::Debug for PendingWork<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "PendingWork({:?})", self.ticket)
    }
}

/// An operation of a [scope](crate::Channel::scope), which completes before the scope ends.
pub type ScopedPendingWork<'scope> = PendingWork<'scope>;

impl<'l> PendingWork<'l> {
    #[inline(always)]
    pub(crate) const fn new(ticket: Ticket<'l>) -> Self {
        Self { ticket }
    }

    /// Drops a handle that was never returned to the caller.
    #[cold]
    pub(crate) fn disown(self) {
        self.ticket.disown();
    }

    /// The result of the operation, if it has completed. Does not wait, and can be called again.
    ///
    /// [`TransportError::PollError`] means that the poll itself failed. It is not the result of the operation.
    #[doc(alias = "poll_cq")]
    #[inline(always)]
    pub fn poll(&self) -> Option<Result<WorkSuccess, TransportError>> {
        let request = self.ticket.request();
        match request.glance() {
            Ok(success) => Some(Ok(request.note(success))),
            Err(Unsettled::Nothing) => None,
            Err(so_far) => match request.poll(so_far) {
                Ok(Some(Ok(success))) => Some(Ok(success)),
                Ok(Some(Err(error))) => Some(Err(request.failed(error))),
                Ok(None) => None,
                Err(error) => Some(Err(error)),
            },
        }
    }

    /// Waits for the result of the operation. Each kind of operation has a time limit, which the
    /// [builder](crate::ChannelBuilder) sets.
    ///
    /// # Errors
    /// [`TransportError::Timeout`] if the operation has not completed by then. It is still in flight, and nothing has
    /// changed. If the wait itself fails, the error is [`TransportError::PeerGone`], [`TransportError::PollError`] or,
    /// in a forked child, [`TransportError::Closed`]. Otherwise, it is the error of the operation.
    #[inline(always)]
    pub fn spin_poll(&self) -> Result<WorkSuccess, TransportError> {
        let request = self.ticket.request();
        match request.glance() {
            Ok(success) => Ok(request.note(success)),
            Err(so_far) => request.succeed(so_far, None),
        }
    }

    /// Waits for the result of the operation, for at most `timeout`. [`Duration::MAX`] means no limit.
    ///
    /// # Errors
    /// Same errors as [`spin_poll`](Self::spin_poll).
    #[inline(always)]
    pub fn wait(&self, timeout: Duration) -> Result<WorkSuccess, TransportError> {
        let request = self.ticket.request();
        match request.glance() {
            Ok(success) => Ok(request.note(success)),
            Err(so_far) => request.succeed(so_far, Some(timeout)),
        }
    }

    /// The kind of the operation.
    pub fn operation(&self) -> Operation {
        self.ticket.request().operation()
    }

    /// The ID that errors use for this operation.
    #[doc(alias = "wr_id")]
    pub fn id(&self) -> WorkId {
        self.ticket.request().id()
    }
}
