//! The receive queue: requests that wait for a message.

use std::sync::Arc;

use rdma_sys::{ibv_qp_state, ibv_sge};

use crate::engine::queue_pair::QueuePair;

/// A receive request without its elements.
#[derive(Debug, Clone, Copy, Default)]
pub(crate) struct Receive {
    pub(crate) wr_id: u64,
    /// Its number in the queue, which its completion gives back.
    pub(crate) index: u32,
    pub(crate) sges: usize,
}

#[derive(Debug)]
pub(crate) struct ReceiveQueue {
    pub(crate) state: ibv_qp_state,
    slots: Box<[Receive]>,
    sges: Box<[ibv_sge]>,
    max_sge: usize,
    head: usize,
    len: usize,
    /// Accepted since the queue was made (free-running).
    pub(crate) posted: u32,
    /// The requester that found the queue empty and wants to know of the next request.
    pub(crate) waiter: Option<Arc<QueuePair>>,
}

impl ReceiveQueue {
    pub(crate) fn new(max_wr: u32, max_sge: u32) -> Self {
        let (slots, max_sge) = (max_wr.max(1) as usize, max_sge.max(1) as usize);
        Self {
            state: ibv_qp_state::IBV_QPS_RESET,
            slots: vec![Receive::default(); slots].into_boxed_slice(),
            sges: vec![ibv_sge::default(); slots * max_sge].into_boxed_slice(),
            max_sge,
            head: 0,
            len: 0,
            posted: 0,
            waiter: None,
        }
    }

    /// Copies a request in; the caller has checked that there is room.
    #[inline]
    pub(crate) fn push(&mut self, wr_id: u64, sges: &[ibv_sge]) {
        debug_assert!(self.len < self.slots.len());
        let mut slot = self.head + self.len;
        if slot >= self.slots.len() {
            slot -= self.slots.len();
        }
        self.slots[slot] = Receive { wr_id, index: self.posted, sges: sges.len() };
        let first = slot * self.max_sge;
        self.sges[first..first + sges.len()].copy_from_slice(sges);
        self.len += 1;
        self.posted = self.posted.wrapping_add(1);
    }

    /// Takes the oldest request; its elements go to `out`, which is emptied first and has room.
    #[inline]
    pub(crate) fn pop(&mut self, out: &mut Vec<ibv_sge>) -> Option<Receive> {
        if self.len == 0 {
            return None;
        }
        let receive = self.slots[self.head];
        let first = self.head * self.max_sge;
        out.clear();
        out.extend_from_slice(&self.sges[first..first + receive.sges]);
        self.head = if self.head + 1 == self.slots.len() { 0 } else { self.head + 1 };
        self.len -= 1;
        Some(receive)
    }

    pub(crate) fn clear(&mut self) {
        (self.head, self.len) = (0, 0);
    }
}
