//! The receive queue: requests that wait for a message.

use std::sync::Arc;

use rdma_sys::{ibv_qp_state, ibv_sge};

use crate::engine::queue_pair::QueuePair;

/// A receive request, with its first element: most have one.
#[derive(Debug, Clone, Copy, Default)]
pub(crate) struct Receive {
    pub(crate) wr_id: u64,
    /// Its number in the queue, which its completion gives back.
    pub(crate) index: u32,
    sges: u32,
    first: ibv_sge,
}

/// One cache line: the thread that posts it and the peer's that takes it are on different cores.
#[derive(Debug, Clone, Copy, Default)]
#[repr(align(64))]
struct Slot(Receive);

/// Small, so that it is on the same cache line as its lock.
#[derive(Debug)]
pub(crate) struct ReceiveQueue {
    pub(crate) state: ibv_qp_state,
    slots: Box<[Slot]>,
    head: u32,
    len: u32,
    /// Accepted since the queue was made (free-running).
    pub(crate) posted: u32,
    more: Box<More>,
    /// The requester that found the queue empty and wants to know of the next request.
    pub(crate) waiter: Option<Arc<QueuePair>>,
}

/// The elements behind the first of each slot.
#[derive(Debug)]
struct More {
    sges: Box<[ibv_sge]>,
    per_slot: usize,
}

impl ReceiveQueue {
    pub(crate) fn new(max_wr: u32, max_sge: u32) -> Self {
        let (slots, per_slot) = (max_wr.max(1) as usize, max_sge.saturating_sub(1) as usize);
        let sges = vec![ibv_sge::default(); slots * per_slot].into_boxed_slice();
        Self {
            state: ibv_qp_state::IBV_QPS_RESET,
            slots: vec![Slot::default(); slots].into_boxed_slice(),
            head: 0,
            len: 0,
            posted: 0,
            more: Box::new(More { sges, per_slot }),
            waiter: None,
        }
    }

    /// The place of the `offset`th request behind the head; `offset` is at most the number of slots.
    #[inline]
    fn place(&self, offset: u32) -> usize {
        let (place, slots) = ((self.head + offset) as usize, self.slots.len());
        if place >= slots { place - slots } else { place }
    }

    /// Copies a request in; the caller has checked that there is room.
    #[inline]
    pub(crate) fn push(&mut self, wr_id: u64, sges: &[ibv_sge]) {
        let place = self.place(self.len);
        let (first, rest) = match sges {
            [] => (ibv_sge::default(), &[][..]),
            [first, rest @ ..] => (*first, rest),
        };
        let count = u32::try_from(sges.len()).unwrap_or(u32::MAX);
        self.slots[place] = Slot(Receive { wr_id, index: self.posted, sges: count, first });
        if !rest.is_empty() {
            let from = place * self.more.per_slot;
            self.more.sges[from..from + rest.len()].copy_from_slice(rest);
        }
        self.len += 1;
        self.posted = self.posted.wrapping_add(1);
    }

    /// Takes the oldest request; its elements go to `out`, which is emptied first and has room.
    #[inline]
    pub(crate) fn pop(&mut self, out: &mut Vec<ibv_sge>) -> Option<Receive> {
        if self.len == 0 {
            return None;
        }
        let place = self.place(0);
        let receive = self.slots[place].0;
        out.clear();
        if receive.sges > 0 {
            out.push(receive.first);
        }
        if receive.sges > 1 {
            let from = place * self.more.per_slot;
            out.extend_from_slice(&self.more.sges[from..from + receive.sges as usize - 1]);
        }
        self.head = u32::try_from(self.place(1)).unwrap_or(0);
        self.len -= 1;
        Some(receive)
    }

    /// A request that is completed without having been in the queue.
    #[inline]
    pub(crate) fn bypass(&mut self, wr_id: u64) -> Receive {
        let receive = Receive { wr_id, index: self.posted, ..Receive::default() };
        self.posted = self.posted.wrapping_add(1);
        receive
    }

    pub(crate) fn clear(&mut self) {
        (self.head, self.len) = (0, 0);
    }
}

#[cfg(all(test, not(loom)))]
mod tests {
    use super::*;

    #[test]
    fn requests_come_out_in_order_with_all_their_elements() {
        let sge = |n: u64| ibv_sge { addr: n, length: 1, lkey: 2 };
        let mut queue = ReceiveQueue::new(3, 4);
        let mut out = Vec::with_capacity(4);
        for round in 0..20 {
            let sges: Vec<_> = (0..round % 5).map(sge).collect();
            queue.push(round, &sges);
            queue.push(round + 100, &sges[..sges.len().min(1)]);
            let (first, index) = (queue.pop(&mut out).unwrap(), queue.posted - 2);
            assert_eq!((first.wr_id, first.index), (round, index));
            assert!(out.iter().map(|sge| sge.addr).eq(0..round % 5));
            assert_eq!(queue.pop(&mut out).unwrap().wr_id, round + 100);
            assert_eq!(out.len(), sges.len().min(1));
            assert!(queue.pop(&mut out).is_none());
        }
    }
}
