//! The driver as a tokio task.

use std::io;
use std::os::fd::{AsFd, OwnedFd};
use std::sync::Arc;

use tokio::io::unix::AsyncFd;

use super::events::Events;
use super::file;
use super::shared::Shared;

/// Destroys the queue pairs when the task ends for any reason.
struct Guard(Arc<Shared>);

impl Drop for Guard {
    fn drop(&mut self) {
        if self.0.is_of_this_process() {
            self.0.end();
        }
    }
}

/// Starts the task.
pub(super) fn spawn(shared: &Arc<Shared>) -> io::Result<()> {
    let file = file::readable(shared.channel.as_fd())?;
    let events = Events::of(shared.channel.context())?;
    let guard = Guard(Arc::clone(shared));
    drop(tokio::spawn(run(guard, file, events)));
    Ok(())
}

async fn run(guard: Guard, file: AsyncFd<OwnedFd>, events: Events) {
    if let Err(error) = serve(&guard.0, &file, &events).await {
        tracing::error!(%error, "a driver has failed: its connections end");
    }
}

/// Runs until the driver has to end.
async fn serve(shared: &Shared, file: &AsyncFd<OwnedFd>, events: &Events) -> io::Result<()> {
    while let Some(event) = events.try_next()? {
        shared.note(&event);
    }
    loop {
        // Events are received only after the readiness of `file` has been cleared. After arming a queue, `sweep` polls
        // it again. So no event or completion is missed.
        shared.sweep(false).map_err(io::Error::other)?;
        // The end and the events of the device are rare, so they starve no completion.
        tokio::select! {
            biased;
            () = shared.ends.notified() => return Ok(()),
            ready = events.wait() => {
                ready?;
                while let Some(event) = events.try_next()? {
                    shared.note(&event);
                }
            }
            ready = file.readable() => ready?.clear_ready(),
        }
    }
}
