//! Unreliable datagrams as they arrive.

use rdma_types::WcOpcode;

use crate::address::AddressVector;
use crate::engine::aftermath::Aftermath;
use crate::engine::completion::{GRH, Source};
use crate::engine::copy::Segment;
use crate::engine::queue_pair::QueuePair;
use crate::engine::requester::unreliable::Message;
use crate::engine::responder::inbound::{Inbound, Stop};
use crate::engine::responder::route_header;

/// A datagram on its way.
pub(crate) struct Datagram<'a> {
    pub(crate) to: &'a AddressVector,
    pub(crate) message: &'a Message<'a>,
    /// What it shows the receiver.
    pub(crate) qkey: u32,
    /// How many of its bytes come now.
    pub(crate) upto: u64,
    pub(crate) data: &'a [Segment],
    pub(crate) sender: &'a QueuePair,
}

/// What became of it.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Arrived {
    Whole,
    InPart,
    /// It was dropped.
    Not,
    /// The sender's memory was not there.
    Unreadable,
}

impl Datagram<'_> {
    pub(crate) fn arrive(&self, inbound: &mut Inbound<'_>, aftermath: &mut Aftermath) -> Arrived {
        if self.qkey != inbound.side.qkey {
            inbound.own.device.count_wrong_qkey();
            return Arrived::Not;
        }
        if !inbound.begin(self.message.request, None) {
            return Arrived::Not;
        }
        match self.take(inbound) {
            Ok(arrived) => arrived,
            Err(Stop::Local) => Arrived::Unreadable,
            Err(Stop::Refused(refused)) => {
                inbound.abandon(refused, aftermath);
                Arrived::Not
            }
        }
    }

    fn take(&self, inbound: &mut Inbound<'_>) -> Result<Arrived, Stop> {
        let length = route_header::BYTES + self.message.length;
        inbound.find_room(length)?;
        // The header, if there is one, and behind its place the message.
        if let Some(route) = &self.to.route {
            let header = route_header::of(route, self.message);
            let written = inbound.reach.deliver_bytes(&header, &inbound.side.room);
            written.map_err(Inbound::datagram_fault)?;
        }
        let (room, lead) = (&inbound.side.room, route_header::BYTES);
        let moved = inbound.reach.transfer_behind(self.data, room, lead, self.upto);
        inbound.side.room.clear();
        moved.map_err(Inbound::datagram_fault)?;
        if self.upto < self.message.length {
            return Ok(Arrived::InPart);
        }
        let (lid, service_level) = (self.sender.device.identity.lid, self.to.service_level);
        let source = Source { qpn: self.sender.qpn, lid, service_level, path_bits: 0 };
        let flags = self.to.route.map_or(0, |_| GRH);
        let (own, request) = (inbound.own, self.message.request);
        inbound.side.executed += 1;
        inbound.side.complete(own, WcOpcode::RECV, length, request, flags, source);
        Ok(Arrived::Whole)
    }
}
