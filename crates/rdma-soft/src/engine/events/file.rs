//! A file that the device makes readable, and that programs poll like the kernel's files.
//!
//! It is a pipe to which the device writes single bytes. The program has the read end, and may set `O_NONBLOCK` on it,
//! duplicate it, or read from it. So the device opens the pipe again through `/proc`, with its own flags. Then nothing
//! that the program does can block the device here. (An eventfd cannot be opened again. `preadv2` can read without
//! waiting, but from a pipe only since Linux 6.4, and no such call writes to an eventfd.)
//!
//! Without `/proc`, the device uses a pair of connected sockets, where each call states whether it waits. Sockets are
//! slower.
//!
//! The program may allow the file to be readable [before there is an event](EventFile::wake_early). It then gets an
//! epoll instance, which contains the read end, and sometimes the link's descriptor.

use std::fs::File;
use std::io::Read;
#[cfg(test)]
use std::os::fd::AsFd;
use std::os::fd::{AsRawFd, BorrowedFd, OwnedFd, RawFd};
use std::sync::OnceLock;

use rustix::event::epoll;
use rustix::fs::{Mode, OFlags};
use rustix::io::Errno;
use rustix::net::{AddressFamily, RecvFlags, SendFlags, SocketFlags, SocketType};
use rustix::pipe::PipeFlags;

use crate::abi::fork::Process;
use crate::sync::assert_nothing_held;

/// The smallest size of a pipe. Pipes are kept small, because the system limits their total size per user.
const LEAST: usize = 4096;

#[derive(Debug)]
pub(crate) struct EventFile {
    program: File,
    own: Own,
    /// The epoll instance that the program has in place of `program`.
    early: OnceLock<OwnedFd>,
    made_by: Process,
}

/// The device's end.
#[derive(Debug)]
enum Own {
    Pipe(OwnedFd),
    /// The device writes to this socket, and reads from the program's.
    Socket(OwnedFd),
}

impl EventFile {
    pub(crate) fn new() -> rustix::io::Result<Self> {
        Self::pipe().or_else(|_| Self::sockets())
    }

    fn pipe() -> rustix::io::Result<Self> {
        let (program, _writer) = rustix::pipe::pipe_with(PipeFlags::CLOEXEC)?;
        // If this fails, the pipe is larger than needed.
        let _ = rustix::pipe::fcntl_setpipe_size(&program, LEAST);
        // The path names this thread, because it may have unshared its table of files.
        let path = format!("/proc/thread-self/fd/{}", program.as_raw_fd());
        let flags = OFlags::RDWR | OFlags::NONBLOCK | OFlags::CLOEXEC;
        let own = rustix::fs::open(path, flags, Mode::empty())?;
        let (one, other) = (rustix::fs::fstat(&program)?, rustix::fs::fstat(&own)?);
        if (one.st_dev, one.st_ino) != (other.st_dev, other.st_ino) {
            return Err(Errno::NOENT); // it is not the kernel's `/proc`
        }
        Ok(Self {
            program: File::from(program),
            own: Own::Pipe(own),
            early: OnceLock::new(),
            made_by: Process::current(),
        })
    }

    fn sockets() -> rustix::io::Result<Self> {
        let (unix, stream) = (AddressFamily::UNIX, SocketType::STREAM);
        let (program, own) = rustix::net::socketpair(unix, stream, SocketFlags::CLOEXEC, None)?;
        Ok(Self {
            program: File::from(program),
            own: Own::Socket(own),
            early: OnceLock::new(),
            made_by: Process::current(),
        })
    }

    pub(crate) fn fd(&self) -> RawFd {
        self.program.as_raw_fd()
    }

    /// Allows the file to be readable before there is an event, and makes it non-blocking. Returns the file that the
    /// program uses from now on.
    pub(crate) fn wake_early(&self) -> rustix::io::Result<RawFd> {
        let early = epoll::create(epoll::CreateFlags::CLOEXEC)?;
        epoll::add(&early, &self.program, epoll::EventData::new_u64(0), epoll::EventFlags::IN)?;
        rustix::fs::fcntl_setfl(&self.program, OFlags::NONBLOCK)?;
        Ok(self.early.get_or_init(|| early).as_raw_fd())
    }

    /// Returns true if the file may be readable before there is an event. In a forked child, it is not.
    pub(crate) fn wakes_early(&self) -> bool {
        self.early.get().is_some() && self.made_by.is_current()
    }

    /// Makes the file readable while `other` is readable, until [`unwatch`](Self::unwatch). Returns false if the kernel
    /// refuses, or if the program does not allow it.
    pub(crate) fn watch(&self, other: BorrowedFd<'_>) -> bool {
        let (data, flags) = (epoll::EventData::new_u64(1), epoll::EventFlags::IN);
        self.early.get().is_some_and(|early| epoll::add(early, other, data, flags).is_ok())
    }

    pub(crate) fn unwatch(&self, other: BorrowedFd<'_>) {
        if let Some(early) = self.early.get() {
            let _ = epoll::delete(early, other);
        }
    }

    /// Adds a byte. Does nothing if the file is full, or if the program has shut down the socket.
    pub(crate) fn set(&self) {
        assert_nothing_held();
        let flags = SendFlags::DONTWAIT | SendFlags::NOSIGNAL;
        loop {
            let added = match &self.own {
                Own::Pipe(file) => rustix::io::write(file, &[0]),
                Own::Socket(file) => rustix::net::send(file, &[0], flags),
            };
            match added {
                // Memory may become available later.
                Err(Errno::NOBUFS | Errno::NOMEM | Errno::INTR) => std::thread::yield_now(),
                _ => return,
            }
        }
    }

    /// Takes a byte without waiting. Returns true if there was one.
    pub(crate) fn clear(&self) -> bool {
        assert_nothing_held();
        let mut byte = [0];
        match &self.own {
            Own::Pipe(file) => rustix::io::read(file, &mut byte) == Ok(1),
            Own::Socket(_) => {
                let taken = rustix::net::recv(&self.program, &mut byte, RecvFlags::DONTWAIT);
                taken.is_ok_and(|(_, bytes)| bytes == 1)
            }
        }
    }

    /// Returns true if reads from the program's end block.
    pub(crate) fn is_blocking(&self) -> bool {
        let flags = rustix::fs::fcntl_getfl(&self.program);
        flags.is_ok_and(|flags| !flags.contains(OFlags::NONBLOCK))
    }

    /// Takes a byte. Waits for one, unless the program made its end non-blocking.
    pub(crate) fn take(&self) -> Result<(), Errno> {
        // This calls the C library, so that a waiting thread can be cancelled.
        match (&self.program).read(&mut [0]) {
            Ok(1) => Ok(()),
            Ok(_) => Err(Errno::IO),
            Err(error) => Err(Errno::from_io_error(&error).unwrap_or(Errno::IO)),
        }
    }

    #[cfg(test)]
    pub(crate) fn program(&self) -> &File {
        &self.program
    }

    #[cfg(test)]
    pub(crate) fn early(&self) -> Option<BorrowedFd<'_>> {
        self.early.get().map(AsFd::as_fd)
    }
}

#[cfg(all(test, not(loom)))]
pub(crate) mod tests {
    use super::*;

    /// Returns one file of each kind.
    #[allow(clippy::expect_used)] // A failing helper fails its test.
    pub(crate) fn kinds() -> [EventFile; 2] {
        [EventFile::pipe().expect("a pipe"), EventFile::sockets().expect("sockets")]
    }

    /// The device waits neither for a byte that the program has read nor for space in a full file.
    #[test]
    fn nothing_waits_whatever_the_program_does() {
        for file in kinds() {
            file.set();
            assert_eq!(rustix::io::read(file.program(), &mut [0; 2]), Ok(1));
            assert!(!file.clear());
            (0..10_000).for_each(|_| file.set());
            assert!(file.clear());
        }
    }

    #[test]
    #[cfg(debug_assertions)]
    #[should_panic(expected = "a system call under a lock of the engine")]
    fn nothing_is_written_under_a_lock() {
        let file = EventFile::new().unwrap();
        let lock = crate::sync::Lock::new(());
        let _held = lock.lock();
        file.set();
    }
}
