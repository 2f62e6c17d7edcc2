//! A replacement for a pipe under the model checker, which sees no system calls.

use std::os::fd::{BorrowedFd, RawFd};

use loom::sync::atomic::{AtomicUsize, Ordering};
use rustix::io::Errno;

/// The number of bytes in the file. No thread waits for one.
#[derive(Debug)]
pub(crate) struct EventFile(AtomicUsize);

impl EventFile {
    pub(crate) fn new() -> rustix::io::Result<Self> {
        Ok(Self(AtomicUsize::new(0)))
    }

    pub(crate) fn fd(&self) -> RawFd {
        -1
    }

    pub(crate) fn bytes(&self) -> usize {
        self.0.load(Ordering::SeqCst)
    }

    pub(crate) fn set(&self) {
        self.0.fetch_add(1, Ordering::SeqCst);
    }

    pub(crate) fn clear(&self) -> bool {
        let less = |bytes: usize| bytes.checked_sub(1);
        self.0.fetch_update(Ordering::SeqCst, Ordering::SeqCst, less).is_ok()
    }

    pub(crate) fn is_blocking(&self) -> bool {
        false
    }

    /// In models, no file wakes early.
    pub(crate) fn wake_early(&self) -> rustix::io::Result<RawFd> {
        Err(Errno::NOSYS)
    }

    pub(crate) fn wakes_early(&self) -> bool {
        false
    }

    pub(crate) fn watch(&self, _: BorrowedFd<'_>) -> bool {
        false
    }

    pub(crate) fn unwatch(&self, _: BorrowedFd<'_>) {}

    pub(crate) fn take(&self) -> Result<(), Errno> {
        if self.clear() { Ok(()) } else { Err(Errno::AGAIN) }
    }
}
