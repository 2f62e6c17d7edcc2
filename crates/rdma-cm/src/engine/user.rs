//! The user of the process at the other end of a socket.
#![allow(unsafe_code)]

use std::os::fd::{AsFd, AsRawFd};

use rustix::io::{Errno, Result};

/// Returns the user of the process at the other end of a Unix socket.
///
/// The function of rustix cannot represent a process of another PID namespace, whose ID is 0 here.
pub(super) fn user_of(socket: impl AsFd) -> Result<u32> {
    let mut peer = libc::ucred { pid: 0, uid: u32::MAX, gid: u32::MAX };
    let mut length = libc::socklen_t::try_from(size_of_val(&peer)).unwrap_or(0);
    let fd = socket.as_fd().as_raw_fd();
    let (level, option) = (libc::SOL_SOCKET, libc::SO_PEERCRED);
    // SAFETY: SAFETY.md F15: the call writes at most `length` bytes, and any bytes are valid
    // integers (unix(7)).
    let failed =
        unsafe { libc::getsockopt(fd, level, option, (&raw mut peer).cast(), &raw mut length) };
    if failed == 0 {
        return Ok(peer.uid);
    }
    let error = std::io::Error::last_os_error();
    Err(Errno::from_io_error(&error).unwrap_or(Errno::INVAL))
}
