//! Files that tasks of tokio wait for.
#![allow(unsafe_code)]

use std::io;
use std::os::fd::{BorrowedFd, OwnedFd};

use tokio::io::Interest;
use tokio::io::unix::AsyncFd;

/// Duplicates a file, to wait until it is readable: `AsyncFd` closes its file, and the original belongs to its owner.
///
/// # Errors
/// If the process cannot open further files, or the runtime has no I/O.
pub(crate) fn readable(file: BorrowedFd<'_>) -> io::Result<AsyncFd<OwnedFd>> {
    let file = file.try_clone_to_owned()?;
    // SAFETY: SAFETY.md F28: only this value has the duplicate, which is open until it is dropped, and is the same file
    // all the time.
    Ok(unsafe { AsyncFd::register_with_interest(file, Interest::READABLE) }?)
}
