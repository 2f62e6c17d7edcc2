//! Files that come along with the messages of a socket: to take such a message without its files, or to close a socket that
//! has it in its queue, releases them, which takes as long as their sender likes.

use std::io::IoSliceMut;
use std::os::fd::{AsFd as _, BorrowedFd};

use rustix::io::{Errno, Result};
use rustix::net::sockopt::set_socket_passcred;
use rustix::net::{
    RecvAncillaryBuffer, RecvFlags, RecvMsg, ReturnFlags, Shutdown, SocketFlags, accept_with,
    recvmsg, shutdown,
};

/// The next message, of which at most two bytes are taken, and no file.
fn receive(socket: BorrowedFd<'_>, flags: RecvFlags) -> Result<RecvMsg> {
    let (mut bytes, flags) = ([0; 2], flags | RecvFlags::DONTWAIT);
    recvmsg(socket, &mut [IoSliceMut::new(&mut bytes)], &mut RecvAncillaryBuffer::default(), flags)
}

/// Of the next message, which stays where it is: at most two of its bytes are counted, and its files are not touched.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Next {
    /// 0 at the end, too.
    pub(super) bytes: usize,
    pub(super) has_files: bool,
}

pub(super) fn peek(socket: BorrowedFd<'_>) -> Result<Next> {
    let message = receive(socket, RecvFlags::PEEK)?;
    // The kernel says that there was no room for them (recvmsg(2)).
    let has_files = message.flags.contains(ReturnFlags::CTRUNC);
    Ok(Next { bytes: message.bytes, has_files })
}

/// Takes all that is in the queue of a socket, to which nothing is added from now on. To close it releases nothing then:
/// neither here, nor in a child that has a copy of it until it executes a program.
pub(super) fn empty(socket: BorrowedFd<'_>) {
    let _ = shutdown(socket, Shutdown::Both);
    // Connections that nobody has accepted, where it listens.
    while let Ok(connection) = accept_with(socket, SocketFlags::CLOEXEC | SocketFlags::NONBLOCK) {
        empty(connection.as_fd());
    }
    // Each message comes with its sender's number, for which there is no room. So one without bytes is told from the end.
    let _ = set_socket_passcred(socket, true);
    loop {
        match receive(socket, RecvFlags::empty()) {
            Ok(message) if message.flags.contains(ReturnFlags::CTRUNC) => {}
            Err(Errno::CONNRESET | Errno::INTR) => {}
            // The end; or no connection.
            Ok(_) | Err(_) => return,
        }
    }
}
