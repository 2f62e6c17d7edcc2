//! Posting to the send queue.

use std::sync::Arc;

use rdma_types::{QpState, WcStatus as Status};

use crate::engine::Refusal;
use crate::engine::aftermath::Aftermath;
use crate::engine::completion::work_completion::Side;
use crate::engine::operation::Opcode;
use crate::engine::queue_pair::service::Service;
use crate::engine::requester::drive::{Work, run_posted, yield_locks};
use crate::engine::requester::peer::Near;
use crate::engine::requester::request::{Payload, Request};
use crate::engine::requester::side::{Blocked, SendSide, Verdict};
use crate::engine::station::Station;
use crate::engine::turn::{Extent, STRETCH_BYTES};
use crate::memory::copy::Reach;
use crate::sync::Ordering;

/// Posts requests until one is refused; earlier requests stay posted. `next` is called for each request, under the send
/// lock. The lock is yielded whenever [`STRETCH_BYTES`] bytes have been posted.
#[inline]
pub(crate) fn post_each<'a, P: Near>(
    own: &Arc<P>,
    mut next: impl FnMut() -> Option<Result<(Request, Payload<'a>), Refusal>>,
) -> Result<(), Refusal> {
    // Whether earlier requests were in the queue before this call. If so, this thread only executes a turn of the
    // queue.
    let mut behind_others = None;
    loop {
        let mut aftermath = Aftermath::default();
        let (mut bytes, mut ended) = (0, None);
        let (rest, peer);
        {
            let mut send = own.send_side().lock();
            let behind_others = *behind_others.get_or_insert(!send.queue.is_empty());
            let before = send.posted;
            while bytes < STRETCH_BYTES && ended.is_none() {
                ended = match next() {
                    None => Some(Ok(())),
                    Some(Err(refusal)) => Some(Err(refusal)),
                    Some(Ok((request, payload))) => {
                        bytes += payload.length();
                        let posted = send.post(own, &request, payload, &mut aftermath);
                        posted.err().map(Err)
                    }
                };
            }
            if send.wire.is_some() && own.immediate {
                let posts = send.posted.wrapping_sub(before);
                send.transmit_posted(own, posts, &mut aftermath);
            }
            rest = send.rest(own, behind_others, &mut aftermath);
            peer = if ended.is_none() { send.requester.direct_peer() } else { None };
        }
        aftermath.settle(own);
        if let Some(upto) = rest {
            run_posted(own, upto);
        }
        match ended {
            Some(result) => return result,
            None => yield_locks(own, peer),
        }
    }
}

/// Posts all requests, or none if one is refused. To do so, iterates over `requests` twice.
pub(crate) fn post_all<'a, P: Near>(
    own: &Arc<P>,
    requests: impl ExactSizeIterator<Item = Result<(Request, Payload<'a>), Refusal>> + Clone,
) -> Result<(), Refusal> {
    post_by_queue(own, |send| {
        send.check_room(own, u32::try_from(requests.len()).unwrap_or(u32::MAX))?;
        for request in requests.clone() {
            let (request, payload) = request?;
            send.check(own, &request, payload)?;
            check_destination(own, &request, payload)?;
        }
        for (request, payload) in requests.flatten() {
            if !send.send_posted(own, &request, payload) {
                send.post_later(own, &request, payload);
            }
        }
        Ok(())
    })
}

/// Like [`post_each`], for datagrams.
pub(crate) fn post_datagrams<'a, P: Near>(
    own: &Arc<P>,
    next: &mut dyn FnMut() -> Option<Result<(Request, Payload<'a>), Refusal>>,
) -> Result<(), Refusal> {
    post_by_queue(own, |send| {
        while let Some(request) = next() {
            let (request, payload) = request?;
            send.check(own, &request, payload)?;
            check_destination(own, &request, payload)?;
            send.post_later(own, &request, payload);
        }
        Ok(())
    })
}

/// Queues all requests, and then executes them. This way, the code that executes requests within a post exists only
/// once.
fn post_by_queue<P: Near>(
    own: &Arc<P>,
    queue: impl FnOnce(&mut SendSide<P>) -> Result<(), Refusal>,
) -> Result<(), Refusal> {
    let mut aftermath = Aftermath::default();
    let (result, rest);
    {
        let mut send = own.send_side().lock();
        let behind_others = !send.queue.is_empty();
        let before = send.posted;
        result = queue(&mut send);
        if send.wire.is_some() && own.immediate {
            let posts = send.posted.wrapping_sub(before);
            send.transmit_posted(own, posts, &mut aftermath);
        } else if own.immediate && !behind_others {
            send.drive(own, Work::Stretch(u32::MAX), &mut aftermath);
        }
        rest = send.rest(own, behind_others, &mut aftermath);
    }
    aftermath.settle(own);
    if let Some(upto) = rest {
        run_posted(own, upto);
    }
    result
}

/// Checks that a datagram is a plain send, and has a destination.
fn check_destination(
    own: &Station,
    request: &Request,
    payload: Payload<'_>,
) -> Result<(), Refusal> {
    let sends = matches!(request.operation.opcode, Opcode::Send | Opcode::SendWithImm);
    let connected = own.service != Service::UnreliableDatagram;
    if connected || sends && payload.destination().is_some() {
        Ok(())
    } else {
        Err(Refusal::Invalid)
    }
}

impl<P: Near> SendSide<P> {
    /// If this thread must execute the requests that its post leaves in the queue, returns one more than the number of
    /// the last one. Otherwise returns `None`. If earlier requests are in the queue, the thread only executes a turn.
    #[inline]
    fn rest(&mut self, own: &P, behind_others: bool, aftermath: &mut Aftermath) -> Option<u32> {
        if self.queue.is_empty() || !own.immediate || !self.has_work() {
            return None;
        }
        if !behind_others {
            return Some(self.posted);
        }
        self.take_turn(own, aftermath);
        None
    }

    /// Returns true if a request that is posted now is executed by its post, because none is before it.
    #[inline(always)]
    pub(super) fn executes_at_once(&self, own: &Station) -> bool {
        self.state == QpState::RTS && own.immediate && self.queue.is_empty()
    }

    #[inline]
    fn post(
        &mut self,
        own: &P,
        request: &Request,
        payload: Payload<'_>,
        aftermath: &mut Aftermath,
    ) -> Result<(), Refusal> {
        self.check(own, request, payload)?;
        let at_once = self.executes_at_once(own);
        if !at_once || self.wire.is_some() {
            let executed = if at_once { self.execute_posted(own, request, payload) } else { None };
            match executed {
                Some(result) => {
                    self.posted = self.posted.wrapping_add(1);
                    self.finish(own, request, self.posted, result, aftermath);
                }
                None if self.send_posted(own, request, payload) => {}
                None => self.post_later(own, request, payload),
            }
            return Ok(());
        }
        let extent = Extent::Bytes(STRETCH_BYTES);
        let verdict =
            self.requester.attempt(own, request, payload, extent, Reach::Mapped, aftermath);
        if let Verdict::Done { bytes } = verdict {
            self.posted = self.posted.wrapping_add(1);
            self.finish(own, request, self.posted, Ok(bytes), aftermath);
        } else {
            self.post_unfinished(own, request, payload, verdict, aftermath);
        }
        Ok(())
    }

    /// Queues a request that is not executed now. A queue in error flushes it.
    fn post_later(&mut self, own: &P, request: &Request, payload: Payload<'_>) {
        if matches!(self.state, QpState::ERR | QpState::SQE) {
            // Requests that were posted earlier may still be in the queue. They are flushed first.
            self.flush(own);
            self.posted = self.posted.wrapping_add(1);
            let status = Status::WR_FLUSH_ERR;
            own.push_send(own.failed_send(request.wr_id, self.posted, status));
        } else {
            self.push(request, payload);
            self.defer(own);
            // An immediate device sends the request before the post returns.
            if self.wire.is_some() && !own.immediate {
                own.entry.queue();
            }
        }
    }

    /// Refuses a request that the queue pair does not accept, with the same errors as other providers. These are
    /// `ENOMEM` if the queue is full, and `EINVAL` for any other reason.
    #[inline(always)]
    pub(super) fn check(
        &mut self,
        own: &Station,
        request: &Request,
        payload: Payload<'_>,
    ) -> Result<(), Refusal> {
        match self.state {
            QpState::RTS | QpState::SQD | QpState::SQE | QpState::ERR => {}
            _ => return Err(Refusal::Invalid),
        }
        let (opcode, inline) = (request.operation.opcode, payload.is_inline());
        if payload.sges().len() > own.capacity.send_sge as usize
            || inline && payload.length() > u64::from(own.capacity.inline)
            || !opcode.is_plain() && !self.allows(own, opcode, inline)
        {
            return Err(Refusal::Invalid);
        }
        self.check_room(own, 1)
    }

    /// Checks that there is space for `count` more requests, at least one.
    #[inline]
    fn check_room(&mut self, own: &Station, count: u32) -> Result<(), Refusal> {
        let fits = |send: &Self| {
            let queued = send.posted.wrapping_sub(send.reclaimed);
            own.capacity.send_wr.saturating_sub(queued) >= count
        };
        if !fits(self) {
            self.reclaimed = own.reclaimed.of(Side::Send).load(Ordering::Acquire);
            if !fits(self) {
                return Err(Refusal::NoRoom);
            }
        }
        Ok(())
    }

    /// Returns true if a request other than a plain send or write can be posted here.
    #[cold]
    fn allows(&self, own: &Station, opcode: Opcode, inline: bool) -> bool {
        if opcode.fetches() {
            let served = own.adapter.limits.features.atomics || !opcode.is_atomic();
            return !inline && served && self.requester.max_rd_atomic > 0;
        }
        // IBTA volume 1, table 39.
        match own.service {
            Service::ReliableConnection => true,
            Service::UnreliableConnection => opcode.is_local(),
            Service::UnreliableDatagram => false,
        }
    }

    #[cold]
    fn post_unfinished(
        &mut self,
        own: &P,
        request: &Request,
        payload: Payload<'_>,
        verdict: Verdict,
        aftermath: &mut Aftermath,
    ) {
        let failed = match verdict {
            Verdict::Failed(status) => Some(status),
            _ => self.block(own, verdict).err(),
        };
        match failed {
            None => self.push(request, payload),
            Some(status) => {
                self.blocked = Blocked::No;
                self.posted = self.posted.wrapping_add(1);
                self.finish(own, request, self.posted, Err(status), aftermath);
            }
        }
    }
}
