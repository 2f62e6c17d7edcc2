//! Time limits of operations.

use std::future::Future;
use std::mem::ManuallyDrop;
use std::pin::Pin;
use std::task::{Context, Poll, ready};
use std::time::Duration;

use tokio::time::{Sleep, sleep};

use crate::link::Inner;
use crate::sync::LONGEST;

/// The time limit of an operation. `None` means the connection's limit. The limit is boxed, so that an operation
/// without its own limit grows by only 8 bytes.
#[derive(Debug)]
pub(crate) struct Limit(ManuallyDrop<Option<Box<Time>>>);

#[derive(Debug)]
struct Time {
    limit: Duration,
    /// `None` until the time starts to run.
    sleep: Option<Pin<Box<Sleep>>>,
}

impl Limit {
    /// The limit of the connection.
    pub(crate) const OF_CONNECTION: Self = Self(ManuallyDrop::new(None));

    pub(crate) fn new(limit: Duration) -> Self {
        Self(ManuallyDrop::new(Some(Box::new(Time { limit, sleep: None }))))
    }

    #[cold]
    #[inline(never)]
    fn clear(&mut self) {
        *self.0 = None;
    }

    /// Ready with the limit when the time is up. The time starts with the first call. The connection's limit applies
    /// only if `has_default` is set.
    #[cold]
    pub(crate) fn poll(
        &mut self,
        link: &Inner,
        has_default: bool,
        cx: &mut Context<'_>,
    ) -> Poll<Duration> {
        if self.0.is_none() {
            let default = link.operation_timeout().filter(|_| has_default);
            *self.0 = default.map(|limit| Box::new(Time { limit, sleep: None }));
        }
        let Some(time) = self.0.as_mut().filter(|time| time.limit <= LONGEST) else {
            return Poll::Pending;
        };
        // A zero limit needs no timer.
        if !time.limit.is_zero() {
            let sleep = time.sleep.get_or_insert_with(|| Box::pin(sleep(time.limit)));
            ready!(sleep.as_mut().poll(cx));
        }
        Poll::Ready(time.limit)
    }
}

/// Without this, the compiler would call a function even if there is no limit.
impl Drop for Limit {
    #[inline]
    fn drop(&mut self) {
        if self.0.is_some() {
            self.clear();
        }
    }
}
