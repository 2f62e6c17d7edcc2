//! The requests that are with a device, and their memory: one lock for each completion queue, under which it is polled
//! and its queue pairs are posted to.
//!
//! A slot holds the memory of a request from before it is posted until its completion was polled, or its queue pair was
//! destroyed. Who waits for it is beside it. Wakers, and memory that nobody waits for, are let go of when the lock is
//! free again ([`Afters`]).

pub(crate) mod after;
pub(crate) mod entry;
pub(crate) mod post;
pub(crate) mod slots;
#[cfg(all(test, not(loom)))]
mod tests;

use std::fmt;
use std::sync::{Arc, PoisonError};
use std::task::Waker;

use rdma_connect::{CloseReason, Operation, PeerAddress, TransportError};
use rdma_qp::{CompletionQueue, Error, PollError, PollSlot, QueuePair, WorkResult};

use self::after::{After, Afters};
use self::entry::{ConnectionEntry, Left, Rooms};
use self::slots::{Id, MOST, Side};
use crate::buffer::held::Held;
use crate::sync::{Mutex, MutexGuard};

/// So many completions are polled at a time; in models one, so that there is often one behind it.
pub(crate) const BATCH: usize = if cfg!(loom) { 1 } else { 8 };

/// A completion queue, and the queue pairs that complete there.
pub(crate) struct Ledger {
    // First: its queue pairs are destroyed before the completion queue.
    table: Mutex<Table>,
    cq: CompletionQueue,
    /// How many requests the completion queue has room for.
    capacity: u32,
}

/// What is under the lock.
#[derive(Debug)]
pub(crate) struct Table {
    entries: Vec<ConnectionEntry>,
    /// How many requests the queue pairs can have outstanding, all together.
    taken: u32,
    /// How many queue pairs there are, and are to come.
    connections: u32,
    /// How many have come.
    entered: u64,
    polled: [PollSlot; BATCH],
    /// What is to be done when the lock is free.
    afters: Afters,
    /// How many wait for a slot, of all entries.
    queued: usize,
    /// The completion queue was asked for an event, which was not taken yet.
    is_armed: bool,
    /// Completions that are of no request.
    unmatched: u64,
    /// The completion queue has failed: nobody comes here any more.
    has_failed: bool,
}

/// How a request has ended, whose memory is its owner's again.
pub(crate) struct Ended {
    pub(crate) operation: Operation,
    /// As its completion says; `None` if its queue pair was destroyed before.
    pub(crate) result: Option<WorkResult>,
    /// What an atomic operation has brought.
    pub(crate) word: u64,
}

/// Without what is locked.
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
            afters: Afters { due: Vec::with_capacity(after::MOST), awaited: 0 },
            queued: 0,
            is_armed: false,
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

    /// Unlocks, and does what is due then.
    #[inline]
    pub(crate) fn unlock(&self, table: MutexGuard<'_, Table>) {
        if !table.afters.due.is_empty() {
            self.do_afters(table);
        }
    }

    #[cold]
    fn do_afters(&self, mut table: MutexGuard<'_, Table>) {
        let mut due = std::mem::take(&mut table.afters.due);
        drop(table);
        due.drain(..).for_each(After::run);
        // Its room is used again.
        let mut table = self.lock();
        debug_assert!(table.afters.due.is_empty(), "who adds to it takes it");
        if table.afters.due.capacity() < due.capacity() {
            table.afters.due = due;
        }
    }

    /// Has the completion queue room for one more queue pair with so many requests? Then it is taken.
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

    /// Gives back what was [reserved](Self::reserve).
    pub(crate) fn unreserve(&self, requests: u32) {
        let mut table = self.lock();
        table.taken -= requests;
        table.connections -= 1;
    }

    /// An entry for a queue pair that completes here, and for whose requests there is room; and its serial number, which no
    /// other one has had there.
    pub(crate) fn enter(&self, qp: QueuePair, depth: [u32; 2], rooms: Arc<Rooms>) -> (usize, u64) {
        // A call of the device, so without the lock.
        let port = qp.query().ok().map(|attributes| attributes.port);
        let mut table = self.lock();
        let entry =
            table.entries.iter().position(ConnectionEntry::is_empty).unwrap_or(table.entries.len());
        if entry == table.entries.len() {
            table.entries.push(ConnectionEntry::default());
        }
        table.entered += 1;
        let serial = table.entered;
        table.entries[entry].enter((qp, port), serial, depth, rooms);
        (entry, serial)
    }

    /// Puts another queue pair into an entry that awaits one. Whether it could: not if an end was asked for meanwhile, or the
    /// completion queue has failed.
    pub(crate) fn renew(&self, entry: usize, qp: QueuePair, epoch: u32) -> bool {
        // A call of the device, so without the lock.
        let port = qp.query().ok().map(|attributes| attributes.port);
        let mut table = self.lock();
        let can = !table.has_failed && table.at(entry).takes_another();
        if can {
            table.at(entry).renew((qp, port), epoch);
        } else {
            drop(table);
            drop(qp);
        }
        can
    }

    /// A connection takes no more requests, and those of its send queue are waited for: its [`Rooms`] tell when they are
    /// over. Only if that is so of its entry.
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

    /// What came before the completion queue was asked makes no event. One that cannot be asked tells nobody anything.
    pub(crate) fn note_armed(&self, armed: Result<bool, Error>) {
        match armed {
            Ok(true) => drop(self.progress()),
            Ok(false) => {}
            Err(error) => self.fail_to_arm(&error),
        }
    }

    /// Polls until nothing is there, and brings each completion to its request.
    ///
    /// # Errors
    /// If the completion queue has failed, which ends all that there is.
    pub(crate) fn progress(&self) -> Result<usize, PollError> {
        self.drain().inspect_err(|_| self.fail())
    }

    /// Takes all that is there, after the events of the completion queue were taken, and has the next completion make another
    /// one if somebody has to be told of it, or `always`. How many completions there were.
    ///
    /// # Errors
    /// If the completion queue cannot be asked. A failure of it has ended its operations.
    pub(crate) fn sweep(&self, always: bool) -> Result<usize, Error> {
        self.lock().is_armed = false;
        let mut all = self.progress().unwrap_or(0);
        let mut table = self.lock();
        let is_asked = !table.has_failed && (always || table.has_awaited());
        let is_newly = is_asked && table.arm(&self.cq)?;
        drop(table);
        if is_newly {
            // What came before it was asked makes no event.
            all += self.progress().unwrap_or(0);
        }
        Ok(all)
    }

    /// A completion queue that cannot be asked tells nobody anything: all connections end.
    #[cold]
    pub(crate) fn fail_to_arm(&self, error: &Error) {
        tracing::error!(%error, "a completion queue cannot be asked for events");
        self.fail();
    }

    /// The same, and what a failure of the completion queue means is the caller's affair.
    fn drain(&self) -> Result<usize, PollError> {
        let mut all = 0;
        loop {
            let mut table = self.lock();
            let polled = table.poll(&self.cq);
            self.unlock(table);
            let count = polled?;
            all += count;
            if count < BATCH {
                return Ok(all);
            }
        }
    }

    /// Ends all connections.
    #[cold]
    pub(crate) fn fail(&self) {
        self.lock().has_failed = true;
        self.close_all(CloseReason::Poll);
    }

    pub(crate) fn close_all(&self, reason: CloseReason) {
        self.close_those_of(None, reason);
    }

    /// Ends the connections of a port, or all.
    pub(crate) fn close_those_of(&self, port: Option<u8>, reason: CloseReason) {
        let entries = self.lock().entries.len();
        for entry in 0..entries {
            let is_of = |entry: &mut ConnectionEntry| {
                let is_of = entry.is_of(port);
                if is_of {
                    entry.await_no_other();
                }
                is_of
            };
            if !is_of(self.lock().at(entry)) {
                continue;
            }
            if let Err(error) = self.close_if(entry, reason, |entry| entry.is_of(port)) {
                tracing::error!(%error, "a queue pair could not be destroyed: its memory stays lent");
            }
        }
    }

    /// Ends a connection: destroys its queue pair, after which all its operations are over. What has completed before is
    /// done.
    ///
    /// # Errors
    /// If the provider refuses to destroy it: then its operations end by their completions, or with a later call.
    pub(crate) fn close(&self, entry: usize, reason: CloseReason) -> Result<(), Error> {
        self.lock().at(entry).await_no_other();
        self.close_if(entry, reason, |_| true)
    }

    /// The same, if that is so of the entry when its queue pair is taken out of it.
    ///
    /// # Errors
    /// If the provider refuses to destroy it.
    pub(crate) fn close_if(
        &self,
        entry: usize,
        reason: CloseReason,
        is_so: impl FnOnce(&ConnectionEntry) -> bool,
    ) -> Result<(), Error> {
        // If the completion queue has failed, nothing more is known.
        let _ = self.drain();
        let taken = {
            let mut table = self.lock();
            let entry = table.at(entry);
            if is_so(entry) { entry.take(reason) } else { None }
        };
        let Some(qp) = taken else { return Ok(()) };
        if reason.is_of_peer() {
            // What the peer has executed before it ended has succeeded: the device may not have been looked at since. If
            // it refuses, the queue pair is destroyed all the same.
            let _ = qp.to_error();
            let _ = self.drain();
        }
        // Without the lock: it takes its time, and the others go on.
        let closed = qp.close();
        // What a provider leaves in the queue of one that is gone, and what came meanwhile.
        let _ = self.drain();
        let mut table = self.lock();
        let afters = match closed {
            Ok(()) => {
                if table.at(entry).is_draining() {
                    table.note_waiting(entry, Side::Send, false);
                }
                let (afters, reported) = table.at(entry).end();
                table.afters.note_reported(reported);
                afters
            }
            Err((qp, error)) => {
                table.at(entry).put_back(qp);
                let rooms = Arc::clone(table.at(entry).rooms());
                drop(table);
                After::Close(rooms).run();
                return Err(error);
            }
        };
        // Its last owner has left meanwhile.
        let left = table.at(entry).is_abandoned().then(|| table.vacate(entry));
        drop(table);
        afters.into_iter().for_each(After::run);
        drop(left);
        Ok(())
    }

    /// Ends a connection that nobody has any more, and frees its entry.
    pub(crate) fn leave(&self, entry: usize) {
        let closed = self.close(entry, CloseReason::Destroyed);
        let mut table = self.lock();
        let count = std::mem::take(&mut table.unmatched);
        // Another thread may be about to destroy the queue pair, or a later call has to: then that does the rest.
        let left = (!table.at(entry).abandon()).then(|| table.vacate(entry));
        drop(table);
        drop(left);
        if count > 0 {
            tracing::debug!(count, "completions matched no request");
        }
        if let Err(error) = closed {
            tracing::error!(%error, "a queue pair could not be destroyed: its memory stays lent");
        }
    }

    pub(crate) fn is_failed(&self) -> bool {
        self.lock().has_failed
    }
}

impl Table {
    /// An entry that was entered: whoever has its number has not left it.
    #[inline]
    pub(crate) fn at(&mut self, entry: usize) -> &mut ConnectionEntry {
        &mut self.entries[entry]
    }

    /// Frees the entry of a queue pair that was destroyed. What it had is dropped by the caller, without the lock.
    fn vacate(&mut self, entry: usize) -> Left {
        self.taken -= self.at(entry).depth();
        // Those who were forgotten.
        self.queued -= self.at(entry).waiting().min(self.queued);
        self.connections -= 1;
        self.at(entry).leave()
    }

    /// Has the next completion make an event, unless it does already. Whether it did not: then one may have come just before.
    #[inline]
    pub(crate) fn arm(&mut self, cq: &CompletionQueue) -> Result<bool, Error> {
        if self.is_armed {
            return Ok(false);
        }
        cq.req_notify(false)?;
        self.is_armed = true;
        Ok(true)
    }

    /// Polls a batch, and brings each completion to its request.
    #[inline]
    pub(crate) fn poll(&mut self, cq: &CompletionQueue) -> Result<usize, PollError> {
        let Self { entries, polled, afters, unmatched, .. } = self;
        let completions = cq.poll(polled)?;
        let count = completions.len();
        for completion in completions {
            let id = Id(completion.wr_id());
            let entry = entries.get_mut(id.entry());
            if !entry.is_some_and(|entry| entry.deliver(id, completion, afters)) {
                *unmatched += 1;
            }
        }
        Ok(count)
    }

    /// How a request has ended, if it has. Its slot is free then, and its memory in `memory`.
    #[inline]
    pub(crate) fn take(&mut self, id: Id, memory: &mut Held) -> Option<Ended> {
        self.entries[id.entry()].take_ended(id, memory, &mut self.afters)
    }

    /// Whether there are requests that somebody has to be told of.
    pub(crate) const fn has_awaited(&self) -> bool {
        self.afters.awaited + self.queued > 0
    }

    /// One more waits for a slot of an entry, or one less.
    pub(crate) fn note_waiting(&mut self, entry: usize, side: Side, is_one_more: bool) {
        self.at(entry).note_waiting(side, is_one_more);
        self.queued = if is_one_more { self.queued + 1 } else { self.queued.saturating_sub(1) };
    }

    /// As [`ConnectionEntry::await_end`].
    pub(crate) fn await_end(&mut self, id: Id, waker: Waker) -> Option<Waker> {
        self.entries[id.entry()].await_end(id, waker, &mut self.afters)
    }

    /// Ends the wait for a request. Returns its kind if the device still has it.
    pub(crate) fn forsake(&mut self, id: Id) -> Option<Operation> {
        self.entries[id.entry()].forsake(id, &mut self.afters)
    }
}

/// What is said of a request that was not posted, or failed.
pub(crate) fn closed(reason: CloseReason, peer: Option<PeerAddress>) -> TransportError {
    TransportError::Closed { reason, peer, event: None }
}
