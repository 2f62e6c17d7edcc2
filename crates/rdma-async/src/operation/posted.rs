//! Operations that are with the device.

use std::fmt;
use std::future::Future;
use std::marker::PhantomData;
use std::pin::Pin;
use std::task::{Context, Poll, ready};

use super::failed::Failed;
use super::kinds::Kind;
use crate::buffer::held::Held;
use crate::ledger::slots::Id;
use crate::link::Link;

/// An operation that is with the device: await it for the outcome. Dropped, it leaves its memory with the request, and the
/// memory is given back when that has completed.
#[must_use = "its memory comes back from it"]
pub struct Posted<'c, K: Kind> {
    /// `None` when it is over.
    link: Option<Link<'c>>,
    id: Id,
    kind: PhantomData<fn() -> K>,
}

impl<'c, K: Kind> Posted<'c, K> {
    #[inline]
    pub(crate) const fn new(link: Link<'c>, id: Id) -> Self {
        Self { link: Some(link), id, kind: PhantomData }
    }
}

impl<K: Kind> Future for Posted<'_, K> {
    type Output = Result<K::Output, Failed<K::Memory>>;

    #[inline]
    fn poll(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Self::Output> {
        // Without a budget, a task whose operations are always done would keep others from running.
        let budget = ready!(tokio::task::coop::poll_proceed(cx));
        let Some(link) = &self.link else { unreachable!("polled after it was ready") };
        let mut held = Held::Nothing;
        let ended = ready!(link.poll_end(self.id, &mut held, cx));
        budget.made_progress();
        let outcome = ended.outcome::<K>(held, link);
        self.link = None;
        Poll::Ready(outcome)
    }
}

impl<K: Kind> Drop for Posted<'_, K> {
    #[inline]
    fn drop(&mut self) {
        if let Some(link) = self.link.take() {
            link.forsake(self.id);
        }
    }
}

impl<K: Kind> fmt::Debug for Posted<'_, K> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_tuple("Posted").field(&self.id).finish()
    }
}
