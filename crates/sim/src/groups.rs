//! Multicast groups: their members, and the messages that the members may receive.

use rdma_sys::ibv_gid;
use test_support::rig::datagram::{self, Ah, gid_of};

use crate::host::{Host, Message, SimQueuePair};
use crate::run::{Outcome, World, ensure};
use crate::script::{GROUPS, Service};

/// The QPN in a datagram to all members of a group.
pub(crate) const EVERYBODY: u32 = 0x00ff_ffff;

/// A group address that is valid in all networks. Its last byte is replaced with the group's
/// number.
const MULTICAST: [u8; 16] = [0xff, 0x0e, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0];

/// Returns the address of a group, in the same format as `own`, and the group's LID.
fn address(own: &ibv_gid, group: usize) -> (ibv_gid, u16) {
    let number = 1 + group as u8;
    let mut raw = MULTICAST;
    if gid_of(own).is_ipv4_mapped() {
        raw = [0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0xff, 0xff, 239, 255, 77, 0];
    }
    raw[15] = number;
    (ibv_gid { raw }, 0xc000 + u16::from(number))
}

/// Creates an address handle for each group, for use by this queue pair.
pub(crate) fn ways(hosts: &[Host], own: &SimQueuePair) -> Vec<Ah> {
    let Some(endpoint) = own.endpoint(hosts) else { return Vec::new() };
    let way = |group| {
        let mut attr = datagram::vector(&endpoint, &endpoint, true);
        (attr.grh.dgid, attr.dlid) = address(&endpoint.gid, group);
        hosts[own.device].pd.ah(attr)
    };
    (0..GROUPS).map(way).collect()
}

/// Returns true if the header before a received datagram is addressed to the group.
pub(crate) fn is_named(header: &[u8], own: &ibv_gid, group: usize) -> bool {
    // This compares the last four bytes of the GID with those of the header, which may be an IPv4
    // header.
    header.get(36..40) == gid_of(&address(own, group).0).to_bytes().get(12..16)
}

impl World<'_> {
    /// Makes a queue pair join a group. Messages to the group that are already in flight may or
    /// may not reach it.
    pub(crate) fn join(&mut self, end: usize, group: usize) -> Outcome {
        self.belong(end, group % GROUPS, true)
    }

    /// Makes a queue pair leave a group. No message that is sent later may reach it.
    pub(crate) fn leave(&mut self, end: usize, group: usize) -> Outcome {
        self.belong(end, group % GROUPS, false)
    }

    fn belong(&mut self, end: usize, group: usize, joins: bool) -> Outcome {
        let endpoint = self.ends.get(end).and_then(|own| own.endpoint(&self.hosts));
        let Some(endpoint) = endpoint else { return Ok(()) };
        let own = &mut self.ends[end];
        let Some(qp) = own.qp.as_ref().filter(|_| own.service == Service::Datagram) else {
            return Ok(());
        };
        let (gid, lid) = address(&endpoint.gid, group);
        if joins {
            let errno = qp.attach(&gid, lid);
            ensure!(errno == 0, "q{end} cannot join: {errno}");
            own.groups.insert(group);
        } else {
            let errno = qp.detach(&gid, lid);
            let left = own.groups.remove(&group);
            ensure!((errno == 0) == left, "q{end} leaves, was it a member: {left}, got {errno}");
            // Completions that exist by now belong to messages that arrived while the queue pair
            // was a member.
            self.complete()?;
        }
        let own = &mut self.ends[end];
        for message in own.expected.iter_mut().filter(|message| message.group == Some(group)) {
            (message.member, message.certain) = (joins, message.certain && joins);
        }
        self.note_starved(end);
        Ok(())
    }

    /// Makes a queue pair leave all its groups, because a member of a group cannot be destroyed.
    pub(crate) fn leave_all(&mut self, end: usize) -> Outcome {
        for group in self.ends[end].groups.clone() {
            self.belong(end, group, false)?;
        }
        Ok(())
    }

    /// Records that each present or future member of a group may receive a message.
    pub(crate) fn expect_in_group(&mut self, group: usize, message: &Message) {
        for end in 0..self.ends.len() {
            if self.ends[end].service != Service::Datagram {
                continue;
            }
            let member = self.ends[end].groups.contains(&group);
            let message = Message { group: Some(group), member, certain: member, ..*message };
            self.ends[end].expected.push_back(message);
            self.note_starved(end);
        }
    }
}
