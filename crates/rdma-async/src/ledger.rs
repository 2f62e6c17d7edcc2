//! The requests that are with a device, and their memory: one lock for each completion queue, under which it is polled
//! and its queue pairs are posted to.
//!
//! A slot holds the memory of a request from before it is posted until its completion was polled, or its queue pair was
//! destroyed. Who waits for it is beside it. Wakers, and memory that nobody waits for, are let go of when the lock is
//! free again ([`Afters`]).

pub(crate) mod after;
pub(crate) mod place;
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
use self::place::{Left, Place, Rooms};
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
    places: Vec<Place>,
    /// How many requests the queue pairs can have outstanding, all together.
    taken: u32,
    /// How many queue pairs there are, and are to come.
    connections: u32,
    /// How many have come.
    entered: u64,
    polled: [PollSlot; BATCH],
    /// What is to be done when the lock is free.
    afters: Afters,
    /// How many wait for a slot, of all places.
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
            places: Vec::new(),
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

    /// A place for a queue pair that completes here, and for whose requests there is room; and its serial number, which no
    /// other one has had there.
    pub(crate) fn enter(&self, qp: QueuePair, depth: [u32; 2], rooms: Arc<Rooms>) -> (usize, u64) {
        // A call of the device, so without the lock.
        let port = qp.query().ok().map(|attributes| attributes.port);
        let mut table = self.lock();
        let place = table.places.iter().position(Place::is_empty).unwrap_or(table.places.len());
        if place == table.places.len() {
            table.places.push(Place::default());
        }
        table.entered += 1;
        let serial = table.entered;
        table.places[place].enter((qp, port), serial, depth, rooms);
        (place, serial)
    }

    /// Puts another queue pair into a place that awaits one. Whether it could: not if an end was asked for meanwhile, or the
    /// completion queue has failed.
    pub(crate) fn renew(&self, place: usize, qp: QueuePair, epoch: u32) -> bool {
        // A call of the device, so without the lock.
        let port = qp.query().ok().map(|attributes| attributes.port);
        let mut table = self.lock();
        let can = !table.has_failed && table.at(place).takes_another();
        if can {
            table.at(place).renew((qp, port), epoch);
        } else {
            drop(table);
            drop(qp);
        }
        can
    }

    /// A connection takes no more requests, and those of its send queue are waited for: its [`Rooms`] tell when they are
    /// over. Only if that is so of its place.
    pub(crate) fn stop_if(
        &self,
        place: usize,
        reason: CloseReason,
        is_so: impl FnOnce(&Place) -> bool,
    ) {
        let mut table = self.lock();
        if table.at(place).is_gone() || !is_so(table.at(place)) {
            return;
        }
        if !table.at(place).is_draining() {
            table.note_waiting(place, Side::Send, true);
        }
        let after = table.at(place).stop(reason);
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
        let places = self.lock().places.len();
        for place in 0..places {
            let is_of = |place: &mut Place| {
                let is_of = place.is_of(port);
                if is_of {
                    place.await_no_other();
                }
                is_of
            };
            if !is_of(self.lock().at(place)) {
                continue;
            }
            if let Err(error) = self.close_if(place, reason, |place| place.is_of(port)) {
                tracing::error!(%error, "a queue pair could not be destroyed: its memory stays lent");
            }
        }
    }

    /// Ends a connection: destroys its queue pair, after which all its operations are over. What has completed before is
    /// done.
    ///
    /// # Errors
    /// If the provider refuses to destroy it: then its operations end by their completions, or with a later call.
    pub(crate) fn close(&self, place: usize, reason: CloseReason) -> Result<(), Error> {
        self.lock().at(place).await_no_other();
        self.close_if(place, reason, |_| true)
    }

    /// The same, if that is so of the place when its queue pair is taken out of it.
    ///
    /// # Errors
    /// If the provider refuses to destroy it.
    pub(crate) fn close_if(
        &self,
        place: usize,
        reason: CloseReason,
        is_so: impl FnOnce(&Place) -> bool,
    ) -> Result<(), Error> {
        // If the completion queue has failed, nothing more is known.
        let _ = self.drain();
        let taken = {
            let mut table = self.lock();
            let place = table.at(place);
            if is_so(place) { place.take(reason) } else { None }
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
                if table.at(place).is_draining() {
                    table.note_waiting(place, Side::Send, false);
                }
                let (afters, told) = table.at(place).end();
                table.afters.note_told(told);
                afters
            }
            Err((qp, error)) => {
                table.at(place).put_back(qp);
                let rooms = Arc::clone(table.at(place).rooms());
                drop(table);
                After::Close(rooms).run();
                return Err(error);
            }
        };
        // Its last owner has left meanwhile.
        let left = table.at(place).is_abandoned().then(|| table.vacate(place));
        drop(table);
        afters.into_iter().for_each(After::run);
        drop(left);
        Ok(())
    }

    /// Ends a connection that nobody has any more, and frees its place.
    pub(crate) fn leave(&self, place: usize) {
        let closed = self.close(place, CloseReason::Destroyed);
        let mut table = self.lock();
        let count = std::mem::take(&mut table.unmatched);
        // Another thread may be about to destroy the queue pair, or a later call has to: then that does the rest.
        let left = (!table.at(place).abandon()).then(|| table.vacate(place));
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
    /// A place that was entered: whoever has its number has not left it.
    #[inline]
    pub(crate) fn at(&mut self, place: usize) -> &mut Place {
        &mut self.places[place]
    }

    /// Frees the place of a queue pair that was destroyed. What it had is dropped by the caller, without the lock.
    fn vacate(&mut self, place: usize) -> Left {
        self.taken -= self.at(place).depth();
        // Those who were forgotten.
        self.queued -= self.at(place).waiting().min(self.queued);
        self.connections -= 1;
        self.at(place).leave()
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
        let Self { places, polled, afters, unmatched, .. } = self;
        let completions = cq.poll(polled)?;
        let count = completions.len();
        for completion in completions {
            let id = Id(completion.wr_id());
            let place = places.get_mut(id.place());
            if !place.is_some_and(|place| place.deliver(id, completion, afters)) {
                *unmatched += 1;
            }
        }
        Ok(count)
    }

    /// How a request has ended, if it has. Its slot is free then, and its memory in `memory`.
    #[inline]
    pub(crate) fn take(&mut self, id: Id, memory: &mut Held) -> Option<Ended> {
        self.places[id.place()].take_ended(id, memory, &mut self.afters)
    }

    /// Whether there are requests that somebody has to be told of.
    pub(crate) const fn has_awaited(&self) -> bool {
        self.afters.awaited + self.queued > 0
    }

    /// One more waits for a slot of a place, or one less.
    pub(crate) fn note_waiting(&mut self, place: usize, side: Side, is_one_more: bool) {
        self.at(place).note_waiting(side, is_one_more);
        self.queued = if is_one_more { self.queued + 1 } else { self.queued.saturating_sub(1) };
    }

    /// As [`Place::await_end`].
    pub(crate) fn await_end(&mut self, id: Id, waker: Waker) -> Option<Waker> {
        self.places[id.place()].await_end(id, waker, &mut self.afters)
    }

    /// Nobody waits for the request any more. Whether it goes on.
    pub(crate) fn forsake(&mut self, id: Id) -> bool {
        self.places[id.place()].forsake(id, &mut self.afters)
    }
}

/// What is said of a request that was not posted, or failed.
pub(crate) fn closed(reason: CloseReason, peer: Option<PeerAddress>) -> TransportError {
    TransportError::Closed { reason, peer, event: None }
}
