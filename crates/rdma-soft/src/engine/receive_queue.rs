//! The receive queue: requests that wait for a message.
//!
//! Requests are posted under the [`ReceiveQueue`]'s lock and taken under the responder's lock. A slot itself shows
//! whether it holds a request, so a message takes one without touching the cache line of the posting thread's lock.
//! Only a message that finds no request locks the queue, to check again and to register as waiting.

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

/// A requester that found no receive request, and waits for one.
pub(crate) trait Waiter: Send + Sync + std::fmt::Debug {
    /// Notifies the requester that a receive request was posted. It resumes before this returns, within the turn, and
    /// does any remaining work soon afterwards. Returns true if a requester in another process may take the request
    /// later. The caller holds no lock.
    fn receiver_is_ready(self: Arc<Self>, turn: &mut Turn) -> bool;

    /// Notifies the requester that the receiver is gone, perhaps only for a time. The requester checks for the receiver
    /// soon afterwards. The caller may hold the queue's lock.
    fn receiver_has_gone(&self);
}

/// A waiter for a receive request.
#[derive(Debug)]
pub(crate) struct Waits {
    pub(crate) waiter: Weak<dyn Waiter>,
    /// Whether the requester is in another process. Such a requester takes the request only some time after the
    /// notification, and another requester may take the request first.
    pub(crate) is_far: bool,
}

/// A receive request that was taken.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Receive {
    pub(crate) wr_id: u64,
    /// The request's free-running number in the queue. Its completion releases the slot with this number.
    pub(crate) index: u32,
}

/// The number of elements that fit on the slot's cache line.
const NEAR: usize = 2;

/// Each slot fills one cache line, because the posting thread and the peer's thread, which takes the request, run on
/// different cores.
#[derive(Debug, Default)]
#[repr(align(64))]
struct ReceiveSlot {
    /// One more than the number of the request that was last posted in this slot.
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

/// The slots of a receive queue. A slot is written by the holder of the queue's lock, after the completion of the
/// slot's previous request was polled. It is read by the holder of the responder's lock, once the slot shows that it is
/// filled. In a shared queue, both hold the queue's lock.
#[derive(Debug)]
pub(crate) struct ReceiveSlots {
    /// The number of slots is a power of two, so a mask selects a request's slot.
    slots: Box<[ReceiveSlot]>,
    /// The elements that do not fit on a slot's cache line.
    far: Box<[Element]>,
    far_per_slot: usize,
}

impl ReceiveSlots {
    pub(crate) fn new(max_wr: u32, max_sge: u32) -> Result<Self, Refusal> {
        let slots = (max_wr as usize).next_power_of_two();
        let far_per_slot = (max_sge as usize).saturating_sub(NEAR);
        // All memory is reserved before any is touched, so that a refused call has used none.
        let (requests, far) = (Room::new(slots)?, Room::each(slots, far_per_slot)?);
        Ok(Self {
            slots: requests.filled(ReceiveSlot::default),
            far: far.filled(Element::default),
            far_per_slot,
        })
    }

    #[inline(always)]
    fn place(&self, number: u64) -> usize {
        // The mask fits in a `usize`, and so does the result.
        usize::try_from(number & (self.slots.len() as u64 - 1)).unwrap_or(0)
    }

    /// Returns the elements of a request that has `count` of them.
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

    /// Takes request `head`, if it was posted, and advances `head`. The request's elements are written to `out`, which
    /// is cleared first and has enough capacity. The caller holds the responder's lock.
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

/// Returns a request number in the form that completions carry.
#[inline(always)]
pub(super) fn index(number: u64) -> u32 {
    (number & 0xffff_ffff) as u32
}

/// The posting side, small enough to share a cache line with its lock.
#[derive(Debug)]
pub(crate) struct ReceiveQueue {
    pub(crate) state: QpState,
    /// The number of the next request, which is also the number of requests accepted since the queue was created.
    pub(crate) next: u64,
    /// The requester that found no request and waits for the next one.
    pub(crate) waiter: Option<Weak<dyn Waiter>>,
}

impl ReceiveQueue {
    pub(crate) fn new() -> Self {
        Self { state: QpState::RESET, next: 0, waiter: None }
    }

    /// Returns the number of accepted requests, in the form of [`Reclaimed`](crate::engine::completion::Reclaimed).
    #[inline]
    pub(crate) fn posted(&self) -> u32 {
        index(self.next)
    }

    /// Copies a request into the queue. The caller has checked that there is space.
    #[inline(always)]
    pub(crate) fn push(&mut self, slots: &ReceiveSlots, wr_id: u64, sges: &[Sge]) {
        slots.put(self.next, wr_id, sges);
        self.next += 1;
    }

    /// Assigns a number to a request that completes without entering the queue. Until the next reset, no thread takes a
    /// request with this or a later number.
    #[inline]
    pub(crate) fn bypass(&mut self, wr_id: u64) -> Receive {
        let receive = Receive { wr_id, index: index(self.next) };
        self.next += 1;
        receive
    }
}
