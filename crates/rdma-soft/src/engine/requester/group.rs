//! Datagrams to a group, which reach each member of it on each device of the link.

use std::sync::Arc;

use rdma_types::WcStatus as Status;

use crate::address::Path;
use crate::device::Device;
use crate::engine::aftermath::Aftermath;
use crate::engine::copy::Data;
use crate::engine::queue_pair::QueuePair;
use crate::engine::requester::side::{Requester, Verdict};
use crate::engine::requester::unreliable::Message;
use crate::engine::responder::datagram::{Arrived, Datagram};
use crate::engine::responder::inbound::Inbound;
use crate::link::memory;

impl Requester {
    /// Sends a datagram to all members of a group; the sender hears it too if it is one of them. Whoever does not
    /// take it misses it alone. It has no half: it goes to all of them at once.
    #[cold]
    pub(super) fn send_to_group(
        &mut self,
        own: &Arc<QueuePair>,
        (path, qkey): (Path, u32),
        message: &Message<'_>,
        datagram: memory::Datagram,
        aftermath: &mut Aftermath,
    ) -> Verdict {
        if let Some(group) = datagram.group.filter(|_| own.device.port_is_up()) {
            let by_packets = |there: &&'static Device| own.device.sends_packets_to(there);
            // First of all, so that it goes to nobody as long as it cannot go to everybody.
            let mut inboxes = own.device.devices_of(&group).filter(by_packets);
            if !inboxes.all(|there| there.inbox().has_room(own)) {
                return Verdict::Paused;
            }
            for there in own.device.devices_of(&group) {
                let sent = match by_packets(&there) {
                    true => {
                        self.send_packet_to_members(own, there, (path, qkey), message, datagram)
                    }
                    false => self.copy_to_members(there, qkey, message, datagram, aftermath),
                };
                if !sent {
                    return Verdict::Failed(Status::LOC_PROT_ERR);
                }
            }
        }
        self.local.clear();
        self.psn = self.psn.wrapping_add(1);
        Verdict::Done { bytes: message.length }
    }

    /// One packet for all members on a device. Says whether the sender's memory was there.
    fn send_packet_to_members(
        &self,
        own: &QueuePair,
        there: &'static Device,
        (path, qkey): (Path, u32),
        message: &Message<'_>,
        datagram: memory::Datagram,
    ) -> bool {
        let Some(burst) = self.packet(own, qkey, message) else { return true };
        let inbox = there.inbox();
        self.fill_and_send(inbox, path, burst, message, datagram, inbox.buffer_at_once())
    }

    /// A copy for each member on a device. Says whether the sender's memory was there.
    fn copy_to_members(
        &self,
        there: &Device,
        qkey: u32,
        message: &Message<'_>,
        datagram: memory::Datagram,
        aftermath: &mut Aftermath,
    ) -> bool {
        let memory::Datagram { source, header, group } = datagram;
        let Some(group) = group.filter(|_| there.port_is_up()) else { return true };
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
        there.groups.members(group).all(|member| {
            let mut responder = member.responder.lock();
            let mut inbound = Inbound { own: &member, side: &mut responder, visit, reach };
            !inbound.takes_datagrams()
                || inbound.datagram(&datagram, aftermath) != Arrived::Unreadable
        })
    }
}
