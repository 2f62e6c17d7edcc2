//! What stands in for sockets where the model checker runs, which sees no system calls.

use std::os::fd::RawFd;

use loom::sync::atomic::{AtomicUsize, Ordering};
use rustix::io::Errno;

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum NotAdded {
    Full,
    #[allow(dead_code)] // nobody shuts it down
    Deaf,
}

/// Tokens of which there is space for few. Nobody waits for one.
#[derive(Debug)]
pub(crate) struct Tokens {
    count: AtomicUsize,
    room: usize,
}

impl Tokens {
    pub(crate) fn new(room: usize) -> rustix::io::Result<Self> {
        Ok(Self { count: AtomicUsize::new(0), room })
    }

    pub(crate) fn fd(&self) -> RawFd {
        -1
    }

    pub(crate) fn count(&self) -> usize {
        self.count.load(Ordering::SeqCst)
    }

    pub(crate) fn put(&self) -> Result<(), NotAdded> {
        let more = |count| (count < self.room).then_some(count + 1);
        let put = self.count.fetch_update(Ordering::SeqCst, Ordering::SeqCst, more);
        put.map(drop).map_err(|_| NotAdded::Full)
    }

    pub(crate) fn wait(&self) -> bool {
        false
    }

    pub(crate) fn take(&self) -> Result<(), Errno> {
        if self.take_back() { Ok(()) } else { Err(Errno::AGAIN) }
    }

    pub(crate) fn take_back(&self) -> bool {
        let less = |count: usize| count.checked_sub(1);
        self.count.fetch_update(Ordering::SeqCst, Ordering::SeqCst, less).is_ok()
    }
}
