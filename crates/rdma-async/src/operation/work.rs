//! An operation of any kind from its description to its outcome: the wait for a free slot, the post, and the wait for
//! the completion.

use std::mem::ManuallyDrop;
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll, ready};
use std::time::Duration;
use std::{fmt, mem};

use pin_project_lite::pin_project;
use rdma_connect::{Operation, TransportError};
#[cfg(not(loom))]
use rdma_qp::WorkErrorCode;
use rdma_qp::{PollError, WorkError};

use super::failed::Failed;
use super::kinds::Kind;
use super::limit::Limit;
use super::posted::Posted;
use crate::buffer::held::Held;
use crate::ledger::after::{After, contain_panic};
use crate::ledger::entry::ConnectionEntry;
use crate::ledger::post::{PostFailure, RequestSpec};
use crate::ledger::slots::{Id, Side};
use crate::ledger::{BATCH, Ended, Table};
use crate::link::{Inner, Link};
use crate::sync::{MutexGuard, OwnedNotified};

pin_project! {
    /// The state of an operation until its outcome is known.
    pub(crate) struct Work<'c> {
        // `None` once the operation has ended or its link was moved elsewhere.
        link: Option<Link<'c>>,
        // `None` until the operation is posted.
        id: Option<Id>,
        // The memory of the operation, until it is posted. Empty if `link` is `None`, so that a finished operation
        // need not check it again.
        held: ManuallyDrop<Held>,
        request: RequestSpec,
        // Whether the operation is counted as waiting for a slot.
        has_queued: bool,
        #[pin]
        waits: Option<OwnedNotified>,
    }

    impl<'c> PinnedDrop for Work<'c> {
        #[inline]
        fn drop(this: Pin<&mut Self>) {
            let this = this.project();
            if let Some(link) = this.link {
                link.give_up(*this.id, this.request, *this.has_queued);
                leave_row(this.waits);
                drop(mem::take(&mut **this.held));
            }
        }
    }
}

impl<'c> Work<'c> {
    #[inline]
    pub(crate) const fn new(link: Link<'c>, held: Held, request: RequestSpec) -> Self {
        let held = ManuallyDrop::new(held);
        Self { link: Some(link), id: None, held, request, has_queued: false, waits: None }
    }

    /// Creates the value for an operation that has already been posted.
    pub(crate) const fn posted(link: Link<'c>, id: Id) -> Self {
        // The memory is in the slot, and the request given here is never read.
        let mut work = Self::new(link, Held::Nothing, RequestSpec::Receive);
        work.id = Some(id);
        work
    }

    /// Ready when the request has been posted or the post has failed.
    #[inline]
    pub(crate) fn poll_post<K: Kind>(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
    ) -> Poll<Result<Posted<'c, K>, Failed<K::Memory>>> {
        let posted = ready!(self.as_mut().post(cx, false));
        let this = self.project();
        let (Some(link), held) = (this.link.take(), this.held) else {
            unreachable!("polled after it was ready")
        };
        Poll::Ready(match (posted, *this.id) {
            (Ok(_), Some(id)) => Ok(Posted::new(link, id)),
            (Ok(_), None) => unreachable!("it was posted"),
            (Err(error), _) => Err(Failed::new::<K>(mem::take(&mut **held), *error)),
        })
    }

    /// Ready when the request has ended, its post has failed, or its time is up.
    #[inline]
    pub(crate) fn poll_end<K: Kind>(
        mut self: Pin<&mut Self>,
        limit: &mut Limit,
        cx: &mut Context<'_>,
    ) -> Poll<Result<K::Output, Failed<K::Memory>>> {
        let mut ended = None;
        if self.id.is_none() {
            match self.as_mut().post(cx, true) {
                Poll::Ready(Ok(looked)) => ended = looked,
                Poll::Ready(Err(error)) => {
                    let this = self.project();
                    *this.link = None;
                    return Poll::Ready(Err(Failed::new::<K>(mem::take(&mut **this.held), *error)));
                }
                Poll::Pending => return self.poll_late::<K>(limit, cx),
            }
        }
        let this = self.as_mut().project();
        let (Some(link), &Some(id)) = (&*this.link, &*this.id) else {
            unreachable!("polled after it was ready")
        };
        let ended = match ended {
            Some(ended) => ended,
            None => match link.poll_end(id, this.held, cx) {
                Poll::Ready(ended) => ended,
                Poll::Pending => return self.poll_late::<K>(limit, cx),
            },
        };
        let outcome = ended.outcome::<K>(mem::take(&mut **this.held), link);
        *this.link = None;
        Poll::Ready(outcome)
    }

    /// Ready when the operation's time is up. The operation has timed out unless it has completed by then.
    #[cold]
    fn poll_late<K: Kind>(
        self: Pin<&mut Self>,
        limit: &mut Limit,
        cx: &mut Context<'_>,
    ) -> Poll<Result<K::Output, Failed<K::Memory>>> {
        let this = self.project();
        let Some(link) = &*this.link else { unreachable!("it is polled until it has ended") };
        let timeout = ready!(limit.poll(link, K::HAS_LIMIT, cx));
        let Some(link) = this.link.take() else { unreachable!("it is polled until it has ended") };
        if let Some(id) = *this.id {
            return Poll::Ready(link.expire::<K>(id, timeout));
        }
        // The operation still waits for a slot.
        link.give_up(None, this.request, *this.has_queued);
        leave_row(this.waits);
        let (operation, peer) = (this.request.operation(), link.look(|entry| entry.peer));
        let error = TransportError::Timeout { operation, timeout, peer };
        Poll::Ready(Err(Failed::new::<K>(mem::take(&mut **this.held), error)))
    }

    /// Posts the request. Returns its outcome if it has already ended and `looks` is set.
    #[inline(always)]
    fn post(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        looks: bool,
    ) -> Poll<Result<Option<Ended>, Box<TransportError>>> {
        let this = self.as_mut().project();
        let Some(link) = &*this.link else { unreachable!("polled after it was ready") };
        match link.post(this.request, this.held, this.has_queued, this.id, looks) {
            Ok(ended) => {
                // The operation leaves the queue of waiters, and passes on a wake-up that it has already received.
                if this.waits.is_some() {
                    leave_row(this.waits);
                }
                Poll::Ready(Ok(ended))
            }
            Err(PostFailure::NoSlot) => self.wait(cx, looks),
            Err(PostFailure::Failed(error)) => Poll::Ready(Err(self.not_posted(error))),
        }
    }

    /// Waits for a slot.
    #[cold]
    fn wait(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        looks: bool,
    ) -> Poll<Result<Option<Ended>, Box<TransportError>>> {
        let mut has_looked = false;
        loop {
            let mut this = self.as_mut().project();
            let Some(link) = &*this.link else { unreachable!("it was not posted") };
            // Polling may free a slot. If the completion queue fails, the next attempt to post returns the error.
            if !mem::replace(&mut has_looked, true) {
                let _ = link.ledger.progress();
            } else if let Some(waits) = this.waits.as_mut().as_pin_mut() {
                ready!(waits.poll(cx));
                this.waits.set(None);
            } else {
                let side = this.request.side();
                if !mem::replace(this.has_queued, true) {
                    link.queue_up(side);
                }
                this.waits.set(Some(Arc::clone(link.waiters.of(side)).notified_owned()));
                if let Some(waits) = this.waits.as_mut().as_pin_mut() {
                    // From now on, the operation is in the queue of waiters. The next attempt to post finds any slot
                    // that was freed before.
                    waits.enable();
                }
            }
            match link.post(this.request, this.held, this.has_queued, this.id, looks) {
                Ok(ended) => {
                    leave_row(this.waits);
                    return Poll::Ready(Ok(ended));
                }
                Err(PostFailure::NoSlot) => {}
                Err(PostFailure::Failed(error)) => return Poll::Ready(Err(self.not_posted(error))),
            }
        }
    }

    /// Stops waiting after the post has failed.
    #[cold]
    fn not_posted(self: Pin<&mut Self>, error: Box<TransportError>) -> Box<TransportError> {
        let this = self.project();
        if mem::take(this.has_queued)
            && let Some(link) = &*this.link
        {
            let side = this.request.side();
            link.ledger.lock().note_waiting(link.entry, side, false);
            // The operation was woken for a slot that it did not use, so it wakes the next waiter.
            After::SlotFree(Arc::clone(&link.waiters), side).run();
        }
        leave_row(this.waits);
        error
    }
}

/// Stops waiting for a slot. Passes a wake-up that has already arrived on to the next waiter. This runs a foreign
/// waker, which may panic.
#[cold]
fn leave_row(mut waits: Pin<&mut Option<OwnedNotified>>) {
    contain_panic(|| waits.set(None));
}

impl Inner {
    /// Posts a request if a slot is free. If `looks` is set, this checks once whether the request has already ended; if
    /// so, its memory is back in `held`. If `has_queued` is set, a posted operation stops counting as a waiter, under
    /// the same lock as the post.
    ///
    /// # Errors
    /// If the request was not posted. Its memory stays in `held`.
    #[inline(always)]
    pub(crate) fn post(
        &self,
        request: &RequestSpec,
        held: &mut Held,
        has_queued: &mut bool,
        posted: &mut Option<Id>,
        looks: bool,
    ) -> Result<Option<Ended>, PostFailure> {
        if request.is_atomic() {
            self.prepare_words().map_err(|error| PostFailure::Failed(error.into()))?;
        }
        let mut table = self.ledger.lock();
        if let Some(lease) = &self.lease {
            lease.check(table.at(self.entry), request.operation())?;
        }
        self.post_under(table, request, held, has_queued, posted, looks)
    }

    /// Like [`post`](Self::post), but only if the queue pair has this epoch.
    ///
    /// # Errors
    /// If the request was not posted. Its memory stays in `held`.
    #[cfg(not(loom))]
    pub(crate) fn post_in_epoch(
        &self,
        request: &RequestSpec,
        epoch: u32,
        held: &mut Held,
        posted: &mut Option<Id>,
    ) -> Result<Option<Ended>, PostFailure> {
        let mut table = self.ledger.lock();
        if table.at(self.entry).epoch != epoch {
            return Err(PostFailure::NoSlot);
        }
        self.post_under(table, request, held, &mut false, posted, false)
    }

    /// Like [`post`](Self::post), but only if the queue pair has this epoch and its send queue is empty, because this
    /// request must not wait for others. The operation must not count as a waiter. Checks once whether the request has
    /// already ended.
    ///
    /// # Errors
    /// If the request was not posted. Its memory stays in `held`.
    pub(crate) fn post_alone(
        &self,
        request: &RequestSpec,
        epoch: u32,
        held: &mut Held,
        posted: &mut Option<Id>,
    ) -> Result<Option<Ended>, PostFailure> {
        for is_last in [false, true] {
            let mut table = self.ledger.lock();
            let entry = table.at(self.entry);
            if entry.epoch != epoch {
                break;
            }
            if !entry.is_sending() {
                return self.post_under(table, request, held, &mut false, posted, true);
            }
            drop(table);
            if !is_last {
                // After a poll, requests that have completed no longer count as outstanding.
                let _ = self.ledger.progress();
            }
        }
        Err(PostFailure::NoSlot)
    }

    #[inline(always)]
    fn post_under(
        &self,
        mut table: MutexGuard<'_, Table>,
        request: &RequestSpec,
        held: &mut Held,
        has_queued: &mut bool,
        posted: &mut Option<Id>,
        looks: bool,
    ) -> Result<Option<Ended>, PostFailure> {
        let (id, is_in_doubt) = table.at(self.entry).post(self.entry, request, held)?;
        *posted = Some(id);
        if mem::take(has_queued) {
            table.note_waiting(self.entry, request.side(), false);
        }
        if is_in_doubt {
            drop(table);
            self.end_doubt();
            return Ok(None);
        }
        // If the completion queue fails, the wait for the outcome returns the error.
        let ended = if looks { table.poll_for(self.ledger.cq(), id, held).0 } else { None };
        self.ledger.unlock(table);
        Ok(ended)
    }

    /// Counts an operation that starts to wait for a slot. Arms the completion queue, because the waiter must be woken
    /// on a failure even if no task awaits the requests in the slots.
    fn queue_up(&self, side: Side) {
        let mut table = self.ledger.lock();
        table.note_waiting(self.entry, side, true);
        table.at(self.entry).note_slot_wait();
        let armed = table.arm(self.ledger.cq());
        drop(table);
        self.ledger.note_armed(armed);
    }

    /// Ends the connection if a request may or may not have been posted. If the queue pair cannot be destroyed now, its
    /// operations end when it is destroyed.
    #[cold]
    fn end_doubt(&self) {
        let closed = self.ledger.lock().at(self.entry).closed();
        if let Some(reason) = closed
            && let Err(error) =
                self.ledger.close_if(self.entry, reason, ConnectionEntry::is_in_doubt)
        {
            tracing::error!(%error, "the queue pair of a request in doubt could not be destroyed");
        }
    }

    /// Checks once whether the request has ended; if so, its memory is in `held`. Does not register a waker.
    ///
    /// # Errors
    /// If the completion queue fails and the outcome is unknown.
    pub(crate) fn look_once(&self, id: Id, held: &mut Held) -> Result<Option<Ended>, PollError> {
        let mut table = self.ledger.lock();
        let mut ended = table.take(id, held);
        let mut polled = Ok(0);
        if ended.is_none() {
            (ended, polled) = table.poll_for(self.ledger.cq(), id, held);
        }
        self.ledger.unlock(table);
        if ended.is_none() { polled.map(|_| None) } else { Ok(ended) }
    }

    /// Ready when the request has ended, with its memory in `held`. Otherwise, the task is woken when the request ends.
    #[inline(always)]
    pub(crate) fn poll_end(&self, id: Id, held: &mut Held, cx: &mut Context<'_>) -> Poll<Ended> {
        let mut table = self.ledger.lock();
        let (mut ended, mut polled) = (table.take(id, held), Ok(0));
        if ended.is_none() {
            (ended, polled) = table.poll_for(self.ledger.cq(), id, held);
        }
        if let Some(ended) = ended {
            self.ledger.unlock(table);
            return Poll::Ready(ended);
        }
        self.wait_for_end(table, polled, id, held, cx)
    }

    /// Registers the waker of a request that a first poll has not ended.
    fn wait_for_end<'t>(
        &'t self,
        mut table: MutexGuard<'t, Table>,
        mut polled: Result<usize, PollError>,
        id: Id,
        held: &mut Held,
        cx: &mut Context<'_>,
    ) -> Poll<Ended> {
        // Cloned without the lock, because cloning a waker runs foreign code.
        let (mut waker, mut has_armed, mut ended) = (None, false, None);
        loop {
            // Checked under the same lock as the outcome, so a thread that polls later wakes this task.
            let mut is_awaited =
                ended.is_some() || table.at(self.entry).is_awaited_by(id, cx.waker());
            let mut before = waker.take();
            if !is_awaited && let Some(waker) = before.take() {
                before = table.await_end(id, waker, false);
                is_awaited = true;
            }
            // A task that sleeps needs an event. Another check finds completions that arrived before the queue was
            // armed.
            let is_pending = ended.is_none() && is_awaited && polled.is_ok();
            let armed = if is_pending { table.arm(self.ledger.cq()) } else { Ok(false) };
            self.ledger.unlock(table);
            drop(before);
            let is_newly = match armed {
                Ok(is_newly) => is_newly,
                Err(error) => {
                    self.ledger.fail_to_arm(&error);
                    return self.look_after_failure(id, held, cx);
                }
            };
            has_armed |= is_newly;
            match (ended, polled) {
                (Some(ended), _) => {
                    if has_armed {
                        // Completions after this task's own may also have arrived before the queue was armed, and may
                        // belong to other tasks.
                        let _ = self.ledger.progress();
                    }
                    return Poll::Ready(ended);
                }
                (None, Ok(count)) if is_newly || count == BATCH => {}
                (None, Ok(_)) if is_awaited => return Poll::Pending,
                (None, Ok(_)) => waker = Some(cx.waker().clone()),
                (None, Err(_)) => {
                    self.ledger.fail();
                    return self.look_after_failure(id, held, cx);
                }
            }
            table = self.ledger.lock();
            (ended, polled) = table.poll_for(self.ledger.cq(), id, held);
        }
    }

    /// Handles a failure of the completion queue. Usually the request has ended by now. If another thread is still
    /// destroying the queue pair, or the provider refuses to, the thread that ends the request wakes this task.
    #[cold]
    fn look_after_failure(&self, id: Id, held: &mut Held, cx: &mut Context<'_>) -> Poll<Ended> {
        let waker = cx.waker().clone();
        let mut table = self.ledger.lock();
        let ended = table.take(id, held);
        let before = match ended {
            Some(_) => Some(waker),
            None => table.await_end(id, waker, false),
        };
        self.ledger.unlock(table);
        drop(before);
        ended.map_or(Poll::Pending, Poll::Ready)
    }

    /// Stops waiting for a request.
    pub(crate) fn detach(&self, id: Id) {
        if self.pd.context().check_process().is_err() {
            return; // it belongs to the parent
        }
        self.detach_under(self.ledger.lock(), id);
    }

    /// Stops waiting for a request. Returns the kind of operation if the request is still outstanding.
    fn detach_under(&self, mut table: MutexGuard<'_, Table>, id: Id) -> Option<Operation> {
        let goes_on = table.detach(id);
        if let Some(lease) = self.lease.as_ref().filter(|_| goes_on.is_some()) {
            lease.note_detached();
        }
        // The memory is released when the request completes, so a completion must cause an event.
        let armed = if table.has_awaited() { table.arm(self.ledger.cq()) } else { Ok(false) };
        self.ledger.unlock(table);
        self.ledger.note_armed(armed);
        goes_on
    }

    /// Returns the error of a request that failed or ended with its queue pair.
    #[cold]
    pub(crate) fn failure(&self, operation: Operation, error: Option<WorkError>) -> TransportError {
        if let Some(lease) = &self.lease {
            lease.note_failed();
        }
        #[cfg(not(loom))]
        if let Some(WorkErrorCode::RetryExceededError) = error.map(|error| error.code())
            && let Some(reason) = self.member().and_then(|member| {
                let epoch = self.look(|entry| entry.epoch);
                member.gone(epoch)
            })
        {
            self.look(|entry| entry.note_gone(reason));
        }
        self.ledger.lock().at(self.entry).failure(operation, error)
    }

    /// Stops waiting for an operation that has not ended.
    #[cold]
    fn give_up(&self, id: Option<Id>, request: &RequestSpec, has_queued: bool) {
        if let Some(id) = id {
            self.detach(id);
        } else if has_queued && self.pd.context().check_process().is_ok() {
            self.ledger.lock().note_waiting(self.entry, request.side(), false);
        }
    }
}

impl Link<'_> {
    /// Handles a request whose time is up. The request has timed out unless it has completed by now.
    #[cold]
    pub(crate) fn expire<K: Kind>(
        &self,
        id: Id,
        timeout: Duration,
    ) -> Result<K::Output, Failed<K::Memory>> {
        // Completions may have arrived since the last check. A failure of the completion queue ends the request.
        let _ = self.ledger.progress();
        let (mut table, mut held) = (self.ledger.lock(), Held::Nothing);
        if let Some(ended) = table.take(id, &mut held) {
            self.ledger.unlock(table);
            return ended.outcome::<K>(held, self);
        }
        // Under the same lock as `take`: a completion is either taken there, or arrives after the wait has ended.
        let peer = table.at(self.entry).peer;
        let Some(operation) = self.detach_under(table, id) else {
            unreachable!("a request that has not ended is outstanding")
        };
        Err(Failed::late(TransportError::Timeout { operation, timeout, peer }))
    }
}

impl fmt::Debug for Work<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.id {
            Some(id) => id.fmt(f),
            None => self.request.fmt(f),
        }
    }
}
