//! Multicast groups. Software devices need no message to join one, so its event is queued before the call returns.
#![allow(unsafe_code)]

use std::ffi::{c_int, c_void};
use std::net::SocketAddr;
use std::sync::atomic::{AtomicPtr, AtomicU64, Ordering};

use rdma_cm::unmanaged::{self, Group};
use rdma_sys::{Errno, ibv_gid};
use rdma_types::Qpn;

use crate::abi::{CmId, EventType, JoinAttributes, UdParam};
use crate::address::read_address;
use crate::channel;
use crate::endpoint::complete;
use crate::errors::{number, returned};
use crate::event::{Content, Waiting};
use crate::id::Id;
use crate::library::verbs;
use crate::queue_pair;

/// The bits of `comp_mask`.
const HAS_ADDRESS: u32 = 1;
const HAS_FLAGS: u32 = 2;
/// The flags: a member that receives, and one that only sends.
const FULL: u32 = 0;
const SENDS_ONLY: u32 = 1;

/// The number of the next membership.
static NEXT: AtomicU64 = AtomicU64::new(0);

/// A group that an ID has joined, once for each call.
pub(crate) struct Membership {
    number: u64,
    address: SocketAddr,
    group: Group,
    /// Whether the ID's queue pair receives the group's datagrams.
    receives: bool,
}

fn join(
    id: &Id,
    address: Option<SocketAddr>,
    flags: u32,
    context: *mut c_void,
) -> Result<(), c_int> {
    let address = address.ok_or(libc::EINVAL)?;
    let state = id.state();
    let device = state.device.filter(|_| id.is_datagram()).ok_or(libc::EINVAL)?;
    let source = state.own_ip().or(state.route.map(|route| route.source.ip()));
    drop(state);
    let group = unmanaged::group(&device.channel, address, source).map_err(|it| number(&it))?;
    let mut to = queue_pair::address(device, &group.route).ok_or(libc::EINVAL)?;
    to.is_global = 1;
    to.grh.dgid = ibv_gid { raw: group.gid.to_bytes() };
    to.dlid = group.lid.get();
    let receives = flags != SENDS_ONLY;
    let number = NEXT.fetch_add(1, Ordering::Relaxed);
    id.state().groups.push(Membership { number, address, group, receives });
    let content = Content::Group { number, group, address: to, context: AtomicPtr::new(context) };
    Waiting { content, ..Waiting::new(id, EventType::MULTICAST_JOIN, 0) }.queue();
    complete(id)
}

fn leave(id: &Id, address: Option<SocketAddr>) -> Result<(), c_int> {
    let address = address.ok_or(libc::EINVAL)?;
    let mut state = id.state();
    let place = state.groups.iter().position(|joined| joined.address == address);
    let left = place.map(|place| state.groups.remove(place)).ok_or(libc::EADDRNOTAVAIL)?;
    let Membership { number, group, .. } = left;
    let is_same = |other: &Group| (other.gid, other.lid) == (group.gid, group.lid);
    let stays = state.groups.iter().any(|other| other.receives && is_same(&other.group));
    drop(state);
    channel::forget_group(id, number);
    if let (true, Some(verbs)) = (left.receives && !stays, verbs()) {
        // The queue pair is no member if the program has not received the event.
        let _ = call(id, verbs.detach_mcast, &group);
    }
    Ok(())
}

type Verb = unsafe extern "C" fn(*mut rdma_sys::ibv_qp, *const ibv_gid, u16) -> c_int;

/// Calls a verb with an ID's queue pair, if there is one, and a group.
fn call(id: &Id, verb: Verb, group: &Group) -> Result<(), c_int> {
    let qp = id.read(|shown| shown.qp);
    if qp.is_null() {
        return Ok(());
    }
    let gid = ibv_gid { raw: group.gid.to_bytes() };
    // SAFETY: the program keeps the ID's queue pair until `rdma_destroy_qp` (SAFETY.md F1, F2).
    Errno::check(unsafe { verb(qp, &raw const gid, group.lid.get()) }).map_err(Errno::raw)
}

/// Makes an ID's queue pair a member of a group, when the program receives the event of a membership. Returns `None` if
/// the program has left the group meanwhile.
pub(crate) fn attach(id: &Id, number: u64) -> Option<Result<(), c_int>> {
    let state = id.state();
    let joined = state.groups.iter().find(|joined| joined.number == number)?;
    let (group, receives) = (joined.group, joined.receives);
    drop(state);
    match verbs() {
        Some(verbs) if receives => Some(call(id, verbs.attach_mcast, &group)),
        _ => Some(Ok(())),
    }
}

/// Returns the parameters of an event for a group. Its private data is the context of the call that has joined it.
pub(crate) fn parameters(
    group: &Group,
    ah_attr: rdma_sys::ibv_ah_attr,
    context: AtomicPtr<c_void>,
) -> UdParam {
    let (qp_num, qkey) = (Qpn::MULTICAST.get(), group.qkey);
    let private_data = context.into_inner().cast_const();
    UdParam { private_data, private_data_len: 0, ah_attr, qp_num, qkey }
}

#[unsafe(no_mangle)]
unsafe extern "C" fn rdma_join_multicast(
    id: *mut CmId,
    addr: *mut libc::sockaddr,
    context: *mut c_void,
) -> c_int {
    // SAFETY: the caller passes a live ID (SAFETY.md F1).
    let id = unsafe { Id::of(id) };
    // SAFETY: the caller passes a valid address (SAFETY.md F1).
    let address = unsafe { read_address(addr) };
    returned(join(id, address, FULL, context))
}

#[unsafe(no_mangle)]
unsafe extern "C" fn rdma_join_multicast_ex(
    id: *mut CmId,
    mc_join_attr: *mut JoinAttributes,
    context: *mut c_void,
) -> c_int {
    // SAFETY: the caller passes a live ID (SAFETY.md F1).
    let id = unsafe { Id::of(id) };
    // SAFETY: the caller passes valid attributes (SAFETY.md F1).
    let attributes = unsafe { &*mc_join_attr };
    let is_known = attributes.comp_mask & !(HAS_ADDRESS | HAS_FLAGS) == 0;
    let is_whole = attributes.comp_mask & HAS_ADDRESS != 0 && attributes.comp_mask & HAS_FLAGS != 0;
    returned(match (is_known, is_whole && attributes.join_flags <= SENDS_ONLY) {
        (false, _) => Err(libc::ENOTSUP),
        (true, false) => Err(libc::EINVAL),
        (true, true) => {
            // SAFETY: the address is valid, because the mask names it (SAFETY.md F1).
            let address = unsafe { read_address(attributes.addr) };
            join(id, address, attributes.join_flags, context)
        }
    })
}

#[unsafe(no_mangle)]
unsafe extern "C" fn rdma_leave_multicast(id: *mut CmId, addr: *mut libc::sockaddr) -> c_int {
    // SAFETY: the caller passes a live ID (SAFETY.md F1).
    let id = unsafe { Id::of(id) };
    // SAFETY: the caller passes a valid address (SAFETY.md F1).
    let address = unsafe { read_address(addr) };
    returned(leave(id, address))
}
