//! The link between processes of one host: rings of messages in memory that two processes share, and sockets of the kind
//! `SOCK_SEQPACKET` with abstract names, by which they find each other.
//!
//! A device of the host is one device for all its processes, with one identity. The upper 12 bits of a queue pair
//! number are the slot of its process, which has bound the socket that is named after the device and the slot: the
//! kernel sees to it that nobody else has. Who sends to a slot connects to that socket, and sends the file of a ring there,
//! to which it writes; who owns the slot reads. One byte tells the other to look: at messages, or at space. The end of a
//! connection is the end of its process.

use std::io::{IoSlice, IoSliceMut};
use std::mem::MaybeUninit;
use std::os::fd::{AsFd, OwnedFd};
use std::sync::Arc;

use rustix::io::{Errno, Result};
use rustix::net::{
    AddressFamily, RecvAncillaryBuffer, RecvAncillaryMessage, RecvFlags, ReturnFlags,
    SendAncillaryBuffer, SendAncillaryMessage, SendFlags, SocketAddrUnix, SocketFlags, SocketType,
    bind, connect, listen, recv, recvmsg, send, sendmsg, socket_with,
};

use self::head::VERSION;
use self::listener::{Admits, Listener};
use self::neighbor::Neighbor;
use self::shared::{Receiver, Sender};
use super::descriptor::Descriptor;
use super::driver::Driver;
use crate::device::Device;
use crate::engine::Refusal;

mod claims;
mod head;
pub(crate) mod host;
mod inlet;
mod listener;
pub(crate) mod neighbor;
mod outbox;
mod questions;
mod shared;
#[cfg(test)]
mod tests;

/// How often one end takes what the other tells before others get their turn.
const TELLS: u32 = 16;

/// How many processes may connect before they are seen.
const BACKLOG: i32 = 1024;

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
    let ring = send_ring(&connection).map_err(|errno| match errno {
        // It has just ended.
        Errno::PIPE | Errno::CONNRESET | Errno::NOTCONN => Unreachable::Nobody,
        // So many files of this user are on their way to processes that have not taken them yet.
        Errno::TOOMANYREFS => Unreachable::Busy,
        errno => Unreachable::System(errno),
    })?;
    let driver = Driver::of(device.fabric).map_err(Unreachable::System)?;
    let new = |end| Neighbor::new(driver, device, connection, ring, end);
    driver.add(new).map_err(Unreachable::System)
}

/// Makes a ring, and gives it to the other process: the first message of each connection.
fn send_ring(connection: &Descriptor) -> Result<Sender> {
    // A forked child that gets the file, too, has memory that nobody uses.
    let (sender, file) = Sender::new()?;
    let (files, mut space) =
        ([file.as_fd()], [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(1))]);
    let mut along = SendAncillaryBuffer::new(&mut space);
    along.push(SendAncillaryMessage::ScmRights(&files));
    let flags = SendFlags::NOSIGNAL | SendFlags::DONTWAIT;
    sendmsg(connection.get()?, &[IoSlice::new(&[VERSION])], &mut along, flags)?;
    Ok(sender)
}

/// The ring that the other process has made. `PIPE` if it has ended before.
fn receive_ring(connection: &Descriptor) -> Result<Receiver> {
    let mut bytes = [0_u8; 2];
    let mut space = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(1))];
    let mut along = RecvAncillaryBuffer::new(&mut space);
    let flags = RecvFlags::DONTWAIT | RecvFlags::CMSG_CLOEXEC;
    let parts = &mut [IoSliceMut::new(&mut bytes)];
    let message = recvmsg(connection.get()?, parts, &mut along, flags)?;
    if message.bytes == 0 {
        return Err(Errno::PIPE);
    }
    let whole = !message.flags.contains(ReturnFlags::CTRUNC);
    let rights = along.drain().filter_map(|message| match message {
        RecvAncillaryMessage::ScmRights(files) => Some(files),
        _ => None,
    });
    // One, and no other. They are closed while no lock is held: to close a file may take as long as its sender likes.
    let mut files = rights.flatten();
    let (file, other) = (files.next(), files.next());
    match file {
        Some(file) if whole && other.is_none() && bytes[..message.bytes] == [VERSION] => {
            // What is an answer of the socket above is none of the memory.
            Receiver::open(file.as_fd()).map_err(|_| Errno::PROTO)
        }
        _ => Err(Errno::PROTO),
    }
}

/// Has the other process look at the ring. If there is no space for that, it was told and has not looked yet. Says whether
/// it was told, or has ended.
fn tell(connection: &Descriptor) -> bool {
    let flags = SendFlags::NOSIGNAL | SendFlags::DONTWAIT;
    let told = connection.get().and_then(|connection| send(connection, &[0], flags));
    // For want of memory.
    !matches!(told, Err(Errno::NOBUFS | Errno::NOMEM | Errno::INTR))
}

/// Takes what the other process has said. Whether that was to look at the ring; `PIPE` if it has ended.
fn hear_tell(connection: &Descriptor) -> Result<bool> {
    let (read, _) = recv(connection.get()?, &mut [0_u8; 2], RecvFlags::DONTWAIT)?;
    if read == 0 { Err(Errno::PIPE) } else { Ok(read == 1) }
}
