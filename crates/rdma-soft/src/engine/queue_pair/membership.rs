//! The multicast groups that a queue pair joins and leaves.

use std::sync::Arc;

use rdma_types::{Gid, Lid};

use crate::address::Group;
use crate::engine::Refusal;
use crate::engine::queue_pair::QueuePair;
use crate::engine::queue_pair::service::Service;
use crate::link::Link;

/// Returns the group with this address, if the queue pair can join it.
fn joinable_group(queue_pair: &QueuePair, gid: Gid, lid: u16) -> Result<Group, Refusal> {
    let device = queue_pair.device;
    if device.limits.max_mcast_grp == 0 {
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

/// Implements `ibv_attach_mcast`. A queue pair can be a member in any state, but receives datagrams only while it is
/// ready to receive.
pub(crate) fn join(queue_pair: &Arc<QueuePair>, gid: Gid, lid: u16) -> Result<(), Refusal> {
    let group = joinable_group(queue_pair, gid, lid)?;
    let device = queue_pair.device;
    let is_new =
        device.groups.join(&device.limits, group, (queue_pair.id, Arc::downgrade(queue_pair)))?;
    device.update_groups(Some(gid)).inspect_err(|_| {
        if is_new {
            device.groups.leave(&group, queue_pair.id);
            // This call opens no group, and only opening one can fail.
            let _ = device.update_groups(None);
        }
    })
}

/// Implements `ibv_detach_mcast`. Packets in flight no longer reach the queue pair, but a datagram that another thread
/// is about to copy may still arrive.
pub(crate) fn leave(queue_pair: &QueuePair, gid: Gid, lid: u16) -> Result<(), Refusal> {
    let group = joinable_group(queue_pair, gid, lid)?;
    if !queue_pair.device.groups.leave(&group, queue_pair.id) {
        return Err(Refusal::Invalid);
    }
    queue_pair.device.update_groups(None)
}

/// Ends all group memberships of a queue pair, because its context is being closed.
pub(crate) fn leave_all(queue_pair: &QueuePair) {
    queue_pair.device.groups.leave_all(queue_pair.id);
    // This call opens no group, and only opening one can fail.
    let _ = queue_pair.device.update_groups(None);
}

/// Returns `Busy` if the queue pair is a member of a group, because a member must not be destroyed (IBTA volume 1,
/// o10-2.2.3).
pub(crate) fn is_in_none(queue_pair: &QueuePair) -> Result<(), Refusal> {
    let datagrams = queue_pair.service == Service::UnreliableDatagram;
    if datagrams && queue_pair.device.groups.is_in_any(queue_pair.id) {
        return Err(Refusal::Busy);
    }
    Ok(())
}
