//! A posted request and its slot: the part that all kinds of handles share.

use std::fmt;
use std::mem::ManuallyDrop;
use std::slice;
use std::time::Duration;

use rdma_connect::{Operation, TransportError, WorkId};
use rdma_qp::{PollError, WorkError, WorkResult, WorkSuccess};

use super::Ledger;
use super::queues::RequestSlot;
use super::state::SlotState;
use crate::deadline::Deadline;

/// The right to read the result of a request. If the ticket is dropped, the request continues. The slot becomes free
/// when the request has completed and the ticket is gone. If the ticket is dropped without reporting a failure, the
/// slot becomes free only when a scope ends.
pub(crate) struct Ticket<'l>(PostedRequest<'l>);

/// A posted request in its slot. It is passed by value, because a reference would force the handle into memory.
#[derive(Clone, Copy)]
pub(crate) struct PostedRequest<'l> {
    ledger: &'l Ledger,
    slot: &'l RequestSlot,
}

/// The reason why a [glance](PostedRequest::glance) did not settle a request.
#[derive(Clone, Copy, Debug)]
pub(crate) enum Unsettled {
    /// No completion arrived.
    Nothing,
    /// The request failed, the poll returned another request's completion, or the slot is in a state that a glance does
    /// not handle.
    Unclear,
    Failed(PollError),
}

/// The result of one poll for a request.
enum Found {
    Own(WorkResult),
    /// A completion of another request.
    Other,
    Nothing,
}

/// Formats the ticket in one line.
impl fmt::Debug for Ticket<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}, {}", self.0.operation(), self.0.id())
    }
}

impl<'l> Ticket<'l> {
    #[inline(always)]
    pub(crate) const fn new(ledger: &'l Ledger, slot: &'l RequestSlot) -> Self {
        Self(PostedRequest { ledger, slot })
    }

    #[inline(always)]
    pub(crate) const fn request(&self) -> PostedRequest<'l> {
        self.0
    }

    /// Frees the slot of a completed request.
    #[inline(always)]
    pub(crate) fn release(self) {
        let PostedRequest { ledger, slot } = ManuallyDrop::new(self).0;
        ledger.release(slot);
    }

    /// Drops a ticket that was never returned to the caller as a handle.
    #[cold]
    pub(crate) fn disown(self) {
        let PostedRequest { slot, .. } = ManuallyDrop::new(self).0;
        slot.set(slot.state().forgotten());
    }

    /// Drops the handle and leaves the request to the caller, which identifies the request by its `WorkId`.
    #[cold]
    pub(crate) fn keep(self) -> (WorkId, Operation) {
        let request = ManuallyDrop::new(self).0;
        (request.id(), request.operation())
    }
}

impl PostedRequest<'_> {
    pub(crate) fn operation(self) -> Operation {
        self.slot.operation.get()
    }

    /// Returns the result, if it is known.
    pub(crate) fn reported(self) -> Option<WorkResult> {
        self.slot.report()
    }

    /// Returns the error for this request after it failed.
    pub(crate) fn failed(self, error: WorkError) -> TransportError {
        self.ledger.failed(self.slot, error)
    }

    pub(crate) fn id(self) -> WorkId {
        WorkId::from_wr_id(self.slot.id())
    }

    /// Handles the usual cases in few instructions: the next completion is the success of this request, or its success
    /// was polled before. The caller then [releases](Ticket::release) the ticket or [notes](Self::note) the result.
    #[inline(always)]
    pub(crate) fn glance(self) -> Result<WorkSuccess, Unsettled> {
        let Self { ledger, slot } = self;
        let has_completed = if slot.state().is(SlotState::IN_FLIGHT) {
            // Polls directly into the slot, because the completion usually belongs to this request.
            let entry = slice::from_ref(&slot.completion);
            if ledger.cq.poll_into(entry).map_err(Unsettled::Failed)? == 0 {
                return Err(Unsettled::Nothing);
            }
            slot.completion.get().last().wr_id() == slot.id() || self.deliver_others()
        } else {
            self.has_completed()
        };
        if has_completed && let Ok(success) = slot.completion.get().last().result() {
            return Ok(success);
        }
        Err(self.no_success(has_completed))
    }

    /// Returns true if the request is done and its slot contains the completion.
    #[inline(always)]
    fn has_completed(self) -> bool {
        self.slot.state().is(SlotState::DONE)
    }

    /// Delivers the completion in this slot, which belongs to another request, and polls again. If the next completion
    /// also belongs to another request, polls all that the buffer can hold. Returns true if this request has completed.
    #[inline(never)]
    fn deliver_others(self) -> bool {
        let Self { ledger, slot } = self;
        ledger.deliver(&slot.completion);
        // If this poll fails, the next one reports the error.
        let one_more = ledger.cq.poll_into(slice::from_ref(&slot.completion)).unwrap_or(0);
        if one_more == 0 || slot.completion.get().last().wr_id() == slot.id() {
            return one_more != 0;
        }
        self.deliver_many()
    }

    /// Delivers the completion in this slot, and polls all that the buffer can hold. Returns true if this request has
    /// completed.
    #[inline(never)]
    fn deliver_many(self) -> bool {
        let Self { ledger, slot } = self;
        ledger.deliver(&slot.completion);
        if let Ok(polled) = ledger.cq.poll_into(&*ledger.polled) {
            ledger.note_completions(polled);
        }
        slot.state().is(SlotState::DONE)
    }

    /// Handles a glance that found no success. If this request's failure was polled into the slot, delivers it.
    #[cold]
    #[inline(never)]
    fn no_success(self, has_completed: bool) -> Unsettled {
        if has_completed && self.slot.state().is(SlotState::IN_FLIGHT) {
            self.ledger.deliver(&self.slot.completion);
        }
        Unsettled::Unclear
    }

    /// Records that the handle has reported the success found by a glance. The handle still exists.
    #[inline(always)]
    pub(crate) fn note(self, success: WorkSuccess) -> WorkSuccess {
        self.slot.set(SlotState::REPORTED);
        success
    }

    /// Returns the result after an inconclusive glance, if the request has completed. Can be called again.
    ///
    /// # Errors
    /// Returns an error if the completion queue has failed. The error does not complete the request, so the device may
    /// still use its memory.
    #[inline(never)]
    pub(crate) fn poll(self, so_far: Unsettled) -> Result<Option<WorkResult>, TransportError> {
        match so_far {
            Unsettled::Nothing => return Ok(None),
            Unsettled::Unclear => {}
            Unsettled::Failed(error) => return Err(self.ledger.poll_failed(error)),
        }
        Ok(match self.poll_once()? {
            Found::Own(result) => Some(result),
            Found::Other | Found::Nothing => None,
        })
    }

    /// Waits for the result for at most `timeout`. `None` means the time limit of this kind of operation.
    ///
    /// # Errors
    /// Same errors as [`poll`](Self::poll) and [`pause`](Ledger::pause), and [`TransportError::Timeout`].
    #[inline(never)]
    pub(crate) fn wait(
        self,
        so_far: Unsettled,
        timeout: Option<Duration>,
    ) -> Result<WorkResult, TransportError> {
        let operation = self.operation();
        let timeout = timeout.unwrap_or_else(|| self.ledger.limits.of(operation));
        let mut deadline = match self.ledger.call_ends.get() {
            (id, end) if id == self.slot.id() => Deadline::until(timeout, end),
            _ => Deadline::new(timeout),
        };
        let result = self.wait_until(so_far, &mut deadline)?;
        result.ok_or_else(|| {
            let (timeout, peer) = (deadline.limit(), self.ledger.peer_of(self.slot));
            self.ledger.note_timed_out(self.slot, timeout);
            TransportError::Timeout { operation, timeout, peer }
        })
    }

    /// Like [`wait`](Self::wait), but returns a failed request as an error. A request that has already succeeded is
    /// marked as reported and keeps its slot, because its handle still exists.
    #[inline(never)]
    pub(crate) fn succeed(
        self,
        so_far: Unsettled,
        timeout: Option<Duration>,
    ) -> Result<WorkSuccess, TransportError> {
        match self.success() {
            Some(success) => Ok(success),
            None => self.succeed_later(so_far, timeout),
        }
    }

    #[inline(never)]
    fn succeed_later(
        self,
        so_far: Unsettled,
        timeout: Option<Duration>,
    ) -> Result<WorkSuccess, TransportError> {
        if self.slot.state().is_unsignaled() {
            // An unsignaled request completes together with a later request, which may already have completed.
            self.ledger.take_completions()?;
            if let Some(success) = self.success() {
                return Ok(success);
            }
        }
        self.wait(so_far, timeout)?.map_err(|error| self.failed(error))
    }

    /// Reports the success of the request, if it is done.
    #[inline(always)]
    fn success(self) -> Option<WorkSuccess> {
        let state = self.slot.state();
        let success = if state.is_done() { self.slot.result().ok() } else { None };
        if success.is_some() {
            self.slot.set(state.to(SlotState::REPORTED));
        }
        success
    }

    /// Waits for the result until the deadline. Returns `None` if the deadline passes first.
    #[inline(never)]
    pub(crate) fn wait_until(
        self,
        so_far: Unsettled,
        deadline: &mut Deadline,
    ) -> Result<Option<WorkResult>, TransportError> {
        match so_far {
            Unsettled::Nothing if self.ledger.pause(deadline, self.operation())? => {
                return Ok(None);
            }
            Unsettled::Nothing | Unsettled::Unclear => {}
            Unsettled::Failed(error) => return Err(self.ledger.poll_failed(error)),
        }
        loop {
            match self.poll_once()? {
                Found::Own(result) => return Ok(Some(result)),
                Found::Other => {}
                Found::Nothing if self.ledger.pause(deadline, self.operation())? => {
                    return Ok(None);
                }
                Found::Nothing => {}
            }
        }
    }

    fn poll_once(self) -> Result<Found, TransportError> {
        let Self { ledger, slot } = self;
        if let Some(result) = slot.report() {
            return Ok(Found::Own(result));
        }
        let any = ledger.take_completions()?;
        Ok(match slot.report() {
            Some(result) => Found::Own(result),
            None if any => Found::Other,
            None => Found::Nothing,
        })
    }

    /// Marks a completed request as dropped when its handle has not reported the result.
    #[cold]
    #[inline(never)]
    fn abandon(self) {
        let Self { ledger, slot } = self;
        slot.set(slot.state().dropped());
        // A failure stays in its slot and is reported when the scope ends.
        if slot.state().is_done() && slot.result().is_ok() {
            ledger.finish(slot);
        }
        ledger.checked();
    }
}

impl Drop for Ticket<'_> {
    #[inline(always)]
    fn drop(&mut self) {
        let PostedRequest { ledger, slot } = self.0;
        let state = slot.state();
        // The usual state first, because storing a constant is cheaper than adding a flag.
        if state.is(SlotState::IN_FLIGHT) {
            slot.set(SlotState::IN_FLIGHT_DROPPED);
        } else if state.is_reported() {
            ledger.release(slot);
        } else if state.is_in_flight() {
            slot.set(state.dropped());
        } else {
            self.0.abandon();
        }
    }
}
