//! Handles of operations whose memory is borrowed.

use std::cell::Cell;
use std::time::Duration;

use rdma_qp::{WorkResult, WorkSuccess};

use crate::ticket::Ticket;
use crate::{Operation, TransportError, WorkId};

/// An operation under way.
///
/// Dropping it changes nothing: the operation goes on, and who borrowed its memory, the scope, ends it. It
/// keeps its place in the queue's table until it is dropped, also when it is done.
#[derive(Debug)]
pub struct PendingWork<'c> {
    ticket: Ticket<'c>,
    told: Cell<Option<WorkResult>>,
}

/// An operation of a [scope](crate::Channel::scope), which ends within it.
pub type ScopedPendingWork<'scope> = PendingWork<'scope>;

impl<'c> PendingWork<'c> {
    #[inline]
    pub(crate) const fn new(ticket: Ticket<'c>) -> Self {
        Self { ticket, told: Cell::new(None) }
    }

    /// How it ended, if it has; does not wait. Can be asked again.
    ///
    /// An error of the poll itself, [`TransportError::PollError`], says nothing of the operation.
    #[inline]
    pub fn poll(&self) -> Option<Result<WorkSuccess, TransportError>> {
        if self.told.get().is_none() {
            match self.ticket.poll() {
                Ok(result) => self.told.set(result),
                Err(error) => return Some(Err(error)),
            }
        }
        self.told.get().map(|result| result.map_err(TransportError::from))
    }

    /// How it ended; waits as long as operations of its kind may take, which the
    /// [builder](crate::ChannelBuilder) says.
    ///
    /// # Errors
    /// [`TransportError::Timeout`] if it has not ended by then, which changes nothing: it is still under way.
    /// Else how it failed.
    #[inline]
    pub fn spin_poll(&self) -> Result<WorkSuccess, TransportError> {
        self.wait(self.ticket.limit())
    }

    /// How it ended; waits so long for it. [`Duration::MAX`] is for ever.
    ///
    /// # Errors
    /// As of [`spin_poll`](Self::spin_poll).
    #[inline]
    pub fn wait(&self, timeout: Duration) -> Result<WorkSuccess, TransportError> {
        if self.told.get().is_none() {
            self.told.set(self.ticket.wait(timeout)?);
        }
        match self.told.get() {
            Some(result) => Ok(result?),
            None => Err(TransportError::Timeout { operation: self.operation(), timeout }),
        }
    }

    /// What it is.
    pub fn operation(&self) -> Operation {
        self.ticket.operation()
    }

    /// By what number errors name it.
    pub fn id(&self) -> WorkId {
        self.ticket.id()
    }
}
