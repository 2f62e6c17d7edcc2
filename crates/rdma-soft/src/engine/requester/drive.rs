//! Driving a send queue: executing its head, waiting, giving up.

use std::sync::Arc;

use rdma_types::MinRnrTimer;
use rdma_types::{AsyncEventKind, QpState, WcStatus};

use crate::engine::aftermath::Aftermath;
use crate::engine::clock::Time;
use crate::engine::completion::{Completion, JUNK, Side, Source};
use crate::engine::queue_pair::QueuePair;
use crate::engine::requester::direct::Extent;
use crate::engine::requester::request::Request;
use crate::engine::requester::side::{Blocked, Requester, SendSide, Verdict};
use crate::engine::service::Service;

/// How much of a queue one drive may execute.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Work {
    All,
    Requests(u32),
    /// What a thread executes that has other things to do than this queue: so many requests, and no more
    /// than [`TURN_BYTES`].
    Turn(u32),
    /// What is copied before others may have the locks.
    Stretch,
    /// The head, half-way through its copy.
    HalfOfHead,
}

/// What a turn executes at most.
pub(crate) const TURN_REQUESTS: u32 = 16;
const TURN_BYTES: u64 = 64 << 10;
/// Some tens of microseconds.
pub(crate) const STRETCH_BYTES: u64 = 1 << 20;

/// What is left of some work.
#[derive(Debug, Clone, Copy)]
struct Left {
    requests: u32,
    bytes: u64,
    half: bool,
}

impl Left {
    fn of(work: Work) -> Self {
        let (requests, bytes) = match work {
            Work::All => (u32::MAX, u64::MAX),
            Work::Requests(requests) => (requests, u64::MAX),
            Work::Turn(requests) => (requests, TURN_BYTES),
            Work::Stretch => (u32::MAX, STRETCH_BYTES),
            Work::HalfOfHead => (1, u64::MAX),
        };
        Self { requests, bytes, half: work == Work::HalfOfHead }
    }

    fn extent(&self) -> Extent {
        if self.half { Extent::Half } else { Extent::Bytes(self.bytes) }
    }
}

impl QueuePair {
    /// Completes a request whose attempt came to an end; `upto` is the number behind its own.
    #[inline]
    pub(crate) fn finish(
        self: &Arc<Self>,
        send: &mut SendSide,
        request: &Request,
        upto: u32,
        result: Result<u64, WcStatus>,
        aftermath: &mut Aftermath,
    ) {
        if result.is_ok() {
            send.executed += 1;
        }
        match result {
            Ok(bytes) if request.signaled || self.signal_all => self.push_send(Completion {
                wr_id: request.wr_id,
                status: WcStatus::SUCCESS,
                opcode: request.opcode.completion(),
                byte_len: match request.opcode.fetches() {
                    true => u32::try_from(bytes).unwrap_or(u32::MAX),
                    false => JUNK,
                },
                imm: JUNK,
                flags: 0,
                qpn: self.qpn,
                vendor_err: 0,
                source: Source::UNDEFINED,
                solicited: false,
                side: Side::Send,
                upto,
            }),
            Ok(_) => {}
            Err(status) => {
                self.device.tally.count_failure(status);
                self.push_send(self.failed_send(request.wr_id, upto, status));
                self.stop(send, aftermath);
            }
        }
    }

    /// A request failed. The receiver of a reliable connection cannot go on without it; of the other
    /// services only the send queue stops (IBTA volume 1, 10.3.1.6).
    #[cold]
    fn stop(&self, send: &mut SendSide, aftermath: &mut Aftermath) {
        let reliable = self.service == Service::ReliableConnection;
        if !reliable && send.state == QpState::RTS {
            send.state = QpState::SQE;
            self.flush_send(send);
        } else {
            send.state = QpState::ERR;
            aftermath.requester_failed(send.incarnation);
        }
    }

    /// Records why the head waits, and sets the alarm. A reason that it already waits for keeps its
    /// deadline.
    #[cold]
    pub(crate) fn block(&self, send: &mut SendSide, verdict: Verdict) -> Result<(), WcStatus> {
        let requester = &send.requester;
        self.count_answer(requester, verdict);
        let next = match (verdict, send.blocked) {
            (Verdict::NotReady { .. }, Blocked::NotReady { .. })
            | (Verdict::Unanswered, Blocked::Unanswered { .. }) => return Ok(()),
            (Verdict::NotReady { timer }, _) => {
                let until = match requester.rnr_retries {
                    0 => return Err(WcStatus::RNR_RETRY_EXC_ERR),
                    7 => None,
                    retries => MinRnrTimer::from_code(timer)
                        .map(|timer| Time::now() + timer.duration() * u32::from(retries)),
                };
                Blocked::NotReady { until }
            }
            (Verdict::Unanswered, _) => {
                let at = requester.answer_timeout().map(|timeout| Time::now() + timeout);
                Blocked::Unanswered { at, left: requester.retries }
            }
            (Verdict::Done { .. } | Verdict::Failed(_) | Verdict::Paused, _) => return Ok(()),
        };
        send.blocked = next;
        if let Blocked::NotReady { until: Some(at) } | Blocked::Unanswered { at: Some(at), .. } =
            next
        {
            self.alarm.set(at);
        }
        Ok(())
    }

    /// Counts how a request was not executed.
    fn count_answer(&self, requester: &Requester, verdict: Verdict) {
        let Requester { peer, path, peer_qpn, psn, .. } = requester;
        match verdict {
            Verdict::NotReady { .. } => {
                self.device.tally.not_ready_received.count();
                if let Some(peer) = peer {
                    peer.device.tally.not_ready_sent.count();
                }
            }
            Verdict::Unanswered => {
                if let Some(peer) = self.device.find_peer(path.as_ref(), *peer_qpn) {
                    peer.responder.lock().count_dropped(&peer, self.qpn, path.as_ref(), *psn);
                }
            }
            _ => {}
        }
    }

    /// Executes from the head of the queue; a blocked head is tried again first. Says how many
    /// requests ended.
    pub(crate) fn drive(
        self: &Arc<Self>,
        send: &mut SendSide,
        work: Work,
        aftermath: &mut Aftermath,
    ) -> u32 {
        let mut ended = 0;
        let mut left = Left::of(work);
        while send.may_run() && left.requests > 0 && left.bytes > 0 {
            let upto = send.head_index().wrapping_add(1);
            let Some((request, payload)) = send.queue.front() else { break };
            let requester = &mut send.requester;
            let before = requester.progress;
            let verdict = self.attempt(requester, &request, payload, left.extent(), aftermath);
            let result = match verdict {
                Verdict::Done { bytes } => {
                    left.bytes = left.bytes.saturating_sub(bytes.saturating_sub(before));
                    Ok(bytes)
                }
                Verdict::Failed(status) => Err(status),
                Verdict::Paused => {
                    send.blocked = Blocked::No;
                    break;
                }
                Verdict::NotReady { .. } | Verdict::Unanswered => match self.block(send, verdict) {
                    Ok(()) => break,
                    Err(status) => Err(status),
                },
            };
            self.end_head(send, &request, upto, result, aftermath);
            ended += 1;
            left.requests -= 1;
        }
        ended
    }

    fn end_head(
        self: &Arc<Self>,
        send: &mut SendSide,
        request: &Request,
        upto: u32,
        result: Result<u64, WcStatus>,
        aftermath: &mut Aftermath,
    ) {
        send.queue.pop();
        send.blocked = Blocked::No;
        send.requester.progress = 0;
        self.finish(send, request, upto, result, aftermath);
        self.report_drained(send);
    }

    /// Sends the event that was asked for when the queue was told to drain, once it is drained.
    pub(crate) fn report_drained(&self, send: &SendSide) {
        let drained = send.state == QpState::SQD && !send.may_run();
        if drained && send.notify_drained {
            self.reporter.report(AsyncEventKind::SQ_DRAINED);
        }
    }

    /// Drives the queue and settles what that leaves.
    pub(crate) fn drive_and_settle(self: &Arc<Self>, work: Work) -> u32 {
        let mut aftermath = Aftermath::default();
        let ended = self.drive(&mut self.send.lock(), work, &mut aftermath);
        aftermath.settle(self);
        ended
    }

    /// What another thread than its own executes of this queue at a time: under a schedule that holds
    /// requests back, the one that has begun.
    fn turn(&self) -> Work {
        match (self.immediate, &self.device.deferred) {
            (true, _) => Work::Turn(TURN_REQUESTS),
            (false, Some(_)) => Work::Turn(1),
            // What is held goes on as it was told to, whole.
            (false, None) => Work::Requests(1),
        }
    }

    /// Executes a turn of this queue. What is left is for whoever polls next, or posts here, or for the
    /// device's thread.
    pub(crate) fn take_turn(self: &Arc<Self>, send: &mut SendSide, aftermath: &mut Aftermath) {
        self.drive(send, self.turn(), aftermath);
        self.leave_rest(send);
    }

    /// Has what can be executed go on soon.
    pub(crate) fn leave_rest(&self, send: &SendSide) {
        if self.immediate {
            if send.may_run() && send.blocked == Blocked::No && !send.queue.is_empty() {
                self.alarm.set(Time::AT_ONCE);
            }
        } else {
            self.arm_if_deferred(send);
        }
    }

    /// The receiver that this requester found without a request has one now.
    #[cold]
    pub(crate) fn receiver_is_ready(self: &Arc<Self>) {
        let mut aftermath = Aftermath::default();
        {
            let mut send = self.send.lock();
            // If it waits no more it was reset, or gave up.
            if let Blocked::NotReady { .. } = send.blocked {
                self.take_turn(&mut send, &mut aftermath);
            }
        }
        aftermath.settle(self);
    }

    /// Ready to send again, after a drain: goes on with what was posted meanwhile.
    pub(crate) fn resume(self: &Arc<Self>) {
        if self.immediate {
            let posted = self.send.lock().posted;
            self.run_posted(posted);
        } else {
            self.arm_if_deferred(&self.send.lock());
        }
    }

    /// Executes requests up to number `upto` on the thread that posted them, and lets others have the
    /// locks between long copies.
    #[cold]
    pub(crate) fn run_posted(self: &Arc<Self>, upto: u32) {
        loop {
            let mut aftermath = Aftermath::default();
            let (more, peer) = {
                let mut send = self.send.lock();
                self.drive(&mut send, Work::Stretch, &mut aftermath);
                let runs = send.may_run() && send.blocked == Blocked::No && !send.queue.is_empty();
                let more = runs && send.head_index().wrapping_sub(upto).cast_signed() < 0;
                if !more {
                    self.leave_rest(&send);
                }
                (more, send.requester.peer.clone())
            };
            aftermath.settle(self);
            if !more {
                return;
            }
            self.send.let_others();
            if let Some(peer) = peer {
                peer.responder.let_others();
            }
        }
    }

    /// The alarm that this queue pair set has rung: a deadline has passed, or deferred work is due.
    pub(crate) fn alarm_rings(self: &Arc<Self>) {
        let mut aftermath = Aftermath::default();
        {
            let mut guard = self.send.lock();
            let send = &mut *guard;
            match send.blocked {
                Blocked::No if self.immediate => self.take_turn(send, &mut aftermath),
                Blocked::No => self.run_deferred(send, &mut aftermath),
                Blocked::NotReady { until: Some(at) }
                | Blocked::Unanswered { at: Some(at), .. }
                    if at <= Time::now() =>
                {
                    self.retry(send, &mut aftermath);
                }
                // It rang for an earlier deadline, which is gone.
                Blocked::NotReady { until: Some(at) }
                | Blocked::Unanswered { at: Some(at), .. } => {
                    self.alarm.set(at);
                }
                // The receiver it waits for has gone.
                Blocked::NotReady { until: None } => self.take_turn(send, &mut aftermath),
                Blocked::Unanswered { at: None, .. } => {}
            }
        }
        aftermath.settle(self);
    }

    /// Tries a blocked head whose time has come again, and gives it up if that was the last time.
    fn retry(self: &Arc<Self>, send: &mut SendSide, aftermath: &mut Aftermath) {
        let exhausted = match &mut send.blocked {
            Blocked::NotReady { .. } => Some(WcStatus::RNR_RETRY_EXC_ERR),
            Blocked::Unanswered { left: 0, .. } => {
                return self.give_up(send, WcStatus::RETRY_EXC_ERR, aftermath);
            }
            Blocked::Unanswered { at, left } => {
                *left -= 1;
                self.device.tally.retries.count();
                let timeout = send.requester.answer_timeout();
                *at = timeout.map(|timeout| Time::now() + timeout);
                None
            }
            Blocked::No => None,
        };
        let before = send.blocked;
        self.drive(send, self.turn(), aftermath);
        if send.blocked != before || send.queue.is_empty() {
            self.leave_rest(send);
        } else if let Some(status) = exhausted {
            self.give_up(send, status, aftermath);
        } else if let Blocked::Unanswered { at: Some(at), .. } = send.blocked {
            self.alarm.set(at);
        }
    }

    fn give_up(self: &Arc<Self>, send: &mut SendSide, status: WcStatus, aftermath: &mut Aftermath) {
        if !send.may_run() {
            return;
        }
        let upto = send.head_index().wrapping_add(1);
        let Some((request, _)) = send.queue.front() else { return };
        self.end_head(send, &request, upto, Err(status), aftermath);
    }
}
