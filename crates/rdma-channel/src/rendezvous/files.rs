//! Files that are polled together through epoll(7), each with a key.

use std::io;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::process;
use std::sync::Arc;
use std::time::Duration;

use rdma_connect::{ClientStream, ConnectError, Farewell};
use rustix::buffer::spare_capacity;
use rustix::event::{Timespec, epoll};
use rustix::io::Errno;
use rustix::net::{RecvFlags, SendFlags, Shutdown, recv, send, shutdown};

use crate::ledger::watch::send_farewell;

pub(crate) use rustix::event::epoll::EventFlags;

/// Files that are polled together. A file must be removed before it is closed: if a forked child still has it open,
/// epoll would report it forever.
#[derive(Clone, Debug)]
pub(crate) struct Files {
    epoll: Arc<OwnedFd>,
    /// The process that created the list. A forked child shares the list and must not change it.
    process: u32,
}

/// The maximum number of files reported at a time.
const MANY: usize = 64;

/// The longest wait in one call. For limits that do not fit into an `i32` of milliseconds, rustix calls `epoll_pwait2`,
/// which Linux has since 5.11.
const LONGEST: Duration = Duration::from_secs(86_400);

impl Files {
    /// # Errors
    /// [`ConnectError::Io`], most often because too many files are open.
    pub(crate) fn new() -> Result<Self, ConnectError> {
        let epoll = epoll::create(epoll::CreateFlags::CLOEXEC).map_err(|error| {
            let tried = "preparing to wait for clients".into();
            ConnectError::Io { tried, source: error.into() }
        })?;
        Ok(Self { epoll: Arc::new(epoll), process: process::id() })
    }

    /// Adds a file that stays in the list until the list is closed. It can be added without flags and
    /// [changed](Self::change) later.
    pub(crate) fn add(&self, file: impl AsFd, key: u64, flags: EventFlags) -> Result<(), Errno> {
        epoll::add(&*self.epoll, file, epoll::EventData::new_u64(key), flags)
    }

    /// Changes the events that a file is polled for.
    pub(crate) fn change(&self, file: impl AsFd, key: u64, flags: EventFlags) -> Result<(), Errno> {
        epoll::modify(&*self.epoll, file, epoll::EventData::new_u64(key), flags)
    }

    /// Adds a stream, which is polled until the returned value and its clones are dropped.
    pub(crate) fn add_stream(
        &self,
        stream: Arc<OwnedFd>,
        key: u64,
        flags: EventFlags,
    ) -> Result<Added, Errno> {
        self.add(&stream, key, flags)?;
        Ok(Added(Arc::new(InFiles { stream, files: self.clone() })))
    }

    /// Waits until a file is ready, for at most `limit`, and stores the keys of the ready files in `ready`. A signal
    /// ends the wait early, and so does [`LONGEST`].
    pub(crate) fn wait(&self, limit: Duration, ready: &mut Vec<u64>) -> Result<(), Errno> {
        ready.clear();
        let mut events = Vec::with_capacity(MANY);
        let limit = Timespec::try_from(limit.min(LONGEST)).ok();
        match epoll::wait(&*self.epoll, spare_capacity(&mut events), limit.as_ref()) {
            Ok(_) => ready.extend(events.iter().map(|event| { event.data }.u64())),
            Err(Errno::INTR) => {}
            Err(error) => return Err(error),
        }
        Ok(())
    }
}

impl AsFd for Files {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.epoll.as_fd()
    }
}

/// A stream that is polled until the last clone of this value is dropped.
#[derive(Clone, Debug)]
pub(crate) struct Added(Arc<InFiles>);

#[derive(Debug)]
struct InFiles {
    stream: Arc<OwnedFd>,
    files: Files,
}

impl Added {
    pub(crate) fn stream(&self) -> &Arc<OwnedFd> {
        &self.0.stream
    }

    /// Sends this end's farewell, unless this is a forked child.
    pub(crate) fn send_farewell(&self) {
        if process::id() == self.0.files.process {
            send_farewell(&self.0.stream, &Farewell::PLAIN);
        }
    }

    /// Changes the events that the stream is polled for, and its key.
    pub(crate) fn change(&self, key: u64, flags: EventFlags) -> Result<(), Errno> {
        self.0.files.change(&self.0.stream, key, flags)
    }
}

impl ClientStream for Added {
    fn receive(&self, buffer: &mut [u8]) -> io::Result<usize> {
        Ok(recv(&**self.stream(), buffer, RecvFlags::DONTWAIT)?.0)
    }

    fn peek(&self) -> io::Result<usize> {
        Ok(recv(&**self.stream(), &mut [0], RecvFlags::DONTWAIT | RecvFlags::PEEK)?.0)
    }

    fn send(&self, bytes: &[u8]) -> io::Result<usize> {
        Ok(send(&**self.stream(), bytes, SendFlags::DONTWAIT | SendFlags::NOSIGNAL)?)
    }

    fn end_sending(&self) -> io::Result<()> {
        Ok(shutdown(&**self.stream(), Shutdown::Write)?)
    }
}

impl Drop for InFiles {
    fn drop(&mut self) {
        if process::id() == self.files.process {
            // This cannot fail, because the stream is in the list and no other code removes it.
            let _ = epoll::delete(&*self.files.epoll, &self.stream);
        }
    }
}
