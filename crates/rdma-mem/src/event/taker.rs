//! Readers of a context's asynchronous events.
#![allow(unsafe_code)]

use std::os::fd::{AsFd, BorrowedFd, OwnedFd, RawFd};
use std::sync::Arc;
use std::time::Duration;

use rdma_sys::{Errno, ibv_async_event};
use rdma_types::AsyncEventKind;
use rustix::event::epoll;

use crate::device::context::Context;
use crate::error::Error;
use crate::error::verb::VerbError;
use crate::event::file::{EventFile, failed};
use crate::event::value::{AsyncEvent, AsyncEventSource};

/// The maximum number of events that one call to `events_of` fetches.
const MOST: usize = 4096;

/// A context's asynchronous events.
///
/// Every `AsyncEvents` of a context gets every event, so each part of a program can create one. A
/// new `AsyncEvents` starts with the events that no other one has read yet. Unread events are kept
/// in memory without a limit, so drop an `AsyncEvents` that is no longer read. All methods take
/// `&self` and work from any thread.
///
/// It [has a file](AsFd) that is readable while it has unread events, for `poll`, `epoll` and async
/// runtimes. An `AsyncEvents` misses events that the program reads with `ibv_get_async_event`
/// itself.
///
/// # Examples
/// ```
/// use std::time::Duration;
///
/// rdma_soft::install();
/// let context = rdma_mem::open_device("soft0")?;
/// let events = context.async_events()?;
/// while let Some(event) = events.get_event_timeout(Duration::from_millis(1))? {
///     println!("{}: {:?}", event.kind, event.source);
/// }
/// # Ok::<(), rdma_mem::Error>(())
/// ```
#[doc(alias = "ibv_get_async_event")]
#[derive(Debug)]
pub struct AsyncEvents {
    /// The context's file, readable while the provider has events that no reader has fetched.
    file: EventFile,
    /// An eventfd that identifies this reader in the context's log. It is readable while the log
    /// has events that this reader has not read.
    wake: Arc<OwnedFd>,
    /// A file that is readable while `file` or `wake` is.
    either: OwnedFd,
    context: Context,
}

impl AsyncEvents {
    /// Creates a reader for a context's events. Makes the context's `async_fd` non-blocking.
    ///
    /// # Errors
    /// Returns an error if the file cannot be made non-blocking, or the process cannot open two
    /// more files.
    #[doc(alias = "async_fd")]
    pub fn of(context: &Context) -> Result<Self, Error> {
        context.check_process()?;
        // SAFETY: SAFETY.md F6: only the context closes its file, and `this` keeps the context
        // alive.
        let file = unsafe { EventFile::new(context.async_fd()) }?;
        let either = epoll::create(epoll::CreateFlags::CLOEXEC).map_err(failed("epoll_create1"))?;
        let wake = context.log().lock().join()?;
        let this = Self { file, wake, either, context: context.clone() };
        for file in [this.file.as_fd(), this.wake.as_fd()] {
            epoll::add(&this.either, file, epoll::EventData::new_u64(0), epoll::EventFlags::IN)
                .map_err(failed("epoll_ctl"))?;
        }
        Ok(this)
    }

    /// Waits for an event without a time limit.
    ///
    /// # Errors
    /// Returns the provider's error, most often because the device was removed.
    #[doc(alias = "ibv_get_async_event")]
    #[doc(alias = "ibv_ack_async_event")]
    pub fn get_event(&self) -> Result<AsyncEvent, Error> {
        loop {
            if let Some(event) = self.wait(None)? {
                return Ok(event);
            }
        }
    }

    /// Waits for an event for at most `timeout`; returns `None` if none arrives in that time.
    ///
    /// # Errors
    /// Same errors as [`get_event`](Self::get_event).
    pub fn get_event_timeout(&self, timeout: Duration) -> Result<Option<AsyncEvent>, Error> {
        self.wait(Some(timeout))
    }

    /// Returns an event if one is available; does not block.
    ///
    /// # Errors
    /// Same errors as [`get_event`](Self::get_event).
    pub fn try_get_event(&self) -> Result<Option<AsyncEvent>, Error> {
        self.context.check_process()?;
        let mut log = self.context.log().lock();
        if let Some(event) = log.next(&self.wake) {
            return Ok(Some(event));
        }
        let Some(event) = self.context.fetch_event()? else { return Ok(None) };
        log.push(event);
        Ok(log.next(&self.wake))
    }

    /// Returns the context that the events come from.
    #[must_use]
    pub fn context(&self) -> &Context {
        &self.context
    }

    fn wait(&self, timeout: Option<Duration>) -> Result<Option<AsyncEvent>, Error> {
        self.file.wait_with(Some(self.wake.as_fd()), timeout, || self.try_get_event())
    }
}

impl Drop for AsyncEvents {
    fn drop(&mut self) {
        if self.context.check_process().is_ok() {
            self.context.log().lock().leave(&self.wake);
        }
    }
}

impl AsFd for AsyncEvents {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.either.as_fd()
    }
}

impl Context {
    /// Returns the asynchronous events of the device, like [`AsyncEvents::of`].
    ///
    /// # Errors
    /// Same errors as [`AsyncEvents::of`].
    #[doc(alias = "ibv_get_async_event")]
    pub fn async_events(&self) -> Result<AsyncEvents, Error> {
        AsyncEvents::of(self)
    }

    /// Returns the events about an object, a port or the device, oldest first, to find the cause of
    /// a failure. Every [`AsyncEvents`] still gets these events. The search covers the context's
    /// last 256 events, and any that an [`AsyncEvents`] has not read yet. Makes the context's
    /// `async_fd` non-blocking.
    ///
    /// # Errors
    /// Returns the provider's error, most often because the device was removed.
    ///
    /// # Examples
    /// ```
    /// use rdma_mem::AsyncEventSource;
    ///
    /// rdma_soft::install();
    /// let context = rdma_mem::open_device("soft0")?;
    /// assert_eq!(context.events_of(AsyncEventSource::Port(1))?, []);
    /// # Ok::<(), rdma_mem::Error>(())
    /// ```
    pub fn events_of(&self, source: AsyncEventSource) -> Result<Vec<AsyncEventKind>, Error> {
        self.check_process()?;
        let mut log = self.log().lock();
        for _ in 0..MOST {
            let Some(event) = self.fetch_event()? else { break };
            log.push(event);
        }
        Ok(log.of(source))
    }

    fn async_fd(&self) -> RawFd {
        // SAFETY: SAFETY.md F1, F6: the context is live, and its file never changes.
        unsafe { (*self.as_raw()).async_fd }
    }

    /// Fetches the provider's next event, if it has one. The caller holds the log's lock, so all
    /// readers see the events in the same order. The call does not block, even if other code has
    /// made the file blocking again.
    fn fetch_event(&self) -> Result<Option<AsyncEvent>, Error> {
        // SAFETY: SAFETY.md F6: only the context closes its file, and `self` keeps the context
        // alive.
        let _non_blocking = unsafe { EventFile::new(self.async_fd()) }?;
        let verbs = self.verbs();
        let mut raw = ibv_async_event::default();
        // SAFETY: SAFETY.md F1, F2: the context is live and belongs to this table, and the event
        // may be written.
        let returned = unsafe { (verbs.get_async_event)(self.as_raw(), &raw mut raw) };
        match Errno::check_minus_one(returned) {
            Ok(_) => {}
            Err(Errno::EAGAIN | Errno::EINTR) => return Ok(None),
            Err(errno) => return Err(VerbError::new("ibv_get_async_event", errno).into()),
        }
        // SAFETY: SAFETY.md F1: the provider has just filled in the event, and it is acknowledged
        // below.
        let event = unsafe { AsyncEvent::from_raw(&raw) };
        // SAFETY: SAFETY.md F1, F2: the event comes from this table and is acknowledged once. Its
        // object may be destroyed from here on, and is no longer used.
        unsafe { (verbs.ack_async_event)(&raw mut raw) };
        Ok(Some(event))
    }
}
