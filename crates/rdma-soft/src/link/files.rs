//! Files attached to the messages of a socket. Such a file is released when its message is received without it, or when
//! a socket that has the message in its queue is closed. Releasing a file may take as long as its sender likes.

use std::io::IoSliceMut;
use std::os::fd::{AsFd as _, BorrowedFd};

use rustix::io::{Errno, Result};
use rustix::net::sockopt::set_socket_passcred;
use rustix::net::{
    RecvAncillaryBuffer, RecvFlags, RecvMsg, ReturnFlags, Shutdown, SocketFlags, accept_with,
    recvmsg, shutdown,
};

/// Receives the next message, but at most two of its bytes and no file.
fn receive(socket: BorrowedFd<'_>, flags: RecvFlags) -> Result<RecvMsg> {
    let (mut bytes, flags) = ([0; 2], flags | RecvFlags::DONTWAIT);
    recvmsg(socket, &mut [IoSliceMut::new(&mut bytes)], &mut RecvAncillaryBuffer::default(), flags)
}

/// The properties of the next message, which stays in the queue. At most two of its bytes are counted, and its files
/// are not touched.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Next {
    /// The number of bytes; also 0 at the end of the connection.
    pub(super) bytes: usize,
    pub(super) has_files: bool,
}

pub(super) fn peek(socket: BorrowedFd<'_>) -> Result<Next> {
    let message = receive(socket, RecvFlags::PEEK)?;
    // This flag is how the kernel reports that there was no room for the files (recvmsg(2)).
    let has_files = message.flags.contains(ReturnFlags::CTRUNC);
    Ok(Next { bytes: message.bytes, has_files })
}

/// Empties the queue of a socket and keeps anything new from being added. Closing the socket then releases nothing,
/// here or in a child that holds a copy of the socket until it calls `exec`.
pub(super) fn empty(socket: BorrowedFd<'_>) {
    let _ = shutdown(socket, Shutdown::Both);
    // If the socket listens, it may have connections that were never accepted.
    while let Ok(connection) = accept_with(socket, SocketFlags::CLOEXEC | SocketFlags::NONBLOCK) {
        empty(connection.as_fd());
    }
    // With this option, each message carries its sender's credentials, which do not fit into the buffer. This
    // distinguishes an empty message from the end of the connection.
    let _ = set_socket_passcred(socket, true);
    loop {
        match receive(socket, RecvFlags::empty()) {
            Ok(message) if message.flags.contains(ReturnFlags::CTRUNC) => {}
            Err(Errno::CONNRESET | Errno::INTR) => {}
            // The connection has ended, or there is none.
            Ok(_) | Err(_) => return,
        }
    }
}
