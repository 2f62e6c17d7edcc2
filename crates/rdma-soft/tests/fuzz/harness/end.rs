//! A queue pair, and the record of the requests posted to it.

use std::collections::VecDeque;

use rdma_sys::{Errno, ibv_qp_state as State, ibv_wc, ibv_wc_opcode, ibv_wc_status as Status};
use test_support::fuzz::trace;
use test_support::rig::{Qp, Size};

use super::request::{Built, Judged};
use super::world::World;

/// A send request that may complete.
struct Sent {
    id: u64,
    signaled: bool,
    may_succeed: bool,
    /// The life of the queue pair in which it was posted; after an error the send queue needs a new
    /// life.
    life: u32,
}

/// A receive request that may complete.
#[derive(Clone, Copy)]
pub(crate) struct Receive {
    pub(crate) id: u64,
    /// The available space in bytes, up to the first element that its key does not grant.
    pub(crate) room: u64,
}

pub(crate) struct End {
    pub(crate) qp: Qp,
    pub(crate) size: Size,
    /// Whether READs and atomics may be posted.
    pub(crate) fetches: bool,
    pub(crate) number: usize,
    sent: VecDeque<Sent>,
    received: VecDeque<Receive>,
    life: u32,
    /// The life in which a request failed or was flushed.
    broken: Option<u32>,
    /// The number of send completions polled.
    pub(crate) completed: usize,
}

impl End {
    pub(crate) fn new(qp: Qp, size: Size, fetches: bool, number: usize) -> Self {
        let (sent, received) = Default::default();
        Self { qp, size, fetches, number, sent, received, life: 0, broken: None, completed: 0 }
    }

    pub(crate) fn room(&self) -> usize {
        self.size.send_wr as usize - self.sent.len()
    }

    pub(crate) fn receive_room(&self) -> usize {
        self.size.receive_wr as usize - self.received.len()
    }

    pub(crate) fn note_sent(&mut self, built: &Built) {
        let Built { wr, judged: Judged { may_succeed, signaled, .. }, .. } = built;
        let (signaled, may_succeed) = (*signaled || self.size.signal_all, *may_succeed);
        self.sent.push_back(Sent { id: wr.wr_id, signaled, may_succeed, life: self.life });
    }

    /// Records a bind of a window.
    pub(crate) fn note_bound(&mut self, id: u64, signaled: bool) {
        let signaled = signaled || self.size.signal_all;
        self.sent.push_back(Sent { id, signaled, may_succeed: true, life: self.life });
    }

    pub(crate) fn note_received(&mut self, receive: Receive) {
        self.received.push_back(receive);
    }

    /// Forgets all posted requests: after a reset none of them completes.
    pub(crate) fn forget(&mut self) {
        self.sent.clear();
        self.received.clear();
        self.revive();
    }

    /// Starts a new life of the send queue after an error.
    pub(crate) fn revive(&mut self) {
        self.life += 1;
    }

    /// Returns the reason to refuse a request that is posted now, with `room` free entries.
    pub(crate) fn refusal(&self, judged: &Judged, state: State, room: usize) -> Option<Errno> {
        let accepts = matches!(
            state,
            State::IBV_QPS_RTS | State::IBV_QPS_SQD | State::IBV_QPS_SQE | State::IBV_QPS_ERR
        );
        if !judged.is_sound || !accepts {
            Some(Errno::EINVAL)
        } else if room == 0 {
            Some(Errno::ENOMEM)
        } else {
            judged.goes_nowhere.then_some(Errno::EINVAL)
        }
    }

    /// Polls up to eight completions of sends.
    pub(crate) fn poll_sends(&mut self, world: &World) -> usize {
        let polled = world.queues[self.number][0]
            .try_poll::<8>()
            .expect("the completion queue does not overflow");
        for wc in &polled {
            self.take_sent(wc);
        }
        self.completed += polled.len();
        polled.len()
    }

    fn take_sent(&mut self, wc: &ibv_wc) {
        let seen = seen(wc);
        assert_eq!(wc.qp_num, self.qp.number());
        let at = self.sent.iter().position(|sent| sent.id == wc.wr_id);
        let at = at.unwrap_or_else(|| panic!("no posted request matches {seen:?}"));
        for silent in self.sent.drain(..at) {
            let done = !silent.signaled && self.broken != Some(silent.life);
            assert!(done, "{:x} must complete before {seen:?}", silent.id);
        }
        let sent = self.sent.pop_front().expect("it was found");
        if wc.status == Status::IBV_WC_SUCCESS {
            assert!(sent.signaled, "the request is unsignaled: {seen:?}");
            assert!(sent.may_succeed, "no key allows it: {seen:?}");
            assert_ne!(self.broken, Some(sent.life), "an earlier request failed: {seen:?}");
            assert!(wc.opcode.0 < ibv_wc_opcode::IBV_WC_RECV.0, "{seen:?}");
        } else if self.broken.replace(sent.life) == Some(sent.life) {
            assert_eq!(wc.status, Status::IBV_WC_WR_FLUSH_ERR, "a second failure: {seen:?}");
        }
    }

    /// Accounts for a completion of its own receives, which complete in order.
    pub(crate) fn take_received(&mut self, wc: &ibv_wc) {
        let seen = seen(wc);
        let receive = self.received.pop_front().expect("a receive was posted");
        assert_eq!(receive.id, wc.wr_id, "{seen:?}");
        self.check_received(wc, receive);
    }

    pub(crate) fn check_received(&self, wc: &ibv_wc, receive: Receive) {
        let seen = seen(wc);
        assert_eq!(wc.qp_num, self.qp.number());
        if wc.status != Status::IBV_WC_SUCCESS {
            return;
        }
        if wc.opcode == ibv_wc_opcode::IBV_WC_RECV {
            assert!(u64::from(wc.byte_len) <= receive.room, "{} for {seen:?}", receive.room);
        } else {
            assert_eq!(wc.opcode, ibv_wc_opcode::IBV_WC_RECV_RDMA_WITH_IMM, "{seen:?}");
        }
    }

    /// Checks that every request that must complete has completed, now that the queue pair is in
    /// error.
    pub(crate) fn check_end(&self) {
        for silent in &self.sent {
            let done = !silent.signaled && self.broken != Some(silent.life);
            assert!(done, "{:x} never completes", silent.id);
        }
        assert!(self.received.is_empty(), "{} receives never complete", self.received.len());
    }
}

/// The fields of a completion that failures and traces show.
fn seen(wc: &ibv_wc) -> (u64, Status, ibv_wc_opcode, u32) {
    let seen = (wc.wr_id, wc.status, wc.opcode, wc.byte_len);
    trace(&seen);
    seen
}
