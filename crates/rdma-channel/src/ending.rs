//! The end of everything that is under way: within a limit, whatever happens.
//!
//! Nothing of the caller's runs in here: no closure, no subscriber of events.

use std::io::{self, Write as _};
use std::mem::ManuallyDrop;
use std::process;

use rdma_qp::{QueuePair, WorkErrorClass, WorkResult};

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
    pub(crate) unasked: usize,
    /// How the one ended that was asked for here.
    pub(crate) own: Option<Result<WorkResult, TransportError>>,
}

/// Why it ends now.
#[derive(Clone, Copy, Debug)]
pub(crate) enum Why {
    /// A scope was left: what is under way may take as long as the limit says.
    Left,
    /// It took too long, or the completion queue failed. The result of this operation is asked for.
    GivenUp(Option<WorkId>, CloseReason),
}

/// Aborts the process when it is dropped: where unwinding would give memory back that a device uses.
struct AbortOnUnwind;

impl Drop for AbortOnUnwind {
    fn drop(&mut self) {
        process::abort();
    }
}

/// Runs what must not unwind.
#[inline]
pub(crate) fn without_unwinding<T>(run: impl FnOnce() -> T) -> T {
    let guard = AbortOnUnwind;
    let value = run();
    let _ = ManuallyDrop::new(guard);
    value
}

impl Core {
    /// Ends what a scope has left under way. After it the device uses no memory of any request.
    #[inline]
    pub(crate) fn end(&mut self) -> Ended {
        if self.live.get() == 0 && self.unasked.get() == 0 {
            return Ended::default();
        }
        without_unwinding(|| self.end_all(Why::Left))
    }

    /// As [`end_now`](Self::end_now), and says how that one ended.
    #[cold]
    #[inline(never)]
    pub(crate) fn give_up(&mut self, id: WorkId, reason: CloseReason) -> Ended {
        without_unwinding(|| self.end_all(Why::GivenUp(Some(id), reason)))
    }

    /// As [`end`](Self::end), now.
    #[cold]
    #[inline(never)]
    pub(crate) fn end_now(&mut self, reason: CloseReason) -> Ended {
        without_unwinding(|| self.end_all(Why::GivenUp(None, reason)))
    }

    #[cold]
    #[inline(never)]
    fn end_all(&mut self, why: Why) -> Ended {
        let dropped = self.unasked.replace(0) as usize;
        let forgotten = self.table.iter().filter(|slot| is_unasked(slot)).count();
        if self.cq.context().check_process().is_err() {
            // The device uses the memory of the parent; nothing of it is this process's.
            self.close_all(CloseReason::Forked);
        } else {
            match why {
                Why::Left => self.await_completions(),
                Why::GivenUp(_, reason) => self.close_busy(reason),
            }
            self.flush();
            self.destroy();
        }
        self.collect(why, dropped + forgotten)
    }

    /// Destroys all queue pairs; says how that failed first.
    pub(crate) fn close(&mut self) -> Result<(), rdma_qp::Error> {
        for lane in &mut self.lanes {
            let Some(qp) = lane.qp.take() else { continue };
            if let Err((qp, error)) = qp.close() {
                lane.qp = Some(qp);
                return Err(error);
            }
            lane.close(CloseReason::Destroyed);
        }
        Ok(())
    }

    fn close_all(&self, reason: CloseReason) {
        self.lanes.iter().for_each(|lane| lane.close(reason));
    }

    /// Closes the lanes that have requests under way.
    fn close_busy(&self, reason: CloseReason) {
        let busy = |lane: &&Lane| self.under_way(lane).next().is_some();
        self.lanes.iter().filter(busy).for_each(|lane| lane.close(reason));
    }

    /// The requests of a lane that are with the device.
    fn under_way(&self, lane: &Lane) -> impl Iterator<Item = &Slot> {
        let slots = |range| self.table.get(range).unwrap_or_default();
        let both = slots(lane.send.slots()).iter().chain(slots(lane.receive.slots()));
        both.filter(|slot| slot.state.get().is_in_flight())
    }

    /// Waits, as long as a scope may, until all is done that can be on an open connection; closes what is
    /// not.
    fn await_completions(&self) {
        let mut patience = Patience::new(self.limits.drain);
        let mut over = false;
        loop {
            let mut open = false;
            for lane in &self.lanes {
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
            match self.progress() {
                Ok(0) => over = patience.is_over(),
                Ok(_) => {}
                Err(_) => return,
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
        for lane in &self.lanes {
            if let (Some(qp), Some(_)) = (&lane.qp, self.under_way(lane).next()) {
                // If it is refused nothing is flushed, and the queue pair will be destroyed.
                let _ = qp.to_error();
            }
        }
        let mut patience = Patience::new(self.limits.drain);
        loop {
            for lane in &self.lanes {
                self.mark_silent(lane);
            }
            if self.lanes.iter().all(|lane| self.under_way(lane).next().is_none()) {
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
        let slots = self.table.get(lane.send.slots()).unwrap_or_default();
        let free = slots.iter().find(|slot| slot.state.get() == State::FREE);
        let (Some(qp), Some(slot)) = (&lane.qp, free) else { return };
        self.post_mark(lane, qp, slot);
    }

    /// Destroys the queue pairs that have not let go: the last that can be done.
    fn destroy(&mut self) {
        for place in 0..self.lanes.len() {
            let Some(lane) = self.lanes.get(place) else { return };
            if self.under_way(lane).next().is_none() {
                continue;
            }
            let Some(lane) = self.lanes.get_mut(place) else { return };
            if let Some(Err((_, error))) = lane.qp.take().map(QueuePair::close) {
                abort(&error);
            }
        }
    }

    /// Takes all results out of the table.
    fn collect(&self, why: Why, unasked: usize) -> Ended {
        let mut ended = Ended { unasked, ..Ended::default() };
        for slot in &self.table {
            let (state, id) = (slot.state.get(), WorkId(slot.id.get()));
            if state == State::FREE || state == State::DEAD {
                continue;
            }
            let operation = slot.operation.get();
            let result = match slot.result.get() {
                Some(result) if !state.is_in_flight() => Ok(result),
                _ => Err(TransportError::Lost { operation }),
            };
            slot.free();
            if matches!(why, Why::GivenUp(Some(own), _) if own == id) {
                ended.own = Some(result);
                continue;
            }
            if state == State::SEEN || state.is_mark() {
                continue;
            }
            if let Some(error) = self.failure(slot, result) {
                let peer = (self.lanes.len() > 1).then_some(slot.lane as usize);
                ended.errors.push(OperationError { operation, id, peer, error });
            }
        }
        self.live.set(0);
        ended
    }

    /// How an operation failed, if it did. Of one that was flushed, why it was.
    fn failure(
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
            Some(reason) if error.class() == WorkErrorClass::Flushed => {
                Some(TransportError::Closed(reason))
            }
            _ => Some(error.into()),
        }
    }
}

/// Whether it has a handle that was forgotten, or is nobody's.
fn is_unasked(slot: &Slot) -> bool {
    let state = slot.state.get();
    let over = matches!(state, State::FREE | State::SEEN | State::DEAD);
    !over && !state.is_abandoned()
}

/// Memory that was borrowed would be given back while the device writes it.
#[cold]
fn abort(error: &rdma_qp::Error) -> ! {
    let _ = writeln!(
        io::stderr(),
        "rdma-channel: aborting, since memory is borrowed by requests of a queue pair that could not be \
         destroyed: {error}"
    );
    process::abort()
}
