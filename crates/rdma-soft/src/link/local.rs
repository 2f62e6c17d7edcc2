//! The link between processes of one host: sockets of the kind `SOCK_SEQPACKET` with abstract names.
//!
//! A device of the host is one device for all its processes, with one identity. The upper 12 bits of a queue pair
//! number are the slot of its process, which has bound the socket that is named after the device and the slot: the
//! kernel sees to it that nobody else has. Who sends to a slot connects to that socket, and only sends there; who owns
//! the slot only reads. The end of a connection is the end of its process.

use std::os::fd::OwnedFd;
use std::sync::Arc;

use rustix::io::{Errno, Result};
use rustix::net::sockopt::set_socket_send_buffer_size;
use rustix::net::{
    AddressFamily, SocketAddrUnix, SocketFlags, SocketType, bind, connect, listen, socket_with,
};

use self::listener::{Admits, Listener};
use self::neighbor::Neighbor;
use super::descriptor::Descriptor;
use super::driver::Driver;
use crate::device::Device;
use crate::engine::Refusal;

mod head;
pub(crate) mod host;
mod inlet;
mod listener;
pub(crate) mod neighbor;
#[cfg(test)]
mod tests;

/// How many processes may connect before they are seen.
const BACKLOG: i32 = 1024;
/// How many bytes wait in the socket of a connection, if the system allows so many.
const SEND_BUFFER: usize = 1 << 20;

/// Why a queue pair cannot be connected to a number of another process.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Unreachable {
    /// No process has that number.
    Nobody,
    /// Another user's process has it.
    OtherUser,
    /// It has so many connections to take that there is no space for this one now.
    Busy,
    /// This process cannot make a connection.
    System(Errno),
}

impl From<Unreachable> for Refusal {
    fn from(why: Unreachable) -> Self {
        match why {
            Unreachable::Nobody => Self::NobodyThere,
            Unreachable::OtherUser => Self::NotAllowed,
            Unreachable::Busy => Self::Busy,
            Unreachable::System(errno) => Self::without_files(errno),
        }
    }
}

fn socket() -> Result<OwnedFd> {
    let flags = SocketFlags::CLOEXEC | SocketFlags::NONBLOCK;
    socket_with(AddressFamily::UNIX, SocketType::SEQPACKET, flags, None)
}

/// Binds the socket of a slot of this process.
fn listen_at(device: &'static Device, address: &SocketAddrUnix, admits: Admits) -> Result<()> {
    let driver = Driver::of(device.fabric)?;
    let socket = Descriptor::open(socket)?;
    bind(socket.get()?, address)?;
    listen(socket.get()?, BACKLOG)?;
    driver.add(|end| Listener::new(driver, device, socket, end, admits))?;
    Ok(())
}

/// Connects to the socket of a slot of another process.
fn connect_to(
    device: &'static Device,
    address: &SocketAddrUnix,
    admits: Admits,
) -> std::result::Result<Arc<Neighbor>, Unreachable> {
    let connected = || {
        let connection = Descriptor::open(socket)?;
        // As much as is in flight of one connection: what the system does not allow is not needed.
        let _ = set_socket_send_buffer_size(connection.get()?, SEND_BUFFER);
        connect(connection.get()?, address)?;
        Ok(connection)
    };
    let connection = connected().map_err(|errno| match errno {
        Errno::CONNREFUSED => Unreachable::Nobody,
        Errno::AGAIN => Unreachable::Busy,
        errno => Unreachable::System(errno),
    })?;
    if !connection.peer().is_ok_and(|(_, user)| admits(user)) {
        return Err(Unreachable::OtherUser);
    }
    let driver = Driver::of(device.fabric).map_err(Unreachable::System)?;
    driver.add(|end| Neighbor::new(driver, device, connection, end)).map_err(Unreachable::System)
}
