//! The places of the completion table.

use std::cell::Cell;

use rdma_qp::{PollSlot, WorkResult, WorkSuccess};

use crate::Operation;
use crate::table::At;

/// How far the request in a slot is, with flags.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct State(u8);

impl State {
    /// No request.
    pub(crate) const FREE: Self = Self(0);
    /// With the device.
    pub(crate) const IN_FLIGHT: Self = Self(1);
    /// Completed, and its handle has not been asked.
    pub(crate) const DONE: Self = Self(2);
    /// Taken for a request that is not posted yet.
    pub(crate) const RESERVED: Self = Self(5);
    /// Completed, and its handle has told.
    const SEEN: Self = Self(Self::TOLD);
    /// Not a slot for requests: where the cursor of a closed queue stands.
    pub(crate) const DEAD: Self = Self(4);

    /// In both of these.
    const TOLD: u8 = 0x08;
    /// In flight, and nobody has a handle.
    const ABANDONED: u8 = 0x10;
    /// In flight, and success makes no completion; or done without one.
    const SILENT: u8 = 0x20;
    /// In flight, and its completion tells of silent ones before it.
    const LINKED: u8 = 0x40;
    /// In flight, and posted only to see it flushed.
    const MARK: u8 = 0x80;
    const FLAGS: u8 = Self::ABANDONED | Self::SILENT | Self::LINKED | Self::MARK;

    pub(crate) const fn is_in_flight(self) -> bool {
        self.0 & !Self::FLAGS == Self::IN_FLIGHT.0
    }

    const fn is_done(self) -> bool {
        self.0 & !Self::FLAGS == Self::DONE.0
    }

    #[inline(always)]
    pub(crate) const fn is_told(self) -> bool {
        self.0 & Self::TOLD != 0
    }

    pub(crate) const fn abandoned(self) -> Self {
        Self(self.0 | Self::ABANDONED)
    }

    pub(crate) const fn silent(self) -> Self {
        Self(self.0 | Self::SILENT | Self::LINKED)
    }

    pub(crate) const fn linked(self) -> Self {
        Self(self.0 | Self::LINKED)
    }

    pub(crate) const fn mark(self) -> Self {
        Self(self.0 | Self::MARK)
    }

    pub(crate) const fn is_mark(self) -> bool {
        self.0 & Self::MARK != 0
    }

    pub(crate) const fn is_abandoned(self) -> bool {
        self.0 & Self::ABANDONED != 0
    }

    pub(crate) const fn is_silent(self) -> bool {
        self.0 & Self::SILENT != 0
    }

    pub(crate) const fn is_linked(self) -> bool {
        self.0 & Self::LINKED != 0
    }
}

/// One place: for one request at a time, of one queue of one queue pair.
///
/// The id of a request is the slot's index below and the slot's generation above, so that a completion finds
/// its slot without a search, and one that comes twice, or late, finds that the generation has passed.
#[derive(Debug)]
pub(crate) struct Slot {
    /// Of the request in it, or of the next one.
    pub(crate) id: Cell<u64>,
    /// Its completion, if it is done, and was not silent. Before that, whatever came while it was waited for.
    pub(crate) completion: Cell<PollSlot>,
    pub(crate) state: Cell<State>,
    pub(crate) operation: Cell<Operation>,
    /// The slot after it in its queue, a ring.
    pub(crate) next: Cell<At>,
    /// The id of the silent request before it, if its state says so.
    pub(crate) link: Cell<u64>,
    /// Which queue pair of the table.
    pub(crate) lane: u32,
}

/// Ids have the index in so many bits, and the generation above them: what is added for the next one is still a
/// constant of an instruction.
const INDEX_BITS: u32 = 30;
const GENERATION: u64 = 1 << INDEX_BITS;
/// So many requests can a table have: as many as there are indices, but for the dead slot's.
pub(crate) const MOST_REQUESTS: u32 = (1 << INDEX_BITS) - 1;

/// Where the slot of this id is.
#[inline]
#[allow(clippy::cast_possible_truncation)] // masked; and usize has as many bits wherever there is RDMA
pub(crate) const fn index(id: u64) -> usize {
    (id & (GENERATION - 1)) as usize
}

/// The generation in this id.
pub(crate) const fn generation(id: u64) -> u64 {
    id >> INDEX_BITS
}

impl Slot {
    pub(crate) fn new(index: u32, lane: u32) -> Self {
        Self {
            id: Cell::new(index.into()),
            completion: Cell::default(),
            state: Cell::new(State::FREE),
            operation: Cell::new(Operation::Send),
            next: Cell::new(At::NOWHERE),
            link: Cell::new(0),
            lane,
        }
    }

    /// The slot at index 0, which no request is ever in: so no id is 0.
    pub(crate) fn dead() -> Self {
        Self { state: Cell::new(State::DEAD), ..Self::new(0, 0) }
    }

    /// Notes that its handle tells of the success that has just come into it.
    #[inline(always)]
    pub(crate) fn tell(&self) {
        self.state.set(State::SEEN);
    }

    /// How it ended, as its handle tells, now or again, if it has ended.
    pub(crate) fn told(&self) -> Option<WorkResult> {
        let state = self.state.get();
        if state.is_done() {
            let seen = State::SEEN;
            self.state.set(if state.is_silent() { seen.silent() } else { seen });
        } else if !state.is_told() {
            return None;
        }
        Some(self.result())
    }

    /// How what is done in it has ended.
    pub(crate) fn result(&self) -> WorkResult {
        if self.state.get().is_silent() {
            Ok(WorkSuccess::of_send(self.operation.get().opcode()))
        } else {
            self.completion.get().last().result()
        }
    }

    /// Makes it free for the next request, which has another id.
    #[inline]
    pub(crate) fn free(&self) {
        self.id.set(self.id.get().wrapping_add(GENERATION));
        self.state.set(State::FREE);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_slot_is_found_by_the_id_of_each_of_its_generations() {
        let slot = Slot::new(7, 0);
        let first = slot.id.get();
        slot.free();
        assert_ne!(slot.id.get(), first);
        assert_eq!((index(first), index(slot.id.get())), (7, 7));
        assert_eq!((generation(first), generation(slot.id.get())), (0, 1));
        slot.id.set(u64::MAX << INDEX_BITS | 7);
        slot.free();
        assert_eq!(slot.id.get(), 7, "generations begin anew, and no id is 0");
    }

    #[test]
    fn flags_do_not_end_the_flight() {
        let state = State::IN_FLIGHT.silent().abandoned();
        assert!(state.is_in_flight() && state.is_silent() && state.is_abandoned());
        assert!(state.is_linked());
        assert!(!State::DONE.is_in_flight() && !State::SEEN.is_in_flight());
        assert!(State::SEEN.is_told() && State::SEEN.silent().is_told());
        assert!(State::DONE.silent().is_done() && !State::SEEN.silent().is_done());
        assert!(!State::FREE.is_in_flight() && !State::DEAD.is_in_flight());
    }
}
