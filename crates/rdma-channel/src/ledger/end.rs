//! Ends all requests in flight within a time limit, whatever happens.
//!
//! The caller's code never runs in this module, neither closures nor subscribers to events.

use std::io;
use std::mem::ManuallyDrop;
use std::process;
use std::time::Duration;

use rdma_connect::{CloseReason, Operation, OperationError, TransportError, WorkId};
use rdma_qp::{PollError, QueuePair, WorkErrorClass, WorkResult};
use rustix::event::{PollFd, PollFlags, Timespec, poll};

use super::queues::{Connection, RequestSlot};
use super::{Ledger, closed_by};
use crate::deadline::Deadline;
use crate::ledger::queues::post_marker;

/// The outcome of a scope.
#[derive(Debug, Default)]
pub(crate) struct Ended {
    /// Failed and lost operations that no handle has reported. Usually there are none.
    #[allow(clippy::box_collection)] // so that the struct fits into two registers
    errors: Option<Box<Vec<OperationError>>>,
    /// The number of operations that no handle has reported.
    pub(crate) unclaimed: u64,
}

impl Ended {
    /// Returns the failed and lost operations that no handle has reported, if any.
    #[inline(always)]
    pub(crate) fn errors(self) -> Option<Vec<OperationError>> {
        self.errors.map(|errors| *errors)
    }
}

/// Aborts the process when it is dropped. Guards code in which unwinding would release memory that a device still uses.
pub(crate) struct AbortOnUnwind;

impl AbortOnUnwind {
    /// Disarms the guard, so that unwinding is allowed again.
    #[inline(always)]
    pub(crate) fn disarm(self) {
        let _ = ManuallyDrop::new(self);
    }
}

impl Drop for AbortOnUnwind {
    fn drop(&mut self) {
        process::abort();
    }
}

/// Runs a closure that must not unwind.
#[inline(always)]
pub(crate) fn without_unwinding<T>(run: impl FnOnce() -> T) -> T {
    let guard = AbortOnUnwind;
    let value = run();
    guard.disarm();
    value
}

impl Ledger {
    /// Begins a scope. Requests that are already in flight do not belong to it.
    #[inline]
    pub(crate) fn begin(&mut self) {
        if self.has_unreleased() {
            self.forget();
        }
    }

    #[cold]
    #[inline(never)]
    fn forget(&mut self) {
        self.unreleased.set(self.unreleased.get() - self.unclaimed.replace(0));
        for slot in self.queues.slots().iter().filter(|slot| slot.state().is_occupied()) {
            let state = slot.state();
            if state.is_reported() || state.is_done() && slot.result().is_ok() {
                self.release(slot);
            } else {
                slot.set(state.forgotten());
            }
        }
    }

    /// Ends all requests that a scope has left in flight. After this, the device no longer uses the memory of any
    /// request.
    #[inline(always)]
    pub(crate) fn end(&mut self) -> Ended {
        let unreleased = self.unreleased.get();
        if unreleased > 1 {
            without_unwinding(|| if unreleased == 2 { self.end_two() } else { self.end_all() })
        } else if unreleased == 1 {
            without_unwinding(|| self.end_last())
        } else {
            Ended::default()
        }
    }

    /// Like [`end`](Self::end), for a scope whose closure has failed. If the closure's waits have timed out, the
    /// requests concerned get at most as much time as the longest of these waits.
    #[cold]
    #[inline(never)]
    pub(crate) fn end_failed_scope(&mut self) -> Ended {
        self.closure_failed = true;
        let ended = self.end();
        self.closure_failed = false;
        ended
    }

    /// Ends the last request. Handles the usual case in few instructions: the handle was dropped, and the next
    /// completion is the success of the request.
    #[inline(always)]
    fn end_last(&mut self) -> Ended {
        if self.pd.check_process().is_err() {
            return self.end_all();
        }
        let Ok(1) = self.cq.poll_into(&self.polled[..1]) else { return self.end_all() };
        let (completion, slot) = (self.polled[0].get().last(), self.queues.expected(0));
        if completion.wr_id() != slot.id() || !slot.is_dropped_success(completion) {
            return self.end_one_polled();
        }
        slot.free();
        self.queues.expect(0, slot.next());
        self.unreleased.set(0);
        self.checked();
        Ended { errors: None, unclaimed: 1 }
    }

    #[inline(never)]
    fn end_one_polled(&mut self) -> Ended {
        self.end_polled(Ok(1))
    }

    /// Like [`end_last`](Self::end_last), for two requests. Often these are a receive and a send.
    #[inline(never)]
    fn end_two(&mut self) -> Ended {
        if self.pd.check_process().is_err() {
            return self.end_all();
        }
        let polled = self.cq.poll_into(&self.polled[..2]);
        if let Ok(2) = polled
            && let (Some(first), Some(second)) = (self.dropped_success(0), self.dropped_success(1))
            && first.id() != second.id()
        {
            for (place, slot) in [first, second].into_iter().enumerate() {
                slot.free();
                self.queues.expect(place, slot.next());
            }
            self.unreleased.set(0);
            self.checked();
            return Ended { errors: None, unclaimed: 2 };
        }
        self.end_polled(polled)
    }

    /// Returns the slot of the completion at this place of the last poll if its request has succeeded and its handle
    /// was dropped.
    #[inline(always)]
    fn dropped_success(&self, place: usize) -> Option<&RequestSlot> {
        let (completion, expected) = (self.polled[place].get().last(), self.queues.expected(place));
        let id = completion.wr_id();
        let slot = if expected.id() == id { expected } else { self.queues.by_id(id) };
        slot.is_dropped_success(completion).then_some(slot)
    }

    #[inline(never)]
    fn end_all(&mut self) -> Ended {
        if self.unreleased.get() == self.unclaimed.get() {
            return self.all_ended();
        }
        // In a forked child, nothing completes.
        if self.pd.check_process().is_err() {
            return self.end_others();
        }
        let polled = self.cq.poll_into(&*self.polled);
        self.end_polled(polled)
    }

    /// Ends all requests, after a poll.
    #[inline(never)]
    fn end_polled(&mut self, polled: Result<usize, PollError>) -> Ended {
        let matched = match polled {
            Ok(polled) => self.note_completions(polled),
            Err(error) => {
                self.poll_failed(error);
                false
            }
        };
        if !matched || !self.all_succeed() {
            return self.end_others();
        }
        self.all_ended()
    }

    /// Returns the outcome of a scope whose requests have all succeeded. None of them has a handle or a slot.
    #[inline(always)]
    fn all_ended(&self) -> Ended {
        self.unreleased.set(0);
        Ended { errors: None, unclaimed: self.unclaimed.replace(0) }
    }

    #[cold]
    #[inline(never)]
    fn end_others(&mut self) -> Ended {
        let unreported = |slot: &&RequestSlot| {
            let state = slot.state();
            (state.is_in_flight() || state.is_done())
                && (state.is_dropped() || !state.has_no_handle())
        };
        let slots = self.queues.slots().iter();
        let unclaimed = self.unclaimed.get() + slots.filter(unreported).count() as u64;
        self.settle(Self::await_completions);
        self.collect(unclaimed)
    }

    /// Polls until no completions of requests in flight are left. Returns true if all requests in flight have succeeded
    /// and have no handle.
    #[inline(always)]
    fn all_succeed(&self) -> bool {
        while self.unreleased.get() != self.unclaimed.get() {
            let matched = match self.cq.poll_into(&*self.polled) {
                Ok(polled) => self.note_completions(polled),
                Err(error) => {
                    self.poll_failed(error);
                    false
                }
            };
            if !matched {
                return false;
            }
        }
        true
    }

    /// Ends this request and all others of its queue pair now. Returns the result of this request, if known.
    #[cold]
    #[inline(never)]
    pub(crate) fn give_up(&mut self, id: WorkId, reason: CloseReason) -> Option<WorkResult> {
        without_unwinding(|| {
            self.settle(|ledger| ledger.close_connection_of(id, reason));
            let own = self.queues.by_id(id.wr_id()).report();
            self.collect(0);
            own
        })
    }

    /// Ends the requests of closed connections.
    #[cold]
    #[inline(never)]
    pub(crate) fn end_closed(&mut self) {
        without_unwinding(|| {
            self.settle(|_| {});
            self.collect(0);
        });
    }

    /// Ends all requests in flight now.
    #[cold]
    #[inline(never)]
    pub(crate) fn end_now(&mut self, reason: CloseReason) {
        without_unwinding(|| {
            self.settle(|ledger| ledger.close_busy(reason));
            self.collect(0);
        });
    }

    /// Runs `close`, and then makes the device release all requests of closed connections.
    pub(crate) fn settle(&mut self, close: impl FnOnce(&Self)) {
        // In a forked child, the device uses the parent's memory, but no memory of this process.
        if self.check_process().is_err() {
            return;
        }
        close(self);
        self.flush();
        self.destroy();
    }

    /// Destroys all queue pairs. Stops at the first failure and returns it.
    pub(crate) fn close(&mut self) -> Result<(), rdma_qp::Error> {
        for peer in 0..self.queues.len() {
            let Some(qp) = self.queues.take_qp(peer) else { continue };
            if let Err((qp, error)) = qp.close() {
                self.queues.put_back(peer, qp);
                return Err(error);
            }
            self.queues.get(peer).into_iter().for_each(|one| one.close(CloseReason::Destroyed));
        }
        Ok(())
    }

    /// Closes all connections permanently, and flushes their requests in flight. Returns false if a queue pair cannot
    /// be moved to the error state. The end of the scope then tries again, and afterwards destroys the queue pair.
    pub(crate) fn close_as_asked(&self) -> bool {
        let mut all = true;
        for connection in self.queues.iter() {
            connection.close(CloseReason::Asked);
            all &= connection.qp().is_none_or(|qp| qp.to_error().is_ok());
        }
        all
    }

    /// Closes the connection of this request, if the request is in flight.
    pub(crate) fn close_connection_of(&self, id: WorkId, reason: CloseReason) {
        let slot = self.in_flight(id.wr_id());
        let connection = slot.and_then(|slot| self.queues.get(slot.connection as usize));
        connection.into_iter().for_each(|connection| connection.close(reason));
    }

    /// Closes the connections that have requests in flight.
    fn close_busy(&self, reason: CloseReason) {
        let busy = |connection: &&Connection| self.all_in_flight(connection).next().is_some();
        self.queues.iter().filter(busy).for_each(|connection| connection.close(reason));
    }

    /// Returns the closed connections that have requests in flight.
    fn unsettled(&self) -> impl Iterator<Item = &Connection> {
        let ends = |connection: &&Connection| {
            connection.closed().is_some() && self.all_in_flight(connection).next().is_some()
        };
        self.queues.iter().filter(|connection| connection.qp().is_some()).filter(ends)
    }

    /// Returns the slots of a connection's requests in flight.
    fn all_in_flight(&self, connection: &Connection) -> impl Iterator<Item = &RequestSlot> {
        self.all_of(connection).filter(|slot| slot.state().is_in_flight())
    }

    /// Returns the slots of a connection.
    pub(super) fn all_of(&self, connection: &Connection) -> impl Iterator<Item = &RequestSlot> {
        let queues = [&connection.send, &connection.receive];
        queues.map(|queue| self.queues.slots_of(queue)).into_iter().flatten()
    }

    /// Waits for at most the drain limit until all requests on open connections have completed, except those that
    /// cannot complete. Then closes the connections of the remaining requests. If the closure has failed, connections
    /// with requests whose waits have timed out are closed earlier.
    fn await_completions(&self) {
        let drain = self.limits.drain;
        match self.longest_timed_out().filter(|&early| early < drain) {
            None => self.await_for(drain, |_| true),
            Some(early) => {
                self.await_for(early, |connection| self.has_timed_out(connection))
                    && self.await_for(drain - early, |_| true)
            }
        };
    }

    /// If the closure has failed, returns the longest timeout of a wait for a request that is still in flight.
    fn longest_timed_out(&self) -> Option<Duration> {
        let timed_out = self.timed_out.borrow();
        let in_flight = timed_out.iter().filter(|(id, _)| self.in_flight(*id).is_some());
        in_flight.map(|&(_, limit)| limit).max().filter(|_| self.closure_failed)
    }

    /// Returns true if a wait for one of this connection's requests in flight has timed out.
    fn has_timed_out(&self, connection: &Connection) -> bool {
        let timed_out = self.timed_out.borrow();
        self.all_in_flight(connection).any(|slot| timed_out.iter().any(|&(id, _)| id == slot.id()))
    }

    /// Waits for at most `limit` until all requests on open connections have completed. Of the connections with
    /// remaining requests, closes those that `closes` selects. Returns true if an open connection still has requests in
    /// flight.
    fn await_for(&self, limit: Duration, closes: impl Fn(&Connection) -> bool) -> bool {
        let (mut deadline, mut over) = (Deadline::new(limit), false);
        while !self.all_succeed() {
            let mut open = None;
            for connection in self.queues.iter() {
                let Some(first) = self.all_in_flight(connection).next() else { continue };
                let operation = first.operation.get();
                if connection.closed().is_some() {
                    continue;
                } else if over && closes(connection) {
                    connection.close(CloseReason::Timeout { operation });
                } else if self.only_unsignaled(connection) {
                    connection.close(CloseReason::Unsignaled { operation });
                } else {
                    open = Some(operation);
                }
            }
            let Some(operation) = open.filter(|_| !over) else { return open.is_some() };
            // If `pause` failed, it has closed all connections.
            over = self.pause(&mut deadline, operation).unwrap_or(true);
        }
        false
    }

    /// Returns true if all of the connection's requests in flight are unsignaled. In that case, there is no later
    /// signaled request whose completion would cover them.
    fn only_unsignaled(&self, connection: &Connection) -> bool {
        let last = connection.last_unsignaled();
        last.state().is_in_flight()
            && self.all_in_flight(connection).all(|slot| slot.state().is_unsignaled())
    }

    /// Makes the device release the requests in flight on closed connections, and polls their flushed completions.
    pub(super) fn flush(&self) {
        for qp in self.unsettled().filter_map(Connection::qp) {
            // If this fails, nothing is flushed, and the queue pair is destroyed later.
            let _ = qp.to_error();
        }
        let mut deadline = Deadline::new(self.limits.flush);
        loop {
            self.unsettled().for_each(|connection| self.mark_unsignaled(connection));
            if self.unsettled().next().is_none() {
                return;
            }
            let taken = self.take_completions();
            match taken.and_then(|any| Ok(!any && self.pause_flush(&mut deadline)?)) {
                Ok(false) => {}
                Ok(true) | Err(_) => return,
            }
        }
    }

    /// Posts a marker after unsignaled requests. When the marker is flushed, these requests have completed.
    fn mark_unsignaled(&self, connection: &Connection) {
        if !connection.last_unsignaled().state().is_in_flight() {
            return;
        }
        let slots = self.queues.slots_of(&connection.send);
        // These slots hold completed requests whose handles were leaked, so no handle will report them.
        let over = |slot: &&RequestSlot| {
            let state = slot.state();
            state.is_reported() || state.is_done() && slot.result().is_ok()
        };
        slots.iter().filter(over).for_each(|slot| self.release(slot));
        let free = slots.iter().find(|slot| slot.is_free());
        let (Some(qp), Some(slot)) = (connection.qp(), free) else { return };
        // If it is unknown whether the marker was posted, it is recorded, too.
        let posted = post_marker(qp, slot.id());
        if posted.is_ok() || posted.is_err_and(|error| error.posted() > 0) {
            let state = connection.link(slot, Operation::Send, true).marker();
            self.posted(slot, Operation::Send, state);
            self.counts.note_marker();
        }
    }

    /// Destroys the queue pairs that still have requests in flight. This is the last resort.
    pub(crate) fn destroy(&mut self) {
        for peer in 0..self.queues.len() {
            let Some(connection) = self.queues.get(peer) else { return };
            if connection.closed().is_none() || self.all_in_flight(connection).next().is_none() {
                continue;
            }
            if let Some(Err((_, error))) = self.queues.take_qp(peer).map(QueuePair::close) {
                abort(&error);
            }
        }
    }

    /// Takes all results out of the slots. Requests in flight on open connections are left in their slots.
    pub(crate) fn collect(&self, unclaimed: u64) -> Ended {
        let (mut errors, mut occupied) = (Vec::new(), 0);
        self.query_causes();
        for slot in self.queues.slots().iter().filter(|slot| slot.state().is_occupied()) {
            let (state, id) = (slot.state(), WorkId::from_wr_id(slot.id()));
            if self.is_pending(slot) {
                occupied += 1;
                continue;
            }
            let operation = slot.operation.get();
            let lost = TransportError::Lost { operation, peer: self.peer_of(slot) };
            let result = slot.report().ok_or(lost);
            slot.free();
            if state.is_reported() || state.is_marker() {
                continue;
            }
            if state.is_in_flight() {
                self.counts.fail();
            }
            if let Some(error) = self.failure(slot, result) {
                let peer = (self.queues.len() > 1).then_some(slot.connection as usize);
                errors.push(OperationError::new(operation, id, peer, error));
            }
        }
        self.unreleased.set(occupied);
        self.unclaimed.set(0);
        self.checked();
        Ended { errors: (!errors.is_empty()).then(|| Box::new(errors)), unclaimed }
    }

    /// Returns the error of an operation that failed. For a flushed operation, this is the cause of the flush. Returns
    /// `None` if the operation succeeded, or if it was flushed because the program closed the connection.
    pub(crate) fn failure(
        &self,
        slot: &RequestSlot,
        result: Result<WorkResult, TransportError>,
    ) -> Option<TransportError> {
        let error = match result {
            Ok(Ok(_)) => return None,
            Ok(Err(error)) => error,
            Err(lost) => return Some(lost),
        };
        let connection = self.queues.get(slot.connection as usize);
        let closed = connection.and_then(|one| one.closed().map(|reason| (one, reason)));
        match closed.filter(|_| error.class() == WorkErrorClass::Flushed) {
            Some((_, CloseReason::Asked)) => None,
            Some((connection, reason)) => Some(closed_by(connection, reason)),
            None => Some(self.failed(slot, error)),
        }
    }

    /// Returns true if the request is in flight on an open connection.
    fn is_pending(&self, slot: &RequestSlot) -> bool {
        let connection = self.queues.get(slot.connection as usize);
        slot.state().is_in_flight() && connection.is_some_and(|one| one.closed().is_none())
    }
}

/// Aborts the process, because returning would give the caller memory that the device may still write to.
#[cold]
fn abort(error: &rdma_qp::Error) -> ! {
    write_to_stderr(&format!(
        "rdma-channel: aborting, since memory is borrowed by requests of a queue pair that could not be \
         destroyed: {error}\n"
    ));
    process::abort()
}

/// Writes a line to standard error, but only if that does not block. The pipe may have no reader, and another thread
/// may hold the lock on `stderr`.
fn write_to_stderr(line: &str) {
    let file = io::stderr();
    let mut files = [PollFd::new(&file, PollFlags::OUT)];
    if matches!(poll(&mut files, Some(&Timespec::default())), Ok(1..)) {
        // A writable pipe has room for more than one line.
        let _ = rustix::io::write(&file, line.as_bytes());
    }
}
