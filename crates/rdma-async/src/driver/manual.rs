//! The driver as the program's own.

use std::os::fd::{AsFd, BorrowedFd};
use std::sync::Arc;

use rdma_qp::Error;

use super::shared::Shared;

/// A driver without a task: the program polls it. It [has a file](AsFd) that is readable after a request has
/// completed since the driver was [armed](Self::arm).
///
/// It has no timers: nothing has to be called at a certain time. A send whose peer does not answer ends by the queue pair's
/// retries, if these are bounded; a receive waits until its message comes, or its connection ends. The times of
/// [`Region::reserve`](crate::Region::reserve), leases and `timeout` are timers of the runtime that polls these.
/// Asynchronous events are the program's, too: a connection whose port or device has failed is not closed by itself. Take the
/// events from [`Driver::events`](crate::Driver::events), or those of the context, and close what has failed.
///
/// Dropped, it ends the driver.
#[derive(Debug)]
pub struct ManualDriver(Arc<Shared>);

impl ManualDriver {
    pub(super) const fn new(shared: Arc<Shared>) -> Self {
        Self(shared)
    }

    /// Polls all completion queues, and wakes the tasks that wait for the completions. Returns the number of
    /// completions.
    #[doc(alias = "poll_cq")]
    pub fn poll(&mut self) -> usize {
        self.0.poll()
    }

    /// Requests that the next completion makes the file readable, and polls all that are there. Returns their number;
    /// after 0 the program can sleep on the file.
    ///
    /// # Errors
    /// If the completion channel has failed.
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
