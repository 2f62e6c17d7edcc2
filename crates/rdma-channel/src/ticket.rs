//! One request in flight, as all handles hold it.

use std::mem::ManuallyDrop;
use std::slice;
use std::time::Duration;

use rdma_qp::{PollError, WorkResult, WorkSuccess};

use crate::core::Core;
use crate::patience::Patience;
use crate::slot::{Slot, State};
use crate::{Operation, TransportError, WorkId};

/// Who holds it may ask how its request is; the request goes on when it is dropped, and its slot is free
/// when it was asked or the request is done.
#[derive(Debug)]
pub(crate) struct Ticket<'c>(Place<'c>);

/// Where it is. By value, since what is called on a handle by reference has to be in memory.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Place<'c> {
    core: &'c Core,
    slot: &'c Slot,
}

/// What a [glance](Place::glance) has not settled.
#[derive(Clone, Copy, Debug)]
pub(crate) enum Unsettled {
    /// Nothing came.
    Nothing,
    /// Something else came, or did before.
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

impl<'c> Ticket<'c> {
    #[inline(always)]
    pub(crate) const fn new(core: &'c Core, slot: &'c Slot) -> Self {
        Self(Place { core, slot })
    }

    #[inline(always)]
    pub(crate) const fn place(&self) -> Place<'c> {
        self.0
    }

    /// Makes room for another request: this one is done.
    #[inline(always)]
    pub(crate) fn release(self) {
        let Place { core, slot } = ManuallyDrop::new(self).0;
        core.release(slot);
    }

    /// Drops what the caller never had as a handle.
    #[cold]
    pub(crate) fn disown(self) {
        let strangers = &self.0.core.strangers;
        strangers.set(strangers.get() + 1);
    }

    /// Forgets the handle: the request is its owner's affair.
    #[cold]
    pub(crate) fn keep(self) -> (WorkId, Operation) {
        let place = ManuallyDrop::new(self).0;
        (place.id(), place.operation())
    }
}

impl Place<'_> {
    pub(crate) fn operation(self) -> Operation {
        self.slot.operation.get()
    }

    pub(crate) fn id(self) -> WorkId {
        WorkId(self.slot.id.get())
    }

    /// The usual case, in few instructions: its success is the next completion. Then it is done: its handle
    /// is [released](Ticket::release), or [told](Self::tell).
    #[inline(always)]
    pub(crate) fn glance(self) -> Result<WorkSuccess, Unsettled> {
        let Self { core, slot } = self;
        if slot.state.get() != State::IN_FLIGHT {
            return Err(Unsettled::Unclear);
        }
        // Where it would be brought: usually it is its own.
        let room = slice::from_ref(&slot.completion);
        if core.cq.poll_into(room).map_err(Unsettled::Failed)? == 0 {
            return Err(Unsettled::Nothing);
        }
        let completion = slot.completion.get().last();
        if completion.wr_id() == slot.id.get()
            && let Ok(success) = completion.result()
        {
            return Ok(success);
        }
        self.deliver();
        Err(Unsettled::Unclear)
    }

    /// Notes what a glance has seen, since its handle stays.
    #[inline(always)]
    pub(crate) fn tell(self, success: WorkSuccess) -> WorkSuccess {
        self.slot.tell();
        success
    }

    /// Brings on what was polled into its slot; see [`Core::deliver`].
    #[inline(never)]
    fn deliver(self) -> bool {
        self.core.deliver(&self.slot.completion.get())
    }

    /// How it ended, if a glance has not told, and it has. Can be asked again.
    ///
    /// # Errors
    /// If the completion queue has failed: that is no completion, and the request is still the device's.
    #[inline(never)]
    pub(crate) fn poll(self, so_far: Unsettled) -> Result<Option<WorkResult>, TransportError> {
        match so_far {
            Unsettled::Nothing => return Ok(None),
            Unsettled::Unclear => {}
            Unsettled::Failed(error) => return Err(self.core.poll_failed(error)),
        }
        Ok(match self.look()? {
            Found::Own(result) => Some(result),
            Found::Other | Found::Nothing => None,
        })
    }

    /// As [`poll`](Self::poll), within that time; else as long as operations of its kind may take.
    ///
    /// # Errors
    /// As there; [`TransportError::Timeout`].
    #[inline(never)]
    pub(crate) fn wait(
        self,
        so_far: Unsettled,
        timeout: Option<Duration>,
    ) -> Result<WorkResult, TransportError> {
        let operation = self.operation();
        let timeout = timeout.unwrap_or_else(|| self.core.limits.of(operation));
        let mut patience = match self.core.begun.get() {
            (id, end) if id == self.slot.id.get() => Patience::until(timeout, end),
            _ => Patience::new(timeout),
        };
        let result = self.wait_on(so_far, &mut patience)?;
        result.ok_or(TransportError::Timeout { operation, timeout })
    }

    /// How it ended, with what is left of a limit.
    #[inline]
    pub(crate) fn wait_with(
        self,
        patience: &mut Patience,
    ) -> Result<Option<WorkResult>, TransportError> {
        match self.glance() {
            Ok(success) => Ok(Some(Ok(self.tell(success)))),
            Err(so_far) => self.wait_on(so_far, patience),
        }
    }

    /// As [`wait_with`](Self::wait_with), after a glance.
    #[inline(never)]
    pub(crate) fn wait_on(
        self,
        so_far: Unsettled,
        patience: &mut Patience,
    ) -> Result<Option<WorkResult>, TransportError> {
        match so_far {
            Unsettled::Nothing if patience.is_over() => return Ok(None),
            Unsettled::Nothing | Unsettled::Unclear => {}
            Unsettled::Failed(error) => return Err(self.core.poll_failed(error)),
        }
        loop {
            match self.look()? {
                Found::Own(result) => return Ok(Some(result)),
                Found::Other => {}
                Found::Nothing => {
                    if patience.is_over() {
                        return Ok(None);
                    }
                    if patience.is_long() {
                        self.core.check_process()?;
                    }
                }
            }
        }
    }

    fn look(self) -> Result<Found, TransportError> {
        let Self { core, slot } = self;
        if let Some(result) = slot.told() {
            return Ok(Found::Own(result));
        }
        let room = slice::from_ref(&slot.completion);
        if core.cq.poll_into(room).map_err(|error| core.poll_failed(error))? == 0 {
            return Ok(Found::Nothing);
        }
        let known = self.deliver();
        Ok(match slot.told() {
            Some(result) => Found::Own(result),
            None if known => Found::Other,
            None => Found::Nothing,
        })
    }

    /// What nobody has asked of, and is not simply under way.
    #[cold]
    #[inline(never)]
    fn abandon(self) {
        let Self { core, slot } = self;
        let state = slot.state.get();
        if state.is_in_flight() || slot.result().is_err() {
            // A failure stays for the end of the scope to tell.
            slot.state.set(state.abandoned());
        } else {
            core.finish(slot);
        }
    }
}

impl Drop for Ticket<'_> {
    #[inline(always)]
    fn drop(&mut self) {
        let Place { core, slot } = self.0;
        let state = slot.state.get();
        if state == State::IN_FLIGHT {
            slot.state.set(State::IN_FLIGHT.abandoned());
        } else if state.is_told() {
            core.release(slot);
        } else {
            self.0.abandon();
        }
    }
}
