//! Unreliable connections: messages that nobody acknowledges. Where one gets lost its sender does not
//! hear of it.

use std::sync::{Arc, Weak};

use rdma_types::{AsyncEventKind, WcStatus};

use crate::engine::aftermath::Aftermath;
use crate::engine::grace_period::Visit;
use crate::engine::queue_pair::QueuePair;
use crate::engine::requester::direct::{Exchange, Extent, Refused, next_psn};
use crate::engine::requester::request::{Opcode, Payload, Request};
use crate::engine::requester::side::{Requester, Verdict};
use crate::engine::responder::side::{Origin, Responder};
use crate::engine::service::Service;

/// A request whose local data was found.
pub(crate) struct Message<'a> {
    pub(crate) request: &'a Request,
    pub(crate) payload: Payload<'a>,
    pub(crate) length: u64,
    pub(crate) extent: Extent,
    pub(crate) visit: &'a Visit,
}

impl QueuePair {
    /// Sends a message whose local data was found, on a queue pair without acknowledgements. Out of line,
    /// for the sake of those with them.
    #[inline(never)]
    pub(crate) fn send_unreliably(
        self: &Arc<Self>,
        requester: &mut Requester,
        message: &Message<'_>,
        aftermath: &mut Aftermath,
    ) -> Verdict {
        match self.service {
            Service::UnreliableDatagram => self.send_datagram(requester, message, aftermath),
            _ => self.send_on_connection(requester, message, aftermath),
        }
    }

    /// Sends a message on an unreliable connection. The first packet of a message is taken with any
    /// sequence number (IBTA volume 1, 9.8.2.2), so that a message that was lost stops no other.
    fn send_on_connection(
        self: &Arc<Self>,
        requester: &mut Requester,
        message: &Message<'_>,
        aftermath: &mut Aftermath,
    ) -> Verdict {
        let path = requester.path;
        let from = Origin { number: requester.origin, requester: self, path: path.as_ref() };
        let last = requester.last.upgrade().filter(|_| self.device.port_is_up());
        let found = last.is_some();
        let peer = last.or_else(|| self.device.find_peer(path.as_ref(), requester.peer_qpn));
        let next = next_psn(requester.psn, message.length, requester.mtu_log2);
        let mut arrived = false;
        if let Some(peer) = peer {
            let mut responder = peer.responder.lock();
            // If it does not, another may have its number by the next message.
            let knows = responder.knows(&peer, from);
            if knows {
                match self.exchange(&peer, &mut responder, requester, message) {
                    Ok(Verdict::Paused) => return Verdict::Paused,
                    Ok(verdict) => arrived = verdict != Verdict::Unanswered,
                    Err(refused) => responder.drop_message(&peer, &refused, aftermath),
                }
                if arrived {
                    responder.executed += 1;
                    responder.psn = next;
                }
            }
            drop(responder);
            if !knows {
                requester.last = Weak::new();
            } else if !found {
                requester.last = Arc::downgrade(&peer);
            }
        }
        if !arrived && matches!(message.request.opcode, Opcode::Send | Opcode::SendWithImm) {
            self.counts.sends.count();
        }
        requester.psn = next;
        Verdict::Done { bytes: message.length }
    }

    fn exchange(
        self: &Arc<Self>,
        peer: &Arc<Self>,
        responder: &mut Responder,
        requester: &mut Requester,
        message: &Message<'_>,
    ) -> Result<Verdict, Refused> {
        let request = message.request;
        if request.opcode.takes_receive() && !responder.take_receive_or_none(peer) {
            return Ok(Verdict::Unanswered);
        }
        let Requester { origin, local, progress, .. } = requester;
        let Message { length, visit, extent, .. } = *message;
        let (own, origin) = (self, *origin);
        Exchange { visit, own, origin, peer, responder, request, length, local, progress, extent }
            .execute()
    }
}

impl Responder {
    /// A message cannot be taken. Without acknowledgements it is dropped, and a receive request that it
    /// would have used is there for the next one (IBTA volume 1, 9.9.3, class D); one of a shared queue,
    /// where others would miss it, completes in error (class E). But if the receive request itself is
    /// bad, its queue pair fails (class A); when another has failed in this call already, with its next
    /// message.
    #[cold]
    pub(crate) fn drop_message(
        &mut self,
        own: &Arc<QueuePair>,
        refused: &Refused,
        aftermath: &mut Aftermath,
    ) {
        if refused.receive == WcStatus::LOC_PROT_ERR && !aftermath.is_full() {
            self.fail(own, refused.receive, AsyncEventKind::QP_FATAL, aftermath);
        } else if own.shared.is_some()
            && let Some(receive) = self.current.take()
        {
            let status = match refused.receive {
                WcStatus::WR_FLUSH_ERR => refused.request,
                status => status,
            };
            own.push_receive(own.failed_receive(&receive, status));
        }
    }
}
