//! Awaited operations: the post, and then the wait for the outcome.

use std::fmt;
use std::future::Future;
use std::pin::Pin;
use std::task::{Context, Poll};

use pin_project_lite::pin_project;

use super::failed::Failed;
use super::kinds::Kind;
use super::limit::Limit;
use super::work::Work;

pin_project! {
    /// The future of an awaited [`Op`](super::Op). It posts the operation and then waits for the outcome, at most for
    /// the [limit](super::Op::within) if there is one.
    #[must_use = "nothing is posted before it is awaited"]
    pub struct Run<'c, K: Kind> {
        #[pin]
        work: Work<'c, K>,
        limit: Limit,
    }
}

impl<'c, K: Kind> Run<'c, K> {
    #[inline]
    pub(crate) const fn new(work: Work<'c, K>, limit: Limit) -> Self {
        Self { work, limit }
    }
}

impl<K: Kind> Future for Run<'_, K> {
    type Output = Result<K::Output, Failed<K::Memory>>;

    #[inline]
    fn poll(self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Self::Output> {
        let this = self.project();
        this.work.poll_end(this.limit, cx)
    }
}

impl<K: Kind> fmt::Debug for Run<'_, K> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_tuple("Run").field(&self.work).finish()
    }
}
