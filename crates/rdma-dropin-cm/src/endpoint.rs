//! IDs whose functions wait, and the addresses from which they are made.
#![allow(unsafe_code)]

use std::ffi::{c_char, c_int};
use std::sync::Arc;
use std::{ptr, slice};

use rdma_sys::{ibv_pd, ibv_qp_init_attr, ibv_qp_type};

use crate::abi::{AddrInfo, CmId, EventChannel, EventType, Space};
use crate::address::read_address;
use crate::channel::{self, Channel};
use crate::errors::{fail, lacking_family, returned};
use crate::id::{self, Id, rdma_destroy_id};
use crate::{address, event, queue_pair};

/// The flags of `struct rdma_addrinfo`.
const PASSIVE: c_int = 1;
const NUMERIC_HOST: c_int = 2;
const FAMILY: c_int = 8;

/// Waits for the event of a function, if the ID's functions wait.
pub(crate) fn complete(id: &Id) -> Result<(), c_int> {
    let state = id.state();
    if !state.is_sync {
        return Ok(());
    }
    let channel = state.channel.clone();
    drop(state);
    event::acknowledge_last(id);
    let next = event::next(&channel)?;
    id.write(|shown| shown.event = next);
    // SAFETY: the event is new, and the ID keeps it.
    let event = unsafe { &*next };
    match event.status {
        0 => Ok(()),
        _ if event.event == EventType::REJECTED => Err(libc::ECONNREFUSED),
        status => Err(status.abs()),
    }
}

/// Waits for a request, and returns its ID.
fn request(listener: &Id) -> Result<*mut CmId, c_int> {
    let state = listener.state();
    if !state.is_sync {
        return Err(libc::EINVAL);
    }
    let (channel, attributes) = (state.channel.clone(), state.qp_attributes);
    drop(state);
    event::acknowledge_last(listener);
    let next = event::next(&channel)?;
    // SAFETY: the event is new, and one of the two IDs keeps it.
    let event = unsafe { &*next };
    let mut received = match event.event {
        EventType::REJECTED => Err(libc::ECONNREFUSED),
        _ if event.status != 0 => Err(event.status.abs()),
        EventType::CONNECT_REQUEST => Ok(event.id),
        _ => Err(libc::EINVAL),
    };
    if let (Ok(new), Some(mut attributes)) = (received, attributes) {
        let pd = listener.read(|shown| shown.pd);
        // SAFETY: the event's ID is live.
        let new = unsafe { Id::of(new) };
        // SAFETY: the program keeps the objects in the attributes of its listener (SAFETY.md F1).
        if let Err(error) = unsafe { queue_pair::create(new, pd, &mut attributes) } {
            received = Err(error);
        }
    }
    match received {
        // SAFETY: the event's ID is live.
        Ok(new) => unsafe { Id::of(new) }.write(|shown| shown.event = next),
        Err(_) => listener.write(|shown| shown.event = next),
    }
    received
}

#[unsafe(no_mangle)]
unsafe extern "C" fn rdma_get_request(listen: *mut CmId, id: *mut *mut CmId) -> c_int {
    // SAFETY: the caller passes a live ID (SAFETY.md F1).
    let received = request(unsafe { Id::of(listen) });
    returned(received.map(|new| {
        // SAFETY: the caller passes a valid pointer for the ID (SAFETY.md F1).
        unsafe { id.write(new) };
    }))
}

/// Moves an ID to another channel, or to its own one if `to` is `None`.
fn migrate(id: &Id, to: Option<Arc<Channel>>) -> Result<(), c_int> {
    let was_sync = id.state().is_sync;
    let is_sync = to.is_none();
    if is_sync && was_sync {
        return Err(libc::EINVAL);
    }
    let to = to.map_or_else(Channel::open, Ok)?;
    let from = channel::migrate(id, &to);
    if was_sync {
        event::acknowledge_last(id);
        from.close();
    }
    id.state().is_sync = is_sync;
    id.write(|shown| shown.channel = to.as_raw());
    id.wait_acknowledged();
    Ok(())
}

#[unsafe(no_mangle)]
unsafe extern "C" fn rdma_migrate_id(id: *mut CmId, channel: *mut EventChannel) -> c_int {
    // SAFETY: the caller passes a live ID (SAFETY.md F1).
    let id = unsafe { Id::of(id) };
    let to = (!channel.is_null()).then(|| {
        // SAFETY: the caller passes a live channel (SAFETY.md F1).
        unsafe { Channel::of(channel) }
    });
    returned(migrate(id, to))
}

/// Binds or resolves the addresses of an ID, and creates its queue pair.
///
/// # Safety
/// The addresses and attributes are valid, and their objects live.
unsafe fn prepare(
    id: &Id,
    info: &AddrInfo,
    pd: *mut ibv_pd,
    attributes: Option<&mut ibv_qp_init_attr>,
) -> Result<(), c_int> {
    let qp_type = ibv_qp_type(info.qp_type.cast_unsigned());
    // SAFETY: this function's contract.
    let source = unsafe { read_address(info.src_addr) };
    if info.flags & PASSIVE != 0 {
        address::bind(id, source.ok_or(libc::EINVAL)?)?;
        if !pd.is_null() {
            id.write(|shown| shown.pd = pd);
        }
        id.state().qp_attributes =
            attributes.map(|attributes| ibv_qp_init_attr { qp_type, ..*attributes });
        return Ok(());
    }
    // SAFETY: this function's contract.
    let to = unsafe { read_address(info.dst_addr) };
    address::resolve(id, source, to.ok_or(libc::EINVAL)?)?;
    address::resolve_route(id)?;
    if let Some(attributes) = attributes {
        attributes.qp_type = qp_type;
        // SAFETY: this function's contract.
        unsafe { queue_pair::create(id, pd, attributes) }?;
    }
    if info.connect_len > 0 && !info.connect.is_null() {
        // SAFETY: this function's contract.
        let data = unsafe { slice::from_raw_parts(info.connect.cast::<u8>(), info.connect_len) };
        id.state().connect_data = data.to_vec();
    }
    Ok(())
}

#[unsafe(no_mangle)]
unsafe extern "C" fn rdma_create_ep(
    id: *mut *mut CmId,
    res: *mut AddrInfo,
    pd: *mut ibv_pd,
    qp_init_attr: *mut ibv_qp_init_attr,
) -> c_int {
    // SAFETY: the caller passes valid addresses (SAFETY.md F1).
    let info = unsafe { &*res };
    // SAFETY: the caller passes valid attributes, or NULL (SAFETY.md F1).
    let attributes = unsafe { qp_init_attr.as_mut() };
    let qp_type = ibv_qp_type(info.qp_type.cast_unsigned());
    let space = Space(info.port_space.cast_unsigned());
    // SAFETY: there is no channel.
    let created = unsafe { id::create(ptr::null_mut(), ptr::null_mut(), space, qp_type) };
    returned(created.and_then(|raw| {
        // SAFETY: the ID was created above.
        let new = unsafe { Id::of(raw) };
        // SAFETY: the caller passes valid arguments (SAFETY.md F1).
        let prepared = unsafe { prepare(new, info, pd, attributes) };
        match prepared {
            // SAFETY: the caller passes a valid pointer for the ID (SAFETY.md F1).
            Ok(()) => unsafe { id.write(raw) },
            // SAFETY: the ID was created above, and the program does not have it.
            Err(_) => unsafe { rdma_destroy_ep(raw) },
        }
        prepared
    }))
}

#[unsafe(no_mangle)]
unsafe extern "C" fn rdma_destroy_ep(id: *mut CmId) {
    // SAFETY: the caller passes a live ID (SAFETY.md F1).
    let ended = unsafe { Id::of(id) };
    queue_pair::destroy(ended);
    queue_pair::destroy_srq(ended);
    // SAFETY: the caller does not use the ID again (SAFETY.md F1).
    unsafe { rdma_destroy_id(id) };
}

/// Copies an address to the memory that `rdma_freeaddrinfo` frees.
///
/// # Safety
/// The address has this length.
unsafe fn copied(address: *const libc::sockaddr, length: libc::socklen_t) -> *mut libc::sockaddr {
    // SAFETY: any size is valid (malloc(3)).
    let copy = unsafe { libc::malloc(length as usize) };
    if !copy.is_null() {
        // SAFETY: this function's contract; the copy is new and has the same size.
        unsafe { ptr::copy_nonoverlapping(address.cast::<u8>(), copy.cast(), length as usize) };
    }
    copy.cast()
}

#[unsafe(no_mangle)]
unsafe extern "C" fn rdma_getaddrinfo(
    node: *const c_char,
    service: *const c_char,
    hints: *const AddrInfo,
    res: *mut *mut AddrInfo,
) -> c_int {
    // SAFETY: the caller passes valid hints or NULL (SAFETY.md F1).
    let hints = unsafe { hints.as_ref() };
    let (flags, family) = hints.map_or((0, 0), |hints| (hints.flags, hints.family));
    let space = hints.map_or(0, |hints| hints.port_space);
    let qp_type = hints.map_or(0, |hints| hints.qp_type);
    let space = match (space, ibv_qp_type(qp_type.cast_unsigned())) {
        (0, ibv_qp_type::IBV_QPT_UD) => Space::UDP.0.cast_signed(),
        (0, _) => Space::TCP.0.cast_signed(),
        (space, _) => space,
    };
    let is_datagram = [Space::UDP, Space::IPOIB].contains(&Space(space.cast_unsigned()));
    let qp_type = match qp_type {
        0 if is_datagram => ibv_qp_type::IBV_QPT_UD.0.cast_signed(),
        0 => ibv_qp_type::IBV_QPT_RC.0.cast_signed(),
        qp_type => qp_type,
    };
    // SAFETY: the struct consists of pointers and integers, so all-zero bytes are valid (SAFETY.md F4).
    let mut wanted: libc::addrinfo = unsafe { std::mem::zeroed() };
    wanted.ai_flags = if flags & PASSIVE != 0 { libc::AI_PASSIVE } else { 0 };
    if flags & NUMERIC_HOST != 0 {
        wanted.ai_flags |= libc::AI_NUMERICHOST;
    }
    if flags & FAMILY != 0 {
        lacking_family(family);
        wanted.ai_family = family;
    }
    wanted.ai_socktype = if is_datagram { libc::SOCK_DGRAM } else { libc::SOCK_STREAM };
    let (mut found, mut source) = (ptr::null_mut(), (ptr::null_mut(), 0));
    if !node.is_null() || !service.is_null() {
        // SAFETY: the caller passes strings or NULL (getaddrinfo(3), SAFETY.md F1, F15).
        let error = unsafe { libc::getaddrinfo(node, service, &raw const wanted, &raw mut found) };
        if error != 0 {
            return match error {
                libc::EAI_SYSTEM => -1,
                libc::EAI_MEMORY => fail(libc::ENOMEM),
                _ => fail(libc::ENODATA),
            };
        }
    } else if hints.is_none_or(|hints| hints.src_addr.is_null() && hints.dst_addr.is_null()) {
        return fail(libc::EINVAL);
    }
    if let Some(hints) = hints.filter(|hints| !hints.src_addr.is_null()) {
        // SAFETY: the caller passes an address of this length (SAFETY.md F1).
        source = (unsafe { copied(hints.src_addr, hints.src_len) }, hints.src_len);
    }
    // SAFETY: the struct consists of pointers and integers, so all-zero bytes are valid (SAFETY.md F4).
    let mut info: AddrInfo = unsafe { std::mem::zeroed() };
    (info.flags, info.port_space, info.qp_type) = (flags, space, qp_type);
    (info.src_addr, info.src_len) = source;
    if found.is_null() {
        if let Some(hints) = hints.filter(|hints| !hints.dst_addr.is_null()) {
            // SAFETY: the caller passes an address of this length (SAFETY.md F1).
            info.dst_addr = unsafe { copied(hints.dst_addr, hints.dst_len) };
            info.dst_len = hints.dst_len;
        }
        info.family = family;
    } else {
        // SAFETY: the call above succeeded, so there is a first address (getaddrinfo(3)).
        let first = unsafe { &*found };
        info.family = first.ai_family;
        let copy = || {
            // SAFETY: the address has this length (getaddrinfo(3)).
            (unsafe { copied(first.ai_addr, first.ai_addrlen) }, first.ai_addrlen)
        };
        if flags & PASSIVE == 0 {
            (info.dst_addr, info.dst_len) = copy();
        } else if info.src_addr.is_null() {
            (info.src_addr, info.src_len) = copy();
        }
        // SAFETY: the list is that of the call above, and is not used again (getaddrinfo(3)).
        unsafe { libc::freeaddrinfo(found) };
    }
    // SAFETY: the caller passes a valid pointer for the result (SAFETY.md F1).
    unsafe { res.write(Box::into_raw(Box::new(info))) };
    0
}

#[unsafe(no_mangle)]
unsafe extern "C" fn rdma_freeaddrinfo(res: *mut AddrInfo) {
    let mut next = res;
    while !next.is_null() {
        // SAFETY: the caller passes a result of `rdma_getaddrinfo`, which it does not use again (SAFETY.md F1).
        let info = unsafe { Box::from_raw(next) };
        for memory in [info.src_addr, info.dst_addr] {
            // SAFETY: `copied` allocated the memory, or it is NULL (free(3)).
            unsafe { libc::free(memory.cast()) };
        }
        next = info.next;
    }
}
