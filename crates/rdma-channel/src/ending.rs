//! The end of everything that is under way: within a limit, whatever happens.
//!
//! Nothing of the caller's runs in here: no closure, no subscriber of events.

use std::io;
use std::mem::ManuallyDrop;
use std::process;

use rdma_qp::{QueuePair, WorkErrorClass, WorkResult};
use rustix::event::{PollFd, PollFlags, Timespec, poll};

use crate::core::Core;
use crate::lane::Lane;
use crate::patience::Patience;
use crate::slot::{Slot, State};
use crate::{CloseReason, OperationError, TransportError, WorkId};

/// How it ended.
#[derive(Debug, Default)]
pub(crate) struct Ended {
    /// What failed or was lost, and had not been told.
    pub(crate) errors: Vec<OperationError>,
    /// How many operations nobody had asked of.
    pub(crate) unasked: u64,
}

/// Aborts the process when it is dropped: where unwinding would give memory back that a device uses.
pub(crate) struct AbortOnUnwind;

impl AbortOnUnwind {
    /// From now on, it may unwind.
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

/// Runs what must not unwind.
#[inline(always)]
pub(crate) fn without_unwinding<T>(run: impl FnOnce() -> T) -> T {
    let guard = AbortOnUnwind;
    let value = run();
    guard.disarm();
    value
}

impl Core {
    /// Begins a scope: what is under way is not of it.
    #[inline]
    pub(crate) fn begin(&mut self) {
        if self.live.get() != 0 {
            self.disown();
        }
    }

    #[cold]
    #[inline(never)]
    fn disown(&mut self) {
        self.live.set(self.live.get() - self.over.replace(0));
        for slot in self.table.iter().filter(|slot| is_unasked(slot)) {
            let state = slot.state.get();
            if state.is_in_flight() || slot.result().is_err() {
                slot.state.set(state.abandoned());
            } else {
                self.release(slot);
            }
        }
        self.strangers.set(self.abandoned());
    }

    /// That this is the process that has made it, and not a fork, which no completion reaches.
    #[cold]
    pub(crate) fn check_process(&self) -> Result<(), TransportError> {
        self.cq.context().check_process().map_err(|_| {
            self.lanes.iter().for_each(|lane| lane.close(CloseReason::Forked));
            TransportError::Closed(CloseReason::Forked)
        })
    }

    /// Ends what a scope has left under way, if it has. After it the device uses no memory of any request.
    #[inline]
    pub(crate) fn end(&mut self) -> Option<Ended> {
        if self.live.get() == 0 {
            return None;
        }
        Some(without_unwinding(|| self.end_all()))
    }

    #[cold]
    #[inline(never)]
    fn end_all(&mut self) -> Ended {
        // In a fork nothing completes.
        if self.cq.context().check_process().is_ok() && self.succeeds() {
            self.live.set(0);
            let unasked = self.over.replace(0).saturating_sub(self.strangers.replace(0));
            return Ended { errors: Vec::new(), unasked };
        }
        let dropped = (self.over.get() + self.abandoned()).saturating_sub(self.strangers.get());
        let forgotten = self.table.iter().filter(|slot| is_unasked(slot)).count() as u64;
        self.settle(Self::await_completions);
        self.over.set(0);
        self.collect(dropped + forgotten)
    }

    /// How many slots are of requests that have no handle, and are not free.
    fn abandoned(&self) -> u64 {
        self.table.iter().filter(|slot| slot.state.get().is_abandoned()).count() as u64
    }

    /// Takes completions as long as there are some. Whether all that is under way has succeeded, and has no handle.
    fn succeeds(&self) -> bool {
        while self.live.get() != self.over.get() {
            if !matches!(self.progress(), Ok(1..)) {
                return false;
            }
        }
        true
    }

    /// Ends a request now, and all that its queue pair has; says how it ended, if that is known.
    #[cold]
    #[inline(never)]
    pub(crate) fn give_up(&mut self, id: WorkId, reason: CloseReason) -> Option<WorkResult> {
        without_unwinding(|| {
            self.settle(|core| core.close_lane_of(id, reason));
            let own = self.of_id(id.0).and_then(Slot::told);
            self.collect(0);
            own
        })
    }

    /// Ends what the lanes have that are closed.
    #[cold]
    #[inline(never)]
    pub(crate) fn end_closed(&mut self) {
        without_unwinding(|| {
            self.settle(|_| {});
            self.collect(0);
        });
    }

    /// As [`end`](Self::end), now.
    #[cold]
    #[inline(never)]
    pub(crate) fn end_now(&mut self, reason: CloseReason) -> Ended {
        without_unwinding(|| {
            self.settle(|core| core.close_busy(reason));
            self.collect(0)
        })
    }

    /// Has the device let go of all requests of the lanes that are closed when `close` has run.
    pub(crate) fn settle(&mut self, close: impl FnOnce(&Self)) {
        // In a fork, the device uses the memory of the parent; nothing of it is this process's.
        if self.check_process().is_err() {
            return;
        }
        close(self);
        self.flush();
        self.destroy();
    }

    /// Destroys all queue pairs; says how that failed first.
    pub(crate) fn close(&mut self) -> Result<(), rdma_qp::Error> {
        for peer in 0..self.lanes.len() {
            let Some(lane) = self.lanes.get_mut(peer) else { continue };
            let Some(qp) = lane.take_qp() else { continue };
            if let Err((qp, error)) = qp.close() {
                lane.put_back(qp);
                return Err(error);
            }
            lane.close(CloseReason::Destroyed);
        }
        Ok(())
    }

    /// Closes all lanes for good: what is under way is flushed.
    pub(crate) fn close_as_asked(&self) {
        for lane in self.lanes.iter() {
            lane.close(CloseReason::Asked);
            if let Some(qp) = lane.qp() {
                // If it is refused the end of the scope tries again, and then destroys it.
                let _ = qp.to_error();
            }
        }
    }

    /// Closes the lane of a request that is with the device.
    pub(crate) fn close_lane_of(&self, id: WorkId, reason: CloseReason) {
        let lane = self.in_flight(id.0).and_then(|slot| self.lanes.get(slot.lane as usize));
        lane.into_iter().for_each(|lane| lane.close(reason));
    }

    /// Closes the lanes that have requests under way.
    fn close_busy(&self, reason: CloseReason) {
        let busy = |lane: &&Lane| self.under_way(lane).next().is_some();
        self.lanes.iter().filter(busy).for_each(|lane| lane.close(reason));
    }

    /// The lanes that are closed and have requests under way.
    fn unsettled(&self) -> impl Iterator<Item = &Lane> {
        let ends =
            |lane: &&Lane| lane.closed.get().is_some() && self.under_way(lane).next().is_some();
        self.lanes.iter().filter(|lane| lane.qp().is_some()).filter(ends)
    }

    /// The requests of a lane that are with the device.
    fn under_way(&self, lane: &Lane) -> impl Iterator<Item = &Slot> {
        let both = self.slots(&lane.send).iter().chain(self.slots(&lane.receive));
        both.filter(|slot| slot.state.get().is_in_flight())
    }

    /// Waits, as long as a scope may, until all is done that can be on an open connection; closes what is
    /// not.
    fn await_completions(&self) {
        let mut patience = Patience::new(self.limits.drain);
        while !self.succeeds() {
            let (over, mut open) = (patience.is_over(), false);
            for lane in self.lanes.iter() {
                let Some(first) = self.under_way(lane).next() else { continue };
                let operation = first.operation.get();
                if lane.closed.get().is_some() {
                    continue;
                } else if over {
                    lane.close(CloseReason::Timeout { operation });
                } else if self.only_silent(lane) {
                    lane.close(CloseReason::Unsignaled { operation });
                } else {
                    open = true;
                }
            }
            if !open {
                return;
            }
        }
    }

    /// Whether nothing is under way but silent requests that no later one tells of.
    fn only_silent(&self, lane: &Lane) -> bool {
        let last = self.in_flight(lane.silent.get());
        last.is_some() && self.under_way(lane).all(|slot| slot.state.get().is_silent())
    }

    /// Has the device let go of what is under way on closed lanes, and takes the flushes.
    fn flush(&self) {
        for qp in self.unsettled().filter_map(Lane::qp) {
            // If it is refused nothing is flushed, and the queue pair will be destroyed.
            let _ = qp.to_error();
        }
        let mut patience = Patience::new(self.limits.drain);
        loop {
            self.unsettled().for_each(|lane| self.mark_silent(lane));
            if self.unsettled().next().is_none() {
                return;
            }
            match self.progress() {
                Ok(0) if patience.is_over() => return,
                Ok(_) => {}
                Err(_) => return,
            }
        }
    }

    /// Posts a last request behind silent ones, whose flush tells that they are over.
    fn mark_silent(&self, lane: &Lane) {
        if self.in_flight(lane.silent.get()).is_none() {
            return;
        }
        let slots = self.slots(&lane.send);
        // Of a handle that has told, and was forgotten: nobody asks any more.
        slots.iter().filter(|slot| slot.state.get().is_told()).for_each(|slot| self.release(slot));
        let free = slots.iter().find(|slot| slot.state.get() == State::FREE);
        let (Some(qp), Some(slot)) = (lane.qp(), free) else { return };
        self.post_mark(lane, qp, slot);
    }

    /// Destroys the queue pairs that have not let go: the last that can be done.
    fn destroy(&mut self) {
        for place in 0..self.lanes.len() {
            let Some(lane) = self.lanes.get(place) else { return };
            if lane.closed.get().is_none() || self.under_way(lane).next().is_none() {
                continue;
            }
            let Some(lane) = self.lanes.get_mut(place) else { return };
            if let Some(Err((_, error))) = lane.take_qp().map(QueuePair::close) {
                abort(&error);
            }
        }
    }

    /// Takes all results out of the table; what is under way on an open lane stays there.
    pub(crate) fn collect(&self, unasked: u64) -> Ended {
        let (mut ended, mut live) = (Ended { unasked, ..Ended::default() }, 0);
        for slot in self.table.iter() {
            let (state, id) = (slot.state.get(), WorkId(slot.id.get()));
            if state == State::FREE || state == State::DEAD {
                continue;
            }
            if self.goes_on(slot) {
                live += 1;
                continue;
            }
            let operation = slot.operation.get();
            let result = slot.told().ok_or(TransportError::Lost { operation });
            slot.free();
            if state.is_told() || state.is_mark() {
                continue;
            }
            if let Some(error) = self.failure(slot, result) {
                let peer = (self.lanes.len() > 1).then_some(slot.lane as usize);
                ended.errors.push(OperationError { operation, id, peer, error });
            }
        }
        self.live.set(live + self.over.get());
        self.strangers.set(0);
        ended
    }

    /// How an operation failed, if it did. Of one that was flushed, why it was, unless that was asked for.
    pub(crate) fn failure(
        &self,
        slot: &Slot,
        result: Result<WorkResult, TransportError>,
    ) -> Option<TransportError> {
        let error = match result {
            Ok(Ok(_)) => return None,
            Ok(Err(error)) => error,
            Err(lost) => return Some(lost),
        };
        let reason = self.lanes.get(slot.lane as usize).and_then(|lane| lane.closed.get());
        match reason {
            Some(CloseReason::Asked) if error.class() == WorkErrorClass::Flushed => None,
            Some(reason) if error.class() == WorkErrorClass::Flushed => {
                Some(TransportError::Closed(reason))
            }
            _ => Some(error.into()),
        }
    }

    /// Whether it is with the device, and nobody has ended that.
    fn goes_on(&self, slot: &Slot) -> bool {
        let lane = self.lanes.get(slot.lane as usize);
        slot.state.get().is_in_flight() && lane.is_some_and(|lane| lane.closed.get().is_none())
    }
}

/// Whether it has a handle that was forgotten, or is nobody's.
fn is_unasked(slot: &Slot) -> bool {
    let state = slot.state.get();
    let over = matches!(state, State::FREE | State::DEAD) || state.is_told();
    !over && !state.is_abandoned()
}

/// Memory that was borrowed would be given back while the device writes it.
#[cold]
fn abort(error: &rdma_qp::Error) -> ! {
    say(&format!(
        "rdma-channel: aborting, since memory is borrowed by requests of a queue pair that could not be \
         destroyed: {error}\n"
    ));
    process::abort()
}

/// Says so on standard error, if there is room at once: nobody may read it, or another thread hold its lock.
fn say(line: &str) {
    let file = io::stderr();
    let mut files = [PollFd::new(&file, PollFlags::OUT)];
    if matches!(poll(&mut files, Some(&Timespec::default())), Ok(1..)) {
        // What a pipe has room for is longer than a line.
        let _ = rustix::io::write(&file, line.as_bytes());
    }
}
