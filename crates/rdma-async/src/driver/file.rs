//! File descriptors on which tokio tasks wait.
#![allow(unsafe_code)]

use std::io;
use std::os::fd::{BorrowedFd, OwnedFd};

use tokio::io::Interest;
use tokio::io::unix::AsyncFd;

/// Duplicates a file descriptor to wait until it is readable. The duplicate is needed because `AsyncFd` closes its
/// descriptor, and the original belongs to its owner.
///
/// # Errors
/// If the process cannot open more files, or the runtime has no I/O.
pub(crate) fn readable(file: BorrowedFd<'_>) -> io::Result<AsyncFd<OwnedFd>> {
    let file = file.try_clone_to_owned()?;
    // SAFETY: SAFETY.md F28: only this value owns the duplicate, which stays open until this value is dropped and
    // refers to the same file throughout.
    Ok(unsafe { AsyncFd::register_with_interest(file, Interest::READABLE) }?)
}
