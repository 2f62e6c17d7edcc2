//! Memory passed as a file. Hardware imports a dma-buf; this device maps it.
#![allow(unsafe_code)]

use std::ffi::c_void;
use std::os::fd::{AsFd, BorrowedFd};
use std::ptr;

use rustix::fs::{SealFlags, fcntl_get_seals, fstat, fstatfs};
use rustix::io::Errno;
use rustix::mm::{MapFlags, ProtFlags, mmap, munmap};

use crate::engine::Refusal;

/// `DMA_BUF_MAGIC` and `TMPFS_MAGIC` from `linux/magic.h`.
const DMA_BUF: i64 = 0x444d_4142;
const MEMFD: i64 = 0x0102_1994;

/// A part of a file, mapped into this process and unmapped when dropped (SAFETY.md F18).
#[derive(Debug)]
pub(crate) struct Imported {
    base: *mut c_void,
    mapped: usize,
    /// The offset of the part within the first page.
    skip: usize,
}

// SAFETY: a mapping belongs to the process, and this is its only owner (SAFETY.md F18).
unsafe impl Send for Imported {}
// SAFETY: as above; a shared reference only returns the mapping's address.
unsafe impl Sync for Imported {}

impl Imported {
    /// Maps `length` bytes at `offset` of a file that cannot shrink.
    pub(crate) fn map(
        file: BorrowedFd<'_>,
        offset: u64,
        length: usize,
        writable: bool,
    ) -> Result<Self, Refusal> {
        let size = lasting_size(file)?;
        let end = offset.checked_add(length as u64).filter(|&end| end <= size);
        if length == 0 || end.is_none() {
            return Err(Refusal::Invalid);
        }
        let page = rustix::param::page_size();
        let skip = offset % page as u64;
        // The remainder is smaller than a page.
        let skip_bytes = usize::try_from(skip).map_err(|_| Refusal::Invalid)?;
        let mapped = length.checked_add(skip_bytes).and_then(|n| n.checked_next_multiple_of(page));
        let mapped = mapped.ok_or(Refusal::Invalid)?;
        let mut access = ProtFlags::READ;
        access.set(ProtFlags::WRITE, writable);
        let (anywhere, shared) = (ptr::null_mut(), MapFlags::SHARED);
        // SAFETY: this creates a new mapping at an address that the kernel chooses (SAFETY.md F15).
        let base = unsafe { mmap(anywhere, mapped, access, shared, file, offset - skip) };
        Ok(Self { base: base.map_err(refusal)?, mapped, skip: skip_bytes })
    }

    /// Returns the address of the part. Later, the device finds the memory only by this address (SAFETY.md F7).
    pub(crate) fn address(&self) -> u64 {
        (self.base.expose_provenance() + self.skip) as u64
    }
}

impl Drop for Imported {
    fn drop(&mut self) {
        // SAFETY: `map` made this mapping, and its registration has ended (SAFETY.md F18).
        let unmapped = unsafe { munmap(self.base, self.mapped) };
        debug_assert!(unmapped.is_ok(), "{unmapped:?}");
    }
}

/// Returns the size of a file, if it cannot shrink: a process that accesses a mapping beyond the end of its file is
/// killed. A dma-buf never changes its size, and a file in memory can be sealed.
fn lasting_size(file: BorrowedFd<'_>) -> Result<u64, Refusal> {
    let lasting = match fstatfs(file).map_err(refusal)?.f_type {
        DMA_BUF => true,
        MEMFD => fcntl_get_seals(file).is_ok_and(|seals| seals.contains(SealFlags::SHRINK)),
        _ => false,
    };
    let size = fstat(file).map_err(refusal)?.st_size;
    u64::try_from(size).ok().filter(|_| lasting).ok_or(Refusal::Invalid)
}

/// Borrows the file that a C program passes, if it is open.
pub(crate) fn open_file<'a>(fd: i32) -> Result<BorrowedFd<'a>, Refusal> {
    if fd < 0 {
        return Err(Refusal::NoFile);
    }
    // SAFETY: the descriptor is checked below before it is used, and the program does not close it during the call
    // (SAFETY.md F1).
    let file = unsafe { BorrowedFd::borrow_raw(fd) };
    rustix::io::fcntl_getfd(file.as_fd()).map(|_| file).map_err(refusal)
}

fn refusal(errno: Errno) -> Refusal {
    match errno {
        Errno::BADF => Refusal::NoFile,
        Errno::ACCESS | Errno::PERM => Refusal::NotAllowed,
        Errno::NOMEM | Errno::AGAIN => Refusal::NoRoom,
        Errno::NODEV | Errno::OPNOTSUPP => Refusal::Unsupported,
        _ => Refusal::Invalid,
    }
}

#[cfg(all(test, not(loom)))]
mod tests {
    use super::*;

    #[test]
    fn a_file_may_have_the_number_0() {
        // The runtime opens the standard files, unless they are open.
        assert!(open_file(0).is_ok());
        assert_eq!(open_file(-1).err(), Some(Refusal::NoFile));
    }

    #[test]
    fn the_reason_why_a_file_is_not_mapped_is_returned() {
        for (errno, expected) in [
            (Errno::BADF, Refusal::NoFile),
            (Errno::PERM, Refusal::NotAllowed),
            (Errno::NOMEM, Refusal::NoRoom),
            (Errno::NODEV, Refusal::Unsupported),
            (Errno::OVERFLOW, Refusal::Invalid),
        ] {
            assert_eq!(refusal(errno), expected, "{errno}");
        }
    }
}
