//! The files of a channel: one that the program polls, and those that it consists of.

mod watching;

use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::sync::Arc;
use std::time::Duration;

use rustix::buffer::spare_capacity;
use rustix::event::{EventfdFlags, Timespec, epoll, eventfd};
use rustix::io::{Errno, read, write};
use rustix::net::{Shutdown, shutdown};
use rustix::time::{
    Itimerspec, TimerfdClockId, TimerfdFlags, TimerfdTimerFlags, timerfd_create, timerfd_settime,
};

pub(super) use self::watching::Watching;
use crate::error::Error;

/// The maximum number of files that are reported at a time.
const MANY: usize = 64;

/// The longest wait in one call. For limits that do not fit into an `i32` of milliseconds, rustix calls `epoll_pwait2`,
/// which Linux has since 5.11.
const LONGEST: Duration = Duration::from_secs(86_400);

/// The keys of the files that are not sockets.
const TIMER: u64 = 0;
const WAKE: u64 = 1;
/// The keys of the files that are readable when MADs have arrived, or events of the kernel.
pub(super) const MADS: [u64; 2] = [2, 3];
/// The first key of a socket.
pub(super) const FIRST_KEY: u64 = 4;

pub(super) struct Files {
    /// Readable while `inner` or `queued` is.
    outer: OwnedFd,
    /// Reports the timer, `wake`, and the sockets.
    inner: OwnedFd,
    timer: OwnedFd,
    /// Wakes the thread that waits for `inner`.
    wake: OwnedFd,
    /// Readable while events are queued, or once the channel is closed.
    queued: OwnedFd,
}

impl Files {
    pub(super) fn open() -> Result<Self, Error> {
        let failed = Error::system("open an event channel");
        Self::new().map_err(failed)
    }

    fn new() -> rustix::io::Result<Self> {
        let flags = EventfdFlags::CLOEXEC | EventfdFlags::NONBLOCK;
        let timer = TimerfdFlags::CLOEXEC | TimerfdFlags::NONBLOCK;
        let files = Self {
            outer: epoll::create(epoll::CreateFlags::CLOEXEC)?,
            inner: epoll::create(epoll::CreateFlags::CLOEXEC)?,
            timer: timerfd_create(TimerfdClockId::Monotonic, timer)?,
            wake: eventfd(0, flags)?,
            queued: eventfd(0, flags)?,
        };
        files.add(&files.timer, TIMER)?;
        files.add(&files.wake, WAKE)?;
        for file in [&files.inner, &files.queued] {
            epoll::add(&files.outer, file, epoll::EventData::new_u64(0), epoll::EventFlags::IN)?;
        }
        Ok(files)
    }

    /// Reports when a file is readable.
    pub(super) fn add(&self, file: impl AsFd, key: u64) -> rustix::io::Result<()> {
        epoll::add(&self.inner, file, epoll::EventData::new_u64(key), epoll::EventFlags::IN)
    }

    /// Sets whether a socket is reported.
    pub(super) fn set_reported(&self, socket: &OwnedFd, key: u64, is_reported: bool) {
        let flags = if is_reported { epoll::EventFlags::IN } else { epoll::EventFlags::empty() };
        let _ = epoll::modify(&self.inner, socket, epoll::EventData::new_u64(key), flags);
    }

    /// Removes and shuts down a socket. This precedes its closing, because a forked child may keep it open.
    pub(super) fn remove(&self, socket: &OwnedFd) {
        let _ = epoll::delete(&self.inner, socket);
        let _ = shutdown(socket, Shutdown::Both);
    }

    /// Waits until something happens, for at most `limit`, and returns the keys of readable files. A signal ends the
    /// wait early, and so does [`LONGEST`].
    pub(super) fn wait(&self, limit: Option<Duration>) -> Result<Vec<u64>, Error> {
        let mut events = Vec::with_capacity(MANY);
        let limit = limit.and_then(|limit| Timespec::try_from(limit.min(LONGEST)).ok());
        match epoll::wait(&self.inner, spare_capacity(&mut events), limit.as_ref()) {
            Ok(_) | Err(Errno::INTR) => {}
            Err(errno) => return Err(Error::system("wait for events")(errno)),
        }
        let keys: Vec<u64> = events.iter().map(|event| { event.data }.u64()).collect();
        for (key, file) in [(TIMER, &self.timer), (WAKE, &self.wake)] {
            if keys.contains(&key) {
                clear(file);
            }
        }
        Ok(keys.into_iter().filter(|&key| ![TIMER, WAKE].contains(&key)).collect())
    }

    /// Creates a file that is readable once the returned eventfd was set. If it is nested, it is also readable while
    /// the sockets need a thread.
    pub(super) fn watch(&self, is_nested: bool) -> rustix::io::Result<(OwnedFd, OwnedFd)> {
        let bell = eventfd(0, EventfdFlags::CLOEXEC | EventfdFlags::NONBLOCK)?;
        let file = epoll::create(epoll::CreateFlags::CLOEXEC)?;
        for part in [&bell].into_iter().chain(is_nested.then_some(&self.inner)) {
            epoll::add(&file, part, epoll::EventData::new_u64(0), epoll::EventFlags::IN)?;
        }
        Ok((file, bell))
    }

    /// Ends the wait of the thread that waits, or the next wait.
    pub(super) fn wake(&self) {
        set(&self.wake);
    }

    /// Sets whether events are queued.
    pub(super) fn set_queued(&self, is_queued: bool) {
        if is_queued {
            set(&self.queued);
        } else {
            clear(&self.queued);
        }
    }

    /// Sets the timer to expire after this time, or never.
    pub(super) fn set_timer(&self, after: Option<Duration>) {
        let none = Timespec::default();
        // A timer of 0 never expires.
        let least = |after: Duration| after.max(Duration::from_nanos(1));
        let value = after.map_or(none, |after| Timespec::try_from(least(after)).unwrap_or(none));
        let timer = Itimerspec { it_interval: none, it_value: value };
        let _ = timerfd_settime(&self.timer, TimerfdTimerFlags::empty(), &timer);
    }
}

impl AsFd for Files {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.outer.as_fd()
    }
}

/// The file that the program polls for one connection, and the eventfd that makes it readable once an event was queued.
#[derive(Default)]
pub(super) struct Watch {
    files: Option<(Arc<OwnedFd>, OwnedFd)>,
    /// Whether the file becomes readable only at the end.
    is_of_end: bool,
}

impl Watch {
    /// Returns the file, if there is one for this stage. The eventfd of an earlier stage may be readable because of an
    /// earlier event.
    pub(super) fn file(&mut self, is_established: bool) -> Option<Arc<OwnedFd>> {
        if self.is_of_end != is_established {
            (self.files, self.is_of_end) = (None, is_established);
        }
        self.files.as_ref().map(|(file, _)| Arc::clone(file))
    }

    pub(super) fn keep(&mut self, file: Arc<OwnedFd>, bell: OwnedFd) {
        self.files = Some((file, bell));
    }

    /// Makes the file readable.
    pub(super) fn ring(&self) {
        if let Some((_, bell)) = &self.files {
            set(bell);
        }
    }
}

/// Makes an eventfd readable.
pub(super) fn set(file: &OwnedFd) {
    let _ = write(file, &1_u64.to_ne_bytes());
}

/// Makes an eventfd or a timerfd unreadable.
pub(super) fn clear(file: &OwnedFd) {
    let _ = read(file, &mut [0_u8; 8]);
}
