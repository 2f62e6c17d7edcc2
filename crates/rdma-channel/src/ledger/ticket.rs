//! One request in its slot, as all handles hold it.

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

/// Who holds it may ask how its request ended; the request goes on when it is dropped, and its slot is free
/// when it has reported its end or the request is over.
pub(crate) struct Ticket<'l>(PostedRequest<'l>);

/// A posted request, in its slot of a ledger. Passed by value: a reference would force the handle into memory.
#[derive(Clone, Copy)]
pub(crate) struct PostedRequest<'l> {
    ledger: &'l Ledger,
    slot: &'l RequestSlot,
}

/// What a [glance](PostedRequest::glance) has not settled.
#[derive(Clone, Copy, Debug)]
pub(crate) enum Unsettled {
    /// Nothing came.
    Nothing,
    /// It failed, or something else came.
    Unclear,
    Failed(PollError),
}

/// What a look at it has found.
enum Found {
    Own(WorkResult),
    /// A completion of another request.
    Other,
    Nothing,
}

/// In one line.
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

    /// Frees the slot: this one is over.
    #[inline(always)]
    pub(crate) fn release(self) {
        let PostedRequest { ledger, slot } = ManuallyDrop::new(self).0;
        ledger.release(slot);
    }

    /// Drops what the caller never had as a handle.
    #[cold]
    pub(crate) fn disown(self) {
        let PostedRequest { slot, .. } = ManuallyDrop::new(self).0;
        slot.set(slot.state().forgotten());
    }

    /// Forgets the handle: the request is its owner's affair.
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

    /// How it ended, if it is known to have.
    pub(crate) fn reported(self) -> Option<WorkResult> {
        self.slot.report()
    }

    /// What is said of it if it has failed.
    pub(crate) fn failed(self, error: WorkError) -> TransportError {
        self.ledger.failed(self.slot, error)
    }

    pub(crate) fn id(self) -> WorkId {
        WorkId::from_wr_id(self.slot.id())
    }

    /// The usual cases, in few instructions: its success is the next completion, or has come. Then it is over: its ticket
    /// is [released](Ticket::release), or what it reports is [noted](Self::note).
    #[inline(always)]
    pub(crate) fn glance(self) -> Result<WorkSuccess, Unsettled> {
        let Self { ledger, slot } = self;
        let has_come = if slot.state().is(SlotState::IN_FLIGHT) {
            // Where it would be brought: usually it is its own.
            let entry = slice::from_ref(&slot.completion);
            if ledger.cq.poll_into(entry).map_err(Unsettled::Failed)? == 0 {
                return Err(Unsettled::Nothing);
            }
            slot.completion.get().last().wr_id() == slot.id() || self.take_others()
        } else {
            self.has_come()
        };
        if has_come && let Ok(success) = slot.completion.get().last().result() {
            return Ok(success);
        }
        Err(self.not_yet(has_come))
    }

    /// Whether it is done, and has its completion.
    #[inline(never)]
    fn has_come(self) -> bool {
        self.slot.state().is(SlotState::DONE)
    }

    /// Brings to its slot what was polled into this one, which is of another request, and takes more. Whether this one's
    /// has come.
    #[inline(never)]
    fn take_others(self) -> bool {
        let Self { ledger, slot } = self;
        ledger.deliver(&slot.completion);
        // If it fails, the next one says so.
        let one_more = ledger.cq.poll_into(slice::from_ref(&slot.completion)).unwrap_or(0);
        if one_more == 0 || slot.completion.get().last().wr_id() == slot.id() {
            return one_more != 0;
        }
        ledger.deliver(&slot.completion);
        if let Ok(polled) = ledger.cq.poll_into(&*ledger.polled) {
            ledger.note_completions(polled);
        }
        slot.state().is(SlotState::DONE)
    }

    /// What is not settled, after the completion of this request was polled into its slot, or another.
    #[cold]
    #[inline(never)]
    fn not_yet(self, has_come: bool) -> Unsettled {
        if has_come && self.slot.state().is(SlotState::IN_FLIGHT) {
            self.ledger.deliver(&self.slot.completion);
        }
        Unsettled::Unclear
    }

    /// Notes that the handle has reported the success that a glance has seen, since it stays.
    #[inline(always)]
    pub(crate) fn note(self, success: WorkSuccess) -> WorkSuccess {
        self.slot.set(SlotState::REPORTED);
        success
    }

    /// How it ended, if a glance has not settled that, and it has. Can be asked again.
    ///
    /// # Errors
    /// If the completion queue has failed: that is no completion, and the request is still the device's.
    #[inline(never)]
    pub(crate) fn poll(self, so_far: Unsettled) -> Result<Option<WorkResult>, TransportError> {
        match so_far {
            Unsettled::Nothing => return Ok(None),
            Unsettled::Unclear => {}
            Unsettled::Failed(error) => return Err(self.ledger.poll_failed(error)),
        }
        Ok(match self.look()? {
            Found::Own(result) => Some(result),
            Found::Other | Found::Nothing => None,
        })
    }

    /// How it ended, within that time; else as long as operations of its kind may take.
    ///
    /// # Errors
    /// Those of [`poll`](Self::poll); [`TransportError::Timeout`].
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
            self.ledger.note_given_up(self.slot, timeout);
            TransportError::Timeout { operation, timeout, peer }
        })
    }

    /// How it ended, within that time, as [`wait`](Self::wait) says, of a handle that stays.
    #[inline(never)]
    pub(crate) fn succeed(
        self,
        so_far: Unsettled,
        timeout: Option<Duration>,
    ) -> Result<WorkSuccess, TransportError> {
        if let Some(success) = self.success() {
            return Ok(success);
        }
        if self.slot.state().is_unsignaled() {
            // Its end is that of a later one, which may have come.
            self.ledger.take_completions()?;
            if let Some(success) = self.success() {
                return Ok(success);
            }
        }
        self.wait(so_far, timeout)?.map_err(|error| self.failed(error))
    }

    /// Its success, if it is done, which its handle reports.
    #[inline(always)]
    fn success(self) -> Option<WorkSuccess> {
        let state = self.slot.state();
        let success = if state.is_done() { self.slot.result().ok() } else { None };
        if success.is_some() {
            self.slot.set(state.to(SlotState::REPORTED));
        }
        success
    }

    /// How it ended, if that is before the deadline.
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
            match self.look()? {
                Found::Own(result) => return Ok(Some(result)),
                Found::Other => {}
                Found::Nothing if self.ledger.pause(deadline, self.operation())? => {
                    return Ok(None);
                }
                Found::Nothing => {}
            }
        }
    }

    fn look(self) -> Result<Found, TransportError> {
        let Self { ledger, slot } = self;
        if let Some(result) = slot.report() {
            return Ok(Found::Own(result));
        }
        let matched = ledger.take_completions()?;
        Ok(match slot.report() {
            Some(result) => Found::Own(result),
            None if matched > 0 => Found::Other,
            None => Found::Nothing,
        })
    }

    /// Drops the handle of what is done, and was not reported.
    #[cold]
    #[inline(never)]
    fn abandon(self) {
        let Self { ledger, slot } = self;
        slot.set(slot.state().dropped());
        // A failure stays for the end of the scope to report.
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
        if state.is_in_flight() {
            slot.set(state.dropped());
        } else if state.is_reported() {
            ledger.release(slot);
        } else {
            self.0.abandon();
        }
    }
}
