//! Unacknowledged messages: datagrams, and messages on unreliable connections. The sender of a lost message is not
//! notified.

mod datagram;
mod group;

use rdma_types::WcStatus as Status;

use crate::engine::aftermath::Aftermath;
use crate::engine::queue_pair::service::Service;
use crate::engine::requester::direct::Progress;
use crate::engine::requester::peer::Near;
use crate::engine::requester::request::{Payload, Request};
use crate::engine::requester::side::{Peer, Requester, Verdict};
use crate::engine::responder::inbound::{Inbound, Stop};
use crate::engine::turn::Extent;
use crate::memory::copy::Reach;
use crate::memory::grace_period::Visit;

/// A request whose local data has been located.
pub(crate) struct Message<'a> {
    pub(crate) request: &'a Request,
    pub(crate) payload: Payload<'a>,
    pub(crate) length: u64,
    pub(crate) extent: Extent,
    pub(crate) reach: Reach,
    pub(crate) visit: &'a Visit,
}

impl<P: Near> Requester<P> {
    /// Sends a message on a queue pair without acknowledgements. The message's local data has been located. This is not
    /// inlined, so that queue pairs with acknowledgements do not pay for it.
    #[inline(never)]
    pub(super) fn send_unreliably(
        &mut self,
        own: &P,
        message: &Message<'_>,
        aftermath: &mut Aftermath,
    ) -> Verdict {
        match own.service {
            Service::UnreliableDatagram => self.send_datagram(own, message, aftermath),
            _ => self.send_on_connection(own, message, aftermath),
        }
    }

    /// Sends a message on an unreliable connection. The first packet of a message is accepted with any sequence number
    /// (IBTA volume 1, 9.8.2.2), so a lost message does not stop later ones.
    fn send_on_connection(
        &mut self,
        own: &P,
        message: &Message<'_>,
        aftermath: &mut Aftermath,
    ) -> Verdict {
        if let Peer::Unresolved = self.peer {
            self.peer = self.find_peer(own);
        }
        let Message { request, length, extent, reach, visit, .. } = *message;
        let operation = &request.operation;
        let packets = self.packets(length);
        if let Peer::Direct(peer) = &self.peer {
            let mut responder = peer.responder().lock();
            let knows = responder.knows(peer, &self.origin);
            let mut inbound = Inbound { own: peer, side: &mut responder, visit, reach };
            if knows && inbound.begin(operation) {
                let progress =
                    Progress { origin: self.origin.number, copied: &mut self.progress, extent };
                match progress.exchange(&mut inbound, operation, length, &self.local) {
                    Ok(Verdict::Done { .. }) => inbound.expect_after(self.psn, packets),
                    Ok(verdict) => return verdict,
                    Err(Stop::Local) => return Verdict::Failed(Status::LOC_PROT_ERR),
                    Err(Stop::Refused(refused)) => inbound.abandon(refused, aftermath),
                }
            }
            drop(responder);
            if !knows {
                // By the next message, another queue pair may have the peer's number.
                self.peer = Peer::Unresolved;
            }
        }
        self.local.clear();
        self.psn = self.psn.wrapping_add(packets);
        Verdict::Done { bytes: length }
    }
}
