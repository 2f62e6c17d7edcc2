//! The receive queue: requests that wait for a message.
//!
//! Requests are posted under the lock of the [`ReceiveQueue`] and taken under the responder's, and a slot
//! says itself that a request is there: a message takes it without the line of the posting thread's lock.
//! Only one that finds none locks the queue, to look again and leave word that it waits.

use std::sync::{Arc, Weak};

use rdma_types::QpState;

use crate::engine::Refusal;
use crate::engine::turn::Turn;
use crate::memory::room::Room;
use crate::memory::sge::Sge;
use crate::sync::{AtomicU64, Ordering};

#[cfg(test)]
#[cfg(loom)]
mod loom_tests;
pub(crate) mod shared;
#[cfg(test)]
#[cfg(not(loom))]
mod tests;

/// A requester that found no receive request, and waits to be informed of one.
pub(crate) trait Waiter: Send + Sync + std::fmt::Debug {
    /// There is one: goes on before this returns, as long as the turn lasts, and then in a moment. The caller
    /// holds no lock.
    fn receiver_is_ready(self: Arc<Self>, turn: &mut Turn);

    /// The receiver has gone, perhaps to come again: looks in a moment. The queue may be locked.
    fn receiver_has_gone(&self);
}

/// A waiter for a receive request.
#[derive(Debug)]
pub(crate) struct Waits {
    pub(crate) waiter: Weak<dyn Waiter>,
    /// Whether the requester is in another process: it takes the request some time after it was informed, unless another
    /// one does first.
    pub(crate) is_far: bool,
}

/// A receive request that was taken.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Receive {
    pub(crate) wr_id: u64,
    /// Its number in the queue (free-running), which its completion gives back.
    pub(crate) index: u32,
}

/// How many elements of a request are on its slot's cache line.
const NEAR: usize = 2;

/// One cache line: the thread that posts and the peer's that takes are on different cores.
#[derive(Debug, Default)]
#[repr(align(64))]
struct ReceiveSlot {
    /// One more than the number of the request that was last posted here.
    filled: AtomicU64,
    wr_id: AtomicU64,
    elements: AtomicU64,
    near: [Element; NEAR],
}

#[derive(Debug, Default)]
struct Element {
    address: AtomicU64,
    length_key: AtomicU64,
}

impl Element {
    #[inline(always)]
    fn write(&self, sge: &Sge) {
        self.address.store(sge.addr, Ordering::Relaxed);
        let length_key = u64::from(sge.length) | u64::from(sge.lkey) << 32;
        self.length_key.store(length_key, Ordering::Relaxed);
    }

    #[inline(always)]
    fn read(&self) -> Sge {
        let addr = self.address.load(Ordering::Relaxed);
        let length_key = self.length_key.load(Ordering::Relaxed);
        let (length, lkey) = ((length_key & 0xffff_ffff) as u32, (length_key >> 32) as u32);
        Sge { addr, length, lkey }
    }
}

/// The requests. A slot is written by whoever holds the queue's lock, after the completion of its last
/// request was polled, and read by whoever holds the responder's lock, once it says that it is filled. Of
/// a shared queue both hold its lock.
#[derive(Debug)]
pub(crate) struct ReceiveSlots {
    /// A power of two, so that a number's place is a mask away.
    slots: Box<[ReceiveSlot]>,
    /// The elements that are not near.
    far: Box<[Element]>,
    far_per_slot: usize,
}

impl ReceiveSlots {
    pub(crate) fn new(max_wr: u32, max_sge: u32) -> Result<Self, Refusal> {
        let slots = (max_wr as usize).next_power_of_two();
        let far_per_slot = (max_sge as usize).saturating_sub(NEAR);
        // All of it, before any is touched.
        let (requests, far) = (Room::new(slots)?, Room::each(slots, far_per_slot)?);
        Ok(Self {
            slots: requests.filled(ReceiveSlot::default),
            far: far.filled(Element::default),
            far_per_slot,
        })
    }

    #[inline(always)]
    fn place(&self, number: u64) -> usize {
        // The mask is a `usize`.
        usize::try_from(number & (self.slots.len() as u64 - 1)).unwrap_or(0)
    }

    /// Where the elements of a request with `count` of them are.
    #[inline(always)]
    fn elements(&self, place: usize, count: usize) -> impl Iterator<Item = &Element> {
        let far = match count.checked_sub(NEAR + 1) {
            Some(last) => &self.far[place * self.far_per_slot..][..=last],
            None => &[],
        };
        self.slots[place].near[..count.min(NEAR)].iter().chain(far)
    }

    #[inline(always)]
    pub(super) fn put(&self, number: u64, wr_id: u64, sges: &[Sge]) {
        let place = self.place(number);
        let slot = &self.slots[place];
        slot.wr_id.store(wr_id, Ordering::Relaxed);
        slot.elements.store(sges.len() as u64, Ordering::Relaxed);
        for (element, sge) in self.elements(place, sges.len()).zip(sges) {
            element.write(sge);
        }
        slot.filled.store(number + 1, Ordering::Release);
    }

    /// Takes request `head`, if it was posted, and moves on to the next; its elements go to `out`,
    /// which is emptied first and has space. The responder's lock is held.
    #[inline(always)]
    pub(crate) fn take(&self, head: &mut u64, out: &mut Vec<Sge>) -> Option<Receive> {
        let number = *head;
        let place = self.place(number);
        let slot = &self.slots[place];
        if slot.filled.load(Ordering::Acquire) != number + 1 {
            return None;
        }
        let count = usize::try_from(slot.elements.load(Ordering::Relaxed)).unwrap_or(0);
        out.clear();
        out.extend(self.elements(place, count).map(Element::read));
        *head = number + 1;
        Some(Receive { wr_id: slot.wr_id.load(Ordering::Relaxed), index: index(number) })
    }
}

/// The number as completions carry it.
#[inline(always)]
pub(super) fn index(number: u64) -> u32 {
    (number & 0xffff_ffff) as u32
}

/// The posting half; small, so that it is on the same cache line as its lock.
#[derive(Debug)]
pub(crate) struct ReceiveQueue {
    pub(crate) state: QpState,
    /// The number of the next request: how many were accepted since the queue was made.
    pub(crate) next: u64,
    /// The requester that found no request and wants to know of the next.
    pub(crate) waiter: Option<Weak<dyn Waiter>>,
}

impl ReceiveQueue {
    pub(crate) fn new() -> Self {
        Self { state: QpState::RESET, next: 0, waiter: None }
    }

    /// How many requests were accepted, as [`Reclaimed`](crate::engine::completion::Reclaimed) counts.
    #[inline]
    pub(crate) fn posted(&self) -> u32 {
        index(self.next)
    }

    /// Copies a request in; the caller has checked that there is space.
    #[inline(always)]
    pub(crate) fn push(&mut self, slots: &ReceiveSlots, wr_id: u64, sges: &[Sge]) {
        slots.put(self.next, wr_id, sges);
        self.next += 1;
    }

    /// A request that is completed without having been in the queue. Those who take do not come to its
    /// number or any behind it before the next reset.
    #[inline]
    pub(crate) fn bypass(&mut self, wr_id: u64) -> Receive {
        let receive = Receive { wr_id, index: index(self.next) };
        self.next += 1;
        receive
    }
}
