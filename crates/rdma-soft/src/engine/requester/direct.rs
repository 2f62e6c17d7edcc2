//! Direct execution on a peer in this process. One attempt at a request consists of a check on this side, followed by
//! calls to the peer's [`Inbound`]. The lock of the peer's responder is held during these calls.

use rdma_types::{AccessFlags, WcStatus as Status};

use crate::engine::aftermath::Aftermath;
use crate::engine::operation::{Opcode, Operation};
use crate::engine::queue_pair::service::Service;
use crate::engine::requester::local;
use crate::engine::requester::peer::Near;
use crate::engine::requester::request::{Payload, Request};
use crate::engine::requester::side::{Peer, Requester, Verdict, local_length};
use crate::engine::requester::unreliable::Message;
use crate::engine::responder::inbound::{Inbound, Stop};
use crate::engine::station::Station;
use crate::engine::turn::Extent;
use crate::memory::copy::{Data, Reach, Segment};
use crate::memory::grace_period::Visit;
use crate::memory::region::LOCAL_READ;

impl<P: Near> Requester<P> {
    /// Tries to execute `request` for the queue pair `own`.
    #[inline]
    pub(crate) fn attempt(
        &mut self,
        own: &P,
        request: &Request,
        payload: Payload<'_>,
        extent: Extent,
        reach: Reach,
        aftermath: &mut Aftermath,
    ) -> Verdict {
        let operation = &request.operation;
        if operation.opcode.is_local() {
            return match local::execute(own, operation) {
                Ok(()) => Verdict::Done { bytes: 0 },
                Err(status) => Verdict::Failed(status),
            };
        }
        let visit = Visit::begin();
        let length = match self.locate_payload(own, &visit, operation.opcode, payload) {
            Ok(length) => length,
            Err(status) => return Verdict::Failed(status),
        };
        if own.service != Service::ReliableConnection {
            let message = Message { request, payload, length, extent, reach, visit: &visit };
            return self.send_unreliably(own, &message, aftermath);
        }
        if let Peer::Unresolved = self.peer {
            self.peer = self.find_peer(own);
        }
        let Peer::Direct(found) = &self.peer else { return Verdict::Unanswered };
        let mut responder = found.responder().lock();
        if !responder.listens_to(found, &self.origin, self.psn) {
            responder.count_dropped(found, &self.origin, self.psn);
            drop(responder);
            // The peer may have been destroyed. By the next attempt, another queue pair may have its number.
            self.peer = Peer::Unresolved;
            return Verdict::Unanswered;
        }
        let mut inbound = Inbound { own: found, side: &mut responder, visit: &visit, reach };
        if !inbound.begin(operation) && !inbound.begin_or_wait(own.waiter()) {
            return Verdict::NotReady { timer: inbound.side.min_rnr_timer };
        }
        let progress = Progress { origin: self.origin.number, copied: &mut self.progress, extent };
        let exchanged = progress.exchange(&mut inbound, operation, length, &self.local);
        self.local.clear();
        match exchanged {
            Ok(Verdict::Done { bytes }) => {
                let packets = self.packets(length);
                inbound.expect_after(self.psn, packets);
                self.psn = self.psn.wrapping_add(packets);
                Verdict::Done { bytes }
            }
            Ok(verdict) => verdict,
            Err(Stop::Local) => Verdict::Failed(Status::LOC_PROT_ERR),
            Err(Stop::Refused(refused)) => {
                inbound.fail(refused, aftermath);
                match refused.request {
                    Status::SUCCESS => Verdict::Done { bytes: length },
                    status => Verdict::Failed(status),
                }
            }
        }
    }

    /// Returns the queue pair at the far end of the connection, if it is in this process.
    #[cold]
    pub(super) fn find_peer(&self, own: &P) -> Peer<P> {
        match own.find_peer(self.origin.path.as_ref(), self.peer_qpn) {
            Some(found) => Peer::Direct(found),
            None => Peer::Unresolved,
        }
    }

    /// Checks the local elements, so that errors on this side are found before anything is sent. Returns the total
    /// length.
    #[inline]
    pub(super) fn locate_payload(
        &mut self,
        own: &Station,
        visit: &Visit,
        opcode: Opcode,
        payload: Payload<'_>,
    ) -> Result<u64, Status> {
        let local = &mut self.local;
        local.clear();
        let length = if payload.is_inline() {
            local.extend(payload.inline_segments());
            payload.length()
        } else {
            let access = match opcode.fetches() {
                true => AccessFlags::LOCAL_WRITE.bits(),
                false => LOCAL_READ,
            };
            own.keys(visit).find_all(payload.sges(), access, local).ok_or(Status::LOC_PROT_ERR)?
        };
        local_length(opcode, length).map(u64::from)
    }
}

/// The progress of a message, as its requester knows it.
pub(super) struct Progress<'a> {
    pub(super) origin: u64,
    pub(super) copied: &'a mut u64,
    pub(super) extent: Extent,
}

impl Progress<'_> {
    /// Makes the responder execute the message that it has begun, or the next part of that message.
    #[inline(always)]
    pub(super) fn exchange(
        self,
        inbound: &mut Inbound<'_>,
        operation: &Operation,
        length: u64,
        local: &[Segment],
    ) -> Result<Verdict, Stop> {
        let from = inbound.resume(self.origin, *self.copied);
        let to = self.extent.end(from, length);
        if operation.opcode.is_atomic() {
            let before = inbound.atomic(operation)?;
            inbound.reach.deliver(before, local).map_err(|_| Stop::Local)?;
        } else {
            match operation.opcode {
                Opcode::Read => inbound.fetch(operation, length, local, (from, to))?,
                _ => inbound.place(operation, length, Data::Segments(local), (from, to))?,
            }
            if to < length {
                *self.copied = to;
                inbound.pause(self.origin);
                return Ok(Verdict::Paused);
            }
        }
        *self.copied = 0;
        inbound.finish(operation, length)?;
        Ok(Verdict::Done { bytes: length })
    }
}
