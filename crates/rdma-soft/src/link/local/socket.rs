//! Connections between two processes, and their messages: the request for a ring, the ring's file, and single bytes.

use std::io::{IoSlice, IoSliceMut};
use std::mem::MaybeUninit;
use std::os::fd::{BorrowedFd, OwnedFd, RawFd};

use rustix::io::{Errno, Result, fcntl_dupfd_cloexec};
use rustix::net::{
    AddressFamily, RecvAncillaryBuffer, RecvAncillaryMessage, RecvFlags, ReturnFlags,
    SendAncillaryBuffer, SendAncillaryMessage, SendFlags, SocketAddrUnix, SocketFlags, SocketType,
    connect, recv, recvmsg, send, sendmsg, socket_with,
};

use super::head::VERSION;
use super::mapped;
use super::shared::RingReceiver;
use crate::link::descriptor::{Descriptor, Foreign};
use crate::link::expendable::Claim;
use crate::link::files;

/// The maximum number of notifications that are received before other sockets get their turn.
pub(super) const NOTIFICATIONS: u32 = 16;

pub(super) fn socket() -> Result<OwnedFd> {
    let flags = SocketFlags::CLOEXEC | SocketFlags::NONBLOCK;
    socket_with(AddressFamily::UNIX, SocketType::SEQPACKET, flags, None)
}

/// Connects to a socket, whose owner may be any process.
pub(super) fn connection_to(address: &SocketAddrUnix) -> Result<Descriptor> {
    let connection = Descriptor::open_for_others(socket)?;
    connect(connection.get()?, address)?;
    Ok(connection)
}

/// Asks the other process for its ring. This is the first message on each connection.
pub(super) fn request_ring(connection: &Descriptor) -> Result<()> {
    connection.allow_files()?;
    let flags = SendFlags::NOSIGNAL | SendFlags::DONTWAIT;
    send(connection.get()?, &[VERSION], flags).map(drop)
}

/// Receives the other process's request for the ring.
pub(super) fn receive_request(connection: &Descriptor) -> Result<()> {
    let mut bytes = [0; 2];
    match receive_message(connection, &mut bytes)? {
        0 => Err(Errno::PIPE),
        1 if bytes[0] == VERSION => Ok(()),
        _ => Err(Errno::PROTO),
    }
}

/// Sends the file of a ring.
pub(super) fn send_ring(connection: &Descriptor, ring: &Descriptor) -> Result<()> {
    send_file(connection, &[VERSION], ring.get()?)
}

/// Sends a message with a file.
pub(super) fn send_file(
    connection: &Descriptor,
    message: &[u8],
    file: BorrowedFd<'_>,
) -> Result<()> {
    let (files, mut space) = ([file], [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(1))]);
    let mut along = SendAncillaryBuffer::new(&mut space);
    along.push(SendAncillaryMessage::ScmRights(&files));
    let flags = SendFlags::NOSIGNAL | SendFlags::DONTWAIT;
    sendmsg(connection.get()?, &[IoSlice::new(message)], &mut along, flags).map(drop)
}

/// Receives the ring that the other process created. Same errors as [`receive_file`].
pub(super) fn receive_ring(connection: &Descriptor) -> Result<RingReceiver> {
    let open = |message: &[u8], file: BorrowedFd<'_>| match message {
        [VERSION] => RingReceiver::open(file),
        _ => Err(Errno::PROTO),
    };
    receive_file(connection, open).map(|(_, _, ring)| ring)
}

/// The length of the longest message with a file.
const LONGEST: usize = mapped::LENGTH;

/// Receives a message with one file, which `open` checks and maps. Also returns the file, and the thread that was
/// claimed for it. This thread must close the file unless it is mapped: if no other process has it, the kernel then frees
/// all of its memory. Fails with `PIPE` if the other process exited first. Fails with `BUSY` while peers hold up all threads or this
/// process forks, and with `MFILE` and similar errors while it cannot open a file.
///
/// The message is received only after its one file has been mapped and is known to be memory, which takes no time to
/// release. Any other message stays in the queue, and a claimed thread, which may be [held up](expendable), closes the
/// file that was opened.
pub(super) fn receive_file<T>(
    connection: &Descriptor,
    open: impl FnOnce(&[u8], BorrowedFd<'_>) -> Result<T>,
) -> Result<(Claim, Foreign, T)> {
    let socket = connection.get()?;
    let next = files::peek(socket)?;
    if !next.has_files {
        return Err(if next.bytes == 0 { Errno::PIPE } else { Errno::PROTO });
    }
    let thread = Claim::new().ok_or(Errno::BUSY)?;
    // One byte more than the longest message, so that no longer one is mistaken for it.
    let mut bytes = [0_u8; LONGEST + 1];
    let (file, (read, is_all)) = Foreign::open(|| {
        // There is room for exactly one file.
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
        // This fails if the process cannot open any file. Otherwise, only the received file was refused.
        Descriptor::open(|| fcntl_dupfd_cloexec(socket, 0))?;
        return Err(Errno::PROTO);
    };
    if is_all && let Ok(opened) = open(&bytes[..read.min(bytes.len())], received) {
        recv(socket, &mut bytes, RecvFlags::DONTWAIT)?;
        return Ok((thread, file, opened));
    }
    thread.run(|| drop(file));
    Err(Errno::PROTO)
}

/// Space for a control message with one file (cmsg(3)).
#[repr(align(8))]
struct OneFile([MaybeUninit<u8>; Self::SIZE]);

impl OneFile {
    const SIZE: usize = size_of::<libc::cmsghdr>() + size_of::<RawFd>();
}

/// Notifies the other process, so that it looks at the ring. If there is no space for the notification, an earlier one
/// is still unread. Returns true if the process was notified or has exited.
pub(super) fn notify(connection: &Descriptor) -> bool {
    let flags = SendFlags::NOSIGNAL | SendFlags::DONTWAIT;
    let sent = connection.get().and_then(|connection| send(connection, &[0], flags));
    // These errors mean that memory is low or the call was interrupted.
    !matches!(sent, Err(Errno::NOBUFS | Errno::NOMEM | Errno::INTR))
}

/// Receives a notification, or returns true if the next message has a file, which stays in the queue. Fails with `PIPE`
/// if the other process has exited.
pub(super) fn receive_notification_or_find_file(connection: &Descriptor) -> Result<bool> {
    if finds_file(connection)? {
        return Ok(true);
    }
    match recv(connection.get()?, &mut [0; 2], RecvFlags::DONTWAIT)? {
        (0, _) => Err(Errno::PIPE),
        _ => Ok(false),
    }
}

/// Receives a notification. Returns true if it is valid, and fails with `PIPE` if the other process has exited.
pub(super) fn receive_notification(connection: &Descriptor) -> Result<bool> {
    let read = receive_message(connection, &mut [0; 2])?;
    if read == 0 { Err(Errno::PIPE) } else { Ok(read == 1) }
}

/// Receives a message without files. A message with files stays in the queue, and the call fails.
fn receive_message(connection: &Descriptor, bytes: &mut [u8; 2]) -> Result<usize> {
    if finds_file(connection)? {
        return Err(Errno::PROTO);
    }
    recv(connection.get()?, bytes, RecvFlags::DONTWAIT).map(|(read, _)| read)
}

/// Returns true if the next message has a file.
fn finds_file(connection: &Descriptor) -> Result<bool> {
    Ok(connection.holds_files() && files::peek(connection.get()?)?.has_files)
}
