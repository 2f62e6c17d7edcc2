//! Memory files that this process creates for others.

use std::os::fd::{AsFd, OwnedFd};

use rustix::fs::{FallocateFlags, MemfdFlags, fallocate, memfd_create};
use rustix::io::{Errno, Result, retry_on_intr};
use rustix::process::{Resource, getrlimit};

/// Creates an empty file that may grow to `size` bytes.
///
/// # Errors
/// Fails with `EFBIG` if this process may not create files of that length (`ulimit -f`).
pub(in crate::link::local) fn create(name: &str, size: u64) -> Result<OwnedFd> {
    // The kernel would send the signal SIGXFSZ, which ends the process unless it is handled.
    if getrlimit(Resource::Fsize).current.is_some_and(|limit| size > limit) {
        return Err(Errno::FBIG);
    }
    memfd_create(name, MemfdFlags::CLOEXEC | MemfdFlags::ALLOW_SEALING)
}

/// Allocates the first `length` bytes of a file, even if signals interrupt the calls.
pub(in crate::link::local) fn allocate(file: impl AsFd, length: u64) -> Result<()> {
    retry_on_intr(|| fallocate(&file, FallocateFlags::empty(), 0, length))
}
