//! Where asynchronous events come from.
#![allow(unsafe_code)]

use std::os::fd::{AsFd, BorrowedFd};
use std::time::Duration;

use rdma_sys::{Errno, ibv_async_event};

use crate::device::context::Context;
use crate::error::Error;
use crate::error::verb::VerbError;
use crate::event::file::EventFile;
use crate::event::value::AsyncEvent;

/// The asynchronous events of a context.
///
/// The device puts them into one queue for each context, and each is given out once. All methods take
/// `&self`, from any thread. **Two of these on one context share its queue: each gets a part of the
/// events, and none gets all.** So a program takes one for each context that it opens, and passes on
/// what others want to know; a library opens a context of its own.
///
/// It [is a file](AsFd) that is readable while there are events, for `poll`, `epoll` and what is made
/// of them. Nothing is to be read from it by other ways than these methods: an event that was taken so is
/// never acknowledged, and the destruction of what it is about waits for it.
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
    file: EventFile,
    context: Context,
}

impl AsyncEvents {
    /// The events of a context. Makes the context's `async_fd` non-blocking.
    ///
    /// # Errors
    /// If the kernel refuses that.
    #[doc(alias = "async_fd")]
    pub fn of(context: &Context) -> Result<Self, Error> {
        context.check_process()?;
        let context = context.clone();
        // SAFETY: SAFETY.md F1, F6: a live context, whose file does not change.
        let fd = unsafe { (*context.as_raw()).async_fd };
        // SAFETY: SAFETY.md F6: the context closes its file, and is kept by `self`.
        let file = unsafe { EventFile::new(fd) }?;
        Ok(Self { file, context })
    }

    /// Waits for an event, as long as it takes.
    ///
    /// # Errors
    /// What the provider says, most often because the device went away.
    #[doc(alias = "ibv_get_async_event")]
    #[doc(alias = "ibv_ack_async_event")]
    pub fn get_event(&self) -> Result<AsyncEvent, Error> {
        loop {
            if let Some(event) = self.file.wait(None, || self.try_get_event())? {
                return Ok(event);
            }
        }
    }

    /// Waits for an event, at most so long; `None` if none came.
    ///
    /// # Errors
    /// As [`get_event`](Self::get_event).
    pub fn get_event_timeout(&self, timeout: Duration) -> Result<Option<AsyncEvent>, Error> {
        self.file.wait(Some(timeout), || self.try_get_event())
    }

    /// An event that is there already.
    ///
    /// # Errors
    /// As [`get_event`](Self::get_event).
    pub fn try_get_event(&self) -> Result<Option<AsyncEvent>, Error> {
        self.context.check_process()?;
        let verbs = self.context.verbs();
        let mut raw = ibv_async_event::default();
        // SAFETY: SAFETY.md F1, F2: a live context of this table, and an event to write to.
        let returned = unsafe { (verbs.get_async_event)(self.context.as_raw(), &raw mut raw) };
        match Errno::check_minus_one(returned) {
            Ok(_) => {}
            Err(Errno::EAGAIN | Errno::EINTR) => return Ok(None),
            Err(errno) => return Err(VerbError::new("ibv_get_async_event", errno).into()),
        }
        // SAFETY: SAFETY.md F1: the provider filled it just now, and it is acknowledged below.
        let event = unsafe { AsyncEvent::from_raw(&raw) };
        // SAFETY: SAFETY.md F1, F2: an event of this table, acknowledged once. What it is about may be
        // destroyed from here on, and is not used any more.
        unsafe { (verbs.ack_async_event)(&raw mut raw) };
        Ok(Some(event))
    }

    /// The context whose events these are.
    #[must_use]
    pub fn context(&self) -> &Context {
        &self.context
    }
}

impl Context {
    /// Where the device says what happens when nobody calls; as [`AsyncEvents::of`].
    ///
    /// # Errors
    /// If the kernel refuses to make its file non-blocking.
    #[doc(alias = "ibv_get_async_event")]
    pub fn async_events(&self) -> Result<AsyncEvents, Error> {
        AsyncEvents::of(self)
    }
}

impl AsFd for AsyncEvents {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.file.as_fd()
    }
}
