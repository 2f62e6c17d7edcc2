//! Sockets between the processes of a host. Each carries the MADs of one connection.
//!
//! The name of a listener's socket consists of the device, the port space and the port. So the kernel keeps the port
//! space: a name has one owner, and is free once its process exits.

use std::os::fd::OwnedFd;
use std::process::id;

use rdma_proto::cm::ServiceId;
use rdma_proto::cm::wire::MAD_LEN;
use rdma_types::Guid;
use rustix::io::{Errno, Result};
use rustix::net::{
    AddressFamily, RecvFlags, SendFlags, SocketAddrUnix, SocketFlags, SocketType, accept_with,
    bind, connect, listen, recv, send, socket_with,
};
use rustix::process::geteuid;

use super::options::{refuse_files, user_of};

const FLAGS: SocketFlags = SocketFlags::CLOEXEC.union(SocketFlags::NONBLOCK);

/// The maximum number of connections that wait to be accepted. The kernel reduces it to `net.core.somaxconn`.
const BACKLOG: i32 = 4096;

/// The device to which ports belong.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(super) struct PortOwner {
    device: Guid,
    /// The process and the address of a device in a simulated network. Two devices may have the same GUID, because it
    /// depends only on the network's seed.
    simulated: Option<(u32, usize)>,
}

impl PortOwner {
    pub(super) fn new(device: Guid, simulated: Option<usize>) -> Self {
        Self { device, simulated: simulated.map(|address| (id(), address)) }
    }

    /// Returns the name of the socket at a port.
    fn name(self, service: ServiceId) -> Result<SocketAddrUnix> {
        let device = self.device;
        let name = match self.simulated {
            None => format!("rdma-cm/1/{device}/{service}"),
            Some((process, address)) => {
                format!("rdma-cm/1/{device}/{process}/{address:x}/{service}")
            }
        };
        SocketAddrUnix::new_abstract_name(name.as_bytes())
    }
}

fn socket() -> Result<OwnedFd> {
    let socket = socket_with(AddressFamily::UNIX, SocketType::SEQPACKET, FLAGS, None)?;
    // A kernel before Linux 6.16 closes the files when their message is received.
    let _ = refuse_files(&socket);
    Ok(socket)
}

/// Reserves a service. Fails with `ADDRINUSE` if another socket has it. Connections are refused until the socket listens.
pub(super) fn reserve(owner: PortOwner, service: ServiceId) -> Result<OwnedFd> {
    let socket = socket()?;
    bind(&socket, &owner.name(service)?)?;
    Ok(socket)
}

/// Accepts connections to a reserved service from now on.
pub(super) fn listen_on(socket: &OwnedFd) -> Result<()> {
    listen(socket, BACKLOG)
}

/// Connects to the listener of a service. Fails with `CONNREFUSED` if the service has no listener, with `AGAIN` if too many
/// connections wait for it, and with `ACCESS` if another user listens.
pub(super) fn connect_to(owner: PortOwner, service: ServiceId) -> Result<OwnedFd> {
    let socket = socket()?;
    connect(&socket, &owner.name(service)?)?;
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
