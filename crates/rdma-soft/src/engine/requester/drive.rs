//! Driving a send queue: executing requests from its head, and limiting how many are executed at a time.

use std::sync::Arc;

use rdma_types::WcStatus as Status;

use crate::engine::aftermath::Aftermath;
use crate::engine::requester::peer::Near;
use crate::engine::requester::side::{Blocked, SendSide, Verdict};
use crate::engine::station::Station;
use crate::engine::turn::{Extent, STRETCH_BYTES, TURN_BYTES, Turn};
use crate::memory::copy::Reach;

#[cfg(test)]
#[cfg(not(loom))]
mod tests;

/// The amount of work that one drive may do.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Work {
    /// Up to this many requests and [`STRETCH_BYTES`] bytes, on a thread that releases requests of a held device.
    Requests(u32),
    /// The whole request at the head of the queue.
    Head,
    /// Up to this many requests and [`TURN_BYTES`] bytes, on a thread that serves several queues.
    Turn(u32),
    /// Like [`Requests`](Self::Requests), but on the thread that posts the requests.
    Stretch(u32),
    /// The head, up to the middle of its copy.
    HalfOfHead,
}

/// The remaining budget of a drive.
#[derive(Debug, Clone, Copy)]
struct DriveBudget {
    requests: u32,
    bytes: u64,
    half: bool,
}

impl Work {
    /// Returns the reach of copies. A post on a device with the immediate schedule executes requests of the calling
    /// program, so their memory is mapped.
    fn reach(self, own: &Station) -> Reach {
        match self {
            Self::Stretch(_) if own.immediate => Reach::Mapped,
            _ => own.adapter.later(),
        }
    }
}

impl DriveBudget {
    fn of(work: Work) -> Self {
        let (requests, bytes) = match work {
            Work::Requests(requests) | Work::Stretch(requests) => (requests, STRETCH_BYTES),
            Work::Turn(requests) => (requests, TURN_BYTES),
            Work::Head | Work::HalfOfHead => (1, u64::MAX),
        };
        Self { requests, bytes, half: work == Work::HalfOfHead }
    }

    fn extent(&self) -> Extent {
        if self.half { Extent::Half } else { Extent::Bytes(self.bytes) }
    }
}

impl<P: Near> SendSide<P> {
    /// Executes requests from the head of the queue. A blocked head is retried first. Returns the number of requests
    /// that ended. Requests that go as packets are only released here, and end later.
    pub(crate) fn drive(&mut self, own: &P, work: Work, aftermath: &mut Aftermath) -> u32 {
        self.drive_within(own, &mut DriveBudget::of(work), work.reach(own), aftermath)
    }

    fn drive_within(
        &mut self,
        own: &P,
        budget: &mut DriveBudget,
        reach: Reach,
        aftermath: &mut Aftermath,
    ) -> u32 {
        let mut ended = 0;
        if self.wire.is_some() {
            self.release_packets(own, budget.requests);
            return 0;
        }
        while self.may_run() && budget.requests > 0 && budget.bytes > 0 {
            let upto = self.head_index().wrapping_add(1);
            let Some((request, payload)) = self.queue.front() else { break };
            let requester = &mut self.requester;
            let before = requester.progress;
            let extent = budget.extent();
            let verdict = requester.attempt(own, &request, payload, extent, reach, aftermath);
            let result = match verdict {
                Verdict::Done { bytes } => {
                    budget.bytes = budget.bytes.saturating_sub(bytes.saturating_sub(before));
                    Ok(bytes)
                }
                Verdict::Failed(status) => Err(status),
                Verdict::Paused => {
                    budget.bytes = 0;
                    self.blocked = Blocked::No;
                    break;
                }
                Verdict::NotReady { .. } | Verdict::Unanswered | Verdict::NoRoom => {
                    match self.block(own, verdict) {
                        Ok(()) => break,
                        Err(status) => Err(status),
                    }
                }
            };
            self.end_head(own, &request, upto, result, aftermath);
            ended += 1;
            budget.requests -= 1;
        }
        ended
    }

    /// Returns true if there is something to execute, and nothing holds it back.
    pub(crate) fn has_work(&self) -> bool {
        self.may_run()
            && self.blocked == Blocked::No
            && !self.queue.is_empty()
            && self.wire.as_ref().is_none_or(|wire| self.holds_back(wire))
    }

    /// Executes a turn of this queue. The rest is left to the next thread that polls or posts here, or to the device's
    /// thread.
    pub(crate) fn take_turn(&mut self, own: &P, aftermath: &mut Aftermath) {
        self.take_part(own, &mut Turn::new(), aftermath);
    }

    /// Executes requests of this queue within the rest of a turn: none if the turn is over.
    pub(crate) fn take_part(&mut self, own: &P, turn: &mut Turn, aftermath: &mut Aftermath) {
        let requests = match (own.immediate, &own.adapter.deferred) {
            (true, _) => turn.requests,
            // With a schedule that holds requests back, only the request that has begun continues.
            (false, Some(_)) => turn.requests.min(1),
            // On a held device, the whole head continues as instructed.
            (false, None) => {
                self.drive(own, Work::Head, aftermath);
                return;
            }
        };
        if turn.is_exhausted() {
            return own.entry.wake();
        }
        let mut budget = DriveBudget { requests, bytes: turn.bytes, half: false };
        turn.requests -= self.drive_within(own, &mut budget, own.adapter.later(), aftermath);
        turn.bytes = budget.bytes;
        self.leave_rest(own);
    }

    /// Schedules the execution of the remaining requests.
    pub(crate) fn leave_rest(&self, own: &Station) {
        if !own.immediate {
            self.arm_if_deferred(own);
        } else if self.has_work() {
            own.entry.wake();
        }
    }

    /// Gives up the request at the head.
    pub(super) fn give_up(&mut self, own: &P, status: Status, aftermath: &mut Aftermath) {
        if !self.may_run() {
            return;
        }
        let upto = self.head_index().wrapping_add(1);
        let Some((request, _)) = self.queue.front() else { return };
        self.end_head(own, &request, upto, Err(status), aftermath);
    }
}

/// Executes at most `most` of the requests in the queue, and yields the locks between long copies. Returns the number
/// of requests that ended.
pub(crate) fn release<P: Near>(own: &Arc<P>, most: u32) -> u32 {
    let mut ended = 0;
    let mut begun = None;
    loop {
        let mut aftermath = Aftermath::default();
        let (more, peer) = {
            let mut send = own.send_side().lock();
            let there = (u32::try_from(send.queue.len()).unwrap_or(u32::MAX), send.incarnation);
            let (count, incarnation) = *begun.get_or_insert(there);
            // Requests that were posted after a reset do not count.
            let left = if send.incarnation == incarnation { most.min(count) - ended } else { 0 };
            let done = send.drive(own, Work::Requests(left), &mut aftermath);
            ended += done;
            // Requests that go as packets end later.
            let more = done < left && send.wire.is_none() && send.has_work();
            if !more {
                send.leave_rest(own);
            }
            (more, send.requester.direct_peer())
        };
        aftermath.settle(own);
        if !more {
            return ended;
        }
        yield_locks(own, peer);
    }
}

/// Copies half of the head, or the rest of it.
pub(crate) fn release_half<P: Near>(own: &Arc<P>) {
    let mut aftermath = Aftermath::default();
    own.send_side().lock().drive(own, Work::HalfOfHead, &mut aftermath);
    aftermath.settle(own);
}

/// Executes requests before number `upto` on the thread that posted them, and yields the locks between long copies.
#[cold]
pub(crate) fn run_posted<P: Near>(own: &Arc<P>, upto: u32) {
    loop {
        let mut aftermath = Aftermath::default();
        let (more, peer) = {
            let mut send = own.send_side().lock();
            // Other threads may have posted more requests meanwhile.
            let left = |send: &SendSide<P>| upto.wrapping_sub(send.head_index()).cast_signed();
            let requests = u32::try_from(left(&send)).unwrap_or(0);
            send.drive(own, Work::Stretch(requests), &mut aftermath);
            let more = send.has_work() && left(&send) > 0;
            if !more {
                send.leave_rest(own);
            }
            (more, send.requester.direct_peer())
        };
        aftermath.settle(own);
        if !more {
            return;
        }
        yield_locks(own, peer);
    }
}

/// Yields the locks to waiters between two long copies.
#[cold]
pub(super) fn yield_locks<P: Near>(own: &Arc<P>, peer: Option<Arc<P>>) {
    own.send_side().yield_to_waiters();
    if let Some(peer) = peer {
        peer.responder().yield_to_waiters();
    }
}

/// Applies a new timeout from now on, even to a request that already waits for an answer.
pub(crate) fn restart_timeout<P: Near>(own: &Arc<P>) {
    {
        let mut send = own.send_side().lock();
        if send.wire.is_some() {
            own.entry.queue();
        } else if let Blocked::Unanswered { left, .. } = send.blocked {
            let timeout = send.requester.answer_timeout();
            let at = timeout.map(|timeout| own.adapter.fabric.clock.now() + timeout);
            send.blocked = Blocked::Unanswered { at, left };
            if let Some(at) = at {
                own.entry.set_timer(at);
            }
        }
    }
    own.adapter.fabric.run_queue.run();
}

/// Resumes after a drain: continues with requests posted meanwhile, and checks whether waiting requests still have to
/// wait.
pub(crate) fn resume<P: Near>(own: &Arc<P>) {
    let mut aftermath = Aftermath::default();
    {
        let mut send = own.send_side().lock();
        if own.immediate || send.blocked != Blocked::No {
            send.take_turn(own, &mut aftermath);
        } else {
            // Requests that the schedule released while the queue was drained have not been sent.
            if send.wire.is_some() {
                own.entry.queue();
            }
            send.arm_if_deferred(own);
        }
    }
    aftermath.settle(own);
}
