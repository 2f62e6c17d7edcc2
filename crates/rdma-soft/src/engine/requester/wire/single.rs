//! Sending messages of one packet without a packet.

use rdma_types::{QpState, Qpn};

use crate::engine::aftermath::Aftermath;
use crate::engine::operation::Opcode;
use crate::engine::requester::peer::Near;
use crate::engine::requester::request::{Payload, Request};
use crate::engine::requester::side::SendSide;
use crate::engine::requester::wire::{Protocol, Wire};
use crate::engine::wire::single::Single;
use crate::engine::wire::{self, Word};
use crate::memory::grace_period::Visit;

impl<P: Near> SendSide<P> {
    /// Sends and queues a request that is being posted, if it is a SEND of one packet to another process of this host.
    /// Returns false if it is not, or if something before it was not sent. The request then goes the usual way.
    #[inline]
    pub(in crate::engine::requester) fn send_posted(
        &mut self,
        own: &P,
        request: &Request,
        payload: Payload<'_>,
    ) -> bool {
        let queued = u32::try_from(self.queue.len()).unwrap_or(u32::MAX);
        let operation = &request.operation;
        let is_send = matches!(operation.opcode, Opcode::Send | Opcode::SendWithImm);
        if !is_send || self.state != QpState::RTS || !own.immediate {
            return false;
        }
        // A capture contains packets, and faults change them.
        if own.adapter.tap.is_some() || own.faults.is_some() || !own.adapter.port_is_up() {
            return false;
        }
        let Self { requester, wire: Some(wire), .. } = self else { return false };
        let Wire {
            protocol: Protocol::Reliable(protocol), word: Some(word), route, mtu, head, ..
        } = &mut **wire
        else {
            return false;
        };
        let fits = |length: &u16| u32::from(*length) <= mtu.bytes();
        let Some(length) = u16::try_from(payload.length()).ok().filter(fits) else { return false };
        let n = head.wrapping_add(queued);
        let Some(psn) = protocol.may_send_alone(n, request.fence) else { return false };
        let single = Single {
            path: route.path,
            to: Qpn::masked(requester.peer_qpn),
            psn,
            word: word.key,
            immediate: (operation.opcode == Opcode::SendWithImm).then_some(operation.imm),
            solicited: operation.solicited,
            length,
        };
        let visit = Visit::begin();
        // If local memory cannot be used, the protocol reports that.
        let sent = requester.locate_payload(own, &visit, operation.opcode, payload).is_ok()
            && word.carrier().send_single(&single, &requester.local);
        requester.local.clear();
        if !sent {
            return false;
        }
        // The clock is read only now, to send the message sooner.
        protocol.has_sent_alone(wire::time(own.adapter.fabric.clock.now()));
        wire.arm(own);
        self.push(request, payload);
        true
    }

    /// Completes the requests that the peer has executed, as a turn does. Returns false if a turn has more to do, because
    /// requests wait for these.
    pub(crate) fn complete_executed_alone(&mut self, own: &P, aftermath: &mut Aftermath) -> bool {
        let wire = self.wire.as_deref();
        let is_awaited = wire.is_some_and(|wire| wire.word.as_ref().is_none_or(Word::is_awaited));
        if is_awaited {
            return false;
        }
        self.complete_executed(own, aftermath);
        self.wire.is_none() || self.has_sent_all()
    }

    /// Returns true if everything in the queue was sent as packets, and none is due to be sent again.
    pub(super) fn has_sent_all(&self) -> bool {
        let Some(Wire { protocol: Protocol::Reliable(protocol), head, .. }) = self.wire.as_deref()
        else {
            return false;
        };
        let queued = u32::try_from(self.queue.len()).unwrap_or(u32::MAX);
        !protocol.has_packets(head.wrapping_add(queued))
    }
}
