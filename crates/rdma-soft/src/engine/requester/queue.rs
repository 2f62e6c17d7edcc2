//! The send queue: requests that were accepted but are not finished.
#![allow(unsafe_code)]

use crate::address::AddressVector;
use crate::engine::Refusal;
use crate::engine::queue_pair::capacity::Capacity;
use crate::engine::requester::request::{Payload, Request};
use crate::memory::copy::{Segment, transfer};
use crate::memory::room::Room;
use crate::memory::sge::Sge;

#[derive(Debug, Clone, Copy)]
struct RequestSlot {
    request: Request,
    sges: usize,
    inline: bool,
}

/// A ring of copies, so nothing of the caller's request is used after its post returns. All memory is allocated when
/// the queue pair is created.
#[derive(Debug)]
pub(crate) struct SendQueue {
    slots: Box<[RequestSlot]>,
    sges: Box<[Sge]>,
    inline: Box<[u8]>,
    /// The destination of each request that names one. Only datagrams do.
    destinations: Box<[Option<AddressVector>]>,
    max_sge: usize,
    max_inline: usize,
    head: usize,
    len: usize,
}

impl SendQueue {
    pub(crate) fn new(capacity: &Capacity, datagrams: bool) -> Result<Self, Refusal> {
        let slots = capacity.send_wr.max(1) as usize;
        let max_sge = capacity.send_sge.max(1) as usize;
        let max_inline = capacity.inline as usize;
        // All memory is reserved before any is touched, so that a refused call has used none.
        let requests = Room::new(slots)?;
        let sges = Room::each(slots, max_sge)?;
        let inline = Room::each(slots, max_inline)?;
        let destinations = Room::new(if datagrams { slots } else { 0 })?;
        let empty = RequestSlot { request: Request::EMPTY, sges: 0, inline: false };
        Ok(Self {
            slots: requests.filled(|| empty),
            sges: sges.filled(Sge::default),
            inline: inline.filled(|| 0),
            destinations: destinations.filled(|| None),
            max_sge,
            max_inline,
            head: 0,
            len: 0,
        })
    }

    #[inline]
    pub(crate) fn is_empty(&self) -> bool {
        self.len == 0
    }

    pub(crate) fn len(&self) -> usize {
        self.len
    }

    /// Returns the slot `offset` places after the head. `offset` is at most the number of slots.
    fn slot_at(&self, offset: usize) -> usize {
        debug_assert!(offset <= self.slots.len());
        // A division would take longer.
        let slot = self.head + offset;
        if slot < self.slots.len() { slot } else { slot - self.slots.len() }
    }

    /// Copies a request into the queue. The caller has checked the request against the queue's limits, so there is
    /// space.
    pub(crate) fn push(&mut self, request: &Request, payload: Payload<'_>) {
        debug_assert!(self.len < self.slots.len());
        let slot = self.slot_at(self.len);
        let sges = &mut self.sges[slot * self.max_sge..(slot + 1) * self.max_sge];
        let count = if payload.is_inline() {
            let room = slot * self.max_inline..(slot + 1) * self.max_inline;
            sges[0] = take_inline(&mut self.inline[room], payload);
            1
        } else {
            sges[..payload.sges().len()].copy_from_slice(payload.sges());
            payload.sges().len()
        };
        if let Some(place) = self.destinations.get_mut(slot) {
            *place = payload.destination().copied();
        }
        self.slots[slot] =
            RequestSlot { request: *request, sges: count, inline: payload.is_inline() };
        self.len += 1;
    }

    pub(crate) fn front(&self) -> Option<(Request, Payload<'_>)> {
        self.at(0)
    }

    /// Returns the request `offset` places after the head.
    #[inline]
    pub(crate) fn at(&self, offset: usize) -> Option<(Request, Payload<'_>)> {
        if offset >= self.len {
            return None;
        }
        let place = self.slot_at(offset);
        let slot = &self.slots[place];
        let first = place * self.max_sge;
        let sges = &self.sges[first..first + slot.sges];
        let payload = if slot.inline {
            // Exposed again for the reads that follow, because `push` has borrowed all of the memory exclusively since.
            self.inline.as_ptr().expose_provenance();
            // SAFETY: `take_inline` pointed the element at the slot's own bytes. They stay in place, and are not
            // written until the request is popped (SAFETY.md F12). They are exposed above, through a pointer from the
            // borrow of this queue that the payload keeps (F7).
            unsafe { Payload::inline(sges) }
        } else {
            Payload::keyed(sges)
        };
        let destination = self.destinations.get(place).and_then(Option::as_ref);
        Some((slot.request, payload.to(destination)))
    }

    pub(crate) fn pop(&mut self) -> Option<Request> {
        let request = self.front()?.0;
        self.head = self.slot_at(1);
        self.len -= 1;
        Some(request)
    }

    pub(crate) fn clear(&mut self) {
        (self.head, self.len) = (0, 0);
    }
}

/// Copies inline data to a queue's own memory, and returns the element for it.
pub(crate) fn take_inline(room: &mut [u8], payload: Payload<'_>) -> Sge {
    let (size, mut length) = (room.len() as u64, 0);
    let address = room.as_mut_ptr().expose_provenance() as u64;
    for source in payload.inline_segments() {
        let left = size - length;
        // SAFETY: this is the rest of `room`, which is exclusively borrowed for the copy. Its provenance was exposed
        // above, and nothing else has accessed `room` since (SAFETY.md F7).
        let sink = unsafe { Segment::new(address + length, left) };
        transfer(&[source], &[sink], 0, source.length());
        length += source.length().min(left);
    }
    // Inline data is at most `max_inline` bytes, far below 4 GiB.
    Sge { addr: address, length: u32::try_from(length).unwrap_or(u32::MAX), lkey: 0 }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn queue(send_wr: u32, send_sge: u32, inline: u32) -> SendQueue {
        let capacity = Capacity { send_wr, send_sge, inline, receive_wr: 0, receive_sge: 0 };
        SendQueue::new(&capacity, false).unwrap()
    }

    fn request(wr_id: u64) -> Request {
        Request { wr_id, ..Request::EMPTY }
    }

    #[test]
    fn keeps_order_across_the_wrap() {
        let mut queue = queue(3, 2, 0);
        let sges = [Sge { addr: 1, length: 2, lkey: 3 }; 2];
        for round in 0..10 {
            queue.push(&request(round), Payload::keyed(&sges));
            queue.push(&request(round + 100), Payload::keyed(&sges[..1]));
            let (front, payload) = queue.front().unwrap();
            assert_eq!((front.wr_id, payload.sges().len()), (round, 2));
            assert_eq!(queue.pop().unwrap().wr_id, round);
            assert_eq!(queue.front().unwrap().1.sges().len(), 1);
            assert_eq!(queue.pop().unwrap().wr_id, round + 100);
            assert!(queue.pop().is_none());
        }
    }

    #[test]
    fn a_copy_of_inline_data_is_joined_and_kept() {
        let mut queue = queue(2, 4, 8);
        push_inline(&mut queue, &[b"ab", b"def"]);
        assert_eq!(front_data(&queue), b"abdef");
    }

    #[test]
    fn each_request_keeps_its_own_inline_data() {
        let mut queue = queue(3, 1, 4);
        let all = [b"abcd", b"efgh", b"ijkl"];
        for data in all {
            push_inline(&mut queue, &[data]);
        }
        for data in all {
            assert_eq!(front_data(&queue), data);
            queue.pop();
        }
    }

    /// Queues a request with these parts inline, and overwrites the parts.
    fn push_inline(queue: &mut SendQueue, parts: &[&[u8]]) {
        let mut parts: Vec<_> = parts.iter().map(|part| part.to_vec()).collect();
        let element = |part: &mut Vec<u8>| Sge {
            addr: part.as_mut_ptr().expose_provenance() as u64,
            length: u32::try_from(part.len()).unwrap(),
            lkey: 0,
        };
        let sges: Vec<_> = parts.iter_mut().map(element).collect();
        // SAFETY: the elements describe `parts`.
        queue.push(&request(1), unsafe { Payload::inline(&sges) });
        parts.iter_mut().for_each(|part| part.fill(0));
    }

    /// Returns the inline data of the head.
    fn front_data(queue: &SendQueue) -> Vec<u8> {
        let (_, payload) = queue.front().unwrap();
        let mut out = vec![0; usize::try_from(payload.length()).unwrap()];
        // SAFETY: the test owns this memory exclusively.
        let sink =
            unsafe { Segment::new(out.as_mut_ptr().expose_provenance() as u64, out.len() as u64) };
        let source: Vec<_> = payload.inline_segments().collect();
        transfer(&source, &[sink], 0, payload.length());
        out
    }
}
