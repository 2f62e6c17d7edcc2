//! The driver as a task of tokio.

use std::io;
use std::os::fd::{AsFd, OwnedFd};
use std::sync::Arc;

use tokio::io::unix::AsyncFd;

use super::events::Events;
use super::file;
use super::shared::Shared;

/// Destroys the queue pairs when the task ends, however it does.
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

async fn run(guard: Guard, file: AsyncFd<OwnedFd>, mut events: Events) {
    let shared = &guard.0;
    loop {
        // All events are taken before the file counts as not readable, and asked for before the last look.
        if let Err(error) = shared.sweep() {
            tracing::error!(%error, "the completion channel of a driver has failed");
            return;
        }
        let ready = tokio::select! {
            ready = file.readable() => ready,
            event = events.next() => match event {
                Ok(event) => {
                    shared.note(&event);
                    continue;
                }
                Err(error) => {
                    tracing::error!(%error, "a driver's device says nothing any more");
                    return;
                }
            },
            () = shared.ends.notified() => return,
        };
        match ready {
            Ok(mut ready) => ready.clear_ready(),
            Err(error) => {
                tracing::error!(%error, "a driver cannot wait for its completion channel");
                return;
            }
        }
    }
}
