//! Messages that nobody acknowledges, on unreliable connections. Where one gets lost its sender does not
//! hear of it.

use std::sync::{Arc, Weak};

use rdma_types::WcStatus as Status;

use crate::engine::aftermath::Aftermath;
use crate::engine::copy::Reach;
use crate::engine::grace_period::Visit;
use crate::engine::queue_pair::QueuePair;
use crate::engine::requester::direct::{Extent, Progress, next_psn};
use crate::engine::requester::request::{Payload, Request};
use crate::engine::requester::side::{Requester, Verdict};
use crate::engine::responder::inbound::{Inbound, Stop};
use crate::engine::responder::origin::Origin;
use crate::engine::service::Service;

/// A request whose local data was found.
pub(crate) struct Message<'a> {
    pub(crate) request: &'a Request,
    pub(crate) payload: Payload<'a>,
    pub(crate) length: u64,
    pub(crate) extent: Extent,
    pub(crate) reach: Reach,
    pub(crate) visit: &'a Visit,
}

impl Requester {
    /// Sends a message whose local data was found, on a queue pair without acknowledgements. Out of line,
    /// for the sake of those with them.
    #[inline(never)]
    pub(super) fn send_unreliably(
        &mut self,
        own: &Arc<QueuePair>,
        message: &Message<'_>,
        aftermath: &mut Aftermath,
    ) -> Verdict {
        match own.service {
            Service::UnreliableDatagram => self.send_datagram(own, message, aftermath),
            _ => self.send_on_connection(own, message, aftermath),
        }
    }

    /// Sends a message on an unreliable connection. The first packet of a message is taken with any
    /// sequence number (IBTA volume 1, 9.8.2.2), so that a message that was lost stops no other.
    fn send_on_connection(
        &mut self,
        own: &Arc<QueuePair>,
        message: &Message<'_>,
        aftermath: &mut Aftermath,
    ) -> Verdict {
        let last = self.last.upgrade().filter(|_| own.device.port_is_up());
        let found = last.is_some();
        let peer = last.or_else(|| own.device.find_peer(self.path.as_ref(), self.peer_qpn));
        let next = next_psn(self.psn, message.length, self.mtu_log2);
        if let Some(peer) = peer {
            let mut responder = peer.responder.lock();
            let path = self.path.as_ref();
            let from = Origin { number: self.origin, requester: own, path };
            // If it does not, another may have its number by the next message.
            let knows = responder.knows(&peer, from);
            if knows {
                let Message { visit, reach, .. } = *message;
                let mut inbound = Inbound { own: &peer, side: &mut responder, visit, reach };
                let verdict = self.bring(&mut inbound, message, next, aftermath);
                if matches!(verdict, Verdict::Paused | Verdict::Failed(_)) {
                    return verdict;
                }
            }
            drop(responder);
            if !knows {
                self.last = Weak::new();
            } else if !found {
                self.last = Arc::downgrade(&peer);
            }
        }
        self.psn = next;
        Verdict::Done { bytes: message.length }
    }

    /// Brings a message to a responder that listens, which may have no receive request, or no memory, for
    /// it.
    fn bring(
        &mut self,
        inbound: &mut Inbound<'_>,
        message: &Message<'_>,
        next: u32,
        aftermath: &mut Aftermath,
    ) -> Verdict {
        let Message { request, length, extent, .. } = *message;
        if !inbound.begin(request, None) {
            return Verdict::Unanswered;
        }
        let progress = Progress { origin: self.origin, copied: &mut self.progress, extent };
        let exchanged = progress.exchange(inbound, request, length, &self.local);
        self.local.clear();
        match exchanged {
            Ok(Verdict::Done { bytes }) => {
                inbound.side.psn = next;
                Verdict::Done { bytes }
            }
            Ok(verdict) => verdict,
            Err(Stop::Local) => Verdict::Failed(Status::LOC_PROT_ERR),
            Err(Stop::Refused(refused)) => {
                inbound.abandon(refused, aftermath);
                Verdict::Unanswered
            }
        }
    }
}
