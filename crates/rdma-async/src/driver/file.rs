//! Files that tasks of tokio wait for.
#![allow(unsafe_code)]

use std::io;
use std::os::fd::{BorrowedFd, OwnedFd};

use tokio::io::Interest;
use tokio::io::unix::AsyncFd;

/// A duplicate of the file, to wait until that is readable: the file is somebody's, and `AsyncFd` closes what it has.
///
/// # Errors
/// If there can be no more files, or the runtime has no I/O.
pub(crate) fn readable(file: BorrowedFd<'_>) -> io::Result<AsyncFd<OwnedFd>> {
    let file = file.try_clone_to_owned()?;
    // SAFETY: SAFETY.md F28: the duplicate is this one's alone, is open until it is dropped, and is the same file all the time.
    Ok(unsafe { AsyncFd::register_with_interest(file, Interest::READABLE) }?)
}
