//! Ending a wait of the server from elsewhere.

use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::sync::Arc;

use rustix::event::{EventfdFlags, eventfd};
use rustix::io::{Errno, read, write};

/// Ends the wait of a [`Server`](crate::Server) in [`next`](crate::Server::next), from any thread; made by
/// [`waker`](crate::Server::waker).
///
/// Clones are cheap and wake the same server. It has one file, eventfd(2), as long as a clone is there.
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

/// Above the count of those who wake.
const RING: u64 = 1 << 32;

impl Waker {
    pub(super) fn new() -> Result<Self, Errno> {
        Ok(Self(Arc::new(eventfd(0, EventfdFlags::CLOEXEC | EventfdFlags::NONBLOCK)?)))
    }

    /// Has `next` return `None` once: the call that runs now, or the next one.
    pub fn wake(&self) {
        // It is refused only when it was done so often that the number is at its end.
        let _ = write(&*self.0, &1_u64.to_ne_bytes());
    }

    /// Has the file be readable, and wakes nobody else: there is more to tell.
    pub(super) fn ring(&self) {
        let _ = write(&*self.0, &RING.to_ne_bytes());
    }

    /// Whether it was woken since it was asked last.
    pub(super) fn take(&self) -> bool {
        let mut count = [0; 8];
        read(&*self.0, &mut count).is_ok() && u64::from_ne_bytes(count) % RING != 0
    }
}

impl AsFd for Waker {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.0.as_fd()
    }
}
