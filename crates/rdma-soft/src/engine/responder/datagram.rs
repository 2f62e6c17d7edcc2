//! The receiving of unreliable datagrams.

use rdma_types::{WcOpcode, WcStatus};

use crate::engine::adapter::notices::Reason;
use crate::engine::aftermath::Aftermath;
use crate::engine::completion::work_completion::{GRH, Source};
use crate::engine::operation::Operation;
use crate::engine::queue_pair::service::Service;
use crate::engine::responder::inbound::{BAD_RECEIVE, Inbound, Stop, stop};
use crate::engine::wire::route_header;
use crate::link::Link;
use crate::memory::copy::Data;

/// The length of the space that precedes a datagram, for its route header.
pub(crate) const HEADER_BYTES: u64 = 40;

/// A datagram, or the part of it that has arrived.
pub(crate) struct Datagram<'a> {
    pub(crate) source: Source,
    /// The Q_Key that the datagram carries.
    pub(crate) qkey: u32,
    /// The route header of the datagram's packet, if it has one.
    pub(crate) header: Option<[u8; 40]>,
    pub(crate) operation: &'a Operation,
    pub(crate) length: u64,
    pub(crate) data: Data<'a>,
    /// The end of the part that has arrived, in bytes from the start.
    pub(crate) upto: u64,
}

/// The outcome of receiving a datagram.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Arrived {
    Whole,
    InPart,
    /// The datagram was dropped.
    Not(Reason),
    /// The sender's memory was not mapped.
    Unreadable,
}

impl Inbound<'_> {
    /// Returns true if this queue pair can receive datagrams now.
    pub(crate) fn takes_datagrams(&self) -> bool {
        self.own.service == Service::UnreliableDatagram && self.side.is_ready()
    }

    /// Receives a datagram, or drops it.
    pub(crate) fn datagram(
        &mut self,
        datagram: &Datagram<'_>,
        aftermath: &mut Aftermath,
    ) -> Arrived {
        if datagram.qkey != self.side.qkey {
            self.own.adapter.count_wrong_qkey();
            return Arrived::Not(Reason::WrongQkey);
        }
        if !self.begin(datagram.operation) {
            return Arrived::Not(Reason::NoReceive);
        }
        match self.take_datagram(datagram) {
            Ok(arrived) => arrived,
            Err(Stop::Local) => Arrived::Unreadable,
            Err(Stop::Refused(refused)) => {
                self.abandon(refused, aftermath);
                Arrived::Not(match refused.receive {
                    WcStatus::LOC_LEN_ERR => Reason::NoReceive,
                    _ => Reason::RefusedOperation,
                })
            }
        }
    }

    fn take_datagram(&mut self, datagram: &Datagram<'_>) -> Result<Arrived, Stop> {
        let Datagram { source, header, operation, length, data, upto, .. } = *datagram;
        let in_all = HEADER_BYTES + length;
        self.find_room(in_all)?;
        let moved = self.reach.deliver_behind(header.as_ref(), data, &self.side.room, upto);
        self.side.room.clear();
        moved.map_err(|fault| stop(fault, BAD_RECEIVE))?;
        if upto < length {
            return Ok(Arrived::InPart);
        }
        let flags = header.map_or(0, |_| GRH);
        let source = match (self.own.adapter.link, &header) {
            (Link::Ethernet, Some(header)) => {
                Source { service_level: route_header::packet_type(header), ..source }
            }
            _ => source,
        };
        self.side.executed += 1;
        self.side.bytes += length;
        self.side.complete(self.own, WcOpcode::RECV, in_all, operation, flags, source);
        Ok(Arrived::Whole)
    }
}
