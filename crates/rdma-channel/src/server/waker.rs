//! Wakes a waiting server from another thread.

use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::sync::Arc;

use rustix::event::{EventfdFlags, eventfd};
use rustix::io::{Errno, read, write};

/// Ends the wait of a [`Server`](crate::Server) in [`next`](crate::Server::next), from any thread. Created by
/// [`waker`](crate::Server::waker).
///
/// Clones are cheap and wake the same server. They share one eventfd(2), which is closed with the last clone.
///
/// # Examples
/// ```
/// use rdma_channel::Server;
///
/// rdma_soft::install();
/// let pd = rdma_mem::open_device("soft0")?.allocate_pd()?;
/// let mut server = Server::bind("127.0.0.1:0", &pd, 10)?;
/// let waker = server.waker();
/// let serving = std::thread::spawn(move || while let Ok(Some(_)) = server.next(None) {});
/// waker.wake();
/// serving.join().unwrap();
/// # Ok::<(), rdma_channel::ConnectError>(())
/// ```
#[derive(Clone, Debug)]
pub struct Waker(Arc<OwnedFd>);

/// Added to the eventfd by `ring`. Multiples of this value do not count as calls of `wake`.
const RING: u64 = 1 << 32;

impl Waker {
    pub(crate) fn new() -> Result<Self, Errno> {
        Ok(Self(Arc::new(eventfd(0, EventfdFlags::CLOEXEC | EventfdFlags::NONBLOCK)?)))
    }

    /// Makes `next` return `None` once: in the current call, or in the next one if none is running.
    pub fn wake(&self) {
        // The write fails only if very many calls have brought the counter to its maximum.
        let _ = write(&*self.0, &1_u64.to_ne_bytes());
    }

    /// Makes the file readable without waking `next`, because there is more to report.
    pub(super) fn ring(&self) {
        let _ = write(&*self.0, &RING.to_ne_bytes());
    }

    /// Returns true if `wake` was called since the last call.
    pub(crate) fn take(&self) -> bool {
        let mut count = [0; 8];
        read(&*self.0, &mut count).is_ok() && u64::from_ne_bytes(count) % RING != 0
    }
}

impl AsFd for Waker {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.0.as_fd()
    }
}
