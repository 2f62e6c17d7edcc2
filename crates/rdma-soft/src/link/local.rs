//! The link between processes of one host: rings of messages in memory that two processes share, and sockets of the kind
//! `SOCK_SEQPACKET` with abstract names, by which they find each other.
//!
//! A device of the host is one device for all its processes, with one identity. The upper 12 bits of a queue pair
//! number are the slot of its process, which has bound the socket that is named after the device and the slot: the
//! kernel sees to it that nobody else has. Who sends to a slot connects to that socket, and sends the file of a ring there,
//! to which it writes; who owns the slot reads. The kernel says whose process is at the other end; only then does the owner
//! of the slot ask for the file, by a first byte. One byte tells the other to look: at messages, or at space. The end of a
//! connection is the end of its process.
//!
//! To release a file that another process has sent takes as long as that process likes. So files are refused where the
//! kernel can do so ([`Descriptor::open_for_others`]), and otherwise released by threads for that alone ([`expendable`]).

use std::io::{IoSlice, IoSliceMut};
use std::mem::MaybeUninit;
use std::os::fd::{OwnedFd, RawFd};
use std::sync::Arc;

use rustix::io::{Errno, Result, fcntl_dupfd_cloexec};
use rustix::net::{
    AddressFamily, RecvAncillaryBuffer, RecvAncillaryMessage, RecvFlags, ReturnFlags,
    SendAncillaryBuffer, SendAncillaryMessage, SendFlags, SocketAddrUnix, SocketFlags, SocketType,
    bind, connect, listen, recv, recvmsg, send, sendmsg, socket_with,
};

use self::greeting::Greeting;
use self::head::VERSION;
use self::listener::{Admits, Listener};
use self::neighbor::Neighbor;
use self::shared::{Receiver, Sender};
use super::descriptor::{Descriptor, Foreign};
use super::driver::Driver;
use super::expendable::Claim;
use super::{expendable, files};
use crate::device::Device;
use crate::engine::Refusal;

mod claims;
mod greeting;
mod head;
pub(crate) mod host;
mod inlet;
mod listener;
mod names;
pub(crate) mod neighbor;
mod questions;
mod queues;
mod shared;
mod silence;
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
    let no_thread = |error| Errno::from_io_error(&error).unwrap_or(Errno::AGAIN);
    expendable::start().map_err(no_thread)?;
    Foreign::prepare()?;
    let socket = Descriptor::open_for_others(socket)?;
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
    if expendable::is_full() {
        return Err(Unreachable::Busy);
    }
    let connection = connection_to(address).map_err(|errno| match errno {
        Errno::CONNREFUSED | Errno::NOENT => Unreachable::Nobody,
        Errno::AGAIN => Unreachable::Busy,
        errno => Unreachable::System(errno),
    })?;
    if !connection.peer().is_ok_and(|(_, user)| admits(user)) {
        return Err(Unreachable::OtherUser);
    }
    let ring = || {
        let mut made = None;
        let file = Descriptor::open(|| {
            let (sender, file) = Sender::new()?;
            made = Some(sender);
            Ok(file)
        })?;
        Ok((made.ok_or(Errno::NOMEM)?, Greeting::new(file)))
    };
    let ring = ring().map_err(Unreachable::System)?;
    let driver = Driver::of(device.fabric).map_err(Unreachable::System)?;
    let new = |end| Neighbor::new(driver, device, connection, ring, end);
    driver.add(new).map_err(Unreachable::System)
}

/// A connection to a socket, which may be anybody's.
fn connection_to(address: &SocketAddrUnix) -> Result<Descriptor> {
    let connection = Descriptor::open_for_others(socket)?;
    connect(connection.get()?, address)?;
    Ok(connection)
}

/// The user whose process listens at an address.
fn user_at(address: &SocketAddrUnix) -> Option<u32> {
    let (_, user) = connection_to(address).ok()?.peer().ok()?;
    Some(user)
}

/// Asks the other process for its ring: the first message of each connection.
fn ask_for_ring(connection: &Descriptor) -> Result<()> {
    connection.allow_files()?;
    let flags = SendFlags::NOSIGNAL | SendFlags::DONTWAIT;
    send(connection.get()?, &[VERSION], flags).map(drop)
}

/// Takes the request for the ring.
fn hear_request(connection: &Descriptor) -> Result<()> {
    let mut bytes = [0; 2];
    match hear(connection, &mut bytes)? {
        0 => Err(Errno::PIPE),
        1 if bytes[0] == VERSION => Ok(()),
        _ => Err(Errno::PROTO),
    }
}

/// Sends the file of a ring.
fn send_ring(connection: &Descriptor, ring: &Descriptor) -> Result<()> {
    let (files, mut space) =
        ([ring.get()?], [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(1))]);
    let mut along = SendAncillaryBuffer::new(&mut space);
    along.push(SendAncillaryMessage::ScmRights(&files));
    let flags = SendFlags::NOSIGNAL | SendFlags::DONTWAIT;
    sendmsg(connection.get()?, &[IoSlice::new(&[VERSION])], &mut along, flags).map(drop)
}

/// The ring that the other process has made. `PIPE` if it has ended before; `BUSY` while peers hold up all threads, or this
/// process forks; `MFILE` and the like while it may open no file.
///
/// The message is taken when its one file is known to be memory, and mapped: to release that takes no time. Any other message
/// stays in the queue, and what was opened of it is closed by a thread that was claimed before, and that may be
/// [held up](expendable).
fn receive_ring(connection: &Descriptor) -> Result<Receiver> {
    let socket = connection.get()?;
    let next = files::peek(socket)?;
    if !next.has_files {
        return Err(if next.bytes == 0 { Errno::PIPE } else { Errno::PROTO });
    }
    let thread = Claim::new().ok_or(Errno::BUSY)?;
    let mut bytes = [0_u8; 2];
    let (file, (read, is_all)) = Foreign::open(|| {
        // Neither more nor less than one file has room here.
        let mut space = OneFile([MaybeUninit::uninit(); OneFile::SIZE]);
        let mut along = RecvAncillaryBuffer::new(&mut space.0);
        let flags = RecvFlags::DONTWAIT | RecvFlags::CMSG_CLOEXEC | RecvFlags::PEEK;
        let message = recvmsg(socket, &mut [IoSliceMut::new(&mut bytes)], &mut along, flags)?;
        let file = along.drain().find_map(|message| match message {
            RecvAncillaryMessage::ScmRights(mut files) => files.next(),
            _ => None,
        });
        Ok((file, (message.bytes, !message.flags.contains(ReturnFlags::CTRUNC))))
    })?;
    let Some(received) = file.file() else {
        // This process may open no file, or not this one.
        Descriptor::open(|| fcntl_dupfd_cloexec(socket, 0))?;
        return Err(Errno::PROTO);
    };
    if is_all
        && bytes[..read] == [VERSION]
        && let Ok(ring) = Receiver::open(received)
    {
        recv(socket, &mut bytes, RecvFlags::DONTWAIT)?;
        return Ok(ring);
    }
    thread.run(|| drop(file));
    Err(Errno::PROTO)
}

/// Room for a message with one file (cmsg(3)).
#[repr(align(8))]
struct OneFile([MaybeUninit<u8>; Self::SIZE]);

impl OneFile {
    const SIZE: usize = size_of::<libc::cmsghdr>() + size_of::<RawFd>();
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
    let read = hear(connection, &mut [0; 2])?;
    if read == 0 { Err(Errno::PIPE) } else { Ok(read == 1) }
}

/// Takes a message that brings no file along: what does stays where it is, and ends the connection.
fn hear(connection: &Descriptor, bytes: &mut [u8; 2]) -> Result<usize> {
    let socket = connection.get()?;
    if connection.holds_files() && files::peek(socket)?.has_files {
        return Err(Errno::PROTO);
    }
    recv(socket, bytes, RecvFlags::DONTWAIT).map(|(read, _)| read)
}
