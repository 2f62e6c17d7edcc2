//! One attempt at a request: check everything, copy, complete at the responder.
//!
//! Runs on whichever thread drives the requester, under its send lock, with the responder's lock held
//! from the first look at the peer to the last byte.

use std::sync::Arc;

use rdma_types::{AccessFlags, AsyncEventKind, WcOpcode, WcStatus};

use crate::engine::aftermath::Aftermath;
use crate::engine::completion::Source;
use crate::engine::copy::{AtomicWord, Segment, deliver, transfer};
use crate::engine::grace_period::Visit;
use crate::engine::queue_pair::QueuePair;
use crate::engine::region::LOCAL_READ;
use crate::engine::requester::request::{Opcode, Payload, Request, Sge};
use crate::engine::requester::side::{Requester, Verdict};
use crate::engine::requester::unreliable::Message;
use crate::engine::responder::side::{Origin, Responder};
use crate::engine::service::Service;

/// The longest message (IBTA volume 1, 9.7.1: 2^31 bytes).
pub(crate) const MAX_MESSAGE_BYTES: u64 = 1 << 31;

/// How much of a request one attempt may copy before it pauses.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Extent {
    /// So many bytes.
    Bytes(u64),
    /// Half of it, or the rest if something was copied before.
    Half,
}

impl Extent {
    pub(crate) const WHOLE: Self = Self::Bytes(u64::MAX);

    /// Where the copy of a message of that length stops that has come so far.
    #[inline]
    pub(crate) fn end(self, progress: u64, length: u64) -> u64 {
        match self {
            Self::Bytes(bytes) => progress.saturating_add(bytes).min(length),
            Self::Half if progress == 0 && length > 1 => length / 2,
            Self::Half => length,
        }
    }
}

impl QueuePair {
    /// Tries to execute `request` for this requester.
    #[inline]
    pub(crate) fn attempt(
        self: &Arc<Self>,
        requester: &mut Requester,
        request: &Request,
        payload: Payload<'_>,
        extent: Extent,
        aftermath: &mut Aftermath,
    ) -> Verdict {
        if request.opcode.is_local() {
            return self.execute_locally(request);
        }
        let visit = Visit::begin();
        let length = match self.locate_payload(&visit, requester, request.opcode, payload) {
            Ok(length) => length,
            Err(status) => return Verdict::Failed(status),
        };
        if requester.peer.is_none() {
            if self.service != Service::ReliableConnection {
                let message = Message { request, payload, length, extent, visit: &visit };
                return self.send_unreliably(requester, &message, aftermath);
            }
            requester.peer = self.device.find_peer(requester.path.as_ref(), requester.peer_qpn);
        }
        let Requester { origin, peer, path, psn, local, progress, mtu_log2, .. } = requester;
        let Some(peer_queue_pair) = peer else { return Verdict::Unanswered };
        let mut responder = peer_queue_pair.responder.lock();
        let from = Origin { number: *origin, requester: self, path: path.as_ref() };
        if !responder.listens_to(peer_queue_pair, from, *psn) {
            drop(responder);
            // It may have been destroyed; another may have its number by the next attempt.
            *peer = None;
            return Verdict::Unanswered;
        }
        let mut exchange = Exchange {
            visit: &visit,
            own: self,
            origin: *origin,
            peer: peer_queue_pair,
            responder: &mut responder,
            request,
            length,
            local,
            progress,
            extent,
        };
        match exchange.serve() {
            Ok(Verdict::Done { bytes }) => {
                let next = next_psn(*psn, length, *mtu_log2);
                (*psn, responder.psn) = (next, next);
                responder.executed += 1;
                Verdict::Done { bytes }
            }
            Ok(verdict) => verdict,
            Err(refused) => {
                // IBTA volume 1, 11.6.3.3: local access violation, or invalid request.
                let event = match refused.request {
                    WcStatus::REM_ACCESS_ERR => AsyncEventKind::QP_ACCESS_ERR,
                    _ => AsyncEventKind::QP_REQ_ERR,
                };
                responder.fail(peer_queue_pair, refused.receive, event, aftermath);
                match refused.request {
                    WcStatus::SUCCESS => Verdict::Done { bytes: length },
                    status => Verdict::Failed(status),
                }
            }
        }
    }

    /// Checks the local elements and says how long they are together. What is wrong here is found
    /// before anything is sent.
    #[inline]
    fn locate_payload(
        &self,
        visit: &Visit,
        requester: &mut Requester,
        opcode: Opcode,
        payload: Payload<'_>,
    ) -> Result<u64, WcStatus> {
        let local = &mut requester.local;
        local.clear();
        let length = if payload.is_inline() {
            local.extend(payload.inline_segments());
            payload.length()
        } else {
            let access = match opcode.fetches() {
                true => AccessFlags::LOCAL_WRITE.bits(),
                false => LOCAL_READ,
            };
            self.locate(visit, self.pd_number, payload.sges(), access, local)
                .ok_or(WcStatus::LOC_PROT_ERR)?
        };
        // The result of an atomic is eight bytes (IBTA volume 1, 9.4.5).
        let wrong_length = length > MAX_MESSAGE_BYTES || opcode.is_atomic() && length != 8;
        if wrong_length { Err(WcStatus::LOC_LEN_ERR) } else { Ok(length) }
    }

    /// Finds the memory of the current receive request, for a message of that length. The responder is
    /// this queue pair's.
    #[inline(always)]
    pub(crate) fn find_room(
        &self,
        visit: &Visit,
        responder: &mut Responder,
        length: u64,
    ) -> Result<(), Refused> {
        let Responder { sges, room, .. } = responder;
        room.clear();
        let access = AccessFlags::LOCAL_WRITE.bits();
        let fits = self
            .locate(visit, self.receive_pd_number, sges, access, room)
            .ok_or(Refused { receive: WcStatus::LOC_PROT_ERR, request: WcStatus::REM_OP_ERR })?;
        if fits >= length {
            return Ok(());
        }
        Err(Refused { receive: WcStatus::LOC_LEN_ERR, request: WcStatus::REM_INV_REQ_ERR })
    }

    /// Turns elements into segments and says how long they are together: the keys must be known, of
    /// the protection domain `pd`, and give `access` to all of the range.
    #[inline(always)]
    fn locate(
        &self,
        visit: &Visit,
        pd: u64,
        sges: &[Sge],
        access: u32,
        out: &mut Vec<Segment>,
    ) -> Option<u64> {
        let mut total = 0;
        for sge in sges {
            let length = u64::from(sge.length);
            out.push(self.find_memory(visit, pd, sge.lkey, sge.addr, length, access)?);
            total += length;
        }
        Some(total)
    }
}

/// The packet sequence number behind a message: it took one packet for each MTU, at least one.
#[inline]
pub(crate) fn next_psn(psn: u32, length: u64, mtu_log2: u32) -> u32 {
    // At most 2^31 / 2^8 packets, so that the mask takes nothing away.
    let packets = (length.saturating_sub(1) >> mtu_log2) & 0x00ff_ffff;
    (psn + 1 + packets as u32) & 0x00ff_ffff
}

/// How a responder answers a request after which it is in error: the status of the request, and that of
/// the receive request that it may have taken.
pub(crate) struct Refused {
    pub(crate) receive: WcStatus,
    pub(crate) request: WcStatus,
}

/// One request between its requester and the locked responder.
pub(crate) struct Exchange<'a> {
    pub(crate) visit: &'a Visit,
    pub(crate) own: &'a Arc<QueuePair>,
    pub(crate) origin: u64,
    pub(crate) peer: &'a Arc<QueuePair>,
    pub(crate) responder: &'a mut Responder,
    pub(crate) request: &'a Request,
    pub(crate) length: u64,
    pub(crate) local: &'a mut Vec<Segment>,
    pub(crate) progress: &'a mut u64,
    pub(crate) extent: Extent,
}

impl Exchange<'_> {
    #[inline]
    fn serve(&mut self) -> Result<Verdict, Refused> {
        let opcode = self.request.opcode;
        if opcode.takes_receive() && !self.responder.take_receive(self.peer, self.own) {
            return Ok(Verdict::NotReady { timer: self.responder.min_rnr_timer });
        }
        self.execute()
    }

    /// Executes the request, whose receive request was taken if it needs one.
    #[inline(always)]
    pub(crate) fn execute(&mut self) -> Result<Verdict, Refused> {
        let opcode = self.request.opcode;
        if *self.progress > 0 && self.responder.begun != self.origin {
            // The receiver was reset since, or took another message: what it has is not this one.
            *self.progress = 0;
        }
        let copied = match opcode {
            Opcode::Send | Opcode::SendWithImm | Opcode::SendWithInvalidate => self.send(),
            Opcode::CompareAndSwap | Opcode::FetchAndAdd => {
                atomic(self.visit, self.peer, self.responder, self.request, self.local)
            }
            // Requests that no peer hears of do not get here.
            _ => self.one_sided(),
        };
        // No segment outlives the visit in which it was found.
        self.local.clear();
        self.responder.room.clear();
        if copied? == Copied::Half {
            self.responder.begun = self.origin;
            return Ok(Verdict::Paused);
        }
        if opcode == Opcode::SendWithInvalidate {
            self.invalidate()?;
        }
        if opcode.takes_receive() {
            let completion = match opcode {
                Opcode::WriteWithImm => WcOpcode::RECV_RDMA_WITH_IMM,
                _ => {
                    self.own.counts.sends.count();
                    WcOpcode::RECV
                }
            };
            let source = Source::UNDEFINED;
            self.responder.complete(self.peer, completion, self.length, self.request, 0, source);
        }
        Ok(Verdict::Done { bytes: self.length })
    }

    /// Copies into the receive request's elements.
    #[inline]
    fn send(&mut self) -> Result<Copied, Refused> {
        self.peer.find_room(self.visit, self.responder, self.length)?;
        let room = &self.responder.room;
        Ok(copy(self.local, room, self.length, self.progress, self.extent))
    }

    /// Invalidates the window that a send names, after its data has come and before its receive
    /// completes; the responder's lock is held, under which alone a peer uses such a window. A key that
    /// cannot be invalidated is the responder's affair: it is in error, and the send was delivered, as
    /// `rxe_resp.c` has it.
    #[cold]
    fn invalidate(&self) -> Result<(), Refused> {
        if self.peer.pd.invalidate(self.request.imm, self.peer.id) {
            return Ok(());
        }
        let request = WcStatus::SUCCESS;
        Err(Refused { receive: WcStatus::REM_INV_REQ_ERR, request })
    }

    /// Copies to or from the remote range.
    #[inline]
    fn one_sided(&mut self) -> Result<Copied, Refused> {
        let remote = remote(self.visit, self.peer, self.responder, self.request, self.length)?;
        let reads = self.request.opcode == Opcode::Read;
        let (source, sink) =
            if reads { (&[remote][..], &**self.local) } else { (&**self.local, &[remote][..]) };
        Ok(copy(source, sink, self.length, self.progress, self.extent))
    }
}

/// The remote range of a one-sided request, if it may touch it.
#[inline(always)]
fn remote(
    visit: &Visit,
    peer: &QueuePair,
    responder: &Responder,
    request: &Request,
    length: u64,
) -> Result<Segment, Refused> {
    let refused = |request| Refused { receive: WcStatus::WR_FLUSH_ERR, request };
    let access = request.opcode.remote_access();
    let no_resource = request.opcode.fetches() && responder.max_rd_atomic == 0;
    if responder.access & access == 0 || no_resource {
        return Err(refused(WcStatus::REM_INV_REQ_ERR));
    }
    peer.find_memory(visit, peer.pd_number, request.rkey, request.remote_address, length, access)
        .ok_or(refused(WcStatus::REM_ACCESS_ERR))
}

/// Executes an atomic, and brings what was there before. A held device cannot stop half-way.
#[cold]
fn atomic(
    visit: &Visit,
    peer: &QueuePair,
    responder: &Responder,
    request: &Request,
    local: &[Segment],
) -> Result<Copied, Refused> {
    let invalid =
        || Refused { receive: WcStatus::WR_FLUSH_ERR, request: WcStatus::REM_INV_REQ_ERR };
    if !request.remote_address.is_multiple_of(8) || !peer.device.limits.atomics {
        return Err(invalid());
    }
    // It can be aligned for the peer and not here, if the region was registered under other addresses.
    let remote = remote(visit, peer, responder, request, 8)?;
    let word = AtomicWord::at(remote).ok_or_else(invalid)?;
    let before = match request.opcode {
        Opcode::CompareAndSwap => word.compare_and_swap(request.operand, request.swap),
        _ => word.fetch_and_add(request.operand),
    };
    deliver(before, local);
    Ok(Copied::All)
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Copied {
    All,
    Half,
}

/// Copies what is still to be copied of a message.
#[inline]
fn copy(
    source: &[Segment],
    sink: &[Segment],
    length: u64,
    progress: &mut u64,
    extent: Extent,
) -> Copied {
    let end = extent.end(*progress, length);
    transfer(source, sink, *progress, end);
    if end < length {
        *progress = end;
        return Copied::Half;
    }
    *progress = 0;
    Copied::All
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_message_takes_one_sequence_number_for_each_packet() {
        assert_eq!(next_psn(5, 0, 10), 6);
        assert_eq!(next_psn(5, 1, 10), 6);
        assert_eq!(next_psn(5, 1024, 10), 6);
        assert_eq!(next_psn(5, 1025, 10), 7);
        assert_eq!(next_psn(0x00ff_ffff, 1, 8), 0);
        assert_eq!(next_psn(3, MAX_MESSAGE_BYTES, 8), 3 + (1 << 23));
    }
}
