//! Operations that are with the device.

use std::fmt;
use std::future::Future;
use std::marker::PhantomData;
use std::pin::Pin;
use std::task::{Context, Poll, ready};

use super::failed::Failed;
use super::kinds::{Kind, memory};
use crate::ledger::slots::Id;
use crate::ledger::{BATCH, Ended};
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

    /// Of one that is not over.
    pub(crate) fn link(&self) -> &Link<'c> {
        let Some(link) = &self.link else { unreachable!("it is over") };
        link
    }
}

impl<K: Kind> Future for Posted<'_, K> {
    type Output = Result<K::Output, Failed<K::Memory>>;

    #[inline]
    fn poll(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Self::Output> {
        // Without a budget, a task whose operations are always done would keep others from running.
        let budget = ready!(tokio::task::coop::poll_proceed(cx));
        let id = self.id;
        let Some(link) = &self.link else { unreachable!("polled after it was ready") };
        // A clone for the slot, made without the lock: it is foreign code.
        let mut waker = None;
        let ended = loop {
            let mut table = link.ledger.lock();
            let mut ended = table.take(id);
            let mut polled = Ok(0);
            if ended.is_none() {
                polled = table.poll(link.ledger.cq());
                ended = table.take(id);
            }
            // Under the same lock as the look: who polls later wakes this one.
            let mut is_awaited =
                ended.is_some() || table.at(link.place).is_awaited_by(id, cx.waker());
            let mut before = waker.take();
            if !is_awaited && let Some(waker) = before.take() {
                before = table.at(link.place).await_end(id, waker);
                is_awaited = true;
            }
            link.ledger.unlock(table);
            drop(before);
            match (ended, polled) {
                (Some(ended), _) => break ended,
                (None, Ok(BATCH)) => {}
                (None, Ok(_)) if is_awaited => return Poll::Pending,
                (None, Ok(_)) => waker = Some(cx.waker().clone()),
                (None, Err(error)) => {
                    // All is over then, unless the provider refuses to destroy a queue pair: then the next poll tries again.
                    link.ledger.fail(error);
                    let mut table = link.ledger.lock();
                    let ended = table.take(id);
                    link.ledger.unlock(table);
                    match ended {
                        Some(ended) => break ended,
                        None => return Poll::Pending,
                    }
                }
            }
        };
        budget.made_progress();
        self.link = None;
        let Ended { held, result, word } = ended;
        Poll::Ready(match result {
            Ok(success) => Ok(K::finish(memory::<K>(held), &success, word)),
            Err(error) => Err(Failed::new::<K>(held, error)),
        })
    }
}

impl<K: Kind> Drop for Posted<'_, K> {
    fn drop(&mut self) {
        let Some(link) = self.link.take() else { return };
        if link.pd.context().check_process().is_err() {
            return; // it is the parent's
        }
        let mut table = link.ledger.lock();
        table.forsake(self.id);
        link.ledger.unlock(table);
    }
}

impl<K: Kind> fmt::Debug for Posted<'_, K> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_tuple("Posted").field(&self.id).finish()
    }
}
