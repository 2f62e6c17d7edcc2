//! The limits of the time that the end of a connection may take.

use std::future::poll_fn;
use std::sync::{Arc, Weak};
use std::task::Poll;
use std::time::Duration;

use rdma_connect::messaging::Requests as _;
use tokio::runtime::Handle;
use tokio::time::{sleep, timeout};

use super::session::{Drive, Session};
use crate::sync::LONGEST;

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
    pub(super) fn limit_end<P: Drive>(&self, session: Weak<Session<P>>) {
        let (limit, failed) = (self.limit, Failed(session));
        self.runtime.spawn(async move {
            sleep(limit).await;
            drop(failed);
        });
    }

    /// Removes a handle of the session. After the last one, a task waits until both ends have finished, and resets the
    /// connection at the limit.
    pub(super) fn leave<P: Drive>(&self, session: &Arc<Session<P>>) {
        if !session.with(|state| state.protocol.leave()) {
            return;
        }
        session.poll();
        if session.with(|state| state.protocol.end().reason().is_some()) {
            return;
        }
        let left = Left(Arc::clone(session));
        if self.limit.is_zero() {
            return;
        }
        let limit = self.limit;
        self.runtime.spawn(async move {
            let ended = poll_fn(|cx| {
                left.0.poll_with(cx, |state, waker| {
                    if state.protocol.end().reason().is_some() {
                        return Poll::Ready(());
                    }
                    state.protocol.await_end(waker);
                    Poll::Pending
                })
            });
            // An error means that the time is up.
            let _ = timeout(limit, ended).await;
            drop(left);
        });
    }
}

/// A session whose peer is notified of an error. Dropping this resets the connection, also if the runtime has ended.
struct Failed<P: Drive>(Weak<Session<P>>);

impl<P: Drive> Drop for Failed<P> {
    fn drop(&mut self) {
        if let Some(session) = self.0.upgrade() {
            reset(&session);
        }
    }
}

/// A session without handles. Dropping this resets the connection, also if the runtime drops the task.
struct Left<P: Drive>(Arc<Session<P>>);

impl<P: Drive> Drop for Left<P> {
    fn drop(&mut self) {
        reset(&self.0);
    }
}

/// Resets a connection, but not in a forked child, which does not own it.
fn reset<P: Drive>(session: &Session<P>) {
    if session.is_of_this_process() {
        session.with(|state| state.requests.fail());
    }
}
