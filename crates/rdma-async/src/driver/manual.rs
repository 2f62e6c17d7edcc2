//! A driver that the program polls itself.

use std::os::fd::{AsFd, BorrowedFd};
use std::sync::Arc;

use rdma_qp::Error;

use super::shared::Shared;

/// A driver without a task, which the program polls. It [has a file](AsFd) that becomes readable when a request
/// completes after the driver was [armed](Self::arm). The file may also be readable although nothing has completed. Then
/// arm the driver again before you sleep.
///
/// The driver has no timers, so the program need not poll at any particular time. A send to a peer that does not answer
/// ends when the queue pair has used up its retries, if their number is limited. A receive waits until its message
/// arrives or its connection ends. [`Region::reserve`](crate::Region::reserve), leases and `timeout` use timers of the
/// runtime that polls them.
///
/// The program also handles asynchronous events: this driver closes no connection when its port or device fails. Read
/// the events from [`Driver::events`](crate::Driver::events) or from the context, and close the affected connections.
///
/// Dropping this ends the driver.
#[derive(Debug)]
pub struct ManualDriver(Arc<Shared>);

impl ManualDriver {
    pub(super) const fn new(shared: Arc<Shared>) -> Self {
        Self(shared)
    }

    /// Polls all completion queues and wakes the tasks that wait for the completions. Returns the number of
    /// completions.
    #[doc(alias = "poll_cq")]
    pub fn poll(&mut self) -> usize {
        self.0.poll()
    }

    /// Arms the completion queues, so that the next completion makes the file readable, and polls all completions that
    /// have already arrived. Returns their number; after 0, the program can sleep on the file.
    ///
    /// # Errors
    /// If the completion channel has failed, or a completion queue cannot be armed.
    pub fn arm(&mut self) -> Result<usize, Error> {
        self.0.sweep(true)
    }
}

impl AsFd for ManualDriver {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.0.channel.as_fd()
    }
}

impl Drop for ManualDriver {
    fn drop(&mut self) {
        if self.0.is_of_this_process() {
            self.0.end();
        }
    }
}
