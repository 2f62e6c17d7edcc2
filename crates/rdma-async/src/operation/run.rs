//! Operations from their post to their outcome.

use std::fmt;
use std::future::Future;
use std::pin::Pin;
use std::task::{Context, Poll, ready};

use pin_project_lite::pin_project;

use super::failed::Failed;
use super::kinds::Kind;
use super::post::Post;
use super::posted::Posted;

pin_project! {
    /// An [`Op`](super::Op) that is awaited: posts it, and waits for the outcome.
    #[must_use = "nothing is posted before it is awaited"]
    pub struct Run<'c, K: Kind> {
        #[pin]
        stage: Stage<'c, K>,
    }
}

pin_project! {
    #[project = StageProjection]
    enum Stage<'c, K: Kind> {
        Posting { #[pin] post: Post<'c, K> },
        Waiting { #[pin] posted: Posted<'c, K> },
    }
}

impl<'c, K: Kind> Run<'c, K> {
    #[inline]
    pub(crate) const fn new(post: Post<'c, K>) -> Self {
        Self { stage: Stage::Posting { post } }
    }
}

impl<K: Kind> Future for Run<'_, K> {
    type Output = Result<K::Output, Failed<K::Memory>>;

    #[inline]
    fn poll(self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Self::Output> {
        let mut this = self.project();
        loop {
            match this.stage.as_mut().project() {
                StageProjection::Posting { post } => {
                    let posted = ready!(post.poll(cx))?;
                    this.stage.set(Stage::Waiting { posted });
                }
                StageProjection::Waiting { posted } => return posted.poll(cx),
            }
        }
    }
}

impl<K: Kind> fmt::Debug for Run<'_, K> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match &self.stage {
            Stage::Posting { post } => f.debug_tuple("Run").field(post).finish(),
            Stage::Waiting { posted } => f.debug_tuple("Run").field(posted).finish(),
        }
    }
}
