//! The asynchronous events of a driver's context.

use std::io;
use std::os::fd::{AsFd, OwnedFd};

use rdma_mem::{AsyncEvent, AsyncEvents, Context};
use tokio::io::unix::AsyncFd;

use super::file;

/// A stream of the asynchronous events of a driver's context, from [`Driver::events`](crate::Driver::events). Each
/// stream gets every event that occurs while the stream exists. Unread events stay in memory, so drop a stream that is
/// no longer read.
///
/// The driver's task has its own stream. When a port goes down or the device fails, the driver at once ends the
/// connections that depend on it, with [`CloseReason::Port`](crate::CloseReason::Port) or
/// [`CloseReason::Device`](crate::CloseReason::Device).
///
/// # Examples
/// ```
/// use rdma_async::Driver;
/// use rdma_mem::AsyncEventKind;
///
/// # let device = rdma_soft::Builder::new("soft-events").install()?;
/// # tokio::runtime::Builder::new_current_thread().enable_all().build()?.block_on(async {
/// let context = rdma_mem::open_device("soft-events")?;
/// let driver = Driver::spawn(&context)?;
/// let mut events = driver.events()?;
/// # device.set_port_up(false);
/// // The cable is pulled.
/// let event = events.next().await?;
/// assert_eq!(event.kind, AsyncEventKind::PORT_ERR);
/// # Ok::<(), Box<dyn std::error::Error>>(()) })?;
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
#[derive(Debug)]
pub struct Events {
    file: AsyncFd<OwnedFd>,
    events: AsyncEvents,
}

impl Events {
    pub(super) fn of(context: &Context) -> io::Result<Self> {
        let events = context.async_events().map_err(io::Error::other)?;
        Ok(Self { file: file::readable(events.as_fd())?, events })
    }

    /// Waits for the next event. Dropping the future early loses no event.
    ///
    /// # Errors
    /// The provider's error, usually because the device was removed, or an error if the runtime has shut down.
    pub async fn next(&mut self) -> io::Result<AsyncEvent> {
        loop {
            if let Some(event) = self.try_next()? {
                return Ok(event);
            }
            self.wait().await?;
        }
    }

    /// Waits until there may be an event. An event that occurs after this returns is noticed by the next wait.
    pub(super) async fn wait(&self) -> io::Result<()> {
        self.file.readable().await?.clear_ready();
        Ok(())
    }

    /// Returns the next event, if there is one.
    pub(super) fn try_next(&self) -> io::Result<Option<AsyncEvent>> {
        self.events.try_get_event().map_err(io::Error::other)
    }
}
