//! Driving a send queue: executing its head, waiting, giving up.

use std::sync::Arc;
use std::time::Instant;

use rdma_sys::{ibv_event_type, ibv_qp_state, ibv_wc_status as Status};
use rdma_types::MinRnrTimer;

use crate::engine::aftermath::Aftermath;
use crate::engine::completion::{Completion, JUNK, Side, Source};
use crate::engine::execute::Extent;
use crate::engine::queue_pair::QueuePair;
use crate::engine::request::Request;
use crate::engine::send_side::{Blocked, Requester, SendSide, Verdict};
use crate::engine::service::Service;

/// How much of a queue one drive may execute.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Work {
    All,
    Requests(u32),
    /// The head, half-way through its copy.
    HalfOfHead,
}

impl QueuePair {
    /// Completes a request whose attempt came to an end; `upto` is the number behind its own.
    #[inline]
    pub(crate) fn finish(
        self: &Arc<Self>,
        send: &mut SendSide,
        request: &Request,
        upto: u32,
        result: Result<u64, Status>,
        aftermath: &mut Aftermath,
    ) {
        if result.is_ok() {
            send.executed += 1;
        }
        match result {
            Ok(bytes) if request.signaled || self.signal_all => self.push_send(Completion {
                wr_id: request.wr_id,
                status: Status::IBV_WC_SUCCESS,
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
        if !reliable && send.state == ibv_qp_state::IBV_QPS_RTS {
            send.state = ibv_qp_state::IBV_QPS_SQE;
            self.flush_send(send);
        } else {
            send.state = ibv_qp_state::IBV_QPS_ERR;
            aftermath.requester_failed(send.incarnation);
        }
    }

    /// Records why the head waits, and sets the alarm. A reason that it already waits for keeps its
    /// deadline.
    #[cold]
    pub(crate) fn block(&self, send: &mut SendSide, verdict: Verdict) -> Result<(), Status> {
        let requester = &send.requester;
        self.count_answer(requester, verdict);
        let next = match (verdict, send.blocked) {
            (Verdict::NotReady { .. }, Blocked::NotReady { .. })
            | (Verdict::Unanswered, Blocked::Unanswered { .. }) => return Ok(()),
            (Verdict::NotReady { timer }, _) => {
                let until = match requester.rnr_retries {
                    0 => return Err(Status::IBV_WC_RNR_RETRY_EXC_ERR),
                    7 => None,
                    retries => MinRnrTimer::from_code(timer)
                        .map(|timer| Instant::now() + timer.duration() * u32::from(retries)),
                };
                Blocked::NotReady { until }
            }
            (Verdict::Unanswered, _) => {
                let at = requester.answer_timeout().map(|timeout| Instant::now() + timeout);
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
        let extent = if work == Work::HalfOfHead { Extent::Half } else { Extent::Whole };
        while send.may_run() && work != Work::Requests(ended) {
            let upto = send.head_index().wrapping_add(1);
            let Some((request, payload)) = send.queue.front() else { break };
            let requester = &mut send.requester;
            let verdict = self.attempt(requester, &request, payload, extent, aftermath);
            let result = match verdict {
                Verdict::Done { bytes } => Ok(bytes),
                Verdict::Failed(status) => Err(status),
                Verdict::Paused => break,
                Verdict::NotReady { .. } | Verdict::Unanswered => match self.block(send, verdict) {
                    Ok(()) => break,
                    Err(status) => Err(status),
                },
            };
            self.end_head(send, &request, upto, result, aftermath);
            ended += 1;
            if extent == Extent::Half {
                break;
            }
        }
        ended
    }

    fn end_head(
        self: &Arc<Self>,
        send: &mut SendSide,
        request: &Request,
        upto: u32,
        result: Result<u64, Status>,
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
        let drained = send.state == ibv_qp_state::IBV_QPS_SQD && !send.may_run();
        if drained && send.notify_drained {
            self.reporter.report(ibv_event_type::IBV_EVENT_SQ_DRAINED);
        }
    }

    /// Drives the queue and settles what that leaves.
    pub(crate) fn drive_and_settle(self: &Arc<Self>, work: Work) -> u32 {
        let mut aftermath = Aftermath::default();
        let ended = self.drive(&mut self.send.lock(), work, &mut aftermath);
        aftermath.settle(self);
        ended
    }

    /// What may go on when the head does: under a schedule that holds requests back, only the head.
    fn what_was_begun(&self) -> Work {
        if self.immediate { Work::All } else { Work::Requests(1) }
    }

    /// The receiver that this requester found without a request has one now.
    #[cold]
    pub(crate) fn receiver_is_ready(self: &Arc<Self>) {
        let mut aftermath = Aftermath::default();
        {
            let mut send = self.send.lock();
            // If it waits no more it was reset, or gave up.
            if let Blocked::NotReady { .. } = send.blocked {
                self.drive(&mut send, self.what_was_begun(), &mut aftermath);
            }
            self.arm_if_deferred(&send);
        }
        aftermath.settle(self);
    }

    /// Ready to send again, after a drain: goes on with what was posted meanwhile.
    pub(crate) fn resume(self: &Arc<Self>) {
        if self.immediate {
            self.drive_and_settle(Work::All);
        } else {
            self.arm_if_deferred(&self.send.lock());
        }
    }

    /// The alarm that this queue pair set has rung: a deadline has passed, or deferred work is due.
    pub(crate) fn alarm_rings(self: &Arc<Self>) {
        let mut aftermath = Aftermath::default();
        {
            let mut guard = self.send.lock();
            let send = &mut *guard;
            match send.blocked {
                Blocked::No => self.run_deferred(send, &mut aftermath),
                Blocked::NotReady { until: Some(at) }
                | Blocked::Unanswered { at: Some(at), .. }
                    if at <= Instant::now() =>
                {
                    self.retry(send, &mut aftermath);
                }
                // It rang for an earlier deadline, which is gone.
                Blocked::NotReady { until: Some(at) }
                | Blocked::Unanswered { at: Some(at), .. } => {
                    self.alarm.set(at);
                }
                // The receiver it waits for has gone.
                Blocked::NotReady { until: None } => {
                    self.drive(send, self.what_was_begun(), &mut aftermath);
                    self.arm_if_deferred(send);
                }
                Blocked::Unanswered { at: None, .. } => {}
            }
        }
        aftermath.settle(self);
    }

    /// Tries a blocked head whose time has come again, and gives it up if that was the last time.
    fn retry(self: &Arc<Self>, send: &mut SendSide, aftermath: &mut Aftermath) {
        let exhausted = match &mut send.blocked {
            Blocked::NotReady { .. } => Some(Status::IBV_WC_RNR_RETRY_EXC_ERR),
            Blocked::Unanswered { left: 0, .. } => {
                return self.give_up(send, Status::IBV_WC_RETRY_EXC_ERR, aftermath);
            }
            Blocked::Unanswered { at, left } => {
                *left -= 1;
                self.device.tally.retries.count();
                let timeout = send.requester.answer_timeout();
                *at = timeout.map(|timeout| Instant::now() + timeout);
                None
            }
            Blocked::No => None,
        };
        let before = send.blocked;
        let work = self.what_was_begun();
        self.drive(send, work, aftermath);
        if send.blocked != before || send.queue.is_empty() {
            self.arm_if_deferred(send);
        } else if let Some(status) = exhausted {
            self.give_up(send, status, aftermath);
        } else if let Blocked::Unanswered { at: Some(at), .. } = send.blocked {
            self.alarm.set(at);
        }
    }

    fn give_up(self: &Arc<Self>, send: &mut SendSide, status: Status, aftermath: &mut Aftermath) {
        if !send.may_run() {
            return;
        }
        let upto = send.head_index().wrapping_add(1);
        let Some((request, _)) = send.queue.front() else { return };
        self.end_head(send, &request, upto, Err(status), aftermath);
    }
}
