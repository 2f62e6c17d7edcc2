//! Memory from `mmap`: huge pages and memory files.
#![allow(unsafe_code)]

use std::ffi::c_void;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::ptr::{self, NonNull};

use rustix::fs::{
    FallocateFlags, MemfdFlags, SealFlags, fallocate, fcntl_add_seals, ftruncate, memfd_create,
};
use rustix::io::retry_on_intr;
use rustix::mm::{Advice, MapFlags, ProtFlags, madvise, mmap, mmap_anonymous, munmap};
use rustix::process::{Resource, getrlimit};

/// The size of huge pages.
///
/// ```
/// use rdma_mem::HugePageSize;
///
/// assert_eq!(HugePageSize::MIB2.bytes(), 2 << 20);
/// ```
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct HugePageSize(usize);

impl HugePageSize {
    /// 2 MiB.
    pub const MIB2: Self = Self(2 << 20);
    /// 1 GiB.
    pub const GIB1: Self = Self(1 << 30);

    /// Returns the size in bytes.
    #[must_use]
    pub const fn bytes(self) -> usize {
        self.0
    }

    const fn flag(self) -> MapFlags {
        if self.0 == Self::MIB2.0 { MapFlags::HUGE_2MB } else { MapFlags::HUGE_1GB }
    }
}

/// Memory mapped into this process, initially zero.
#[derive(Debug)]
pub(crate) struct Mapping {
    base: NonNull<u8>,
    length: usize,
    file: Option<OwnedFd>,
}

// SAFETY: SAFETY.md F16: it holds an address in this process, and has one owner.
unsafe impl Send for Mapping {}
// SAFETY: SAFETY.md F16: same argument as above, and a mapping does not change.
unsafe impl Sync for Mapping {}

impl Mapping {
    /// Maps at least `length` bytes on huge pages.
    pub(crate) fn huge(length: usize, page: HugePageSize) -> rustix::io::Result<Self> {
        let length = length.checked_next_multiple_of(page.0).ok_or(rustix::io::Errno::NOMEM)?;
        let flags = MapFlags::PRIVATE | MapFlags::HUGETLB | page.flag();
        let access = ProtFlags::READ | ProtFlags::WRITE;
        // SAFETY: SAFETY.md F15: this creates a new mapping at an address that the kernel chooses.
        let base = unsafe { mmap_anonymous(ptr::null_mut(), length, access, flags) }?;
        Self::new(base, length, None)
    }

    /// Maps `length` bytes of a memory file whose size is sealed.
    pub(crate) fn sealed_file(length: usize) -> rustix::io::Result<Self> {
        let mapping = Self::of_new_file(length)?;
        mapping.seal(SealFlags::SEAL)?;
        Ok(mapping)
    }

    /// Maps at least `length` bytes, in whole pages, of a memory file that other processes may map.
    /// A forked child does not have the mapping. Unless `peers_write`, no process can make another
    /// mapping through which the file can be written.
    pub(crate) fn for_peers(length: usize, peers_write: bool) -> rustix::io::Result<Self> {
        // Other processes expect whole pages of the system, which may be longer than `PAGE`.
        let page = rustix::param::page_size();
        let whole = length.checked_next_multiple_of(page).ok_or(rustix::io::Errno::NOMEM)?;
        let mapping = Self::of_new_file(whole)?;
        if let Some(file) = mapping.file() {
            // Other processes map only files whose pages they need not allocate.
            allocate(file, whole as u64)?;
        }
        let writes = if peers_write { SealFlags::empty() } else { SealFlags::FUTURE_WRITE };
        mapping.seal(writes | SealFlags::SEAL)?;
        // SAFETY: SAFETY.md F15: the pages belong to this value, and the call changes none of them.
        unsafe { madvise(mapping.base.as_ptr().cast(), whole, Advice::LinuxDontFork) }?;
        Ok(mapping)
    }

    /// Maps a new memory file, which can neither shrink nor grow.
    fn of_new_file(length: usize) -> rustix::io::Result<Self> {
        let too_long = |_| rustix::io::Errno::NOMEM;
        let size = i64::try_from(length).map_err(too_long)?.cast_unsigned();
        // The kernel would send the signal SIGXFSZ, which ends the process unless it is handled.
        if getrlimit(Resource::Fsize).current.is_some_and(|limit| size > limit) {
            return Err(rustix::io::Errno::FBIG);
        }
        let file = memfd_create("rdma region", MemfdFlags::CLOEXEC | MemfdFlags::ALLOW_SEALING)?;
        ftruncate(&file, size)?;
        // If the file could be truncated, accessing the mapping could raise SIGBUS and kill the
        // process.
        fcntl_add_seals(&file, SealFlags::SHRINK | SealFlags::GROW)?;
        let access = ProtFlags::READ | ProtFlags::WRITE;
        // SAFETY: SAFETY.md F15: this creates a new mapping at an address that the kernel chooses.
        let base = unsafe { mmap(ptr::null_mut(), length, access, MapFlags::SHARED, &file, 0) }?;
        Self::new(base, length, Some(file))
    }

    fn seal(&self, seals: SealFlags) -> rustix::io::Result<()> {
        self.file().map_or(Ok(()), |file| fcntl_add_seals(file, seals))
    }

    fn new(base: *mut c_void, length: usize, file: Option<OwnedFd>) -> rustix::io::Result<Self> {
        let base = NonNull::new(base.cast()).ok_or(rustix::io::Errno::NOMEM)?;
        Ok(Self { base, length, file })
    }

    #[inline]
    pub(crate) fn base(&self) -> NonNull<u8> {
        self.base
    }

    pub(crate) fn file(&self) -> Option<BorrowedFd<'_>> {
        self.file.as_ref().map(AsFd::as_fd)
    }

    /// Closes the file; the mapping stays.
    pub(crate) fn close_file(&mut self) {
        self.file = None;
    }
}

/// Allocates the pages of a memory file.
fn allocate(file: BorrowedFd<'_>, size: u64) -> rustix::io::Result<()> {
    /// A signal makes the kernel undo a whole call, and the next signal may come soon.
    const STEP: usize = 4 << 20;
    (0..size).step_by(STEP).try_for_each(|from| {
        let length = (size - from).min(STEP as u64);
        retry_on_intr(|| fallocate(file, FallocateFlags::empty(), from, length))
    })
}

impl Drop for Mapping {
    fn drop(&mut self) {
        // SAFETY: SAFETY.md F15, F16: this mapping came from `new` and is no longer in use.
        if let Err(error) = unsafe { munmap(self.base.as_ptr().cast(), self.length) } {
            tracing::error!(%error, base = ?self.base, "memory could not be unmapped");
        }
    }
}
