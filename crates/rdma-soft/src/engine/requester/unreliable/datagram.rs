//! The sending of unreliable datagrams. Each message is one packet, to any queue pair that has the same Q_Key.

use std::sync::Arc;

use rdma_proto::wire::Bth;
use rdma_proto::{Burst, Datagrams, Destination, MessageEnd};
use rdma_types::{Mtu, Qpn, WcStatus as Status};

use crate::address::{AddressVector, Path};
use crate::engine::adapter::notices::{Endpoints, Reason};
use crate::engine::aftermath::Aftermath;
use crate::engine::completion::work_completion::Source;
use crate::engine::operation::Opcode;
use crate::engine::requester::peer::{DatagramReceiver, Near};
use crate::engine::requester::side::{Requester, Verdict};
use crate::engine::requester::unreliable::Message;
use crate::engine::responder::datagram::{Arrived, Datagram};
use crate::engine::responder::inbound::Inbound;
use crate::engine::station::Station;
use crate::engine::turn::Extent;
use crate::engine::wire::letter::{self, Letter};
use crate::engine::wire::route_header;
use crate::engine::wire::{self, Outlet};
use crate::memory::copy::{Data, Fault};

/// The maximum length of a datagram in bytes: the largest MTU that a port can have.
pub(super) const PORT_MTU: u16 = 4096;
/// The bit of a request's Q_Key that selects the queue pair's own key (IBTA volume 1, 10.2.5).
const OWN_QKEY: u32 = 0x8000_0000;

impl<P: Near> Requester<P> {
    /// Sends a datagram. The requester is then done with it, whether or not the datagram is received.
    pub(super) fn send_datagram(
        &mut self,
        own: &P,
        message: &Message<'_>,
        aftermath: &mut Aftermath,
    ) -> Verdict {
        let Some(to) = message.payload.destination().filter(|to| to.pd == own.pd_number) else {
            return Verdict::Failed(Status::LOC_QP_OP_ERR);
        };
        if message.length > own.adapter.mtu.bytes().into() {
            return Verdict::Failed(Status::LOC_LEN_ERR);
        }
        let own_key = message.request.qkey & OWN_QKEY != 0;
        let qkey = if own_key { self.qkey } else { message.request.qkey };
        let (lid, service_level) = (own.lid(), to.service_level);
        let source = Source { qpn: own.qpn, lid, service_level, path_bits: 0 };
        let operation = &message.request.operation;
        let header =
            to.route.map(|route| route_header::of(&route, operation.opcode, message.length));
        if message.request.destination_qpn == Qpn::MULTICAST.get() {
            let group = to.group();
            let datagram = letter::Datagram { source, header, group };
            return self.send_to_group(own, (to.path, qkey), message, datagram, aftermath);
        }
        let found = self.take_receiver(own, to, message.request.destination_qpn);
        if let DatagramReceiver::Wire(outlet) = found {
            return self.send_packet(
                own,
                &outlet,
                (to.path, qkey),
                message,
                letter::Datagram { source, header, group: None },
            );
        }
        if let DatagramReceiver::Direct(receiver) = found {
            // A half-copied datagram starts again, because it may use a different receive request.
            let begun = std::mem::take(&mut self.progress) > 0;
            let half = message.extent == Extent::Half && !begun;
            let extent = if half { Extent::Half } else { Extent::WHOLE };
            let Message { length, visit, reach, .. } = *message;
            let datagram = Datagram {
                source,
                qkey,
                header,
                operation,
                length,
                data: Data::Segments(&self.local),
                upto: extent.end(0, length),
            };
            let mut responder = receiver.responder().lock();
            let mut inbound = Inbound { own: &receiver, side: &mut responder, visit, reach };
            // The receiver is remembered only if it accepts datagrams. Otherwise, another queue pair may have its
            // number by the next datagram.
            let ready = inbound.takes_datagrams();
            let arrived = match ready {
                true => inbound.datagram(&datagram, aftermath),
                false => Arrived::Not(Reason::WrongState),
            };
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

    /// Sends a datagram as a packet, if there is a device at its address and the link has space.
    #[cold]
    fn send_packet(
        &mut self,
        own: &P,
        outlet: &Outlet,
        (path, qkey): (Path, u32),
        message: &Message<'_>,
        datagram: letter::Datagram,
    ) -> Verdict {
        let faults = own.faults.as_ref();
        if let Some(status) = faults.and_then(|it| it.fail_datagram(own.qpn, message.request.wr_id))
        {
            return Verdict::Failed(status);
        }
        let mut lost = match outlet {
            _ if !own.adapter.port_is_up() => Some(Reason::PortDown),
            outlet if outlet.is_nowhere() => Some(Reason::NoRoute),
            _ => None,
        };
        let packet = self.packet(own, qkey, message);
        if let Some(burst) = packet.filter(|_| lost != Some(Reason::PortDown)) {
            let tap = own.adapter.tap.as_ref();
            if lost.is_none() {
                match outlet.datagram_buffer(own.driven(), message.length) {
                    Some(mut buffer) => {
                        if self.gather(message, &mut buffer).is_err() {
                            outlet.give_back(buffer);
                            return Verdict::Failed(Status::LOC_PROT_ERR);
                        }
                        if let Some(tap) = tap {
                            tap.sent(&path, &burst, Some(&datagram), &buffer);
                        }
                        let letter = Letter::new(path, burst, Some(datagram), buffer);
                        wire::send(own, outlet, letter);
                    }
                    None if outlet.loses_datagrams() => lost = Some(Reason::Stalled),
                    None => return Verdict::NoRoom,
                }
            } else if let Some(tap) = tap {
                // The packet leaves this device but arrives nowhere.
                let mut nowhere = [0; PORT_MTU as usize];
                if let Ok(bytes) = self.gather(message, &mut nowhere) {
                    tap.sent(&path, &burst, Some(&datagram), bytes);
                }
            }
        }
        if let Some(reason) = lost {
            let peer_qpn = Some(message.request.destination_qpn);
            let endpoints = Endpoints { qpn: own.qpn, peer_qpn, address: Some(path.remote) };
            own.adapter.drop_packets(reason, 1, endpoints);
        }
        if let Some(faults) = faults {
            faults.count_datagram();
        }
        self.local.clear();
        self.psn = self.psn.wrapping_add(1);
        Verdict::Done { bytes: message.length }
    }

    /// Returns the packet of a datagram, without its payload.
    pub(super) fn packet(&self, own: &Station, qkey: u32, message: &Message<'_>) -> Option<Burst> {
        let operation = &message.request.operation;
        let with_imm = operation.opcode == Opcode::SendWithImm;
        let end = MessageEnd {
            // The length is at most the MTU.
            length: u32::try_from(message.length).unwrap_or(u32::MAX),
            immediate: with_imm.then(|| u32::from_be(operation.imm)),
            invalidate: None,
            solicited: operation.solicited,
        };
        let qpn = Qpn::masked(message.request.destination_qpn);
        let to = Destination { qpn, qkey, p_key: Bth::DEFAULT_P_KEY };
        Datagrams::new(Qpn::masked(own.qpn), Mtu::MTU4096, self.psn).send(&to, &end)
    }

    /// Copies the bytes of a datagram to the beginning of a buffer.
    pub(super) fn gather<'a>(
        &self,
        message: &Message<'_>,
        buffer: &'a mut [u8],
    ) -> Result<&'a [u8], Fault> {
        // The length is at most the MTU, and each buffer is at least that large.
        let length = usize::try_from(message.length).unwrap_or(usize::MAX).min(buffer.len());
        let bytes = &mut buffer[..length];
        message.reach.collect_bytes(&self.local, 0, bytes)?;
        Ok(bytes)
    }

    /// Finds the receiver of a datagram. The fields for a connection's peer hold the destination of the previous
    /// datagram.
    fn take_receiver(&mut self, own: &P, to: &AddressVector, qpn: u32) -> DatagramReceiver<P> {
        let same = self.peer_qpn == qpn && self.origin.path == Some(to.path);
        (self.origin.path, self.peer_qpn) = (Some(to.path), qpn);
        let last = std::mem::take(&mut self.last);
        let up = own.adapter.port_is_up();
        let found = match last.upgrade().filter(|_| same && up) {
            Some(last) => DatagramReceiver::Direct(last),
            None => own.receiver(&to.path, qpn),
        };
        match found {
            DatagramReceiver::Direct(receiver) if !up || !receiver.adapter.port_is_up() => {
                DatagramReceiver::Nobody
            }
            found => found,
        }
    }
}
