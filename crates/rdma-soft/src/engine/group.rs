//! Multicast groups: the queue pairs of a device that receive datagrams sent to a group.
//!
//! Each device knows its own members, as a port does. The sender offers a datagram to each device of the link, just as
//! a switch copies a packet to each port. Devices do not join groups at a subnet manager, because the fabric delivers
//! the datagrams of every group to every device.

use std::collections::BTreeMap;
use std::iter;
use std::sync::{Arc, Mutex, Weak};

use crate::address::Group;
use crate::engine::Refusal;
use crate::limits::Limits;
use crate::sync::locked;

/// The groups of a device.
#[derive(Debug)]
pub(crate) struct Groups<M>(Mutex<Members<M>>);

#[derive(Debug)]
struct Members<M> {
    /// The members of each group, by queue pair ID. A group without members is removed.
    by_group: BTreeMap<Group, BTreeMap<u64, Weak<M>>>,
    /// The number of groups that each queue pair is a member of, by queue pair ID. Queue pairs in no group are absent.
    joined: BTreeMap<u64, u32>,
    /// The total number of members of all groups.
    count: u32,
}

impl<M> Default for Groups<M> {
    fn default() -> Self {
        let (by_group, joined) = (BTreeMap::new(), BTreeMap::new());
        Self(Mutex::new(Members { by_group, joined, count: 0 }))
    }
}

impl<M> Groups<M> {
    /// Makes a queue pair receive the datagrams sent to a group. Joining again has no effect: a member receives each
    /// datagram once (man `ibv_attach_mcast`). Returns true if the queue pair was not a member yet.
    pub(crate) fn join(
        &self,
        limits: &Limits,
        group: Group,
        (id, queue_pair): (u64, Weak<M>),
    ) -> Result<bool, Refusal> {
        let Members { by_group, joined, count } = &mut *locked(&self.0);
        let members = by_group.get(&group);
        if members.is_some_and(|members| members.contains_key(&id)) {
            return Ok(false);
        }
        let room = match members {
            Some(members) => members.len() < limits.max_mcast_qp_attach as usize,
            None => {
                by_group.len() < limits.max_mcast_grp as usize && limits.max_mcast_qp_attach > 0
            }
        };
        if !room || *count >= limits.max_total_mcast_qp_attach {
            return Err(Refusal::NoRoom);
        }
        by_group.entry(group).or_default().insert(id, queue_pair);
        *joined.entry(id).or_default() += 1;
        *count += 1;
        Ok(true)
    }

    /// Removes a queue pair from a group. Returns true if it was a member.
    pub(crate) fn leave(&self, group: &Group, id: u64) -> bool {
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

    /// Removes a queue pair from all groups.
    pub(crate) fn leave_all(&self, id: u64) {
        let Members { by_group, joined, count } = &mut *locked(&self.0);
        if let Some(groups) = joined.remove(&id) {
            by_group.retain(|_, members| {
                members.remove(&id);
                !members.is_empty()
            });
            *count -= groups;
        }
    }

    /// Returns true if a queue pair is in any group.
    pub(crate) fn is_in_any(&self, id: u64) -> bool {
        locked(&self.0).joined.contains_key(&id)
    }

    /// Returns true if a group has a member on this device.
    pub(crate) fn has(&self, group: &Group) -> bool {
        locked(&self.0).by_group.contains_key(group)
    }

    /// Iterates over the members of a group, and returns each once. A queue pair that joins or leaves during the
    /// iteration may or may not be included. No lock is held between two members.
    pub(crate) fn members(&self, group: Group) -> impl Iterator<Item = Arc<M>> {
        let last = locked(&self.0).by_group.get(&group).and_then(last_id);
        let mut next = 0;
        iter::from_fn(move || {
            let members = locked(&self.0);
            let last = last.filter(|&last| next <= last)?;
            let mut rest = members.by_group.get(&group)?.range(next..=last);
            let (id, found) = rest.find_map(|(&id, member)| Some((id, member.upgrade()?)))?;
            next = id + 1;
            Some(found)
        })
    }
}

fn last_id<M>(members: &BTreeMap<u64, Weak<M>>) -> Option<u64> {
    members.last_key_value().map(|(&id, _)| id)
}
