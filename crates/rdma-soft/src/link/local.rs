//! The link between processes of one host. Packets pass through message rings in memory that two processes share.
//! Processes find each other through `SOCK_SEQPACKET` sockets with abstract names, or with names in a directory.
//!
//! A shared device has one identity in all of its processes. The upper 12 bits of a queue pair number are the slot of
//! the process that owns the queue pair. That process has bound the socket that is named after the device and the slot.
//! The kernel lets no other process bind the same name. A sender creates a ring and connects to the socket of the
//! receiver's slot. The owner of the slot checks which process the kernel reports at the other end, and only then
//! requests the ring, with one byte. The sender answers with the file of the ring. It writes messages to the ring, and
//! the owner of the slot reads them. All further bytes on the connection are notifications of messages or of free
//! space. A connection ends when the process at either end exits.
//!
//! Releasing a file that another process sent may take as long as that process likes. If the kernel can refuse such
//! files, sockets are set to refuse them ([`Descriptor::open_for_others`]). On older kernels, separate threads release
//! them ([`expendable`]).

use std::sync::Arc;

use rustix::io::{Errno, Result};
use rustix::net::{SocketAddrUnix, bind, listen};
use rustix::process::geteuid;

use self::handshake::Handshake;
use self::listener::{Admits, Listener};
use self::mapped::given::Files;
use self::neighbor::Neighbor;
use self::shared::RingSender;
use self::socket::{connection_to, socket};
use super::descriptor::{Descriptor, Foreign};
use super::driver::Driver;
use super::expendable;
use crate::device::Device;
use crate::engine::Refusal;

mod claims;
mod handshake;
mod head;
pub(crate) mod host;
mod inlet;
mod listener;
mod mapped;
mod names;
pub(crate) mod neighbor;
mod questions;
mod queues;
mod shared;
mod silence;
mod socket;
#[cfg(test)]
mod tests;

/// The maximum number of connections that wait to be accepted.
const BACKLOG: i32 = 1024;

/// The reason why a queue pair cannot be connected to a queue pair of another process.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Unreachable {
    /// A process of another user owns the number.
    OtherUser,
    /// Too many connections are waiting for that process to accept them, or peers hold up all [threads](expendable) of
    /// this process that close files.
    Busy,
    /// This process cannot make a connection.
    System(Errno),
}

impl From<Unreachable> for Refusal {
    fn from(why: Unreachable) -> Self {
        match why {
            Unreachable::OtherUser => Self::NotAllowed,
            Unreachable::Busy => Self::Busy,
            Unreachable::System(errno) => Self::without_files(errno),
        }
    }
}

/// Binds the socket for a slot of this process, and listens on it.
fn listen_at(
    device: &'static Device,
    address: &SocketAddrUnix,
    admits: Admits,
    files: &Arc<Files>,
) -> Result<()> {
    let driver = Driver::of(device.subnet)?;
    let no_thread = |error| Errno::from_io_error(&error).unwrap_or(Errno::AGAIN);
    expendable::start().map_err(no_thread)?;
    Foreign::prepare()?;
    let socket = Descriptor::open_for_others(socket)?;
    bind(socket.get()?, address)?;
    listen(socket.get()?, BACKLOG)?;
    let files = Arc::clone(files);
    driver.add(|token| Listener::new(driver, device, socket, token, admits, files))?;
    Ok(())
}

/// Connects to the socket of another process's slot. Returns `None` if no process has the slot.
fn connect_to(
    device: &'static Device,
    address: &SocketAddrUnix,
    admits: Admits,
) -> std::result::Result<Option<Arc<Neighbor>>, Unreachable> {
    if expendable::is_full() {
        return Err(Unreachable::Busy);
    }
    let connection = match connection_to(address) {
        Ok(connection) => connection,
        Err(Errno::CONNREFUSED | Errno::NOENT) => return Ok(None),
        Err(Errno::AGAIN) => return Err(Unreachable::Busy),
        Err(errno) => return Err(Unreachable::System(errno)),
    };
    let user = connection.peer().ok().map(|(_, user)| user);
    if !user.is_some_and(admits) {
        return Err(Unreachable::OtherUser);
    }
    if device.maps && user == Some(geteuid().as_raw()) {
        // The process may send files with its memory.
        connection.allow_files().map_err(Unreachable::System)?;
    }
    let ring = || {
        let mut made = None;
        let file = Descriptor::open(|| {
            let (sender, file) = RingSender::new()?;
            made = Some(sender);
            Ok(file)
        })?;
        Ok((made.ok_or(Errno::NOMEM)?, Handshake::new(file)))
    };
    let ring = ring().map_err(Unreachable::System)?;
    let driver = Driver::of(device.subnet).map_err(Unreachable::System)?;
    let new = |token| Neighbor::new(driver, device, connection, ring, token);
    driver.add(new).map(Some).map_err(Unreachable::System)
}

/// Returns the user of the process that listens at an address.
fn user_at(address: &SocketAddrUnix) -> Option<u32> {
    let (_, user) = connection_to(address).ok()?.peer().ok()?;
    Some(user)
}
