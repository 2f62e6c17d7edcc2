//! One attempt at a request: check everything, copy, complete at the responder.
//!
//! Runs on whichever thread drives the requester, under its send lock, with the responder's lock held
//! from the first look at the peer to the last byte.

use std::sync::Arc;

use rdma_sys::{ibv_access_flags, ibv_sge, ibv_wc_opcode, ibv_wc_status as Status};

use crate::engine::aftermath::Aftermath;
use crate::engine::copy::{Segment, transfer};
use crate::engine::queue_pair::QueuePair;
use crate::engine::request::{Opcode, Payload, Request};
use crate::engine::responder::Responder;
use crate::engine::send_side::{Requester, Verdict};

/// The longest message (IBTA volume 1, 9.7.1: 2^31 bytes).
pub(crate) const MAX_MESSAGE_BYTES: u64 = 1 << 31;

/// How much of a request one attempt may copy.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Extent {
    Whole,
    /// Half of it, then pause.
    Half,
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
        let length = match self.locate_payload(requester, request.opcode, payload) {
            Ok(length) => length,
            Err(status) => return Verdict::Failed(status),
        };
        if requester.peer.is_none() {
            requester.peer = self.device.find_peer(requester.path.as_ref(), requester.peer_qpn);
        }
        let Requester { peer, path, psn, local, progress, mtu_bytes, .. } = requester;
        let Some(peer_queue_pair) = peer else { return Verdict::Unanswered };
        let mut responder = peer_queue_pair.responder.lock();
        if !responder.listens_to(self.id, self.qpn, path.as_ref(), *psn) {
            drop(responder);
            // It may have been destroyed; another may have its number by the next attempt.
            *peer = None;
            return Verdict::Unanswered;
        }
        let mut exchange = Exchange {
            own: self,
            peer: peer_queue_pair,
            responder: &mut responder,
            request,
            length,
            local,
            progress,
            extent,
            aftermath,
        };
        let verdict = exchange.serve();
        if let Verdict::Done { .. } = verdict {
            let next = next_psn(*psn, length, *mtu_bytes);
            (*psn, responder.psn) = (next, next);
        }
        verdict
    }

    /// Checks the local elements and says how long they are together. What is wrong here is found
    /// before anything is sent.
    #[inline]
    fn locate_payload(
        &self,
        requester: &mut Requester,
        opcode: Opcode,
        payload: Payload<'_>,
    ) -> Result<u64, Status> {
        let local = &mut requester.local;
        local.clear();
        if payload.is_inline() {
            local.extend(payload.inline_segments());
        } else {
            let access = match opcode {
                Opcode::Read => ibv_access_flags::IBV_ACCESS_LOCAL_WRITE.0,
                _ => 0,
            };
            if !self.locate(payload.sges(), access, local) {
                return Err(Status::IBV_WC_LOC_PROT_ERR);
            }
        }
        let length = local.iter().map(|segment| segment.length()).sum();
        if length > MAX_MESSAGE_BYTES { Err(Status::IBV_WC_LOC_LEN_ERR) } else { Ok(length) }
    }

    /// Turns elements into segments: the keys must be known, of this protection domain, and give
    /// `access` to all of the range. An empty element is not looked at.
    #[inline]
    fn locate(&self, sges: &[ibv_sge], access: u32, out: &mut Vec<Segment>) -> bool {
        sges.iter().all(|sge| {
            let length = u64::from(sge.length);
            let segment = self.find_memory(sge.lkey, sge.addr, length, access);
            out.extend(segment);
            segment.is_some()
        })
    }
}

/// The packet sequence number behind a message: it took one packet for each MTU, at least one.
#[inline]
fn next_psn(psn: u32, length: u64, mtu_bytes: u32) -> u32 {
    // At most 2^31 / 2^8 packets.
    let packets = length.div_ceil(u64::from(mtu_bytes)).max(1) & 0x00ff_ffff;
    psn.wrapping_add(packets as u32) & 0x00ff_ffff
}

/// One request between its requester and the locked responder.
struct Exchange<'a> {
    own: &'a Arc<QueuePair>,
    peer: &'a Arc<QueuePair>,
    responder: &'a mut Responder,
    request: &'a Request,
    length: u64,
    local: &'a mut Vec<Segment>,
    progress: &'a mut u64,
    extent: Extent,
    aftermath: &'a mut Aftermath,
}

impl Exchange<'_> {
    #[inline]
    fn serve(&mut self) -> Verdict {
        let opcode = self.request.opcode;
        if opcode.takes_receive() && !self.responder.take_receive(self.peer, self.own) {
            return Verdict::NotReady { timer: self.responder.min_rnr_timer };
        }
        let served = match opcode {
            Opcode::Send | Opcode::SendWithImm => self.send(),
            Opcode::Write | Opcode::WriteWithImm | Opcode::Read => self.one_sided(),
        };
        // No segment outlives the locks under which it was found.
        self.local.clear();
        self.responder.room.clear();
        if let Some(verdict) = served {
            return verdict;
        }
        if opcode.takes_receive() {
            let imm = opcode.has_immediate().then_some(self.request.imm);
            let completion = match opcode {
                Opcode::WriteWithImm => ibv_wc_opcode::IBV_WC_RECV_RDMA_WITH_IMM,
                _ => ibv_wc_opcode::IBV_WC_RECV,
            };
            self.responder.complete(self.peer, completion, self.length, imm);
        }
        Verdict::Done { bytes: self.length }
    }

    /// Copies into the receive request's elements; `None` if all went well.
    #[inline]
    fn send(&mut self) -> Option<Verdict> {
        let Responder { sges, room, .. } = &mut *self.responder;
        room.clear();
        let access = ibv_access_flags::IBV_ACCESS_LOCAL_WRITE.0;
        if !self.peer.locate(sges, access, room) {
            return self.refuse(Status::IBV_WC_LOC_PROT_ERR, Status::IBV_WC_REM_OP_ERR);
        }
        if room.iter().map(|segment| segment.length()).sum::<u64>() < self.length {
            return self.refuse(Status::IBV_WC_LOC_LEN_ERR, Status::IBV_WC_REM_INV_REQ_ERR);
        }
        let Responder { room, .. } = &*self.responder;
        copy(self.local, room, self.length, self.progress, self.extent)
    }

    /// Copies to or from the remote range; `None` if all went well.
    #[inline]
    fn one_sided(&mut self) -> Option<Verdict> {
        let (request, flushed) = (self.request, Status::IBV_WC_WR_FLUSH_ERR);
        let access = request.opcode.remote_access();
        let reads = request.opcode == Opcode::Read;
        if self.responder.access & access == 0 || reads && self.responder.max_rd_atomic == 0 {
            return self.refuse(flushed, Status::IBV_WC_REM_INV_REQ_ERR);
        }
        let found =
            self.peer.find_memory(request.rkey, request.remote_address, self.length, access);
        let Some(remote) = found else {
            return self.refuse(flushed, Status::IBV_WC_REM_ACCESS_ERR);
        };
        if reads {
            copy(&[remote], self.local, self.length, self.progress, self.extent)
        } else {
            copy(self.local, &[remote], self.length, self.progress, self.extent)
        }
    }

    #[cold]
    fn refuse(&mut self, receive: Status, request: Status) -> Option<Verdict> {
        self.responder.fail(self.peer, receive, self.aftermath);
        Some(Verdict::Failed(request))
    }
}

/// Copies what is still to be copied of a message; `Some` if it paused.
#[inline]
fn copy(
    source: &[Segment],
    sink: &[Segment],
    length: u64,
    progress: &mut u64,
    extent: Extent,
) -> Option<Verdict> {
    if extent == Extent::Half && *progress == 0 && length > 1 {
        transfer(source, sink, 0, length / 2);
        *progress = length / 2;
        return Some(Verdict::Paused);
    }
    transfer(source, sink, *progress, length);
    *progress = 0;
    None
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_message_takes_one_sequence_number_for_each_packet() {
        assert_eq!(next_psn(5, 0, 1024), 6);
        assert_eq!(next_psn(5, 1, 1024), 6);
        assert_eq!(next_psn(5, 1024, 1024), 6);
        assert_eq!(next_psn(5, 1025, 1024), 7);
        assert_eq!(next_psn(0x00ff_ffff, 1, 256), 0);
        assert_eq!(next_psn(3, MAX_MESSAGE_BYTES, 256), 3 + (1 << 23));
    }
}
