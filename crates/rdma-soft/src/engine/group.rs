//! Multicast groups: which queue pairs of a device get a datagram that goes to many.
//!
//! Each device knows its own members, as a port does. Who sends asks each device of the link, as a switch copies
//! a packet to each port. Nobody joins a group at a subnet manager: the fabric leads each group everywhere.

use std::collections::BTreeMap;
use std::iter;
use std::sync::{Arc, Mutex, Weak};

use rdma_types::{Gid, Lid};

use crate::address::Group;
use crate::engine::Refusal;
use crate::engine::queue_pair::QueuePair;
use crate::engine::queue_pair::service::Service;
use crate::limits::Limits;
use crate::link::Link;
use crate::sync::locked;

/// The groups of a device.
#[derive(Debug, Default)]
pub(crate) struct Groups(Mutex<Members>);

#[derive(Debug, Default)]
struct Members {
    /// By the queue pairs' ids. A group without members is none.
    by_group: BTreeMap<Group, BTreeMap<u64, Weak<QueuePair>>>,
    /// In how many groups a queue pair is, by its id; of those that are in any.
    joined: BTreeMap<u64, u32>,
    /// How many members all groups have together.
    count: u32,
}

impl Groups {
    /// Has a queue pair hear what is sent to a group. One that does already goes on, and hears it once (man
    /// `ibv_attach_mcast`). Whether it did not.
    fn join(
        &self,
        limits: &Limits,
        group: Group,
        queue_pair: &Arc<QueuePair>,
    ) -> Result<bool, Refusal> {
        let Members { by_group, joined, count } = &mut *locked(&self.0);
        let members = by_group.get(&group);
        if members.is_some_and(|members| members.contains_key(&queue_pair.id)) {
            return Ok(false);
        }
        let room = match members {
            Some(members) => members.len() < limits.max_group_members as usize,
            None => by_group.len() < limits.max_groups as usize && limits.max_group_members > 0,
        };
        if !room || *count >= limits.max_memberships {
            return Err(Refusal::NoRoom);
        }
        by_group.entry(group).or_default().insert(queue_pair.id, Arc::downgrade(queue_pair));
        *joined.entry(queue_pair.id).or_default() += 1;
        *count += 1;
        Ok(true)
    }

    /// Says whether the queue pair was a member.
    fn leave(&self, group: &Group, id: u64) -> bool {
        let Members { by_group, joined, count } = &mut *locked(&self.0);
        let Some(members) = by_group.get_mut(group) else { return false };
        if members.remove(&id).is_none() {
            return false;
        }
        if members.is_empty() {
            by_group.remove(group);
        }
        *count -= 1;
        if let Some(groups) = joined.get_mut(&id) {
            *groups -= 1;
            if *groups == 0 {
                joined.remove(&id);
            }
        }
        true
    }

    /// A queue pair is in no group any more.
    fn leave_all(&self, id: u64) {
        let Members { by_group, joined, count } = &mut *locked(&self.0);
        if let Some(groups) = joined.remove(&id) {
            by_group.retain(|_, members| {
                members.remove(&id);
                !members.is_empty()
            });
            *count -= groups;
        }
    }

    /// Whether a group has a member here.
    pub(crate) fn has(&self, group: &Group) -> bool {
        locked(&self.0).by_group.contains_key(group)
    }

    /// The members of a group, each once. Who joins or leaves meanwhile is among them or not; no lock is held
    /// between two of them.
    pub(crate) fn members(&self, group: Group) -> impl Iterator<Item = Arc<QueuePair>> {
        let last = locked(&self.0).by_group.get(&group).and_then(last_id);
        let mut next = 0;
        iter::from_fn(move || {
            let members = locked(&self.0);
            let last = last.filter(|&last| next <= last)?;
            let mut rest = members.by_group.get(&group)?.range(next..=last);
            let found = rest.find_map(|(_, member)| member.upgrade())?;
            next = found.id + 1;
            Some(found)
        })
    }
}

fn last_id(members: &BTreeMap<u64, Weak<QueuePair>>) -> Option<u64> {
    members.last_key_value().map(|(&id, _)| id)
}

/// The group that a program means by this address.
fn meant(queue_pair: &QueuePair, gid: Gid, lid: u16) -> Result<Group, Refusal> {
    let device = queue_pair.device;
    if device.limits.max_groups == 0 {
        return Err(Refusal::Unsupported);
    }
    if queue_pair.service != Service::UnreliableDatagram {
        return Err(Refusal::Invalid);
    }
    let (lid, on_link) = match device.link {
        Link::InfiniBand => (lid, Lid::new(lid).is_multicast()),
        Link::Ethernet => (0, true),
    };
    if gid.is_multicast() && on_link { Ok(Group { gid, lid }) } else { Err(Refusal::Invalid) }
}

/// `ibv_attach_mcast`. A queue pair is a member in every state, and hears what is sent while it is ready to receive.
pub(crate) fn join(queue_pair: &Arc<QueuePair>, gid: Gid, lid: u16) -> Result<(), Refusal> {
    let group = meant(queue_pair, gid, lid)?;
    let device = queue_pair.device;
    let is_new = device.groups.join(&device.limits, group, queue_pair)?;
    device.see_to_groups(Some(gid)).inspect_err(|_| {
        if is_new {
            device.groups.leave(&group, queue_pair.id);
            // It opens none, which alone can fail.
            let _ = device.see_to_groups(None);
        }
    })
}

/// `ibv_detach_mcast`. Packets that are in flight are not for it any more; a datagram that another
/// thread is about to copy may still come.
pub(crate) fn leave(queue_pair: &QueuePair, gid: Gid, lid: u16) -> Result<(), Refusal> {
    let group = meant(queue_pair, gid, lid)?;
    if !queue_pair.device.groups.leave(&group, queue_pair.id) {
        return Err(Refusal::Invalid);
    }
    queue_pair.device.see_to_groups(None)
}

/// A queue pair's memberships end with the context that it was made from.
pub(crate) fn leave_all(queue_pair: &QueuePair) {
    queue_pair.device.groups.leave_all(queue_pair.id);
    // It opens none, which alone can fail.
    let _ = queue_pair.device.see_to_groups(None);
}

/// Refuses to destroy a queue pair while it is a member (IBTA volume 1, o10-2.2.3).
pub(crate) fn is_in_none(queue_pair: &QueuePair) -> Result<(), Refusal> {
    let datagrams = queue_pair.service == Service::UnreliableDatagram;
    let joined = |groups: &Groups| locked(&groups.0).joined.contains_key(&queue_pair.id);
    if datagrams && joined(&queue_pair.device.groups) { Err(Refusal::Busy) } else { Ok(()) }
}
