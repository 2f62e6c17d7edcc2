//! Datagrams to a group, which reach every member of the group on every device of the link.

use rdma_types::WcStatus as Status;

use crate::address::{Group, Path};
use crate::engine::aftermath::Aftermath;
use crate::engine::requester::peer::Near;
use crate::engine::requester::side::{Requester, Verdict};
use crate::engine::requester::unreliable::Message;
use crate::engine::requester::unreliable::datagram::PORT_MTU;
use crate::engine::responder::datagram::{Arrived, Datagram};
use crate::engine::responder::inbound::Inbound;
use crate::engine::station::Station;
use crate::engine::wire::letter::{self, Letter};
use crate::engine::wire::{Mailbox, Outlet};
use crate::memory::copy::{Data, Fault};

impl<P: Near> Requester<P> {
    /// Sends a datagram to all members of a group, including the sender if it is a member. A member that cannot receive
    /// the datagram loses only its own copy. A datagram to a group is never sent in two halves: one attempt sends it to
    /// all members.
    #[cold]
    pub(super) fn send_to_group(
        &mut self,
        own: &P,
        (path, qkey): (Path, u32),
        message: &Message<'_>,
        datagram: letter::Datagram,
        aftermath: &mut Aftermath,
    ) -> Verdict {
        if let Some(group) = datagram.group.filter(|_| own.adapter.port_is_up()) {
            // Checked first, so that the datagram goes to no member until it can go to all.
            if !own.inboxes_of(group).all(|inbox| inbox.has_room(own.driven())) {
                return Verdict::NoRoom;
            }
            let outlet = own.outlet_from(&path);
            let outside = match outlet {
                Some(outlet) => match outlet.buffer(own.driven()) {
                    Some(buffer) => Some((outlet, buffer)),
                    None => return Verdict::NoRoom,
                },
                None => None,
            };
            let sent = self.send_to_inboxes(
                own,
                own.inboxes_of(group),
                outside,
                (path, qkey),
                message,
                datagram,
            );
            let sent = sent.is_ok()
                && self.copy_to_members(own, group, qkey, message, datagram, aftermath);
            if !sent {
                return Verdict::Failed(Status::LOC_PROT_ERR);
            }
        }
        self.local.clear();
        self.psn = self.psn.wrapping_add(1);
        Verdict::Done { bytes: message.length }
    }

    /// Writes the packet to this device's capture, if there is one. Then sends the packet to each of these inboxes,
    /// whose devices copy it to their members. If `outside` is given, also sends the packet out of this process.
    fn send_to_inboxes(
        &self,
        own: &Station,
        inboxes: impl Iterator<Item = &'static dyn Mailbox>,
        outside: Option<(Outlet, Box<[u8]>)>,
        (path, qkey): (Path, u32),
        message: &Message<'_>,
        datagram: letter::Datagram,
    ) -> Result<(), Fault> {
        let (tap, mut inboxes) = (&own.adapter.tap, inboxes.peekable());
        if tap.is_none() && inboxes.peek().is_none() && outside.is_none() {
            return Ok(());
        }
        let mut room = [0; PORT_MTU as usize];
        let packet = self
            .packet(own, qkey, message)
            .map(|burst| self.gather(message, &mut room).map(|bytes| (burst, bytes)));
        let (burst, bytes) = match packet {
            Some(Ok(packet)) => packet,
            failed => {
                if let Some((outlet, buffer)) = outside {
                    outlet.give_back(buffer);
                }
                return failed.map_or(Ok(()), |failed| failed.map(|_| ()));
            }
        };
        if let Some(tap) = tap {
            tap.sent(&path, &burst, Some(&datagram), bytes);
        }
        for inbox in inboxes {
            let mut buffer = inbox.buffer_at_once();
            buffer[..bytes.len()].copy_from_slice(bytes);
            inbox.send(own.adapter, Letter::new(path, burst, Some(datagram), buffer));
        }
        if let Some((outlet, mut buffer)) = outside {
            buffer[..bytes.len()].copy_from_slice(bytes);
            outlet.send(own.adapter, Letter::new(path, burst, Some(datagram), buffer));
        }
        Ok(())
    }

    /// Copies the datagram to each member on the devices to which this device sends no packets. Returns true if the
    /// sender's memory was mapped.
    fn copy_to_members(
        &self,
        own: &P,
        group: Group,
        qkey: u32,
        message: &Message<'_>,
        datagram: letter::Datagram,
        aftermath: &mut Aftermath,
    ) -> bool {
        let letter::Datagram { source, header, .. } = datagram;
        let Message { request, length, visit, reach, .. } = *message;
        let datagram = Datagram {
            source,
            qkey,
            header,
            operation: &request.operation,
            length,
            data: Data::Segments(&self.local),
            upto: length,
        };
        own.members_of(group).all(|member| {
            let mut responder = member.responder().lock();
            let mut inbound = Inbound { own: &member, side: &mut responder, visit, reach };
            !inbound.takes_datagrams()
                || inbound.datagram(&datagram, aftermath) != Arrived::Unreadable
        })
    }
}

#[cfg(test)]
#[cfg(not(loom))]
mod tests {
    use std::sync::Arc;

    use rdma_types::{AccessFlags, Gid, GidType, QpState, Qpn};

    use super::*;
    use crate::address::{Address, AddressVector, GidEntry, Route};
    use crate::device::Device;
    use crate::device::subnet::Subnet;
    use crate::engine::completion::CompletionQueue;
    use crate::engine::events::report::Reporter;
    use crate::engine::operation::{Opcode, Operation};
    use crate::engine::queue_pair::QueuePair;
    use crate::engine::queue_pair::capacity::{Capacity, Init};
    use crate::engine::queue_pair::membership;
    use crate::engine::queue_pair::service::Service;
    use crate::engine::requester::drive::Work;
    use crate::engine::requester::request::{Payload, Request};
    use crate::engine::turn::Turn;
    use crate::fabric::random::Seed;
    use crate::limits::Limits;
    use crate::link::Link;
    use crate::memory::protection::ProtectionDomain;
    use crate::memory::sge::Sge;
    use crate::schedule::Schedule;

    const GROUP: Gid = Gid::from_bytes([0xff; 16]);

    fn member(subnet: &'static Subnet, name: &str, seed: u8) -> Arc<QueuePair> {
        let (limits, schedule) = (Limits::default(), Schedule::Immediate);
        let (link, seed) = (Link::Ethernet, Seed::new(seed));
        let mut device =
            Device::new(subnet, name.into(), link, Vec::new(), limits, schedule, &seed);
        device.force_wire = true;
        let device = subnet.add(device).unwrap();
        let capacity =
            Capacity { send_wr: 4, receive_wr: 4, send_sge: 1, receive_sge: 1, inline: 0 };
        let init = Init { service: Service::UnreliableDatagram, capacity, signal_all: false };
        let pd = ProtectionDomain::new(&device.memory);
        let queue = || Arc::new(CompletionQueue::new(subnet, 8, None).unwrap());
        let reporter = Reporter::silent();
        let member =
            QueuePair::create(device, &pd, &queue(), &queue(), None, init, reporter).unwrap();
        member.send.lock().state = QpState::RTS;
        member.responder.lock().state = QpState::RTS;
        member.receive.lock().state = QpState::RTS;
        membership::join(&member, GROUP, 0).unwrap();
        member
    }

    /// While one of the inboxes has no space, the packet reaches none of them. Afterwards, it is in each inbox once.
    #[test]
    fn a_packet_goes_to_all_inboxes_or_to_none() {
        static SUBNET: Subnet = Subnet::new();
        let members = [("one", 1), ("two", 2)].map(|(name, seed)| member(&SUBNET, name, seed));
        let mut rooms = [[0_u8; 40]; 2];
        for (member, room) in members.iter().zip(&mut rooms) {
            let addr = room.as_mut_ptr().expose_provenance() as u64;
            let access = AccessFlags::LOCAL_WRITE.bits();
            let lkey = member.pd.register(addr, 40, addr, access).unwrap().key;
            for wr_id in 0..2 {
                let sge = Sge { addr, length: 40, lkey };
                member.post_receive(wr_id, &[sge], &mut Turn::new()).unwrap();
            }
        }
        let received = || {
            SUBNET.run_queue.run();
            members.each_ref().map(|member| {
                let mut count = 0;
                member.receive_cq.poll(8, |_, _, _| count += 1).unwrap();
                count
            })
        };
        let (a, full) = (&members[0], members[1].device.inbox(Qpn::MULTICAST.get()));
        let here = GidEntry { gid: Gid::ZERO, kind: GidType::ROCE_V2 };
        let (local, remote) = (Address::Gid(here), Address::Gid(GidEntry { gid: GROUP, ..here }));
        let to_group = Route {
            source: here,
            destination: GROUP,
            traffic_class: 0,
            flow_label: 0,
            hop_limit: 1,
        };
        let vector = AddressVector {
            pd: a.pd_number,
            path: Path { local, remote },
            service_level: 0,
            route: Some(to_group),
        };
        let operation = Operation { opcode: Opcode::Send, ..Operation::EMPTY };
        let destination_qpn = Qpn::MULTICAST.get();
        let request = Request { operation, destination_qpn, ..Request::EMPTY };
        a.send.lock().push(&request, Payload::keyed(&[]).to(Some(&vector)));
        let drive = || a.send.lock().drive(a, Work::Head, &mut Aftermath::default());

        let buffers: Vec<_> =
            std::iter::from_fn(|| full.buffer(Arc::<QueuePair>::downgrade(&members[1]))).collect();
        assert_eq!((drive(), received()), (0, [0, 0]));
        buffers.into_iter().for_each(|buffer| full.give_back(buffer));
        assert_eq!((drive(), received()), (1, [1, 1]));
        assert_eq!((drive(), received()), (0, [0, 0]));
        members.into_iter().for_each(QueuePair::destroy);
    }
}
