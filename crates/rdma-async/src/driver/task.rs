//! The driver of a tokio runtime: a task, and a waker that sweeps.

use std::io;
use std::os::fd::{AsFd, OwnedFd};
use std::panic::{AssertUnwindSafe, catch_unwind, resume_unwind};
use std::sync::{Arc, PoisonError, Weak};
use std::task::{Context, Poll, Wake, Waker};
use std::thread;

use tokio::io::unix::AsyncFd;
use tokio::sync::Notify;
use tokio::task::unconstrained;

use super::events::Events;
use super::file;
use super::shared::Shared;
use crate::sync::Mutex;

/// Destroys the queue pairs when the task ends for any reason.
struct Guard(Arc<Shared>);

impl Drop for Guard {
    fn drop(&mut self) {
        if self.0.is_of_this_process() {
            self.0.end_task();
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
    if let Err(error) = serve(&guard.0, file, &events).await {
        tracing::error!(%error, "a driver has failed: its connections end");
    }
}

/// Runs until the driver has to end.
async fn serve(shared: &Arc<Shared>, file: AsyncFd<OwnedFd>, events: &Events) -> io::Result<()> {
    while let Some(event) = events.try_next()? {
        shared.note(&event);
    }
    let sweeper = Sweeper::new(Arc::clone(shared), file);
    shared.sweep_all().map_err(io::Error::other)?;
    // If this used up the task's budget, the runtime would call the waker within the task.
    unconstrained(async { sweeper.sweep_while_readable() }).await?;
    loop {
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
            () = sweeper.calls.notified() => sweeper.continue_sweep()?,
        }
    }
}

/// Sweeps whenever the completion channel's file is readable. The runtime wakes it as it would wake a task, but it sweeps
/// within that call. A message therefore makes the runtime run only the task that waits for it.
///
/// If a task swept, each message would make the runtime run two tasks. The second one often moves to another thread. So
/// the task only continues sweeps that take long.
struct Sweeper {
    shared: Arc<Shared>,
    file: AsyncFd<OwnedFd>,
    waker: Waker,
    /// The first error or panic of a sweep.
    failure: Mutex<Option<thread::Result<io::Error>>>,
    /// Notified if a sweep has failed, or must be continued.
    calls: Notify,
}

impl Sweeper {
    fn new(shared: Arc<Shared>, file: AsyncFd<OwnedFd>) -> Arc<Self> {
        Arc::new_cyclic(|sweeper| Self {
            shared,
            file,
            waker: Arc::new(Sweep(Weak::clone(sweeper))).into(),
            failure: Mutex::default(),
            calls: Notify::new(),
        })
    }

    /// Sweeps while the file is readable, and then leaves the waker with it.
    fn sweep_while_readable(&self) -> io::Result<()> {
        while let Poll::Ready(ready) =
            self.file.poll_read_ready(&mut Context::from_waker(&self.waker))
        {
            // Events are received only after the readiness of `file` has been cleared. After arming a queue, the sweep
            // polls it again. So no event or completion is missed.
            ready?.clear_ready();
            if !self.shared.sweep_some().map_err(io::Error::other)? {
                self.calls.notify_one();
            }
        }
        Ok(())
    }

    /// Sweeps as part of the task. Returns the error of an earlier sweep, or continues its panic.
    fn continue_sweep(&self) -> io::Result<()> {
        let failure = self.failure.lock().unwrap_or_else(PoisonError::into_inner).take();
        match failure {
            Some(failure) => Err(failure.unwrap_or_else(|panic| resume_unwind(panic))),
            None => self.shared.sweep_all().map_err(io::Error::other),
        }
    }
}

/// The waker of a [`Sweeper`].
struct Sweep(Weak<Sweeper>);

impl Wake for Sweep {
    /// Called by the thread that waits for the runtime's files, so a panic must not leave this function.
    fn wake(self: Arc<Self>) {
        let Some(sweeper) = self.0.upgrade() else { return };
        let outcome = catch_unwind(AssertUnwindSafe(|| sweeper.sweep_while_readable()));
        let failure = match outcome {
            Ok(Ok(())) => return,
            Ok(Err(error)) => Ok(error),
            Err(panic) => Err(panic),
        };
        sweeper.failure.lock().unwrap_or_else(PoisonError::into_inner).get_or_insert(failure);
        sweeper.calls.notify_one();
    }
}
