//! The files that a program polls for single connections.
//!
//! Such a file is readable while any message has arrived for the channel, because no other thread may process it. So
//! the file contains the epoll instance of the channel. The kernel lets 500 others contain an epoll instance, and only
//! 100 if these are in a further one. So only the first files contain it. For the other files, a thread processes the
//! messages, and events make the files readable.

use std::os::fd::OwnedFd;
use std::sync::{Arc, Weak};
use std::thread;

use rdma_sys::{Process, SignalsBlocked};
use rustix::event::{EventfdFlags, PollFd, PollFlags, Timespec, eventfd, poll};
use rustix::io::{Errno, Result, fcntl_dupfd_cloexec};

use super::{Files, set};

/// The maximum number of files that contain the epoll instance of their channel. The program may nest them further. The
/// kernel has lower limits for that.
const MOST_NESTED: usize = 32;

/// The pause after which the thread looks at the sockets again, if another thread waits for them. That thread may have
/// no processor yet.
const LEAVE: Timespec = Timespec { tv_sec: 0, tv_nsec: 1_000_000 };

/// The files of single connections.
#[derive(Default)]
pub(in crate::engine) struct Watching {
    /// The files that contain the channel's epoll instance.
    nested: Vec<Weak<OwnedFd>>,
    /// The thread that processes messages for the others.
    thread: Option<Stop>,
}

impl Watching {
    /// Returns true if another file may contain the channel's epoll instance.
    pub(in crate::engine) fn may_nest(&mut self) -> bool {
        self.nested.retain(|file| file.strong_count() > 0);
        self.nested.len() < MOST_NESTED
    }

    /// Adds a file that contains the channel's epoll instance.
    pub(in crate::engine) fn add_nested(&mut self, file: &Arc<OwnedFd>) {
        self.nested.push(Arc::downgrade(file));
    }

    /// Starts a thread, unless there is one. It calls a function whenever the sockets need a thread, until the function
    /// returns `None`. The function returns whether another thread waits for the sockets.
    pub(in crate::engine) fn process_by_thread(
        &mut self,
        files: &Files,
        process: impl FnMut() -> Option<bool> + Send + 'static,
    ) -> Result<()> {
        if self.thread.as_ref().is_some_and(Stop::is_running) {
            return Ok(());
        }
        let bell = Arc::new(eventfd(0, EventfdFlags::CLOEXEC | EventfdFlags::NONBLOCK)?);
        let polled = (fcntl_dupfd_cloexec(&files.inner, 0)?, Arc::clone(&bell));
        // A signal is handled by a thread of the program.
        let blocked = SignalsBlocked::new();
        let thread = thread::Builder::new().name("rdma-cm-watch".into());
        let spawned = thread.spawn(move || run(polled, process));
        drop(blocked);
        spawned.map_err(|error| Errno::from_io_error(&error).unwrap_or(Errno::AGAIN))?;
        self.thread = Some(Stop { bell, process: Process::current() });
        Ok(())
    }
}

/// Ends a thread when this is dropped.
struct Stop {
    bell: Arc<OwnedFd>,
    /// A forked child shares the eventfd with its parent. The parent's thread continues.
    process: Process,
}

impl Stop {
    /// Returns true if the thread has not ended, for example after a failed system call.
    fn is_running(&self) -> bool {
        Arc::strong_count(&self.bell) > 1
    }
}

impl Drop for Stop {
    fn drop(&mut self) {
        if self.process.is_current() {
            set(&self.bell);
        }
    }
}

fn run((inner, bell): (OwnedFd, Arc<OwnedFd>), mut process: impl FnMut() -> Option<bool>) {
    let mut leaves = false;
    loop {
        let mut files = [&*bell, &inner].map(|file| PollFd::new(file, PollFlags::IN));
        let polled = match leaves {
            true => poll(&mut files[..1], Some(&LEAVE)),
            false => poll(&mut files, None),
        };
        match polled {
            Ok(_) | Err(Errno::INTR) => {}
            Err(_) => return,
        }
        let [is_stopped, _] = files.map(|file| !file.revents().is_empty());
        if is_stopped {
            return;
        }
        match process() {
            Some(has_waiter) => leaves = has_waiter,
            None => return,
        }
    }
}
