//! Files that are attached to the messages of a socket. Receiving such a message without its files releases them, and
//! so does closing a socket that has it in its queue. This takes as long as their sender likes.

use std::io::IoSliceMut;
use std::os::fd::{AsFd as _, BorrowedFd};

use rustix::io::{Errno, Result};
use rustix::net::sockopt::set_socket_passcred;
use rustix::net::{
    RecvAncillaryBuffer, RecvFlags, RecvMsg, ReturnFlags, Shutdown, SocketFlags, accept_with,
    recvmsg, shutdown,
};

/// Receives the next message: at most two of its bytes, and no file.
fn receive(socket: BorrowedFd<'_>, flags: RecvFlags) -> Result<RecvMsg> {
    let (mut bytes, flags) = ([0; 2], flags | RecvFlags::DONTWAIT);
    recvmsg(socket, &mut [IoSliceMut::new(&mut bytes)], &mut RecvAncillaryBuffer::default(), flags)
}

/// Facts about the next message, which stays in the queue. At most two of its bytes are counted, and its files are not
/// touched.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Next {
    /// The number of bytes. 0 at the end, too.
    pub(super) bytes: usize,
    pub(super) has_files: bool,
}

pub(super) fn peek(socket: BorrowedFd<'_>) -> Result<Next> {
    let message = receive(socket, RecvFlags::PEEK)?;
    // The kernel reports in this way that there was no room for the files (recvmsg(2)).
    let has_files = message.flags.contains(ReturnFlags::CTRUNC);
    Ok(Next { bytes: message.bytes, has_files })
}

/// Empties the queue of a socket, to which nothing is added from now on. Closing the socket then releases nothing,
/// neither here nor in a child that has a copy of it until it executes a program.
pub(super) fn empty(socket: BorrowedFd<'_>) {
    let _ = shutdown(socket, Shutdown::Both);
    // If the socket listens, it has connections that were not accepted.
    while let Ok(connection) = accept_with(socket, SocketFlags::CLOEXEC | SocketFlags::NONBLOCK) {
        empty(connection.as_fd());
    }
    // With this option each message has its sender's credentials attached, which do not fit. So a message without bytes
    // differs from the end.
    let _ = set_socket_passcred(socket, true);
    loop {
        match receive(socket, RecvFlags::empty()) {
            Ok(message) if message.flags.contains(ReturnFlags::CTRUNC) => {}
            Err(Errno::CONNRESET | Errno::INTR) => {}
            // The end of the connection, or no connection.
            Ok(_) | Err(_) => return,
        }
    }
}
