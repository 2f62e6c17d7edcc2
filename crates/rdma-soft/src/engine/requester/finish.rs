//! The completions of send requests, and the effect of a failed request on its queue.

use rdma_types::{AsyncEventKind, QpState, WcStatus as Status};

use crate::engine::aftermath::Aftermath;
use crate::engine::completion::work_completion::{Completion, JUNK, Side, Source};
use crate::engine::queue_pair::service::Service;
use crate::engine::requester::peer::Near;
use crate::engine::requester::request::Request;
use crate::engine::requester::side::{Blocked, Peer, SendSide};
use crate::engine::station::Station;

impl<P: Near> SendSide<P> {
    /// Completes a request after an attempt. `upto` is one more than the request's number.
    #[inline]
    pub(crate) fn finish(
        &mut self,
        own: &Station,
        request: &Request,
        upto: u32,
        result: Result<u64, Status>,
        aftermath: &mut Aftermath,
    ) {
        match result {
            Ok(bytes) => self.succeed(own, request, upto, bytes),
            Err(status) => self.fail(own, request, upto, status, aftermath),
        }
    }

    /// Completes a request that was executed.
    #[inline(always)]
    pub(super) fn succeed(&mut self, own: &Station, request: &Request, upto: u32, bytes: u64) {
        self.executed += 1;
        self.bytes += bytes;
        let opcode = request.operation.opcode;
        if opcode.is_send() {
            own.counts.sends.count();
        }
        if request.signaled || own.signal_all {
            own.push_send(Completion {
                wr_id: request.wr_id,
                status: Status::SUCCESS,
                opcode: opcode.completion(),
                byte_len: match opcode.fetches() {
                    true => u32::try_from(bytes).unwrap_or(u32::MAX),
                    false => JUNK,
                },
                imm: JUNK,
                flags: 0,
                qpn: own.qpn,
                vendor_err: 0,
                source: Source::UNDEFINED,
                solicited: false,
                side: Side::Send,
                upto,
            });
        }
    }

    #[cold]
    fn fail(
        &mut self,
        own: &Station,
        request: &Request,
        upto: u32,
        status: Status,
        aftermath: &mut Aftermath,
    ) {
        own.adapter.tally.count_failure(status);
        own.push_send(own.failed_send(request.wr_id, upto, status));
        self.stop(own, aftermath);
    }

    /// Stops the queue after a failed request. A reliable connection cannot continue after a failure. With another
    /// service, only the send queue stops if the queue pair is in RTS (IBTA volume 1, 10.3.1.6). If it is in SQD, the
    /// whole queue pair moves to error.
    fn stop(&mut self, own: &Station, aftermath: &mut Aftermath) {
        let reliable = own.service == Service::ReliableConnection;
        if !reliable && self.state == QpState::RTS {
            self.state = QpState::SQE;
            self.flush(own);
        } else {
            self.state = QpState::ERR;
            aftermath.requester_failed(self.incarnation);
        }
    }

    /// Completes everything in the send queue as flushed, including unsignaled requests.
    pub(crate) fn flush(&mut self, own: &Station) {
        self.blocked = Blocked::No;
        self.requester.progress = 0;
        self.requester.peer = Peer::Unresolved;
        if let Some(wire) = &mut self.wire {
            wire.stop();
        }
        let mut index = self.head_index();
        while let Some(request) = self.queue.pop() {
            index = index.wrapping_add(1);
            own.push_send(own.failed_send(request.wr_id, index, Status::WR_FLUSH_ERR));
        }
    }

    /// Completes the head of the queue.
    pub(super) fn end_head(
        &mut self,
        own: &Station,
        request: &Request,
        upto: u32,
        result: Result<u64, Status>,
        aftermath: &mut Aftermath,
    ) {
        self.queue.pop();
        self.blocked = Blocked::No;
        self.requester.progress = 0;
        self.finish(own, request, upto, result, aftermath);
        self.report_drained(own);
    }

    /// Sends the event that was requested with the drain, once the queue is drained.
    pub(crate) fn report_drained(&self, own: &Station) {
        let drained = self.state == QpState::SQD && !self.may_run();
        if drained && self.notify_drained {
            own.reporter.report(AsyncEventKind::SQ_DRAINED);
        }
    }
}
