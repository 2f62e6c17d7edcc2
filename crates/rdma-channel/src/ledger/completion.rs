//! Delivers polled completions to their slots.

use std::cell::Cell;
use std::mem;
use std::time::Duration;

use rdma_connect::{CloseReason, TransportError};
use rdma_qp::{PollError, PollSlot, WorkError, WorkErrorCode};

use super::Ledger;
use super::queues::RequestSlot;
use super::state::SlotState;

/// The time to keep watching the stream after the peer has failed to answer. When a process exits, its device may
/// disappear before its stream is closed.
const LAST_CHECK: Duration = Duration::from_millis(100);

impl Ledger {
    /// Polls completions once. Returns how many belonged to requests in flight, so that spurious completions do not
    /// prolong a wait.
    pub(crate) fn take_completions(&self) -> Result<usize, TransportError> {
        let polled = match self.cq.poll_into(&*self.polled) {
            Ok(polled) => polled,
            Err(error) => return Err(self.poll_failed(error)),
        };
        Ok(self.note_completions(polled))
    }

    /// Records the completions of the last poll. Returns how many belonged to requests in flight.
    #[inline(always)]
    pub(super) fn note_completions(&self, polled: usize) -> usize {
        let (mut unclaimed, mut unmatched) = (0, 0);
        let mut likely = self.dead_slot();
        for entry in &self.polled[..polled.min(self.polled.len())] {
            let id = entry.get().last().wr_id();
            // Most requests complete in order, so the next slot is tried first.
            let slot = if likely.id() == id { Some(likely) } else { self.queues.by_id(id) };
            let Some(slot) = slot.filter(|slot| slot.state().is_in_flight()) else {
                unmatched += 1;
                continue;
            };
            likely = slot.next();
            let (state, success) = (slot.state(), entry.get().last().result().is_ok());
            if success && state.is(SlotState::IN_FLIGHT_DROPPED) {
                slot.free();
                unclaimed += 1;
                continue;
            }
            // `complete` may check the invariants, so the counter must be up to date.
            self.unclaimed.set(self.unclaimed.get() + mem::take(&mut unclaimed));
            if !self.complete(slot, state, success, entry) {
                unmatched += 1;
            }
        }
        self.unclaimed.set(self.unclaimed.get() + unclaimed);
        if unmatched > 0 {
            self.unmatched.set(self.unmatched.get() + unmatched as u64);
        }
        self.checked();
        polled - unmatched
    }

    /// Delivers a completion to its slot. Returns true if it matches a request in flight. The success of an unsignaled
    /// request never matches, because only a faulty device reports it.
    #[inline]
    pub(super) fn deliver(&self, entry: &Cell<PollSlot>) -> bool {
        let completion = entry.get().last();
        let success = completion.result().is_ok();
        let complete = |slot: &RequestSlot| self.complete(slot, slot.state(), success, entry);
        let matched = self.in_flight(completion.wr_id()).is_some_and(complete);
        if !matched {
            self.unmatched.set(self.unmatched.get() + 1);
        }
        self.checked();
        matched
    }

    /// Records the completion of a request in flight. Returns false for the success of an unsignaled request, which
    /// only a faulty device reports.
    #[inline(always)]
    fn complete(
        &self,
        slot: &RequestSlot,
        state: SlotState,
        success: bool,
        entry: &Cell<PollSlot>,
    ) -> bool {
        if success && state.is(SlotState::IN_FLIGHT) {
            slot.completion.set(entry.get());
            slot.set(SlotState::DONE);
            true
        } else {
            self.complete_others(slot, state, entry)
        }
    }

    /// The part of [`complete`](Self::complete) for requests that failed, are linked, or have no handle.
    #[inline(never)]
    fn complete_others(
        &self,
        slot: &RequestSlot,
        state: SlotState,
        entry: &Cell<PollSlot>,
    ) -> bool {
        let result = entry.get().last().result();
        if result.is_ok() && state.is_unsignaled() {
            // Successful unsignaled requests create no completion, so the device is faulty. The request stays in its
            // chain.
            return false;
        }
        if result.is_err() && !state.is_marker() {
            self.counts.fail();
        }
        if let Err(error) = result
            && let Some(connection) = self.queues.get(slot.connection as usize)
        {
            let failed = CloseReason::Work { operation: slot.operation.get(), error };
            connection.close(self.gone_without_answer(error).unwrap_or(failed));
        }
        if state.is_linked() {
            self.complete_unsignaled(slot.link());
        }
        slot.completion.set(entry.get());
        if state.has_no_handle() {
            slot.set(if state.is_dropped() {
                SlotState::DONE.dropped()
            } else {
                SlotState::DONE.forgotten()
            });
            if result.is_ok() || state.is_marker() {
                self.finish(slot);
            }
        } else {
            slot.set(SlotState::DONE);
        }
        true
    }

    /// Completes a chain of unsignaled requests. The requests of a send queue complete in order, so the completion of a
    /// later request also covers the unsignaled ones before it.
    #[inline(always)]
    fn complete_unsignaled(&self, last: &RequestSlot) {
        let mut slot = last;
        loop {
            let (state, before) = (slot.state(), slot.link());
            if state.is(SlotState::IN_FLIGHT.unsignaled().dropped()) {
                slot.free();
                self.unclaimed.set(self.unclaimed.get() + 1);
            } else if state.is_in_flight() && state.is_unsignaled() {
                slot.set(state.to(SlotState::DONE));
                if state.has_no_handle() {
                    self.finish(slot);
                }
            } else {
                break;
            }
            slot = before;
        }
    }

    /// Returns why the watched stream ended, if the peer did not answer because it is gone.
    #[cold]
    fn gone_without_answer(&self, error: WorkError) -> Option<CloseReason> {
        let watch = self.watch.as_ref().filter(|watch| watch.is_watched())?;
        if error.code() != WorkErrorCode::RetryExceededError {
            return None;
        }
        watch.wait_for_end(LAST_CHECK);
        watch.gone()
    }

    /// Closes all connections, because no completions can be received after a failed poll.
    #[cold]
    pub(super) fn poll_failed(&self, error: PollError) -> TransportError {
        self.queues.iter().for_each(|connection| connection.close(CloseReason::Poll));
        error.into()
    }
}
