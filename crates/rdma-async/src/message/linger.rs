//! The limits of the time that the end of a connection may take.

use std::future::poll_fn;
use std::sync::{Arc, Weak};
use std::task::{Poll, Waker};
use std::time::Duration;

use tokio::runtime::Handle;
use tokio::time::{sleep, timeout};

use super::session::{Protocol, Session};
use crate::sync::LONGEST;

/// A protocol whose connection may outlive its handles.
pub(super) trait Leave: Protocol {
    /// Removes a handle. Returns true if it was the last one.
    fn leave(&mut self) -> bool;

    /// Ready when the connection has ended.
    fn poll_ended(&mut self, waker: &mut Option<Waker>) -> Poll<()>;

    /// Returns true if the connection has ended.
    fn has_ended(&self) -> bool;
}

/// The time limit of an end.
#[derive(Debug)]
pub(super) struct Linger {
    limit: Duration,
    runtime: Handle,
}

impl Linger {
    /// # Panics
    /// If this is not called within a tokio runtime with time.
    #[track_caller]
    pub(super) fn new(limit: Duration) -> Self {
        // Panics here in a runtime without time, rather than in the task.
        drop(tokio::time::sleep(Duration::ZERO));
        Self { limit: limit.min(LONGEST), runtime: Handle::current() }
    }

    /// Resets the connection at the limit, because the peer need not receive its close frame.
    pub(super) fn limit_end<P: Protocol>(&self, session: Weak<Session<P>>) {
        let limit = self.limit;
        self.runtime.spawn(async move {
            sleep(limit).await;
            if let Some(session) = session.upgrade() {
                session.with(|state| state.requests.fail());
            }
        });
    }

    /// Removes a handle of the session. After the last one, a task waits until both ends have finished, and resets the
    /// connection at the limit.
    pub(super) fn leave<P: Leave>(&self, session: &Arc<Session<P>>) {
        if !session.with(|state| state.protocol.leave()) {
            return;
        }
        session.poll();
        if session.with(|state| state.protocol.has_ended()) {
            return;
        }
        let left = Left(Arc::clone(session));
        if self.limit.is_zero() {
            return;
        }
        let limit = self.limit;
        self.runtime.spawn(async move {
            let ended =
                poll_fn(|cx| left.0.poll_with(cx, |it, waker| it.protocol.poll_ended(waker)));
            // An error means that the time is up.
            let _ = timeout(limit, ended).await;
            drop(left);
        });
    }
}

/// A session without handles. Dropping this resets the connection, also if the runtime drops the task.
struct Left<P: Leave>(Arc<Session<P>>);

impl<P: Leave> Drop for Left<P> {
    fn drop(&mut self) {
        if self.0.is_of_this_process() {
            self.0.with(|state| state.requests.fail());
        }
    }
}
