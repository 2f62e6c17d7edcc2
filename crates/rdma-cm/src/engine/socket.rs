//! Sockets between the processes of a host. Each carries the MADs of one connection.
//!
//! The name of a listener's socket consists of the device, the port space and the port. So the kernel keeps the port
//! space: a name has one owner, and is free once its process exits.

use std::os::fd::OwnedFd;

use rdma_proto::cm::wire::MAD_LEN;
use rdma_proto::cm::{PortSpace, ServiceId};
use rdma_types::Guid;
use rustix::io::{Errno, Result};
use rustix::net::{
    AddressFamily, RecvFlags, SendFlags, SocketAddrUnix, SocketFlags, SocketType, accept_with,
    bind, connect, listen, recv, send, socket_with,
};
use rustix::process::geteuid;

use super::options::{refuse_files, user_of};

const FLAGS: SocketFlags = SocketFlags::CLOEXEC.union(SocketFlags::NONBLOCK);

/// The maximum number of connections that wait to be accepted.
const BACKLOG: i32 = 128;

/// Returns the name of the socket at a port of a device.
fn name(device: Guid, service: ServiceId) -> Result<SocketAddrUnix> {
    SocketAddrUnix::new_abstract_name(format!("rdma-cm/1/{device}/{service}").as_bytes())
}

/// Returns the service at a port.
pub(crate) const fn service(port: u16) -> ServiceId {
    PortSpace::Tcp.service_id(port)
}

fn socket() -> Result<OwnedFd> {
    let socket = socket_with(AddressFamily::UNIX, SocketType::SEQPACKET, FLAGS, None)?;
    // A kernel before Linux 6.16 closes the files when their message is received.
    let _ = refuse_files(&socket);
    Ok(socket)
}

/// Listens at a port. Fails with `ADDRINUSE` if another listener has the port.
pub(super) fn listen_at(device: Guid, port: u16) -> Result<OwnedFd> {
    let socket = socket()?;
    bind(&socket, &name(device, service(port))?)?;
    listen(&socket, BACKLOG)?;
    Ok(socket)
}

/// Connects to the listener at a port. Fails with `CONNREFUSED` if the port has no listener, with `AGAIN` if too many
/// connections wait for it, and with `ACCESS` if another user listens.
pub(super) fn connect_to(device: Guid, port: u16) -> Result<OwnedFd> {
    let socket = socket()?;
    connect(&socket, &name(device, service(port))?)?;
    if is_own(&socket) { Ok(socket) } else { Err(Errno::ACCESS) }
}

/// Accepts a connection. Returns `None` if it came from another user.
pub(super) fn accept_from(listener: &OwnedFd) -> Result<Option<OwnedFd>> {
    let socket = accept_with(listener, FLAGS)?;
    Ok(is_own(&socket).then_some(socket))
}

fn is_own(socket: &OwnedFd) -> bool {
    user_of(socket) == Ok(geteuid().as_raw())
}

/// Sends a MAD. If the socket is full or closed, the MAD is lost, and its sender repeats it.
pub(super) fn send_mad(socket: &OwnedFd, mad: &[u8; MAD_LEN]) {
    let _ = send(socket, mad, SendFlags::NOSIGNAL | SendFlags::DONTWAIT);
}

/// Receives a message, and keeps only its first [`MAD_LEN`] + 1 bytes. Fails with `AGAIN` if none has arrived,
/// and with `PIPE` if the peer has closed the connection.
pub(super) fn receive_mad(socket: &OwnedFd, bytes: &mut [u8; MAD_LEN + 1]) -> Result<usize> {
    match recv(socket, &mut bytes[..], RecvFlags::DONTWAIT)? {
        (0, _) => Err(Errno::PIPE),
        (read, _) => Ok(read),
    }
}
