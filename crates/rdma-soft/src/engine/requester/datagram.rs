//! Unreliable datagrams as they are sent: each message is one packet, to any queue pair that has the same
//! key.

use std::sync::Arc;

use rdma_types::WcStatus as Status;

use crate::address::AddressVector;
use crate::engine::aftermath::Aftermath;
use crate::engine::queue_pair::QueuePair;
use crate::engine::requester::direct::Extent;
use crate::engine::requester::route_header;
use crate::engine::requester::side::{Requester, Verdict};
use crate::engine::requester::unreliable::Message;
use crate::engine::responder::datagram::{Arrived, Datagram};
use crate::engine::responder::inbound::Inbound;
use crate::engine::work_completion::Source;

/// The longest datagram, in bytes: the MTU of the port.
const PORT_MTU: u64 = 4096;
/// Of the key of a request: use the queue pair's own (IBTA volume 1, 10.2.5).
const OWN_QKEY: u32 = 0x8000_0000;

impl Requester {
    /// Sends a datagram. Whoever does not take it, it is done for the requester.
    pub(super) fn send_datagram(
        &mut self,
        own: &Arc<QueuePair>,
        message: &Message<'_>,
        aftermath: &mut Aftermath,
    ) -> Verdict {
        let Some(to) = message.payload.destination().filter(|to| to.pd == own.pd_number) else {
            return Verdict::Failed(Status::LOC_QP_OP_ERR);
        };
        if message.length > PORT_MTU {
            return Verdict::Failed(Status::LOC_LEN_ERR);
        }
        if let Some(receiver) = self.take_receiver(own, to, message.request.destination_qpn) {
            // A datagram that was half-way begins again: it may come to another receive request.
            let begun = std::mem::take(&mut self.progress) > 0;
            let half = message.extent == Extent::Half && !begun;
            let extent = if half { Extent::Half } else { Extent::WHOLE };
            let own_key = message.request.qkey & OWN_QKEY != 0;
            let qkey = if own_key { self.qkey } else { message.request.qkey };
            let Message { length, visit, reach, .. } = *message;
            let operation = &message.request.operation;
            let (lid, service_level) = (own.device.identity.lid, to.service_level);
            let datagram = Datagram {
                source: Source { qpn: own.qpn, lid, service_level, path_bits: 0 },
                qkey,
                header: to.route.map(|route| route_header::of(&route, operation.opcode, length)),
                operation,
                length,
                data: &self.local,
                upto: extent.end(0, length),
            };
            let mut responder = receiver.responder.lock();
            let mut inbound = Inbound { own: &receiver, side: &mut responder, visit, reach };
            // If it takes none, another may have its number by the next datagram.
            let ready = inbound.takes_datagrams();
            let arrived = if ready { inbound.datagram(&datagram, aftermath) } else { Arrived::Not };
            if arrived == Arrived::Unreadable {
                return Verdict::Failed(Status::LOC_PROT_ERR);
            }
            if arrived == Arrived::InPart {
                self.progress = datagram.upto;
                return Verdict::Paused;
            }
            drop(responder);
            if ready {
                self.last = Arc::downgrade(&receiver);
            }
        }
        self.local.clear();
        self.psn = self.psn.wrapping_add(1);
        Verdict::Done { bytes: message.length }
    }

    /// The queue pair that a datagram is for. Where the last one went stands in the place of a
    /// connection.
    fn take_receiver(
        &mut self,
        own: &QueuePair,
        to: &AddressVector,
        qpn: u32,
    ) -> Option<Arc<QueuePair>> {
        let same = self.peer_qpn == qpn && self.origin.path == Some(to.path);
        (self.origin.path, self.peer_qpn) = (Some(to.path), qpn);
        let last = std::mem::take(&mut self.last);
        let last = last.upgrade().filter(|_| same && own.device.port_is_up());
        let found = last.or_else(|| own.device.find_peer(Some(&to.path), qpn));
        found.filter(|receiver| receiver.device.port_is_up())
    }
}
