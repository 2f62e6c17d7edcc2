//! The future that posts an operation. It waits while the queue is full.

use std::fmt;
use std::future::Future;
use std::pin::Pin;
use std::task::{Context, Poll};

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
        work: Work<'c, K>,
    }
}

impl<'c, K: Kind> Post<'c, K> {
    #[inline]
    pub(crate) const fn new(work: Work<'c, K>) -> Self {
        Self { work }
    }
}

impl<'c, K: Kind> Future for Post<'c, K> {
    type Output = Result<Posted<'c, K>, Failed<K::Memory>>;

    #[inline]
    fn poll(self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Self::Output> {
        self.project().work.poll_post(cx)
    }
}

impl<K: Kind> fmt::Debug for Post<'_, K> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_tuple("Post").field(&self.work).finish()
    }
}
