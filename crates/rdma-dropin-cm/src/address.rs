//! Addresses and routes: binding, resolving and listening.
#![allow(unsafe_code)]

use std::ffi::c_int;
use std::net::SocketAddr;
use std::sync::atomic::{AtomicU16, Ordering};

use rdma_cm::BindOptions;
use rdma_cm::unmanaged::{self, PortSpace};

use crate::abi::{CmId, EventType, read_address as read_known};
use crate::connecting::port_space;
use crate::devices::{self, Device};
use crate::endpoint::complete;
use crate::errors::{lacking_family, number, returned};
use crate::event::Waiting;
use crate::id::{Id, Ports, Stage, unspecified};

/// The first port of the range for clients, and the size of the range, as in Linux by default.
const FREE: (u16, u16) = (32_768, 28_232);

/// Returns a port for a client. It identifies nothing, so two clients may have the same one.
fn client_port() -> u16 {
    static TURNS: AtomicU16 = AtomicU16::new(0);
    FREE.0 + TURNS.fetch_add(1, Ordering::Relaxed) % FREE.1
}

/// Reads an address that the program passes. Returns `None` for NULL, and for an unknown family.
///
/// # Safety
/// The address is valid, or NULL.
pub(crate) unsafe fn read_address(address: *const libc::sockaddr) -> Option<SocketAddr> {
    // SAFETY: this function's contract; every address begins with its family (SAFETY.md F1).
    if let Some(family) = unsafe { address.as_ref() }.map(|address| address.sa_family) {
        lacking_family(family.into());
    }
    // SAFETY: this function's contract.
    unsafe { read_known(address) }
}

/// Reserves the port of an address, on its device or on all devices. Returns the ports, and the address with the port.
fn reserve(
    space: PortSpace,
    mut address: SocketAddr,
    options: BindOptions,
) -> Result<(Ports, SocketAddr), c_int> {
    let reserve = |device: &'static Device, address| {
        let port = unmanaged::bind(&device.channel, space, address, options);
        port.map(|port| (device, port)).map_err(|error| number(&error))
    };
    let mut ports = Vec::new();
    if address.ip().to_canonical().is_unspecified() {
        // The port that is free on the first device is reserved on all. If it is in use, the kernel's rdma_cm has another
        // error for all addresses than for one. (It has the same error for one address if the port is in use at all
        // addresses. Here, that is EADDRINUSE.)
        let not_free = |error| if error == libc::EADDRINUSE { libc::EADDRNOTAVAIL } else { error };
        for device in devices::all()? {
            let reserved = reserve(device, address).map_err(not_free)?;
            address.set_port(reserved.1.number());
            ports.push(reserved);
        }
    } else {
        // If the port is in use, another device does not help.
        let reserved = devices::first(|device| match reserve(device, address) {
            Err(libc::EADDRNOTAVAIL) => Err(libc::EADDRNOTAVAIL),
            reserved => Ok(reserved),
        })??;
        address.set_port(reserved.1.number());
        ports.push(reserved);
    }
    Ok((ports, address))
}

/// Binds an ID to an address of this host, and reserves its port.
pub(crate) fn bind(id: &Id, address: SocketAddr) -> Result<(), c_int> {
    let state = id.state();
    if state.stage != Stage::New || state.bound.is_some() {
        return Err(libc::EINVAL);
    }
    let options = state.options.bind;
    drop(state);
    let (ports, address) = reserve(port_space(id.space), address, options)?;
    if !address.ip().to_canonical().is_unspecified() {
        ports.iter().for_each(|&(device, _)| id.bind_device(device));
    }
    let mut state = id.state();
    (state.bound, state.ports) = (Some(address), ports);
    drop(state);
    id.show_source(address);
    Ok(())
}

#[unsafe(no_mangle)]
unsafe extern "C" fn rdma_bind_addr(id: *mut CmId, addr: *mut libc::sockaddr) -> c_int {
    // SAFETY: the caller passes a live ID (SAFETY.md F1).
    let id = unsafe { Id::of(id) };
    // SAFETY: the caller passes a valid address (SAFETY.md F1).
    let address = unsafe { read_address(addr) };
    returned(address.ok_or(libc::EINVAL).and_then(|address| bind(id, address)))
}

/// Resolves an address. The event is queued before the call returns.
pub(crate) fn resolve(id: &Id, source: Option<SocketAddr>, to: SocketAddr) -> Result<(), c_int> {
    let is_bound = id.state().bound.is_some();
    if let Some(source) = source.filter(|_| !is_bound) {
        bind(id, source)?;
    }
    let state = id.state();
    // As with the kernel's rdma_cm, both addresses are of one family.
    let is_mixed = state.bound.is_some_and(|own| own.is_ipv4() != to.is_ipv4());
    if state.stage != Stage::New || is_mixed {
        return Err(libc::EINVAL);
    }
    let (device, own_ip) = (state.device, state.own_ip());
    let port = state.bound.map_or(0, |own| own.port());
    drop(state);
    match devices::route_to(device, own_ip, to) {
        Ok((device, mut route)) => {
            if let Some(ip) = own_ip.filter(|ip| ip.is_ipv4() == route.destination.is_ipv4()) {
                route.source.set_ip(ip);
            }
            route.source.set_port(if port == 0 { client_port() } else { port });
            id.bind_device(device);
            id.show_route(device, &route);
            let mut state = id.state();
            state.route = Some(route);
            state.stage = Stage::Ready;
            drop(state);
            Waiting::new(id, EventType::ADDR_RESOLVED, 0).queue();
        }
        Err(number) => Waiting::new(id, EventType::ADDR_ERROR, -number).queue(),
    }
    complete(id)
}

#[unsafe(no_mangle)]
unsafe extern "C" fn rdma_resolve_addr(
    id: *mut CmId,
    src_addr: *mut libc::sockaddr,
    dst_addr: *mut libc::sockaddr,
    _timeout_ms: c_int,
) -> c_int {
    // SAFETY: the caller passes a live ID (SAFETY.md F1).
    let id = unsafe { Id::of(id) };
    // SAFETY: the caller passes a valid address or NULL (SAFETY.md F1).
    let source = unsafe { read_address(src_addr) };
    // SAFETY: the caller passes a valid address (SAFETY.md F1).
    let to = unsafe { read_address(dst_addr) };
    let to = to.filter(|_| src_addr.is_null() == source.is_none());
    returned(to.ok_or(libc::EINVAL).and_then(|to| resolve(id, source, to)))
}

/// Resolves the route to an address that was resolved. The event is queued before the call returns.
pub(crate) fn resolve_route(id: &Id) -> Result<(), c_int> {
    let state = id.state();
    let route = state.path().filter(|_| state.stage == Stage::Ready).ok_or(libc::EINVAL)?;
    drop(state);
    id.show_path(&route);
    Waiting::new(id, EventType::ROUTE_RESOLVED, 0).queue();
    complete(id)
}

#[unsafe(no_mangle)]
unsafe extern "C" fn rdma_resolve_route(id: *mut CmId, _timeout_ms: c_int) -> c_int {
    // SAFETY: the caller passes a live ID (SAFETY.md F1).
    returned(resolve_route(unsafe { Id::of(id) }))
}

/// Listens at the reserved port, on the ID's device or on all devices.
fn listen(id: &Id) -> Result<(), c_int> {
    let state = id.state();
    if state.stage != Stage::New {
        return Err(libc::EINVAL);
    }
    let is_bound = state.bound.is_some();
    drop(state);
    if !is_bound {
        bind(id, unspecified())?;
    }
    let mut state = id.state();
    let mut ports = std::mem::take(&mut state.ports);
    let address = state.bound.ok_or(libc::EINVAL)?;
    let options = state.options.bind;
    drop(state);
    let reserve = || reserve(port_space(id.space), address, options).map(|(ports, _)| ports);
    if ports.is_empty() {
        // An earlier call has lost the port, or another thread listens with this ID.
        ports = reserve()?;
    }
    let listen = |(device, port): &(&'static Device, _)| {
        id.connect(|| unmanaged::listen(&device.channel, port)).map_err(|error| number(&error))
    };
    let listening = ports.iter().try_for_each(listen);
    match listening {
        // The listeners have the ports.
        Ok(()) => id.state().stage = Stage::Listening,
        // A socket listens only once, so each port gets a new one.
        Err(_) => {
            id.end_connections();
            drop(ports);
            id.state().ports = reserve().unwrap_or_default();
        }
    }
    listening
}

#[unsafe(no_mangle)]
unsafe extern "C" fn rdma_listen(id: *mut CmId, _backlog: c_int) -> c_int {
    // SAFETY: the caller passes a live ID (SAFETY.md F1).
    returned(listen(unsafe { Id::of(id) }))
}

/// Returns the port of an address, in network byte order.
fn port_of(address: &libc::sockaddr_storage) -> u16 {
    // SAFETY: the storage has room for every address, and its family is 0 if it has none.
    let address = unsafe { read_known(std::ptr::from_ref(address).cast()) };
    address.map_or(0, |address| address.port().to_be())
}

#[unsafe(no_mangle)]
unsafe extern "C" fn rdma_get_src_port(id: *mut CmId) -> u16 {
    // SAFETY: the caller passes a live ID (SAFETY.md F1).
    unsafe { Id::of(id) }.read(|shown| port_of(&shown.route.src))
}

#[unsafe(no_mangle)]
unsafe extern "C" fn rdma_get_dst_port(id: *mut CmId) -> u16 {
    // SAFETY: the caller passes a live ID (SAFETY.md F1).
    unsafe { Id::of(id) }.read(|shown| port_of(&shown.route.dst))
}
