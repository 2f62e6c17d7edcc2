//! Slots, one for each request that a queue can have outstanding.

use std::mem::{self, ManuallyDrop};
use std::task::Waker;

use rdma_connect::Operation;
use rdma_qp::WorkResult;

use crate::buffer::held::Held;

/// One of the two queues of a queue pair.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Side {
    Send,
    Receive,
}

impl Side {
    /// Returns the queue of an operation.
    #[inline]
    pub(crate) const fn of(operation: Operation) -> Self {
        match operation {
            Operation::Receive => Self::Receive,
            _ => Self::Send,
        }
    }
}

/// The WR ID of a request: generation, entry and slot. A repeated or late completion has an old generation, and is
/// therefore ignored.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Id(pub(crate) u64);

const SLOT_BITS: u32 = 16;
const ENTRY_BITS: u32 = 16;

/// The maximum number of slots per queue pair, and of queue pairs per completion queue.
pub(crate) const MOST: u32 = 1 << SLOT_BITS;

impl Id {
    #[inline]
    pub(crate) const fn new(generation: u32, entry: usize, slot: u32) -> Self {
        debug_assert!(entry < 1 << ENTRY_BITS && slot < MOST);
        Self(
            (generation as u64) << (SLOT_BITS + ENTRY_BITS)
                | (entry as u64) << SLOT_BITS
                | slot as u64,
        )
    }

    #[inline]
    pub(crate) const fn slot(self) -> usize {
        (self.0 & ((1 << SLOT_BITS) - 1)) as usize
    }

    #[inline]
    pub(crate) const fn entry(self) -> usize {
        ((self.0 >> SLOT_BITS) & ((1 << ENTRY_BITS) - 1)) as usize
    }

    #[inline]
    const fn generation(self) -> u32 {
        (self.0 >> (SLOT_BITS + ENTRY_BITS)) as u32
    }
}

/// The state of a slot.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Phase {
    /// The slot holds no request.
    Free,
    /// The device holds the request.
    InFlight,
    /// The device holds the request, but its future was dropped.
    Detached,
    /// The request has ended: it completed, or its queue pair was destroyed.
    Done,
}

/// A request and its memory. The [`Held`] value stays in place while the request changes its phase.
#[derive(Debug)]
pub(crate) struct RequestSlot {
    generation: u32,
    pub(crate) operation: Operation,
    pub(crate) phase: Phase,
    /// The next free slot, if this one is free.
    next: Option<u32>,
    /// The memory of the request, or [`Held::Nothing`] in a free slot.
    pub(crate) held: Held,
    /// The waker of the task that awaits the request. Set only while the request is in flight.
    pub(crate) waker: Option<Waker>,
    /// Whether the completion is solicited if the request succeeds. Valid while the request is awaited.
    pub(crate) is_solicited: bool,
    /// The result of a request that has ended, or `None` if its queue pair was destroyed before it completed.
    pub(crate) result: Option<WorkResult>,
}

/// The slots of a queue pair: first the slots of the send queue, then those of the receive queue.
#[derive(Debug, Default)]
pub(crate) struct Slots {
    slots: Box<[RequestSlot]>,
    /// The number of send slots.
    sends: u32,
    free: [Option<u32>; 2],
    /// The first generation of these slots, which is greater than all earlier generations in this entry.
    begins: u32,
}

impl Slots {
    pub(crate) fn new([sends, receives]: [u32; 2], begins: u32) -> Self {
        let all = sends + receives;
        let slot = |index: u32| {
            let next = (index + 1 != sends && index + 1 != all).then_some(index + 1);
            RequestSlot {
                generation: begins,
                operation: Operation::Send,
                phase: Phase::Free,
                next,
                held: Held::Nothing,
                waker: None,
                is_solicited: false,
                result: None,
            }
        };
        let first = |from: u32, count: u32| (count > 0).then_some(from);
        Self {
            slots: (0..all).map(slot).collect(),
            sends,
            free: [first(0, sends), first(sends, receives)],
            begins,
        }
    }

    /// Returns the first generation for the slots of the next queue pair in this entry.
    pub(crate) fn next_generation(&self) -> u32 {
        let newest = self.slots.iter().map(|slot| slot.generation.wrapping_sub(self.begins)).max();
        self.begins.wrapping_add(newest.unwrap_or(0)).wrapping_add(1)
    }

    #[inline]
    pub(crate) const fn side(&self, slot: usize) -> Side {
        if slot < self.sends as usize { Side::Send } else { Side::Receive }
    }

    /// Returns true if the queue was created without slots.
    pub(crate) const fn has_none(&self, side: Side) -> bool {
        match side {
            Side::Send => self.sends == 0,
            Side::Receive => self.sends == self.len(),
        }
    }

    /// Returns the number of outstanding requests of the send queue.
    #[allow(clippy::cast_possible_truncation)] // at most the number of slots
    pub(crate) fn sending(&self) -> u32 {
        let sends = self.slots.iter().take(self.sends as usize);
        sends.filter(|slot| matches!(slot.phase, Phase::InFlight | Phase::Detached)).count() as u32
    }

    /// Returns the number of outstanding requests of both queues.
    pub(crate) fn outstanding(&self) -> u64 {
        let phases = self.slots.iter().map(|slot| slot.phase);
        phases.filter(|phase| matches!(phase, Phase::InFlight | Phase::Detached)).count() as u64
    }

    /// Returns true if a request of the send queue is outstanding.
    pub(crate) fn is_sending(&self) -> bool {
        let mut sends = self.slots.iter().take(self.sends as usize);
        sends.any(|slot| matches!(slot.phase, Phase::InFlight | Phase::Detached))
    }

    /// Returns a new WR ID for a request in the first free slot of a queue, if a slot is free. The slot stays free until
    /// it is [filled](Self::fill).
    #[inline]
    pub(crate) fn next_id(&mut self, entry: usize, side: Side) -> Option<Id> {
        let index = self.free[side as usize]?;
        let slot = &mut self.slots[index as usize];
        slot.generation = slot.generation.wrapping_add(1);
        Some(Id::new(slot.generation, entry, index))
    }

    /// Moves a posted request and its memory into its slot, the first free one.
    #[inline]
    pub(crate) fn fill(&mut self, id: Id, side: Side, operation: Operation, memory: Held) {
        let slot = &mut self.slots[id.slot()];
        debug_assert!(slot.phase == Phase::Free && slot.generation == id.generation());
        debug_assert!(matches!(slot.held, Held::Nothing));
        self.free[side as usize] = slot.next;
        (slot.operation, slot.phase) = (operation, Phase::InFlight);
        // The old value is `Nothing`, which needs no drop.
        let _ = ManuallyDrop::new(mem::replace(&mut slot.held, memory));
    }

    /// Frees a slot of a queue. Returns its memory, for the caller to take.
    #[inline(always)]
    pub(crate) fn free(&mut self, index: usize, side: Side) -> &mut Held {
        let side = side as usize;
        let slot = &mut self.slots[index];
        debug_assert!(slot.phase != Phase::Free && slot.waker.is_none());
        (slot.phase, slot.next) = (Phase::Free, self.free[side]);
        // An index is less than MOST.
        self.free[side] = u32::try_from(index).ok();
        &mut slot.held
    }

    /// Returns the slot of this request, or `None` if it has a later request.
    #[inline]
    pub(crate) fn of(&mut self, id: Id) -> Option<&mut RequestSlot> {
        self.slots.get_mut(id.slot()).filter(|slot| slot.generation == id.generation())
    }

    /// Returns the number of slots, which is at most [`MOST`].
    #[allow(clippy::cast_possible_truncation)]
    pub(crate) const fn len(&self) -> u32 {
        self.slots.len() as u32
    }

    /// Returns the slot with this index.
    #[inline]
    pub(crate) fn at(&mut self, index: usize) -> &mut RequestSlot {
        &mut self.slots[index]
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_id_returns_its_parts() {
        let id = Id::new(0xffff_fffe, 0xabcd, 0x1234);
        assert_eq!((id.generation(), id.entry(), id.slot()), (0xffff_fffe, 0xabcd, 0x1234));
    }

    #[test]
    fn a_slot_belongs_to_one_queue_and_is_reused_in_a_new_generation() {
        let mut slots = Slots::new([2, 1], 7);
        let take = |slots: &mut Slots, side| {
            let id = slots.next_id(3, side)?;
            slots.fill(id, side, Operation::Send, Held::Nothing);
            Some(id)
        };
        let [a, b] = [(); 2].map(|()| take(&mut slots, Side::Send).unwrap());
        assert_eq!((a.slot(), b.slot(), take(&mut slots, Side::Send)), (0, 1, None));
        let c = take(&mut slots, Side::Receive).unwrap();
        assert_eq!((c.slot(), c.entry(), take(&mut slots, Side::Receive)), (2, 3, None));
        assert!(slots.of(a).is_some());
        slots.free(a.slot(), Side::Send);
        assert_eq!(slots.of(a).map(|slot| slot.phase), Some(Phase::Free));
        // This request ended before it was moved into the slot.
        let skipped = slots.next_id(3, Side::Send).unwrap();
        let again = take(&mut slots, Side::Send).unwrap();
        assert_eq!([skipped, again].map(|id| (id.slot(), id.generation())), [(0, 9), (0, 10)]);
        assert!(slots.of(a).is_none() && slots.of(skipped).is_none(), "their generations are old");
        // The slots of a later queue pair start with a new generation.
        assert_eq!(slots.next_generation(), 11);
    }

    #[test]
    fn a_queue_may_have_no_slot() {
        let free = |depth| {
            let mut slots = Slots::new(depth, 0);
            [Side::Send, Side::Receive].map(|side| slots.next_id(0, side).map(Id::slot))
        };
        assert_eq!((free([0, 2]), free([2, 0])), ([None, Some(0)], [Some(0), None]));
    }
}
