//! Driving a send queue: executing its head, and how much of it at a time.

use std::sync::Arc;

use rdma_types::WcStatus as Status;

use crate::engine::aftermath::Aftermath;
use crate::engine::requester::direct::Extent;
use crate::engine::requester::peer::Near;
use crate::engine::requester::side::{Blocked, SendSide, Verdict};
use crate::engine::station::Station;
use crate::engine::turn::{STRETCH_BYTES, TURN_BYTES, Turn};
use crate::memory::copy::Reach;

#[cfg(test)]
#[cfg(not(loom))]
mod tests;

/// How much of a queue one drive may execute.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Work {
    /// So many requests, up to [`STRETCH_BYTES`], by a thread that releases them.
    Requests(u32),
    /// The head, all of it.
    Head,
    /// What a thread executes that has other things to do than this queue: so many requests, and no more
    /// than [`TURN_BYTES`].
    Turn(u32),
    /// As [`Requests`](Self::Requests), by the thread that posts them.
    Stretch(u32),
    /// The head, half-way through its copy.
    HalfOfHead,
}

/// What is left of some work.
#[derive(Debug, Clone, Copy)]
struct LeftOfTurn {
    requests: u32,
    bytes: u64,
    half: bool,
}

impl Work {
    /// A post on a device with the immediate schedule executes requests of the program that has called:
    /// what it names is there.
    fn reach(self, own: &Station) -> Reach {
        match self {
            Self::Stretch(_) if own.immediate => Reach::Mapped,
            _ => own.adapter.later(),
        }
    }
}

impl LeftOfTurn {
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
    /// Executes from the head of the queue; a blocked head is tried again first. Says how many
    /// requests ended. If requests go as packets, this lets them go; they end later.
    pub(crate) fn drive(&mut self, own: &P, work: Work, aftermath: &mut Aftermath) -> u32 {
        self.drive_within(own, &mut LeftOfTurn::of(work), work.reach(own), aftermath)
    }

    fn drive_within(
        &mut self,
        own: &P,
        left: &mut LeftOfTurn,
        reach: Reach,
        aftermath: &mut Aftermath,
    ) -> u32 {
        let mut ended = 0;
        if self.wire.is_some() {
            self.release_packets(own, left.requests);
            return 0;
        }
        while self.may_run() && left.requests > 0 && left.bytes > 0 {
            let upto = self.head_index().wrapping_add(1);
            let Some((request, payload)) = self.queue.front() else { break };
            let requester = &mut self.requester;
            let before = requester.progress;
            let extent = left.extent();
            let verdict = requester.attempt(own, &request, payload, extent, reach, aftermath);
            let result = match verdict {
                Verdict::Done { bytes } => {
                    left.bytes = left.bytes.saturating_sub(bytes.saturating_sub(before));
                    Ok(bytes)
                }
                Verdict::Failed(status) => Err(status),
                Verdict::Paused => {
                    left.bytes = 0;
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
            left.requests -= 1;
        }
        ended
    }

    /// Whether there is something to execute that nothing holds back.
    pub(crate) fn has_work(&self) -> bool {
        self.may_run()
            && self.blocked == Blocked::No
            && !self.queue.is_empty()
            && self.wire.as_ref().is_none_or(|wire| self.holds_back(wire))
    }

    /// Executes a turn of this queue. What is left is for whoever polls next, or posts here, or for the
    /// device's thread.
    pub(crate) fn take_turn(&mut self, own: &P, aftermath: &mut Aftermath) {
        self.take_part(own, &mut Turn::new(), aftermath);
    }

    /// Executes of this queue what is left of a turn: nothing if the turn is over.
    pub(crate) fn take_part(&mut self, own: &P, turn: &mut Turn, aftermath: &mut Aftermath) {
        let requests = match (own.immediate, &own.adapter.deferred) {
            (true, _) => turn.requests,
            // Under a schedule that holds requests back, the one that has begun.
            (false, Some(_)) => turn.requests.min(1),
            // What is held goes on as it was told to, whole.
            (false, None) => {
                self.drive(own, Work::Head, aftermath);
                return;
            }
        };
        if turn.is_over() {
            return own.entry.wake();
        }
        let mut left = LeftOfTurn { requests, bytes: turn.bytes, half: false };
        turn.requests -= self.drive_within(own, &mut left, own.adapter.later(), aftermath);
        turn.bytes = left.bytes;
        self.leave_rest(own);
    }

    /// Has what can be executed go on soon.
    pub(crate) fn leave_rest(&self, own: &Station) {
        if !own.immediate {
            self.arm_if_deferred(own);
        } else if self.has_work() {
            own.entry.wake();
        }
    }

    /// Gives the head up.
    pub(super) fn give_up(&mut self, own: &P, status: Status, aftermath: &mut Aftermath) {
        if !self.may_run() {
            return;
        }
        let upto = self.head_index().wrapping_add(1);
        let Some((request, _)) = self.queue.front() else { return };
        self.end_head(own, &request, upto, Err(status), aftermath);
    }
}

/// Executes up to so many of the requests that are there, and lets others have the locks between long copies. Says
/// how many ended by this.
pub(crate) fn release<P: Near>(own: &Arc<P>, most: u32) -> u32 {
    let mut ended = 0;
    let mut begun = None;
    loop {
        let mut aftermath = Aftermath::default();
        let (more, peer) = {
            let mut send = own.send_side().lock();
            let there = (u32::try_from(send.queue.len()).unwrap_or(u32::MAX), send.incarnation);
            let (count, incarnation) = *begun.get_or_insert(there);
            // What was posted since a reset was not there.
            let left = if send.incarnation == incarnation { most.min(count) - ended } else { 0 };
            let done = send.drive(own, Work::Requests(left), &mut aftermath);
            ended += done;
            // What goes as packets ends later.
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
        let_others(own, peer);
    }
}

/// Copies half of the head, or the rest of it.
pub(crate) fn release_half<P: Near>(own: &Arc<P>) {
    let mut aftermath = Aftermath::default();
    own.send_side().lock().drive(own, Work::HalfOfHead, &mut aftermath);
    aftermath.settle(own);
}

/// Executes requests up to number `upto` on the thread that posted them, and lets others have the locks
/// between long copies.
#[cold]
pub(crate) fn run_posted<P: Near>(own: &Arc<P>, upto: u32) {
    loop {
        let mut aftermath = Aftermath::default();
        let (more, peer) = {
            let mut send = own.send_side().lock();
            // Behind them may be what others have posted meanwhile.
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
        let_others(own, peer);
    }
}

/// Lets those have the locks who wait for them, between two long copies.
#[cold]
pub(super) fn let_others<P: Near>(own: &Arc<P>, peer: Option<Arc<P>>) {
    own.send_side().let_others();
    if let Some(peer) = peer {
        peer.responder().let_others();
    }
}

/// There is another timeout, which counts from now on, also for a request that has no answer yet.
pub(crate) fn wait_anew<P: Near>(own: &Arc<P>) {
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

/// Ready to send again, after a drain: goes on with what was posted meanwhile, and looks whether what has
/// waited still has to.
pub(crate) fn resume<P: Near>(own: &Arc<P>) {
    let mut aftermath = Aftermath::default();
    {
        let mut send = own.send_side().lock();
        if own.immediate || send.blocked != Blocked::No {
            send.take_turn(own, &mut aftermath);
        } else {
            // What the schedule let go while the queue was drained has not been sent.
            if send.wire.is_some() {
                own.entry.queue();
            }
            send.arm_if_deferred(own);
        }
    }
    aftermath.settle(own);
}
