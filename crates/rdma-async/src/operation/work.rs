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
use tokio::task::coop::poll_proceed;

use super::failed::Failed;
use super::kinds::{Kind, take};
use super::limit::Limit;
use super::posted::Posted;
use crate::buffer::held::sealed::Lease;
use crate::ledger::after::{After, contain_panic};
use crate::ledger::post::{PostFailure, RequestSpec};
use crate::ledger::slots::{Id, Side};
use crate::ledger::{BATCH, Ended, Table};
use crate::link::{Inner, Link};
use crate::sync::{MutexGuard, OwnedNotified};

pin_project! {
    #[project = Projection]
    /// The state of an operation until its outcome is known.
    pub(crate) struct Work<'c, K: Kind> {
        // `None` once the operation has ended or its link was moved elsewhere.
        link: Option<Link<'c>>,
        // `None` until the operation is posted.
        id: Option<Id>,
        // The memory of the operation, until it is posted. Empty if `link` is `None`, so that a finished operation
        // need not check it again.
        memory: ManuallyDrop<Option<K::Memory>>,
        request: RequestSpec,
        // Whether the operation is counted as waiting for a slot.
        has_queued: bool,
        #[pin]
        waits: Option<OwnedNotified>,
    }

    impl<'c, K: Kind> PinnedDrop for Work<'c, K> {
        #[inline]
        fn drop(this: Pin<&mut Self>) {
            if this.link.is_some() {
                this.give_up();
            }
        }
    }
}

impl<'c, K: Kind> Work<'c, K> {
    #[inline]
    pub(crate) const fn new(link: Link<'c>, memory: K::Memory, request: RequestSpec) -> Self {
        let memory = ManuallyDrop::new(Some(memory));
        Self { link: Some(link), id: None, memory, request, has_queued: false, waits: None }
    }

    /// Creates the value for an operation that has already been posted.
    pub(crate) const fn posted(link: Link<'c>, id: Id) -> Self {
        // The memory is in the slot, and the request given here is never read.
        let (memory, request) = (ManuallyDrop::new(None), RequestSpec::Receive);
        Self { link: Some(link), id: Some(id), memory, request, has_queued: false, waits: None }
    }

    /// Ready when the request has been posted or the post has failed.
    #[inline]
    pub(crate) fn poll_post(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
    ) -> Poll<Result<Posted<'c, K>, Failed<K::Memory>>> {
        // Uses tokio's budget like an awaited operation, so a task that only posts lets other tasks run.
        let budget = ready!(poll_proceed(cx));
        let this = self.as_mut().project();
        let Some(link) = &*this.link else { unreachable!("polled after it was ready") };
        let posted = match link.post::<K>(this.request, this.memory, this.has_queued) {
            Ok(id) => Ok(id),
            Err(PostFailure::Failed(error)) => Err(error),
            Err(PostFailure::NoSlot) => ready!(self.as_mut().wait(cx, Inner::post::<K>)),
        };
        budget.made_progress();
        match posted {
            Ok(id) => {
                let mut this = self.project();
                this.leave_row();
                let Some(link) = this.link.take() else { unreachable!("it was just used") };
                Poll::Ready(Ok(Posted::new(link, id)))
            }
            Err(error) => Poll::Ready(Err(self.not_posted(*error))),
        }
    }

    /// Ready when the request has ended, its post has failed, or its time is up.
    #[inline]
    pub(crate) fn poll_end(
        mut self: Pin<&mut Self>,
        limit: &mut Limit,
        cx: &mut Context<'_>,
    ) -> Poll<Result<K::Output, Failed<K::Memory>>> {
        // Without a budget, a task whose operations complete immediately would starve other tasks.
        let budget = ready!(poll_proceed(cx));
        let this = self.as_mut().project();
        let Some(link) = &*this.link else { unreachable!("polled after it was ready") };
        if this.id.is_none() {
            let posted = match link.post_and_poll::<K>(this.request, this.memory, this.has_queued) {
                Ok(posted) => Ok(posted),
                Err(PostFailure::Failed(error)) => Err(error),
                Err(PostFailure::NoSlot) => {
                    match self.as_mut().wait(cx, Inner::post_and_poll::<K>) {
                        Poll::Ready(posted) => posted,
                        Poll::Pending => return self.poll_late(limit, cx),
                    }
                }
            };
            let mut this = self.as_mut().project();
            match posted {
                Ok(Ok((success, word))) => {
                    budget.made_progress();
                    this.leave_row();
                    *this.link = None;
                    return Poll::Ready(Ok(K::finish(take(this.memory), &success, word)));
                }
                Ok(Err(id)) => {
                    *this.id = Some(id);
                    this.leave_row();
                }
                Err(error) => {
                    budget.made_progress();
                    return Poll::Ready(Err(self.not_posted(*error)));
                }
            }
        }
        let outcome = self.poll_posted(limit, cx);
        if outcome.is_ready() {
            budget.made_progress();
        }
        outcome
    }

    /// Ready when the posted request has ended, or its time is up.
    fn poll_posted(
        mut self: Pin<&mut Self>,
        limit: &mut Limit,
        cx: &mut Context<'_>,
    ) -> Poll<Result<K::Output, Failed<K::Memory>>> {
        let this = self.as_mut().project();
        let (Some(link), &Some(id)) = (&*this.link, &*this.id) else {
            unreachable!("it was posted")
        };
        match link.poll_end(id, &mut **this.memory, cx) {
            Poll::Ready(ended) => Poll::Ready(this.end(ended)),
            Poll::Pending => self.poll_late(limit, cx),
        }
    }

    /// Ready when the operation's time is up. The operation has timed out unless it has completed by then.
    #[cold]
    fn poll_late(
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
        link.give_up(None, Side::of(K::OPERATION), *this.has_queued);
        leave_row(this.waits);
        let (operation, peer) = (K::OPERATION, link.look(|entry| entry.peer));
        let error = TransportError::Timeout { operation, timeout, peer };
        Poll::Ready(Err(Failed::new(take(this.memory), error)))
    }

    /// Waits for a slot, and then posts the request.
    #[cold]
    fn wait<R>(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        post: impl Fn(&Inner, &RequestSpec, &mut Option<K::Memory>, &mut bool) -> Result<R, PostFailure>,
    ) -> Poll<Result<R, Box<TransportError>>> {
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
                let side = Side::of(K::OPERATION);
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
            match post(link, this.request, this.memory, this.has_queued) {
                Ok(posted) => return Poll::Ready(Ok(posted)),
                Err(PostFailure::NoSlot) => {}
                Err(PostFailure::Failed(error)) => return Poll::Ready(Err(error)),
            }
        }
    }

    /// Ends an operation that was dropped early.
    #[cold]
    #[inline(never)]
    fn give_up(self: Pin<&mut Self>) {
        let this = self.project();
        if let Some(link) = &*this.link {
            link.give_up(*this.id, Side::of(K::OPERATION), *this.has_queued);
        }
        leave_row(this.waits);
        drop(this.memory.take());
    }

    /// Stops waiting after the post has failed. Returns the error with the memory.
    #[cold]
    fn not_posted(self: Pin<&mut Self>, error: TransportError) -> Failed<K::Memory> {
        let this = self.project();
        let Some(link) = this.link.take() else { unreachable!("it was just used") };
        if mem::take(this.has_queued) {
            let side = Side::of(K::OPERATION);
            link.ledger.lock().note_waiting(link.entry, side, false);
            // The operation was woken for a slot that it did not use, so it wakes the next waiter.
            After::SlotFree(Arc::clone(&link.waiters), side).run();
        }
        leave_row(this.waits);
        Failed::new(take(this.memory), error)
    }
}

impl<'c, K: Kind> Projection<'_, 'c, K> {
    /// Leaves the queue of waiters, and passes on a wake-up that has already arrived.
    #[inline]
    fn leave_row(&mut self) {
        if self.waits.is_some() {
            leave_row(self.waits.as_mut());
        }
    }

    /// Returns the outcome of a request that has ended.
    #[inline(always)]
    fn end(mut self, ended: Ended) -> Result<K::Output, Failed<K::Memory>> {
        self.leave_row();
        ended.outcome::<K>(self.memory, self.link)
    }
}

/// Stops waiting for a slot. Passes a wake-up that has already arrived on to the next waiter. This runs a foreign
/// waker, which may panic.
#[cold]
fn leave_row(mut waits: Pin<&mut Option<OwnedNotified>>) {
    contain_panic(|| waits.set(None));
}

impl Inner {
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

    /// Checks once whether the request has ended; if so, its memory is in `memory`. Does not register a waker.
    ///
    /// # Errors
    /// If the completion queue fails and the outcome is unknown.
    pub(crate) fn look_once<M: Lease>(
        &self,
        id: Id,
        memory: &mut Option<M>,
    ) -> Result<Option<Ended>, PollError> {
        let mut table = self.ledger.lock();
        let (ended, polled) = table.look(self.ledger.cq(), id, memory);
        self.ledger.unlock(table);
        if ended.is_none() { polled.map(|_| None) } else { Ok(ended) }
    }

    /// Ready when the request has ended, with its memory in `memory`. Otherwise, the task is woken when the request ends.
    #[inline(always)]
    pub(crate) fn poll_end<M: Lease>(
        &self,
        id: Id,
        memory: &mut Option<M>,
        cx: &mut Context<'_>,
    ) -> Poll<Ended> {
        let mut table = self.ledger.lock();
        let (ended, polled) = table.look(self.ledger.cq(), id, memory);
        if let Some(ended) = ended {
            self.ledger.unlock(table);
            return Poll::Ready(ended);
        }
        self.wait_for_end(table, polled, id, memory, cx)
    }

    /// Registers the waker of a request that a first poll has not ended.
    fn wait_for_end<'t, M: Lease>(
        &'t self,
        mut table: MutexGuard<'t, Table>,
        mut polled: Result<usize, PollError>,
        id: Id,
        memory: &mut Option<M>,
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
                    return self.look_after_failure(id, memory, cx);
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
                    return self.look_after_failure(id, memory, cx);
                }
            }
            table = self.ledger.lock();
            (ended, polled) = table.look(self.ledger.cq(), id, memory);
        }
    }

    /// Handles a failure of the completion queue. Usually the request has ended by now. If another thread is still
    /// destroying the queue pair, or the provider refuses to, the thread that ends the request wakes this task.
    #[cold]
    fn look_after_failure<M: Lease>(
        &self,
        id: Id,
        memory: &mut Option<M>,
        cx: &mut Context<'_>,
    ) -> Poll<Ended> {
        let waker = cx.waker().clone();
        let mut table = self.ledger.lock();
        let ended = table.take(id, memory);
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
        let armed = table.arm(self.ledger.cq());
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
    fn give_up(&self, id: Option<Id>, side: Side, has_queued: bool) {
        if let Some(id) = id {
            self.detach(id);
        } else if has_queued && self.pd.context().check_process().is_ok() {
            self.ledger.lock().note_waiting(self.entry, side, false);
        }
    }
}

impl Link<'_> {
    /// Handles a request whose time is up. The request has timed out unless it has completed by now.
    #[cold]
    pub(crate) fn expire<K: Kind>(
        self,
        id: Id,
        timeout: Duration,
    ) -> Result<K::Output, Failed<K::Memory>> {
        // Completions may have arrived since the last check. A failure of the completion queue ends the request.
        let _ = self.ledger.progress();
        let (mut table, mut memory) = (self.ledger.lock(), None);
        if let Some(ended) = table.take(id, &mut memory) {
            self.ledger.unlock(table);
            return ended.outcome::<K>(&mut memory, &mut Some(self));
        }
        // Under the same lock as `take`: a completion is either taken there, or arrives after the wait has ended.
        let peer = table.at(self.entry).peer;
        let Some(operation) = self.detach_under(table, id) else {
            unreachable!("a request that has not ended is outstanding")
        };
        Err(Failed::late(TransportError::Timeout { operation, timeout, peer }))
    }
}

impl<K: Kind> fmt::Debug for Work<'_, K> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.id {
            Some(id) => id.fmt(f),
            None => self.request.fmt(f),
        }
    }
}
