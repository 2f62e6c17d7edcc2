//! Recounts the invariants of the ledger between operations.

use super::Ledger;
use super::queues::{Connection, index};
use super::state::SlotState;

impl Ledger {
    /// [Checks](Self::check) a small ledger every time, and a large one less often, so that the average cost is
    /// constant.
    pub(super) fn check_now_and_then(&self) {
        let checks = self.checks.get().wrapping_add(1);
        self.checks.set(checks);
        if (checks as usize).is_multiple_of(1 + self.queues.slots().len() / 128) {
            self.check();
        }
    }

    /// Checks all counters, rings and states of the ledger.
    ///
    /// # Panics
    /// Panics if any of them is wrong.
    pub(super) fn check(&self) {
        let (slots, mut occupied) = (self.queues.slots(), 0);
        for (place, slot) in slots.iter().enumerate() {
            let state = slot.state();
            assert_eq!(place == 0, state.is(SlotState::DEAD), "one slot is dead: {slot:?}");
            assert_eq!(place, index(slot.id()), "a WR ID of another slot: {slot:?}");
            assert!(
                state.is_occupied() || !state.has_no_handle(),
                "dropped or forgotten without a request: {slot:?}"
            );
            occupied += u64::from(state.is_occupied());
        }
        let (unreleased, unclaimed) = (self.unreleased.get(), self.unclaimed.get());
        assert_eq!(unreleased.checked_sub(unclaimed), Some(occupied), "{unreleased} - {unclaimed}");
        self.queues.iter().for_each(|connection| self.check_connection(connection));
    }

    fn check_connection(&self, connection: &Connection) {
        for queue in [&connection.send, &connection.receive] {
            let open = connection.closed().is_none() && connection.qp().is_some();
            let dead = queue.cursor().state().is(SlotState::DEAD);
            assert_eq!(dead, !open || queue.capacity() == 0, "where the cursor is: {connection:?}");
            let slots = self.queues.slots_of(queue);
            let Some(first) = slots.first() else { continue };
            let mut slot = first;
            for steps in 1..=slots.len() {
                slot = slot.next();
                let round = std::ptr::eq(slot, first);
                assert_eq!(round, steps == slots.len(), "the ring of {connection:?}");
            }
        }
        if connection.closed().is_some() {
            return;
        }
        let (mut slot, mut count) = (connection.last_unsignaled(), 0);
        while slot.state().is_in_flight() {
            assert!(slot.state().is_unsignaled(), "a signaled request among others: {slot:?}");
            (slot, count) = (slot.link(), count + 1);
        }
        assert_eq!(count, connection.unsignaled.get(), "unsignaled requests of {connection:?}");
    }
}
