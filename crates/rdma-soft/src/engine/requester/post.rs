//! Posting to the send queue.

use std::sync::Arc;

use rdma_types::{QpState, WcStatus};

use crate::engine::Refusal;
use crate::engine::aftermath::Aftermath;
use crate::engine::completion::Side;
use crate::engine::queue_pair::QueuePair;
use crate::engine::requester::direct::Extent;
use crate::engine::requester::drive::{STRETCH_BYTES, Work};
use crate::engine::requester::request::{Opcode, Payload, Request};
use crate::engine::requester::side::{Blocked, SendSide, Verdict};
use crate::engine::service::Service;
use crate::sync::Ordering;

impl QueuePair {
    /// Posts requests until one is refused; those before it stay posted. `next` is asked for one at
    /// a time, under the send lock.
    #[inline]
    pub(crate) fn post_send<'a>(
        self: &Arc<Self>,
        mut next: impl FnMut() -> Option<Result<(Request, Payload<'a>), Refusal>>,
    ) -> Result<(), Refusal> {
        let mut aftermath = Aftermath::default();
        let mut result = Ok(());
        let rest;
        {
            let mut send = self.send.lock();
            let before = send.queue.len();
            while let Some(request) = next() {
                result = request.and_then(|(request, payload)| {
                    self.post_one(&mut send, &request, payload, &mut aftermath)
                });
                if result.is_err() {
                    break;
                }
            }
            rest = self.rest(&mut send, before, &mut aftermath);
        }
        aftermath.settle(self);
        if let Some(upto) = rest {
            self.run_posted(upto);
        }
        result
    }

    /// What a post leaves in a queue that held so many requests before: the number behind the last request,
    /// if this thread is to execute them before it returns. What others left is not its own work: of
    /// that it takes a turn.
    #[inline]
    fn rest(
        self: &Arc<Self>,
        send: &mut SendSide,
        before: usize,
        aftermath: &mut Aftermath,
    ) -> Option<u32> {
        if !self.immediate || send.queue.is_empty() || send.blocked != Blocked::No {
            return None;
        }
        if before == 0 {
            return Some(send.posted);
        }
        self.take_turn(send, aftermath);
        None
    }

    /// Posts all requests, or none if one is refused, and goes through them twice for that. They go
    /// through the queue, so that there is one copy of the code that executes within a post.
    pub(crate) fn post_all<'a>(
        self: &Arc<Self>,
        requests: impl ExactSizeIterator<Item = Result<(Request, Payload<'a>), Refusal>> + Clone,
    ) -> Result<(), Refusal> {
        let mut aftermath = Aftermath::default();
        let rest;
        {
            let mut send = self.send.lock();
            let before = send.queue.len();
            self.check_room(&mut send, u32::try_from(requests.len()).unwrap_or(u32::MAX))?;
            for request in requests.clone() {
                let (request, payload) = request?;
                self.check_request(&mut send, &request, payload)?;
                self.check_destination(&request, payload)?;
            }
            for (request, payload) in requests.flatten() {
                self.post_later(&mut send, &request, payload);
            }
            if self.immediate && before == 0 {
                self.drive(&mut send, Work::Stretch, &mut aftermath);
            }
            rest = self.rest(&mut send, before, &mut aftermath);
        }
        aftermath.settle(self);
        if let Some(upto) = rest {
            self.run_posted(upto);
        }
        Ok(())
    }

    /// As [`post_send`](Self::post_send), for datagrams. Each goes through the queue, so that there is one
    /// copy of the code that executes within a post.
    pub(crate) fn post_datagrams<'a>(
        self: &Arc<Self>,
        next: &mut dyn FnMut() -> Option<Result<(Request, Payload<'a>), Refusal>>,
    ) -> Result<(), Refusal> {
        let mut aftermath = Aftermath::default();
        let mut result = Ok(());
        {
            let mut send = self.send.lock();
            while let Some(request) = next() {
                result = request.and_then(|(request, payload)| {
                    self.check_request(&mut send, &request, payload)?;
                    self.check_destination(&request, payload)?;
                    self.post_later(&mut send, &request, payload);
                    Ok(())
                });
                if result.is_err() {
                    break;
                }
                if self.immediate {
                    self.drive(&mut send, Work::All, &mut aftermath);
                }
            }
        }
        aftermath.settle(self);
        result
    }

    /// That a datagram is one, and goes somewhere.
    fn check_destination(&self, request: &Request, payload: Payload<'_>) -> Result<(), Refusal> {
        let sends = matches!(request.opcode, Opcode::Send | Opcode::SendWithImm);
        let connected = self.service != Service::UnreliableDatagram;
        if connected || sends && payload.destination().is_some() {
            Ok(())
        } else {
            Err(Refusal::Invalid)
        }
    }

    #[inline]
    fn post_one(
        self: &Arc<Self>,
        send: &mut SendSide,
        request: &Request,
        payload: Payload<'_>,
        aftermath: &mut Aftermath,
    ) -> Result<(), Refusal> {
        self.check_request(send, request, payload)?;
        if send.state == QpState::RTS && self.immediate && send.queue.is_empty() {
            let requester = &mut send.requester;
            let extent = Extent::Bytes(STRETCH_BYTES);
            let verdict = self.attempt(requester, request, payload, extent, aftermath);
            if let Verdict::Done { bytes } = verdict {
                send.posted = send.posted.wrapping_add(1);
                self.finish(send, request, send.posted, Ok(bytes), aftermath);
                return Ok(());
            }
            self.post_unfinished(send, request, payload, verdict, aftermath);
        } else {
            self.post_later(send, request, payload);
        }
        Ok(())
    }

    /// Queues a request that is not executed now; a queue in error flushes it.
    fn post_later(self: &Arc<Self>, send: &mut SendSide, request: &Request, payload: Payload<'_>) {
        if matches!(send.state, QpState::ERR | QpState::SQE) {
            // What is queued was posted before, and may not be flushed yet.
            self.flush_send(send);
            send.posted = send.posted.wrapping_add(1);
            let status = WcStatus::WR_FLUSH_ERR;
            self.push_send(self.failed_send(request.wr_id, send.posted, status));
        } else {
            send.push(request, payload);
            self.defer(send);
        }
    }

    /// What this queue pair cannot take at all. `EINVAL` and `ENOMEM` as providers give them.
    #[inline]
    fn check_request(
        &self,
        send: &mut SendSide,
        request: &Request,
        payload: Payload<'_>,
    ) -> Result<(), Refusal> {
        match send.state {
            QpState::RTS | QpState::SQD | QpState::SQE | QpState::ERR => {}
            _ => return Err(Refusal::Invalid),
        }
        let inline = payload.is_inline();
        if payload.sges().len() > self.capacity.send_sge as usize
            || inline && payload.length() > u64::from(self.capacity.inline)
            || !request.opcode.is_plain() && !self.allows(send, request.opcode, inline)
        {
            return Err(Refusal::Invalid);
        }
        self.check_room(send, 1)
    }

    /// Whether so many more requests have room, of which there is at least one.
    #[inline]
    fn check_room(&self, send: &mut SendSide, count: u32) -> Result<(), Refusal> {
        let fits = |send: &SendSide| {
            let queued = send.posted.wrapping_sub(send.reclaimed);
            self.capacity.send_wr.saturating_sub(queued) >= count
        };
        if !fits(send) {
            send.reclaimed = self.reclaimed.of(Side::Send).load(Ordering::Acquire);
            if !fits(send) {
                return Err(Refusal::NoRoom);
            }
        }
        Ok(())
    }

    /// Whether a request that is no plain send or write can be posted here.
    #[cold]
    fn allows(&self, send: &SendSide, opcode: Opcode, inline: bool) -> bool {
        if opcode.fetches() {
            let served = self.device.limits.atomics || !opcode.is_atomic();
            return !inline && served && send.requester.max_rd_atomic > 0;
        }
        // IBTA volume 1, table 39.
        match self.service {
            Service::ReliableConnection => true,
            Service::UnreliableConnection => opcode.is_local(),
            Service::UnreliableDatagram => false,
        }
    }

    #[cold]
    fn post_unfinished(
        self: &Arc<Self>,
        send: &mut SendSide,
        request: &Request,
        payload: Payload<'_>,
        verdict: Verdict,
        aftermath: &mut Aftermath,
    ) {
        let failed = match verdict {
            Verdict::Failed(status) => Some(status),
            _ => self.block(send, verdict).err(),
        };
        match failed {
            None => send.push(request, payload),
            Some(status) => {
                send.blocked = Blocked::No;
                send.posted = send.posted.wrapping_add(1);
                self.finish(send, request, send.posted, Err(status), aftermath);
            }
        }
    }
}
