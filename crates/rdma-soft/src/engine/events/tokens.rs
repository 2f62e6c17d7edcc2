//! A descriptor that is readable while it has tokens, which programs poll as they poll the kernel's files.
//!
//! A pair of connected sockets, since tokens can be taken back from one without waiting, whatever the
//! program has made of the blocking mode of its end (`MSG_DONTWAIT`); a pipe needs `/proc` for that.

use std::fs::File;
use std::io::Read;
use std::os::fd::{AsRawFd, OwnedFd, RawFd};

use rustix::fs::OFlags;
use rustix::io::Errno;
use rustix::net::{AddressFamily, RecvFlags, SendFlags, SocketFlags, SocketType};

use crate::sync::assert_nothing_held;

/// The largest token, in bytes.
const LARGEST: usize = 16;

/// Why a token was not added.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum NotAdded {
    /// For want of space, or of memory: later there may be some.
    Full,
    /// Nobody will ever hear of another: the program has shut its end down.
    Deaf,
}

#[derive(Debug)]
pub(crate) struct Tokens {
    /// The program's end: it sets `O_NONBLOCK` as it likes.
    read: File,
    write: OwnedFd,
    size: usize,
}

impl Tokens {
    /// None yet, of `size` bytes each, at most 16.
    pub(crate) fn new(size: usize) -> rustix::io::Result<Self> {
        let (unix, stream) = (AddressFamily::UNIX, SocketType::STREAM);
        let (read, write) = rustix::net::socketpair(unix, stream, SocketFlags::CLOEXEC, None)?;
        Ok(Self { read: File::from(read), write, size })
    }

    pub(crate) fn fd(&self) -> RawFd {
        self.read.as_raw_fd()
    }

    /// Adds one, if there is space.
    pub(crate) fn put(&self) -> Result<(), NotAdded> {
        assert_nothing_held();
        let flags = SendFlags::DONTWAIT | SendFlags::NOSIGNAL;
        // All of it or nothing: it is one buffer of the kernel's.
        match rustix::net::send(&self.write, &[0; LARGEST][..self.size], flags) {
            Ok(_) => Ok(()),
            Err(Errno::AGAIN | Errno::NOBUFS | Errno::NOMEM | Errno::INTR) => Err(NotAdded::Full),
            Err(_) => Err(NotAdded::Deaf),
        }
    }

    /// Whether to take one is to wait for it.
    pub(crate) fn wait(&self) -> bool {
        let flags = rustix::fs::fcntl_getfl(&self.read);
        flags.is_ok_and(|flags| !flags.contains(OFlags::NONBLOCK))
    }

    /// Takes one. Waits for it, if the program has not made its end non-blocking.
    pub(crate) fn take(&self) -> Result<(), Errno> {
        // A function of the C library, in which a thread can be cancelled.
        match (&self.read).read(&mut [0; LARGEST][..self.size]) {
            Ok(n) if n == self.size => Ok(()),
            Ok(_) => Err(Errno::IO),
            Err(error) => Err(Errno::from_io_error(&error).unwrap_or(Errno::IO)),
        }
    }

    /// Takes one if there is one, and says whether there was.
    pub(crate) fn take_back(&self) -> bool {
        assert_nothing_held();
        let mut token = [0; LARGEST];
        let taken = rustix::net::recv(&self.read, &mut token[..self.size], RecvFlags::DONTWAIT);
        taken.is_ok_and(|(_, bytes)| bytes == self.size)
    }

    #[cfg(test)]
    pub(crate) fn file(&self) -> &File {
        &self.read
    }
}

#[cfg(all(test, debug_assertions, not(loom)))]
mod tests {
    use super::*;
    use crate::sync::Lock;

    #[test]
    #[should_panic(expected = "a system call under a lock of the engine")]
    fn a_token_is_not_added_under_a_lock() {
        let tokens = Tokens::new(8).unwrap();
        let lock = Lock::new(());
        let _held = lock.lock();
        let _ = tokens.put();
    }
}
