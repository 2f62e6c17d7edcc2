//! The places of the completion table.

use std::cell::Cell;

use rdma_qp::{Qpn, WcOpcode, WorkResult, WorkSuccess};

use crate::Operation;

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
    /// Completed, and its handle has told; its result is in the slot.
    const SEEN: Self = Self(Self::TOLD);
    /// Succeeded, and its handle has told; its opcode is in the slot, and of a receive its result.
    const GLANCED: Self = Self(Self::TOLD | 1);
    /// Not a slot for requests: where the cursor of a closed queue stands.
    pub(crate) const DEAD: Self = Self(4);

    /// In both of these.
    const TOLD: u8 = 0x08;
    /// In flight, and nobody has a handle.
    const ABANDONED: u8 = 0x10;
    /// In flight, and success makes no completion.
    const SILENT: u8 = 0x20;
    /// In flight, and its completion tells of silent ones before it.
    const LINKED: u8 = 0x40;
    /// In flight, and posted only to see it flushed.
    const MARK: u8 = 0x80;
    const FLAGS: u8 = Self::ABANDONED | Self::SILENT | Self::LINKED | Self::MARK;

    pub(crate) const fn is_in_flight(self) -> bool {
        self.unflagged().0 == Self::IN_FLIGHT.0
    }

    #[inline(always)]
    pub(crate) const fn is_told(self) -> bool {
        self.0 & Self::TOLD != 0
    }

    const fn unflagged(self) -> Self {
        Self(self.0 & !Self::FLAGS)
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
#[repr(align(64))]
pub(crate) struct Slot {
    /// Of the request in it, or of the next one.
    pub(crate) id: Cell<u64>,
    pub(crate) state: Cell<State>,
    pub(crate) operation: Cell<Operation>,
    /// Which queue pair of the table, and its number.
    pub(crate) lane: u32,
    pub(crate) qpn: Qpn,
    /// The slot after it in its queue, a ring.
    pub(crate) next: u32,
    /// The id of the silent request before it, if its state says so.
    pub(crate) link: Cell<u64>,
    pub(crate) result: Cell<Option<WorkResult>>,
    /// What it was that succeeded; see [`State::GLANCED`].
    opcode: Cell<WcOpcode>,
}

/// Ids have the index in these bits, and the generation above them.
const INDEX: u64 = 0xffff_ffff;

/// Where the slot of this id is.
#[inline]
#[allow(clippy::cast_possible_truncation)] // masked; and usize has as many bits wherever there is RDMA
pub(crate) const fn index(id: u64) -> usize {
    (id & INDEX) as usize
}

impl Slot {
    pub(crate) const fn new(index: u32, lane: u32, qpn: Qpn, next: u32) -> Self {
        Self {
            id: Cell::new(index as u64),
            state: Cell::new(State::FREE),
            operation: Cell::new(Operation::Send),
            lane,
            qpn,
            next,
            link: Cell::new(0),
            result: Cell::new(None),
            opcode: Cell::new(WcOpcode::SEND),
        }
    }

    /// The slot at index 0, which no request is ever in: so no id is 0.
    pub(crate) const fn dead() -> Self {
        let mut dead = Self::new(0, 0, Qpn::masked(0), 0);
        dead.state = Cell::new(State::DEAD);
        dead
    }

    /// Notes the success that its handle is about to tell.
    #[inline(always)]
    pub(crate) fn tell(&self, success: WorkSuccess) {
        self.opcode.set(success.opcode());
        self.state.set(State::GLANCED);
        if success.is_receive() {
            self.result.set(Some(Ok(success)));
        }
    }

    /// How it ended, as its handle tells, now or again, if it has ended.
    pub(crate) fn told(&self) -> Option<WorkResult> {
        match self.state.get().unflagged() {
            State::DONE => {
                self.state.set(State::SEEN);
                self.result.get()
            }
            // Of a request of the send queue there is no more to know.
            State::GLANCED if !self.opcode.get().is_receive() => {
                Some(Ok(WorkSuccess::of_send(self.opcode.get())))
            }
            State::SEEN | State::GLANCED => self.result.get(),
            _ => None,
        }
    }

    /// Makes it free for the next request, which has another id.
    #[inline]
    pub(crate) fn free(&self) {
        self.id.set(self.id.get().wrapping_add(INDEX + 1));
        self.state.set(State::FREE);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_slot_is_found_by_the_id_of_each_of_its_generations() {
        let slot = Slot::new(7, 0, Qpn::masked(0x11), 1);
        let first = slot.id.get();
        slot.free();
        assert_ne!(slot.id.get(), first);
        assert_eq!((index(first), index(slot.id.get())), (7, 7));
        slot.id.set(u64::MAX << 32 | 7);
        slot.free();
        assert_eq!(slot.id.get(), 7, "generations begin anew, and no id is 0");
    }

    #[test]
    fn flags_do_not_end_the_flight() {
        let state = State::IN_FLIGHT.silent().abandoned();
        assert!(state.is_in_flight() && state.is_silent() && state.is_abandoned());
        assert!(state.is_linked());
        assert!(!State::DONE.is_in_flight() && !State::SEEN.is_in_flight());
        assert!(
            !State::GLANCED.is_in_flight() && State::GLANCED.is_told() && State::SEEN.is_told()
        );
        assert!(!State::FREE.is_in_flight() && !State::DEAD.is_in_flight());
    }
}
