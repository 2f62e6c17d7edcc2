//! Mappings of memory files that two processes share, besides the rings.
#![allow(unsafe_code)]

use std::fs::read_to_string;
use std::os::fd::BorrowedFd;
use std::ptr::NonNull;
use std::sync::OnceLock;
use std::sync::atomic::{AtomicUsize, Ordering};

use rustix::fs::{SealFlags, fcntl_get_seals, fstat, fstatfs};
use rustix::io::{Errno, Result};
use rustix::mm::{Advice, MapFlags, ProtFlags, madvise, mmap, munmap};
use rustix::process::{Resource, getrlimit};

use crate::abi::fork::Process;
use crate::link::executed::versions::Versions;
use crate::link::expendable;
use crate::memory::copy::Segment;

/// The type of the file system that contains memory files without huge pages (statfs(2)).
const TMPFS: u64 = 0x0102_1994;
/// The unit of `st_blocks` (stat(2)).
const BLOCK: u64 = 512;

/// A mapping of a memory file. A forked child does not inherit it.
#[derive(Debug)]
pub(super) struct Area {
    place: NonNull<u8>,
    length: usize,
    writable: bool,
    process: Process,
}

// SAFETY: the memory belongs to no thread, and is accessed only through atomics and device copies (SAFETY.md F31).
unsafe impl Send for Area {}
// SAFETY: as above.
unsafe impl Sync for Area {}

/// The number of areas that this process has.
static AREAS: AtomicUsize = AtomicUsize::new(0);

/// Returns the most areas that this process makes, or files of regions that it keeps: a quarter of the system's limits.
pub(super) fn most() -> usize {
    static MAPPINGS: OnceLock<usize> = OnceLock::new();
    let mappings = *MAPPINGS.get_or_init(|| {
        let limit = read_to_string("/proc/sys/vm/max_map_count").ok();
        limit.and_then(|limit| limit.trim().parse().ok()).unwrap_or(65_530)
    });
    let files = getrlimit(Resource::Nofile).current.unwrap_or(u64::MAX);
    usize::try_from(files).unwrap_or(usize::MAX).min(mappings) / 4
}

impl Area {
    /// Maps the whole of a file that another process sent: memory that cannot shrink, has exactly this length, and is
    /// allocated already.
    ///
    /// # Errors
    /// Fails with `ENOMEM` if this process has too many areas or too little memory. Fails in the same way if the file has
    /// holes, which this process would have to fill. Other errors mean that no device sends such a file.
    pub(super) fn of_other(file: BorrowedFd<'_>, length: usize, writable: bool) -> Result<Self> {
        // Checked first, because this fails for a file that is not memory. If the file could shrink, pages could
        // disappear while they are used here. If it could grow, releasing it could take long.
        let sealed = fcntl_get_seals(file)?.contains(SealFlags::SHRINK | SealFlags::GROW);
        let (found, system) = (fstat(file)?, fstatfs(file)?);
        let [size, blocks] = [found.st_size, found.st_blocks].map(i64::cast_unsigned);
        let is_exact = size == length as u64 && length > 0;
        // Huge pages are not available on demand.
        let is_plain = u64::try_from(system.f_type) == Ok(TMPFS);
        if !sealed || !is_exact || !is_plain {
            return Err(Errno::INVAL);
        }
        if blocks.saturating_mul(BLOCK) < size {
            return Err(Errno::NOMEM);
        }
        match Self::map(file, length, writable) {
            // A limit of this process on locked memory (mlockall(2)).
            Err(Errno::AGAIN) => Err(Errno::NOMEM),
            mapped => mapped,
        }
    }

    /// Maps the first `length` bytes of a file.
    ///
    /// # Errors
    /// Fails with `ENOMEM` if this process has too many areas.
    pub(super) fn map(file: BorrowedFd<'_>, length: usize, writable: bool) -> Result<Self> {
        if AREAS.fetch_add(1, Ordering::Relaxed) >= most() {
            AREAS.fetch_sub(1, Ordering::Relaxed);
            return Err(Errno::NOMEM);
        }
        let rights = if writable { ProtFlags::READ | ProtFlags::WRITE } else { ProtFlags::READ };
        // SAFETY: the kernel chooses an unused address for the mapping (mmap(2), SAFETY.md F15).
        let place =
            unsafe { mmap(std::ptr::null_mut(), length, rights, MapFlags::SHARED, file, 0) };
        let place = place.and_then(|place| NonNull::new(place.cast()).ok_or(Errno::NOMEM));
        let place = place.inspect_err(|_| {
            AREAS.fetch_sub(1, Ordering::Relaxed);
        })?;
        let area = Self { place, length, writable, process: Process::current() };
        // SAFETY: the pages belong to this value (madvise(2), SAFETY.md F15).
        unsafe { madvise(place.as_ptr().cast(), length, Advice::LinuxDontFork) }?;
        let _ = place.as_ptr().expose_provenance();
        Ok(area)
    }

    /// Returns true if this area has the same length and rights.
    pub(super) fn is_like(&self, other: &Self) -> bool {
        (self.length, self.writable) == (other.length, other.writable)
    }

    /// Fills the page table of this process. Pages that this does not reach are filled in when they are first used.
    pub(super) fn populate(&self) {
        let advice = match self.writable {
            true => Advice::LinuxPopulateWrite,
            false => Advice::LinuxPopulateRead,
        };
        // SAFETY: the pages belong to this value. The call changes none of their bytes (madvise(2), SAFETY.md F15).
        let _ = unsafe { madvise(self.place.as_ptr().cast(), self.length, advice) };
    }

    /// Returns the versions at the beginning of the area. Fails in any process other than the one that mapped it, and
    /// for an area that is too short.
    pub(super) fn versions(&self) -> Option<&Versions> {
        if !self.process.is_current() || self.length < size_of::<Versions>() {
            return None;
        }
        // SAFETY: the pages are mapped in this process until `self` is dropped, and are aligned. All other accesses to
        // them, in any process, use atomics, and any bytes are valid values of this type. Only the owner, whose area
        // is writable, changes them (SAFETY.md F31).
        Some(unsafe { self.place.cast::<Versions>().as_ref() })
    }

    /// Returns `length` bytes at `offset`, if all of them lie inside. The segment must not be used after the area is
    /// dropped, nor for writing unless the area is writable.
    pub(super) fn segment(&self, offset: u64, length: u64) -> Option<Segment> {
        let end = offset.checked_add(length)?;
        if end > self.length as u64 || !self.process.is_current() {
            return None;
        }
        let address = self.place.as_ptr().addr() as u64 + offset;
        // SAFETY: the range is within the mapping, whose whole range was exposed. It loses no page: the file cannot
        // shrink. The caller, a requester that holds the grant, uses the segment only while it does (SAFETY.md F31).
        Some(unsafe { Segment::new(address, length) })
    }
}

/// The pages of an [`Area`] that was dropped.
struct Unused(NonNull<u8>, usize);

// SAFETY: the memory belongs to no thread, and nothing uses it any longer (SAFETY.md F31).
unsafe impl Send for Unused {}

impl Unused {
    fn unmap(self) {
        // SAFETY: the area mapped the pages, and nothing uses them after it was dropped (munmap(2), SAFETY.md F31).
        let _ = unsafe { munmap(self.0.as_ptr().cast(), self.1) };
        AREAS.fetch_sub(1, Ordering::Relaxed);
    }
}

impl Drop for Area {
    fn drop(&mut self) {
        /// Unmapping more bytes takes longer than the threads that drop areas may take.
        const MOST: usize = 1 << 20;
        if !self.process.is_current() {
            return;
        }
        let unused = Unused(self.place, self.length);
        if self.length <= MOST {
            unused.unmap();
        } else {
            expendable::run(|| unused.unmap());
        }
    }
}

/// Returns the size of the file of a region: whole pages.
pub(super) fn file_size(length: u64) -> Option<usize> {
    usize::try_from(length).ok()?.checked_next_multiple_of(rustix::param::page_size())
}

#[cfg(all(test, not(loom)))]
#[allow(clippy::unwrap_used)] // A failing helper fails its test.
mod tests {
    use std::os::fd::AsFd as _;

    use rustix::process::{Rlimit, setrlimit};
    use test_support::program::in_own_process;

    use super::*;
    use crate::link::local::mapped::memory_file;

    /// The limit on open files is usually lower than that on mappings, so the test lowers it further.
    #[test]
    fn a_process_has_areas_for_a_quarter_of_its_limit() {
        let test =
            "link::local::mapped::area::tests::a_process_has_areas_for_a_quarter_of_its_limit";
        in_own_process(test, || {
            let page = rustix::param::page_size();
            let file = memory_file::create("areas", page as u64).unwrap();
            memory_file::allocate(&file, page as u64).unwrap();
            let limit = Rlimit { current: Some(16), ..getrlimit(Resource::Nofile) };
            setrlimit(Resource::Nofile, limit).unwrap();
            let map = || Area::map(file.as_fd(), page, true);
            let mut areas: Vec<_> = (0..4).map(|_| map().unwrap()).collect();
            assert_eq!(map().err(), Some(Errno::NOMEM));
            // Each area that is dropped makes room for another.
            drop(areas.pop());
            areas.push(map().unwrap());
            assert_eq!(map().err(), Some(Errno::NOMEM));
        });
    }
}
