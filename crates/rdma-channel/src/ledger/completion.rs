//! Delivers polled completions to their slots.

use std::cell::Cell;
use std::mem;
use std::time::Duration;

use rdma_connect::{CloseReason, TransportError};
use rdma_qp::{PollError, PollSlot, WorkError, WorkErrorCode, WorkSuccess};

use super::Ledger;
use super::queues::RequestSlot;
use super::state::SlotState;

/// The time to keep watching the stream after the peer has failed to answer. When a process exits, its device may
/// disappear before its stream is closed.
const LAST_CHECK: Duration = Duration::from_millis(100);

impl Ledger {
    /// Polls completions once. Returns true if any belonged to a request in flight; spurious completions do not count,
    /// so that they do not prolong a wait.
    pub(crate) fn take_completions(&self) -> Result<bool, TransportError> {
        let polled = match self.cq.poll_into(&*self.polled) {
            Ok(polled) => polled,
            Err(error) => return Err(self.poll_failed(error)),
        };
        Ok(self.note_completions(polled))
    }

    /// Records the completions of the last poll. Returns true if any belonged to a request in flight.
    #[inline(always)]
    pub(super) fn note_completions(&self, polled: usize) -> bool {
        let (mut unclaimed, unmatched) = (0, self.unmatched.get());
        // Most requests complete in order, so the next slot is tried first.
        let mut likely = self.queues.expected(0);
        for entry in &self.polled[..polled.min(self.polled.len())] {
            let completion = entry.get().last();
            let id = completion.wr_id();
            let slot = if likely.id() == id { likely } else { self.queues.by_id(id) };
            likely = slot.next();
            let success = completion.result().is_ok();
            if success && slot.state().is(SlotState::IN_FLIGHT_DROPPED) {
                slot.free();
                unclaimed += 1;
            } else {
                // `complete` may check the invariants, so the counter must be up to date.
                self.unclaimed.set(self.unclaimed.get() + mem::take(&mut unclaimed));
                self.complete(slot, success, entry);
            }
        }
        self.queues.expect(0, likely);
        self.unclaimed.set(self.unclaimed.get() + unclaimed);
        self.checked();
        self.unmatched.get() - unmatched < polled as u64
    }

    /// Polls once. Releases the slots of a batch, in order, as long as each has the next completion and has succeeded.
    /// Stores the results in `successes`, and returns their number. Delivers all other completions. The requests are
    /// signaled and follow no unsignaled ones, and nothing was polled since they were posted.
    #[inline(always)]
    pub(crate) fn take_batch(
        &self,
        slots: &[&RequestSlot],
        successes: &mut [WorkSuccess],
    ) -> usize {
        // If this poll fails, the next one reports the error.
        let polled = self.cq.poll_into(&*self.polled).unwrap_or(0);
        let (polled, mut taken) = (&self.polled[..polled.min(self.polled.len())], 0);
        for ((entry, slot), success) in polled.iter().zip(slots).zip(successes) {
            let completion = entry.get().last();
            if completion.wr_id() != slot.id() {
                break;
            }
            debug_assert!(slot.state().is(SlotState::IN_FLIGHT), "the first poll after the post");
            let Ok(result) = completion.result() else { break };
            *success = result;
            slot.free();
            taken += 1;
        }
        self.unreleased.set(self.unreleased.get() - taken as u64);
        polled[taken..].iter().for_each(|entry| self.deliver(entry));
        taken
    }

    /// Delivers a completion to its slot.
    #[inline]
    pub(super) fn deliver(&self, entry: &Cell<PollSlot>) {
        let completion = entry.get().last();
        let slot = self.queues.by_id(completion.wr_id());
        self.complete(slot, completion.result().is_ok(), entry);
        self.checked();
    }

    /// Records the completion of the request in a slot. Counts it as unmatched if no such request is in flight.
    #[inline(always)]
    fn complete(&self, slot: &RequestSlot, success: bool, entry: &Cell<PollSlot>) {
        if success && slot.state().is(SlotState::IN_FLIGHT) {
            slot.completion.set(entry.get());
            slot.set(SlotState::DONE);
        } else {
            self.complete_others(slot, entry);
        }
    }

    /// The part of [`complete`](Self::complete) for requests that failed, are linked, or have no handle.
    #[inline(never)]
    fn complete_others(&self, slot: &RequestSlot, entry: &Cell<PollSlot>) {
        let (state, result) = (slot.state(), entry.get().last().result());
        // Successful unsignaled requests create no completion, so a device that reports one is faulty. The request
        // stays in its chain.
        if !state.is_in_flight() || result.is_ok() && state.is_unsignaled() {
            self.unmatched.set(self.unmatched.get() + 1);
            return;
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
