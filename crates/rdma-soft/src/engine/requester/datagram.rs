//! Unreliable datagrams: each message is one packet, to any queue pair that has the same key.

use std::sync::Arc;

use rdma_types::{WcOpcode, WcStatus};

use crate::address::AddressVector;
use crate::engine::aftermath::Aftermath;
use crate::engine::completion::{self, Source};
use crate::engine::copy::{Segment, deliver_bytes, transfer_behind};
use crate::engine::queue_pair::QueuePair;
use crate::engine::requester::direct::{Extent, Refused};
use crate::engine::requester::side::{Requester, Verdict};
use crate::engine::requester::unreliable::Message;
use crate::engine::responder::route_header;
use crate::engine::responder::side::Responder;

/// The longest datagram, in bytes: the MTU of the port.
const PORT_MTU: u64 = 4096;
/// Of the key of a request: use the queue pair's own (IBTA volume 1, 10.2.5).
const OWN_QKEY: u32 = 0x8000_0000;

impl QueuePair {
    /// Sends a datagram. Whoever does not take it, it is done for the requester.
    pub(crate) fn send_datagram(
        self: &Arc<Self>,
        requester: &mut Requester,
        message: &Message<'_>,
        aftermath: &mut Aftermath,
    ) -> Verdict {
        let Some(to) = message.payload.destination().filter(|to| to.pd == self.pd_number) else {
            return Verdict::Failed(WcStatus::LOC_QP_OP_ERR);
        };
        if message.length > PORT_MTU {
            return Verdict::Failed(WcStatus::LOC_LEN_ERR);
        }
        if let Some(receiver) = self.take_receiver(requester, to, message.request.destination_qpn) {
            // A datagram that was half-way begins again: it may come to another receive request.
            let begun = std::mem::take(&mut requester.progress) > 0;
            let half = message.extent == Extent::Half && !begun;
            let extent = if half { Extent::Half } else { Extent::WHOLE };
            let mut responder = receiver.responder.lock();
            let datagram = Datagram { to, message, extent, sender: self, receiver: &receiver };
            // If it is not, another may have its number by the next datagram.
            if responder.is_ready() && receiver.service == self.service {
                match datagram.arrive(requester, &mut responder) {
                    Ok(Verdict::Paused) => return Verdict::Paused,
                    Ok(_) => {}
                    Err(refused) => responder.drop_message(&receiver, &refused, aftermath),
                }
                drop(responder);
                requester.last = Arc::downgrade(&receiver);
            }
        }
        self.counts.sends.count();
        requester.psn = (requester.psn + 1) & 0x00ff_ffff;
        Verdict::Done { bytes: message.length }
    }

    /// The queue pair that a datagram is for. Where the last one went stands in the place of a
    /// connection.
    fn take_receiver(
        &self,
        requester: &mut Requester,
        to: &AddressVector,
        qpn: u32,
    ) -> Option<Arc<QueuePair>> {
        let same = requester.peer_qpn == qpn && requester.path == Some(to.path);
        (requester.path, requester.peer_qpn) = (Some(to.path), qpn);
        let last = std::mem::take(&mut requester.last);
        let last = last.upgrade().filter(|_| same && self.device.port_is_up());
        let found = last.or_else(|| self.device.find_peer(Some(&to.path), qpn));
        found.filter(|receiver| receiver.device.port_is_up())
    }
}

/// A datagram on its way.
struct Datagram<'a> {
    to: &'a AddressVector,
    message: &'a Message<'a>,
    extent: Extent,
    sender: &'a QueuePair,
    receiver: &'a Arc<QueuePair>,
}

impl Datagram<'_> {
    fn arrive(
        &self,
        requester: &mut Requester,
        responder: &mut Responder,
    ) -> Result<Verdict, Refused> {
        let request = self.message.request;
        let own_key = request.qkey & OWN_QKEY != 0;
        let qkey = if own_key { requester.qkey } else { request.qkey };
        if qkey != responder.qkey {
            self.receiver.device.count_wrong_qkey();
            return Ok(Verdict::Unanswered);
        }
        if !responder.take_receive_or_none(self.receiver) {
            return Ok(Verdict::Unanswered);
        }
        let length = route_header::BYTES + self.message.length;
        let found = self.receiver.find_room(self.message.visit, responder, length);
        let copied = found.map(|()| self.copy(&requester.local, &responder.room));
        // No segment outlives the visit in which it was found.
        requester.local.clear();
        responder.room.clear();
        let copied = copied?;
        if copied < self.message.length {
            requester.progress = copied;
            return Ok(Verdict::Paused);
        }
        let (sender, to) = (self.sender, self.to);
        let lid = sender.device.identity.lid;
        let service_level = to.service_level;
        let source = Source { qpn: sender.qpn, lid, service_level, path_bits: 0 };
        let flags = to.route.map_or(0, |_| completion::GRH);
        let opcode = WcOpcode::RECV;
        responder.executed += 1;
        responder.complete(self.receiver, opcode, length, request, flags, source);
        Ok(Verdict::Done { bytes: self.message.length })
    }

    /// Copies the header, if there is one, and behind its place the message, or half of it. Says how
    /// much of the message that was.
    fn copy(&self, local: &[Segment], room: &[Segment]) -> u64 {
        if let Some(route) = &self.to.route {
            deliver_bytes(&route_header::of(route, self.message), room);
        }
        let bytes = self.extent.end(0, self.message.length);
        transfer_behind(local, room, route_header::BYTES, bytes);
        bytes
    }
}
