//! Options of sockets that rustix lacks.
#![allow(unsafe_code)]

use std::ffi::c_int;
use std::os::fd::{AsFd, AsRawFd};

use rustix::io::{Errno, Result};

/// The option that allows peers to send files. Defined in `asm-generic/socket.h` since Linux 6.16.
const SO_PASSRIGHTS: c_int = 83;

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
    check(unsafe { libc::getsockopt(fd, level, option, (&raw mut peer).cast(), &raw mut length) })?;
    Ok(peer.uid)
}

/// Refuses files that peers send from now on, because their release may take as long as the sender likes. Connections
/// that the socket accepts inherit this. Fails on kernels that cannot refuse files.
pub(super) fn refuse_files(socket: impl AsFd) -> Result<()> {
    let value: c_int = 0;
    let length = libc::socklen_t::try_from(size_of_val(&value)).unwrap_or(0);
    let fd = socket.as_fd().as_raw_fd();
    let (level, option) = (libc::SOL_SOCKET, SO_PASSRIGHTS);
    // SAFETY: SAFETY.md F15: the call reads the `length` bytes of `value`, which lives until the call returns.
    check(unsafe { libc::setsockopt(fd, level, option, (&raw const value).cast(), length) })
}

/// Converts the result of a system call that returns 0, or returns -1 and sets `errno`.
fn check(returned: c_int) -> Result<()> {
    match returned {
        0 => Ok(()),
        _ => {
            let error = std::io::Error::last_os_error();
            Err(Errno::from_io_error(&error).unwrap_or(Errno::INVAL))
        }
    }
}
