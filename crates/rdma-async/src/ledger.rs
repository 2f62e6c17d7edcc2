//! The requests that a device holds, and their memory. Each completion queue has one lock, which covers polling the
//! queue and posting to its queue pairs.
//!
//! A slot holds a request's memory from before the post until its completion has been polled or its queue pair has been
//! destroyed. The slot also holds the waker of the task that awaits the request. Wakers run after the lock is released;
//! memory that no task awaits is also freed then ([`Afters`]).

pub(crate) mod after;
pub(crate) mod entry;
pub(crate) mod post;
pub(crate) mod slots;
#[cfg(all(test, not(loom)))]
mod tests;
pub(crate) mod waiters;

use std::fmt;
use std::sync::{Arc, PoisonError};
use std::task::Waker;

use rdma_connect::{CloseReason, Operation, PeerAddress, TransportError};
use rdma_qp::{
    CompletionQueue, Error, PollError, PollSlot, PolledCompletions, QueuePair, WorkResult,
};

use self::after::{After, Afters};
use self::entry::posting::{Posting, first_success};
use self::entry::{ConnectionEntry, Contents};
use self::post::{PostFailure, RequestSpec};
use self::slots::{Id, MOST, Side};
use self::waiters::Waiters;
use crate::buffer::held::sealed::Lease;
use crate::operation::kinds::Kind;
use crate::sync::{Mutex, MutexGuard};

/// Completions polled per call. Loom models use 1, so that completions often remain in the queue.
pub(crate) const BATCH: usize = if cfg!(loom) { 1 } else { 8 };

/// A completion queue and the queue pairs that complete in it.
pub(crate) struct Ledger {
    // Declared first, because the queue pairs must be destroyed before the completion queue.
    table: Mutex<Table>,
    cq: CompletionQueue,
    /// The number of requests that fit into the completion queue.
    capacity: u32,
}

/// The state protected by the lock.
#[derive(Debug)]
pub(crate) struct Table {
    entries: Vec<ConnectionEntry>,
    /// The number of requests that all queue pairs together may have outstanding.
    taken: u32,
    /// The number of queue pairs, including reserved ones.
    connections: u32,
    /// The number of connections that have entered so far.
    entered: u64,
    polled: [PollSlot; BATCH],
    /// Work to do after the lock is released.
    afters: Afters,
    /// The number of operations, over all entries, that wait for a slot.
    queued: usize,
    /// The completions that make the completion queue send an event, if its last event has been received.
    armed: Armed,
    /// The maximum number of events that the driver has yet to receive if the queue is not armed again.
    armings: usize,
    /// The value of `armings` before the driver last called for an event.
    expected: usize,
    /// The number of completions that match no request.
    unmatched: u64,
    /// Whether the completion queue has failed, so that no queue pair may enter.
    has_failed: bool,
}

/// The completions that make a completion queue send an event.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
enum Armed {
    No,
    /// Only failures and completions that a peer made solicited. Acknowledgements of requests then wake no one.
    Solicited,
    Any,
}

/// The outcome of a request that has ended, after its memory has been returned.
pub(crate) struct Ended {
    pub(crate) operation: Operation,
    /// The result from the completion, or `None` if the queue pair was destroyed before the request completed.
    pub(crate) result: Option<WorkResult>,
    /// The result of an atomic operation.
    pub(crate) word: u64,
}

/// Prints no state that the lock protects.
impl fmt::Debug for Ledger {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Ledger").field("cq", &self.cq.id()).finish_non_exhaustive()
    }
}

impl Ledger {
    pub(crate) fn new(cq: CompletionQueue) -> Self {
        let capacity = cq.min_capacity();
        let table = Table {
            entries: Vec::new(),
            taken: 0,
            connections: 0,
            entered: 0,
            polled: [PollSlot::default(); BATCH],
            afters: Afters::new(),
            queued: 0,
            armed: Armed::No,
            armings: 0,
            expected: 0,
            unmatched: 0,
            has_failed: false,
        };
        Self { table: Mutex::new(table), cq, capacity }
    }

    pub(crate) const fn cq(&self) -> &CompletionQueue {
        &self.cq
    }

    #[inline]
    pub(crate) fn lock(&self) -> MutexGuard<'_, Table> {
        self.table.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Releases the lock, then does the work that was deferred.
    #[inline]
    pub(crate) fn unlock(&self, table: MutexGuard<'_, Table>) {
        if !table.afters.due.is_empty() {
            self.do_afters(table);
        }
    }

    #[cold]
    fn do_afters(&self, mut table: MutexGuard<'_, Table>) {
        // A waker may poll again, and so add work in the meantime.
        let spare = std::mem::take(&mut table.afters.spare);
        let mut due = std::mem::replace(&mut table.afters.due, spare);
        drop(table);
        due.drain(..).for_each(After::run);
        // Keeps the allocation for later work.
        let mut table = self.lock();
        debug_assert!(table.afters.due.is_empty(), "the thread that adds work also takes it");
        let Afters { due: next, spare, .. } = &mut table.afters;
        // While a waker polled, its work had the spare list.
        let place = if next.capacity() < due.capacity() { next } else { spare };
        if place.capacity() < due.capacity() {
            *place = due;
        }
    }

    /// Reserves room for a queue pair with `requests` requests. Returns true if there was enough room.
    pub(crate) fn reserve(&self, requests: u32) -> bool {
        let mut table = self.lock();
        let has_room = requests <= self.capacity - table.taken && table.connections < MOST;
        let fits = !table.has_failed && has_room;
        if fits {
            table.taken += requests;
            table.connections += 1;
        }
        fits
    }

    /// Releases what was [reserved](Self::reserve).
    pub(crate) fn unreserve(&self, requests: u32) {
        let mut table = self.lock();
        table.taken -= requests;
        table.connections -= 1;
    }

    /// Creates an entry for a queue pair that completes here, whose room was [reserved](Self::reserve). Returns the
    /// entry's index, and a serial number that no other connection in this entry ever has.
    pub(crate) fn enter(
        &self,
        qp: QueuePair,
        depth: [u32; 2],
        waiters: Arc<Waiters>,
    ) -> (usize, u64) {
        // This calls the device, so the lock is not held.
        let port = qp.query().ok().map(|attributes| attributes.port);
        let mut table = self.lock();
        let entry =
            table.entries.iter().position(ConnectionEntry::is_empty).unwrap_or(table.entries.len());
        if entry == table.entries.len() {
            table.entries.push(ConnectionEntry::default());
        }
        table.entered += 1;
        let serial = table.entered;
        table.entries[entry].enter((qp, port), serial, depth, waiters);
        (entry, serial)
    }

    /// Puts a new queue pair into an entry that awaits one, and returns true. Returns false if the connection was
    /// closed in the meantime, or its port or the completion queue has failed.
    pub(crate) fn renew(&self, entry: usize, qp: QueuePair, epoch: u32) -> bool {
        // This calls the device, so the lock is not held.
        let port = qp.query().ok().map(|attributes| attributes.port);
        let mut table = self.lock();
        let can = !table.has_failed && table.at(entry).can_renew();
        if can {
            table.at(entry).renew((qp, port), epoch);
        } else {
            drop(table);
            drop(qp);
        }
        can
    }

    /// If `is_so` returns true for the entry, stops posts on its connection and lets its send queue drain. Notifies its
    /// [`Waiters`] now, and again when the send queue has drained.
    pub(crate) fn stop_if(
        &self,
        entry: usize,
        reason: CloseReason,
        is_so: impl FnOnce(&ConnectionEntry) -> bool,
    ) {
        let mut table = self.lock();
        if table.at(entry).is_gone() || !is_so(table.at(entry)) {
            return;
        }
        if !table.at(entry).is_draining() {
            table.note_waiting(entry, Side::Send, true);
        }
        let after = table.at(entry).stop(reason);
        let armed = table.arm(&self.cq);
        drop(table);
        after.run();
        self.note_armed(armed);
    }

    /// Handles the result of arming. Completions that arrived earlier cause no event, so this polls for them. If arming
    /// failed, no event will ever arrive, so all connections end.
    pub(crate) fn note_armed(&self, armed: Result<bool, Error>) {
        match armed {
            Ok(true) => drop(self.progress()),
            Ok(false) => {}
            Err(error) => self.fail_to_arm(&error),
        }
    }

    /// Polls until the completion queue is empty, and delivers each completion to its request.
    ///
    /// # Errors
    /// If the completion queue has failed, which ends all its connections.
    pub(crate) fn progress(&self) -> Result<usize, PollError> {
        self.progress_up_to(usize::MAX)
    }

    /// Like [`progress`](Self::progress), but stops after a batch once this many completions were polled.
    fn progress_up_to(&self, most: usize) -> Result<usize, PollError> {
        self.drain_up_to(most).inspect_err(|_| self.fail())
    }

    /// Returns the maximum number of events that can be received now, before the queue is armed again. The caller then
    /// calls for an event, and [`note_event`](Self::note_event) or [`note_no_event`](Self::note_no_event).
    pub(crate) fn expect_events(&self) -> usize {
        let mut table = self.lock();
        table.expected = table.armings;
        table.armings
    }

    /// Records that an event of this queue was received. The queue is then no longer armed.
    pub(crate) fn note_event(&self) {
        let mut table = self.lock();
        table.armings = table.armings.saturating_sub(1);
        table.armed = Armed::No;
    }

    /// Records that no event was left. At most one arming before the call can then still send its event.
    pub(crate) fn note_no_event(&self) {
        let mut table = self.lock();
        debug_assert!(table.expected <= table.armings, "only events reduce their number");
        table.armings -= table.expected.saturating_sub(1);
    }

    /// Polls all completions. Called after the events of the completion queue have been received. Arms the queue, unless
    /// it still is. Without `always`, only completions that have to wake a task or release memory then send an event.
    /// Returns the number of completions. If there are at least `most`, some may be left, and the queue is not armed.
    ///
    /// # Errors
    /// If the completion queue cannot be armed. A failed completion queue is not an error, because its operations have
    /// already ended.
    pub(crate) fn sweep(&self, always: bool, most: usize) -> Result<usize, Error> {
        let mut all = self.progress_up_to(most).unwrap_or(0);
        if all >= most {
            return Ok(all);
        }
        let mut table = self.lock();
        let wanted = if always { Armed::Any } else { table.awaited() };
        let is_newly = !table.has_failed && table.arm_for(wanted, &self.cq)?;
        drop(table);
        if is_newly {
            // Completions that arrived before the arming cause no event.
            all += self.progress_up_to(most - all).unwrap_or(0);
        }
        Ok(all)
    }

    /// Ends all connections of a completion queue that cannot be armed, because it would send no events.
    #[cold]
    pub(crate) fn fail_to_arm(&self, error: &Error) {
        tracing::error!(%error, "a completion queue cannot be armed: its connections end");
        self.fail();
    }

    /// Like [`progress`](Self::progress), but the caller handles a failure of the completion queue.
    fn drain(&self) -> Result<usize, PollError> {
        self.drain_up_to(usize::MAX)
    }

    fn drain_up_to(&self, most: usize) -> Result<usize, PollError> {
        let mut all = 0;
        loop {
            let mut table = self.lock();
            let polled = table.poll(&self.cq);
            self.unlock(table);
            let count = polled?;
            all += count;
            if count < BATCH || all >= most {
                return Ok(all);
            }
        }
    }

    /// Marks the completion queue as failed, and ends all its connections.
    #[cold]
    pub(crate) fn fail(&self) {
        self.lock().has_failed = true;
        self.close_all(CloseReason::Poll);
    }

    pub(crate) fn close_all(&self, reason: CloseReason) {
        self.close_those_of(None, reason);
    }

    /// Ends the connections of a port, or all connections if `port` is `None`.
    pub(crate) fn close_those_of(&self, port: Option<u8>, reason: CloseReason) {
        let entries = self.lock().entries.len();
        for entry in 0..entries {
            if !self.lock().at(entry).note_outage(port) {
                continue;
            }
            if let Err(error) = self.close_if(entry, reason, |entry| entry.is_of(port)) {
                tracing::error!(%error, "a queue pair could not be destroyed: its memory stays in use");
            }
        }
    }

    /// Ends a connection by destroying its queue pair, which ends all its operations. Requests that have already
    /// completed keep their result.
    ///
    /// # Errors
    /// If the provider refuses to destroy the queue pair. The operations then end as they complete, or when a later
    /// call destroys the queue pair.
    pub(crate) fn close(&self, entry: usize, reason: CloseReason) -> Result<(), Error> {
        self.lock().at(entry).forbid_renewal();
        self.close_if(entry, reason, |_| true)
    }

    /// Like [`close`](Self::close), but only if `is_so` returns true for the entry. The check and the removal of the
    /// queue pair happen under the same lock.
    ///
    /// # Errors
    /// If the provider refuses to destroy the queue pair.
    pub(crate) fn close_if(
        &self,
        entry: usize,
        reason: CloseReason,
        is_so: impl FnOnce(&ConnectionEntry) -> bool,
    ) -> Result<(), Error> {
        // A failed completion queue has no completions left to poll.
        let _ = self.drain();
        let taken = {
            let mut table = self.lock();
            let entry = table.at(entry);
            if is_so(entry) { entry.take(reason) } else { None }
        };
        let Some(qp) = taken else { return Ok(()) };
        if reason.is_of_peer() {
            // Requests that the peer executed before it closed have succeeded, but their completions may not have been
            // polled yet. Destroying the queue pair would drop these completions, so the queue pair is moved to error
            // first. If the move fails, the queue pair is destroyed anyway.
            let _ = qp.to_error();
            let _ = self.drain();
        }
        // Destroying takes time, so the lock is not held and other connections continue.
        let closed = qp.close();
        // Polls the completions of the destroyed queue pair that the provider left in the completion queue, and any
        // that arrived in the meantime.
        let _ = self.drain();
        let mut table = self.lock();
        let afters = match closed {
            Ok(()) => {
                if table.at(entry).is_draining() {
                    table.note_waiting(entry, Side::Send, false);
                }
                let (afters, reported) = table.at(entry).end();
                reported.into_iter().for_each(|solicited| table.afters.note_reported(solicited));
                afters
            }
            Err((qp, error)) => {
                table.at(entry).put_back(qp);
                let waiters = Arc::clone(table.at(entry).waiters());
                drop(table);
                After::Close(waiters).run();
                return Err(error);
            }
        };
        // Frees the entry if the connection's last owner was dropped in the meantime.
        let left = table.at(entry).is_abandoned().then(|| table.vacate(entry));
        drop(table);
        afters.into_iter().for_each(After::run);
        drop(left);
        Ok(())
    }

    /// Ends a connection whose last owner was dropped, and frees its entry.
    pub(crate) fn leave(&self, entry: usize) {
        let closed = self.close(entry, CloseReason::Destroyed);
        let mut table = self.lock();
        let count = std::mem::take(&mut table.unmatched);
        // If the queue pair has yet to be destroyed, by another thread or in a later call, the entry is freed then.
        let left = (!table.at(entry).abandon()).then(|| table.vacate(entry));
        drop(table);
        drop(left);
        if count > 0 {
            tracing::debug!(count, "completions matched no request");
        }
        if let Err(error) = closed {
            tracing::error!(%error, "a queue pair could not be destroyed: its memory stays in use");
        }
    }

    pub(crate) fn is_failed(&self) -> bool {
        self.lock().has_failed
    }
}

impl Table {
    /// Returns an entry that is in use. The entry cannot be vacated, because the caller holds its index.
    #[inline]
    pub(crate) fn at(&mut self, entry: usize) -> &mut ConnectionEntry {
        &mut self.entries[entry]
    }

    /// Frees the entry of a destroyed queue pair. Returns its contents, for the caller to drop after releasing the
    /// lock.
    fn vacate(&mut self, entry: usize) -> Contents {
        self.taken -= self.at(entry).depth();
        // Leaked futures (`mem::forget`) are still counted as waiting.
        self.queued -= self.at(entry).waiting().min(self.queued);
        self.connections -= 1;
        self.at(entry).leave()
    }

    /// Arms the completion queue for the completions that are [awaited](Self::awaited). Returns true if it was not
    /// already armed; the caller must then poll again, because a completion may have arrived just before.
    #[inline]
    pub(crate) fn arm(&mut self, cq: &CompletionQueue) -> Result<bool, Error> {
        self.arm_for(self.awaited(), cq)
    }

    fn arm_for(&mut self, wanted: Armed, cq: &CompletionQueue) -> Result<bool, Error> {
        if self.armed >= wanted {
            return Ok(false);
        }
        self.armings += 1;
        cq.req_notify(wanted == Armed::Solicited)?;
        self.armed = wanted;
        Ok(true)
    }

    /// Returns the completions that have to wake a task or release memory.
    const fn awaited(&self) -> Armed {
        let Afters { awaited, solicited, .. } = self.afters;
        match (awaited, self.queued) {
            (0, 0) => Armed::No,
            (_, 0) if solicited == awaited => Armed::Solicited,
            _ => Armed::Any,
        }
    }

    /// Polls one batch, and delivers each completion to its request.
    #[inline]
    pub(crate) fn poll(&mut self, cq: &CompletionQueue) -> Result<usize, PollError> {
        let Self { entries, polled, afters, unmatched, .. } = self;
        let completions = cq.poll(polled)?;
        let count = completions.len();
        deliver_all(entries, completions, afters, unmatched);
        Ok(count)
    }

    /// [Takes](Self::take) the outcome of a request. If it is in flight, first polls one batch like
    /// [`poll`](Self::poll).
    #[inline(always)]
    pub(crate) fn look<M: Lease>(
        &mut self,
        cq: &CompletionQueue,
        id: Id,
        memory: &mut Option<M>,
    ) -> (Option<Ended>, Result<usize, PollError>) {
        let Self { entries, polled, afters, unmatched, .. } = self;
        let entry = &mut entries[id.entry()];
        if let Some(ended) = entry.take_ended(id, memory, afters) {
            return (Some(ended), Ok(0));
        }
        let mut completions = match cq.poll(polled) {
            Ok(completions) => completions,
            Err(error) => return (None, Err(error)),
        };
        let count = completions.len();
        // A request that has ended is usually the first of its batch. Its result is not stored in its slot.
        if let Some(success) = first_success(&completions, id)
            && let Some(ended) = entry.end_in_flight(id, success, memory)
        {
            completions.next();
            if !completions.is_empty() {
                deliver_all(entries, completions, afters, unmatched);
            }
            return (Some(ended), Ok(count));
        }
        deliver_all(entries, completions, afters, unmatched);
        (self.take(id, memory), Ok(count))
    }

    /// Posts a request and polls once. Its memory stays in `memory` if it is already done.
    ///
    /// # Errors
    /// Same errors as [`ConnectionEntry::post`].
    #[inline(always)]
    pub(crate) fn post_and_poll<K: Kind>(
        &mut self,
        cq: &CompletionQueue,
        entry: usize,
        request: &RequestSpec,
        memory: &mut Option<K::Memory>,
    ) -> Result<Posting, PostFailure> {
        let Self { entries, polled, afters, unmatched, .. } = self;
        let (posting, completions) =
            entries[entry].post_and_poll::<K>(entry, request, memory, cq, polled)?;
        if let Some(completions) = completions
            && !completions.is_empty()
        {
            deliver_all(entries, completions, afters, unmatched);
        }
        Ok(posting)
    }

    /// Takes the outcome of a request that has ended. Frees its slot, and moves its memory to `memory`.
    #[inline(never)]
    pub(crate) fn take<M: Lease>(&mut self, id: Id, memory: &mut Option<M>) -> Option<Ended> {
        self.entries[id.entry()].take_ended(id, memory, &mut self.afters)
    }

    /// Counts an operation that starts or stops waiting for a slot of an entry.
    pub(crate) fn note_waiting(&mut self, entry: usize, side: Side, is_one_more: bool) {
        self.at(entry).note_waiting(side, is_one_more);
        self.queued = if is_one_more { self.queued + 1 } else { self.queued.saturating_sub(1) };
    }

    /// See [`ConnectionEntry::await_end`].
    pub(crate) fn await_end(&mut self, id: Id, waker: Waker, is_solicited: bool) -> Option<Waker> {
        self.entries[id.entry()].await_end(id, waker, is_solicited, &mut self.afters)
    }

    /// Stops waiting for a request. Returns the kind of operation if the device still holds the request.
    pub(crate) fn detach(&mut self, id: Id) -> Option<Operation> {
        self.entries[id.entry()].detach(id, &mut self.afters)
    }
}

/// Delivers each completion to its request, and counts those that match none.
fn deliver_all(
    entries: &mut [ConnectionEntry],
    completions: PolledCompletions<'_>,
    afters: &mut Afters,
    unmatched: &mut u64,
) {
    for completion in completions {
        let id = Id(completion.wr_id());
        let entry = entries.get_mut(id.entry());
        if !entry.is_some_and(|entry| entry.deliver(id, completion, afters)) {
            *unmatched += 1;
        }
    }
}

/// Returns the error of a request that failed or was not posted because its connection is closed.
pub(crate) fn closed(reason: CloseReason, peer: Option<PeerAddress>) -> TransportError {
    TransportError::Closed { reason, peer, event: None }
}
