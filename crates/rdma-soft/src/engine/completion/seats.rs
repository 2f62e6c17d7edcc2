//! The queue pairs of a completion queue.

use std::sync::Arc;

use crate::engine::completion::entry::Seat;
use crate::engine::completion::reclaimed::Reclaimed;

/// The counters of the attached queue pairs. A queue pair that uses the queue for both sides has two seats.
#[derive(Debug, Default)]
pub(super) struct Seats {
    counters: Vec<Option<Arc<Reclaimed>>>,
    free: Vec<u32>,
}

impl Seats {
    pub(super) fn take(&mut self, counters: &Arc<Reclaimed>) -> Seat {
        let counters = Some(Arc::clone(counters));
        if let Some(seat) = self.free.pop() {
            self.counters[seat as usize] = counters;
            return Seat(seat);
        }
        self.counters.push(counters);
        // Reserved now, so that detaching never allocates.
        let count = self.counters.len();
        self.free.reserve(count);
        Seat(u32::try_from(count - 1).unwrap_or(u32::MAX))
    }

    pub(super) fn free(&mut self, seat: Seat) {
        self.counters[seat.0 as usize] = None;
        self.free.push(seat.0);
    }

    #[inline(always)]
    pub(super) fn of(&self, seat: Seat) -> Option<&Reclaimed> {
        self.counters.get(seat.0 as usize)?.as_deref()
    }
}
