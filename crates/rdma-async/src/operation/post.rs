//! The future that posts an operation. It waits while the queue is full.

use std::fmt;
use std::future::Future;
use std::marker::PhantomData;
use std::pin::Pin;
use std::task::{Context, Poll, ready};

use pin_project_lite::pin_project;

use super::failed::Failed;
use super::kinds::Kind;
use super::posted::Posted;
use super::work::Work;

pin_project! {
    /// The future of [`Op::post`](super::Op::post), ready when the device has accepted the request.
    #[must_use = "nothing is posted before it is awaited"]
    pub struct Post<'c, K: Kind> {
        #[pin]
        work: Work<'c>,
        kind: PhantomData<fn() -> K>,
    }
}

impl<'c, K: Kind> Post<'c, K> {
    #[inline]
    pub(crate) const fn new(work: Work<'c>) -> Self {
        Self { work, kind: PhantomData }
    }
}

impl<'c, K: Kind> Future for Post<'c, K> {
    type Output = Result<Posted<'c, K>, Failed<K::Memory>>;

    #[inline]
    fn poll(self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Self::Output> {
        // Uses tokio's budget like an awaited operation, so a task that only posts lets other tasks run.
        let budget = ready!(tokio::task::coop::poll_proceed(cx));
        let posted = ready!(self.project().work.poll_post::<K>(cx));
        budget.made_progress();
        Poll::Ready(posted)
    }
}

impl<K: Kind> fmt::Debug for Post<'_, K> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_tuple("Post").field(&self.work).finish()
    }
}
