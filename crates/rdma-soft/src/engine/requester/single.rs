//! A post of one plain request with one element, the most common kind, executed with as few instructions as possible.
//!
//! This code adds no rules about what a request may do. Each check is one of the general code's, with the opcode known
//! to the compiler. Unusual requests are left to the general code, which starts from the beginning.

use std::slice;
use std::sync::Arc;

use crate::engine::requester::peer::Near;
use crate::engine::requester::request::{Payload, Request};
use crate::engine::requester::side::{Peer, Requester, SendSide};
use crate::engine::responder::inbound::Inbound;
use crate::engine::turn::STRETCH_BYTES;
use crate::memory::copy::{Data, Reach};
use crate::memory::grace_period::Visit;
use crate::memory::region::LOCAL_READ;

/// Posts a SEND or WRITE and executes it completely. Returns `None` if nothing was posted; the caller then uses the
/// general code.
#[inline(always)]
pub(crate) fn post_single<P: Near>(
    own: &Arc<P>,
    request: &Request,
    payload: Payload<'_>,
) -> Option<()> {
    own.send_side().lock().post_single(own, request, payload)?;
    own.adapter.fabric.run_queue.run();
    Some(())
}

/// Like [`post_single`], for a WRITE or READ on memory of another process.
pub(crate) fn post_mapped<P: Near>(
    own: &Arc<P>,
    request: &Request,
    payload: Payload<'_>,
) -> Option<()> {
    own.send_side().lock().post_mapped(own, request, payload)?;
    own.adapter.fabric.run_queue.run();
    Some(())
}

impl<P: Near> SendSide<P> {
    #[inline(always)]
    fn post_single(&mut self, own: &P, request: &Request, payload: Payload<'_>) -> Option<()> {
        if !self.executes_at_once(own) {
            return None;
        }
        self.check(own, request, payload).ok()?;
        let length = self.requester.execute_single(own, request, payload)?;
        self.posted = self.posted.wrapping_add(1);
        self.succeed(own, request, self.posted, length);
        Some(())
    }

    fn post_mapped(&mut self, own: &P, request: &Request, payload: Payload<'_>) -> Option<()> {
        if !self.executes_at_once(own) {
            return None;
        }
        self.check(own, request, payload).ok()?;
        // Only an atomic that is executed can fail.
        let length = self.execute_posted(own, request, payload)?.ok()?;
        self.posted = self.posted.wrapping_add(1);
        self.succeed(own, request, self.posted, length);
        Some(())
    }
}

impl<P: Near> Requester<P> {
    /// Like [`attempt`](Self::attempt), for a request that has not copied any bytes yet. Returns the request's length.
    /// If this gives up, it has only done things that an attempt does first, so an attempt continues from there. The
    /// responder may already know the requester, or have taken the next receive request.
    #[inline(always)]
    fn execute_single(&mut self, own: &P, request: &Request, payload: Payload<'_>) -> Option<u64> {
        let [sge] = payload.sges() else { return None };
        let length = u64::from(sge.length);
        let Peer::Direct(peer) = &self.peer else { return None };
        if length > STRETCH_BYTES {
            return None;
        }
        let visit = Visit::begin();
        let data = if payload.is_inline() {
            payload.inline_segments().next()?
        } else {
            own.keys(&visit).find(sge.lkey, sge.addr, length, LOCAL_READ)?
        };
        let mut responder = peer.responder().lock();
        if !responder.listens_to(peer, &self.origin, self.psn) {
            return None;
        }
        let reach = Reach::Mapped;
        let mut inbound = Inbound { own: peer, side: &mut responder, visit: &visit, reach };
        if !inbound.begin(&request.operation) {
            return None;
        }
        let data = Data::Segments(slice::from_ref(&data));
        inbound.place(&request.operation, length, data, (0, length)).ok()?;
        inbound.complete(&request.operation, length);
        let packets = self.packets(length);
        inbound.expect_after(self.psn, packets);
        self.psn = self.psn.wrapping_add(packets);
        Some(length)
    }
}
