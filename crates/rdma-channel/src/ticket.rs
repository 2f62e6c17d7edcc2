//! One request in flight, as all handles hold it.

use std::mem::ManuallyDrop;
use std::time::Duration;

use rdma_qp::{PollSlot, WorkResult};

use crate::core::Core;
use crate::patience::Patience;
use crate::slot::{Slot, State};
use crate::{Operation, TransportError, WorkId};

/// Who holds it may ask how its request is; the request goes on when it is dropped, and its slot is free
/// when it was asked or the request is done.
#[derive(Debug)]
pub(crate) struct Ticket<'c> {
    core: &'c Core,
    slot: &'c Slot,
}

/// What a look at it has found.
enum Found {
    Own(WorkResult),
    /// A completion of another request.
    Other,
    Nothing,
}

impl<'c> Ticket<'c> {
    #[inline]
    pub(crate) const fn new(core: &'c Core, slot: &'c Slot) -> Self {
        Self { core, slot }
    }

    pub(crate) fn operation(&self) -> Operation {
        self.slot.operation.get()
    }

    /// Forgets the handle: the request is its owner's affair.
    #[cold]
    pub(crate) fn keep(self) -> (WorkId, Operation) {
        let this = ManuallyDrop::new(self);
        (this.id(), this.operation())
    }

    pub(crate) fn id(&self) -> WorkId {
        WorkId(self.slot.id.get())
    }

    /// How long operations of its kind may take.
    pub(crate) fn limit(&self) -> Duration {
        self.core.limits.of(self.operation())
    }

    /// How it ended; asked once, then it has told.
    ///
    /// # Errors
    /// If the completion queue has failed: that is no completion, and the request is still the device's.
    #[inline]
    pub(crate) fn poll(&self) -> Result<Option<WorkResult>, TransportError> {
        Ok(match self.look()? {
            Found::Own(result) => Some(result),
            Found::Other | Found::Nothing => None,
        })
    }

    /// How it ended, within that time.
    ///
    /// # Errors
    /// As [`poll`](Self::poll).
    #[inline]
    pub(crate) fn wait(&self, limit: Duration) -> Result<Option<WorkResult>, TransportError> {
        self.wait_with(&mut Patience::new(limit))
    }

    /// As [`wait`](Self::wait), with what is left of a limit.
    #[inline]
    pub(crate) fn wait_with(
        &self,
        patience: &mut Patience,
    ) -> Result<Option<WorkResult>, TransportError> {
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

    #[inline]
    fn look(&self) -> Result<Found, TransportError> {
        let slot = self.slot;
        if !slot.state.get().is_in_flight() {
            return Ok(self.tell());
        }
        let mut room = [PollSlot::default()];
        let completion = match self.core.cq.poll(&mut room) {
            Ok(mut completions) => completions.next(),
            Err(error) => return Err(self.core.poll_failed(error)),
        };
        let Some(completion) = completion else { return Ok(Found::Nothing) };
        let own = completion.wr_id() == slot.id.get()
            && completion.qpn() == slot.qpn
            && slot.state.get() == State::IN_FLIGHT;
        if own && let Ok(success) = completion.result() {
            slot.state.set(State::SEEN);
            return Ok(Found::Own(Ok(success)));
        }
        let known = self.core.deliver(&completion);
        Ok(match slot.state.get().is_in_flight() {
            false => self.tell(),
            true if known => Found::Other,
            true => Found::Nothing,
        })
    }

    /// What its slot says.
    fn tell(&self) -> Found {
        let was = self.slot.state.replace(State::SEEN);
        if was == State::DONE
            && let Some(result) = self.slot.result.get()
        {
            return Found::Own(result);
        }
        Found::Nothing
    }

    /// What nobody has asked of.
    #[cold]
    #[inline(never)]
    fn abandon(&self) {
        self.core.unasked.set(self.core.unasked.get() + 1);
        let state = self.slot.state.get();
        if state.is_in_flight() {
            self.slot.state.set(state.abandoned());
        } else if self.slot.result.get().is_some_and(|result| result.is_ok()) {
            self.core.release(self.slot);
        } else {
            // A failure stays for the end of the scope to tell.
            self.slot.state.set(state.abandoned());
        }
    }
}

impl Drop for Ticket<'_> {
    #[inline]
    fn drop(&mut self) {
        if self.slot.state.get() == State::SEEN {
            self.core.release(self.slot);
        } else {
            self.abandon();
        }
    }
}
