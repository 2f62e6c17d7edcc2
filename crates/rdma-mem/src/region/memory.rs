//! Memory that regions own.
#![allow(unsafe_code)]

use std::alloc::{Layout, alloc_zeroed, dealloc};
use std::fmt;
use std::ops::{Deref, DerefMut};
use std::os::fd::BorrowedFd;
use std::ptr::NonNull;

use rdma_sys::Errno;

use crate::error::Error;
use crate::error::hint;
use crate::error::verb::VerbError;
use crate::region::copy::copy_out;
use crate::region::mapping::{HugePageSize, Mapping};

/// The size of a page. Pages are pinned and mapped as a whole, so a region's pages should contain
/// nothing else.
pub(crate) const PAGE: usize = 4096;

/// Memory that a region can own: whole pages, initially zero.
///
/// [`OwnedRegion::close`](crate::OwnedRegion::close) and
/// [`SharedRegion::close`](crate::SharedRegion::close) return it as plain bytes, which no device
/// accesses any more. Dropping it frees the memory.
///
/// It comes from [`allocate`](Self::allocate) or [`allocate_aligned`](Self::allocate_aligned), from
/// [`huge_pages`](Self::huge_pages), or from [`memfd`](Self::memfd).
/// [`register_owned`](crate::ProtectionDomain::register_owned) and
/// [`register_shared`](crate::ProtectionDomain::register_shared) turn it into a region.
///
/// # Examples
/// ```
/// use rdma_mem::RegionMemory;
///
/// let mut memory = RegionMemory::allocate(100)?;
/// memory.fill(1);
/// assert_eq!(memory.len(), 100);
/// # Ok::<(), rdma_mem::Error>(())
/// ```
pub struct RegionMemory {
    base: NonNull<u8>,
    length: usize,
    source: Source,
}

/// The allocator or mapping that provided the memory and will free it.
enum Source {
    Allocator(Layout),
    Mapping(Mapping),
    /// A file that other processes may have mapped, even after the region was deregistered.
    ForPeers(Mapping),
}

// SAFETY: SAFETY.md F16: the memory is plain and has one owner, and any thread may free it.
unsafe impl Send for RegionMemory {}
// SAFETY: SAFETY.md F16: `&RegionMemory` only gives access to a `&[u8]`.
unsafe impl Sync for RegionMemory {}

impl RegionMemory {
    /// Allocates `length` bytes.
    ///
    /// # Errors
    /// [`Error::EmptyRegion`] for 0 bytes, [`Error::OutOfMemory`].
    pub fn allocate(length: usize) -> Result<Self, Error> {
        Self::allocate_aligned(length, PAGE)
    }

    /// Allocates `length` bytes that begin at a multiple of `alignment`, a power of two. An
    /// alignment below the page size has no effect, because memory always begins at a page
    /// boundary.
    ///
    /// # Errors
    /// [`Error::EmptyRegion`] for 0 bytes, [`Error::Alignment`], [`Error::OutOfMemory`].
    ///
    /// # Examples
    /// ```
    /// let memory = rdma_mem::RegionMemory::allocate_aligned(100, 2 << 20)?;
    /// assert_eq!((memory.len(), memory.as_ptr().addr() % (2 << 20)), (100, 0));
    /// # Ok::<(), rdma_mem::Error>(())
    /// ```
    #[doc(alias = "posix_memalign")]
    pub fn allocate_aligned(length: usize, alignment: usize) -> Result<Self, Error> {
        if length == 0 {
            return Err(Error::EmptyRegion);
        }
        if !alignment.is_power_of_two() {
            return Err(Error::Alignment { alignment });
        }
        let layout = layout(length, alignment).ok_or(Error::OutOfMemory { length })?;
        // SAFETY: SAFETY.md F16: the size is not 0.
        let base = NonNull::new(unsafe { alloc_zeroed(layout) });
        let base = base.ok_or(Error::OutOfMemory { length })?;
        Ok(Self { base, length, source: Source::Allocator(layout) })
    }

    /// Allocates `length` bytes on huge pages. A large region on huge pages is registered faster,
    /// and a NIC needs fewer entries in its translation cache.
    ///
    /// The allocation is rounded up to whole huge pages, but the memory's length stays `length`.
    /// The system has huge pages only if its administrator has reserved some
    /// (`/proc/sys/vm/nr_hugepages`, `/sys/kernel/mm/hugepages`).
    ///
    /// # Errors
    /// [`Error::EmptyRegion`] for 0 bytes; [`Error::Verb`] from `mmap`, with a hint, if there are
    /// not enough free huge pages, or none of this size.
    ///
    /// # Examples
    /// ```
    /// use rdma_mem::{HugePageSize, RegionMemory};
    ///
    /// let length = 3 << 20;
    /// let memory = RegionMemory::huge_pages(length, HugePageSize::MIB2)
    ///     .or_else(|_| RegionMemory::allocate(length))?;
    /// assert_eq!(memory.len(), length);
    /// # Ok::<(), rdma_mem::Error>(())
    /// ```
    pub fn huge_pages(length: usize, page: HugePageSize) -> Result<Self, Error> {
        Self::map(length, "mmap", || Mapping::huge(length, page))
    }

    /// Allocates `length` bytes in a memory file (`man memfd_create`). The file is sealed, so its
    /// length never changes.
    ///
    /// After [`register_shared`](crate::ProtectionDomain::register_shared), other processes on this
    /// machine can share it; see [`SharedRegion::memfd`](crate::SharedRegion::memfd). In an
    /// [`OwnedRegion`](crate::OwnedRegion) it is like any other memory, because the registration
    /// closes the file.
    ///
    /// # Errors
    /// [`Error::EmptyRegion`] for 0 bytes; [`Error::Verb`] from `memfd_create` if memory or file
    /// descriptors are exhausted.
    ///
    /// # Examples
    /// ```
    /// let memory = rdma_mem::RegionMemory::memfd(4096)?;
    /// assert!(memory.iter().all(|&byte| byte == 0));
    /// # Ok::<(), rdma_mem::Error>(())
    /// ```
    #[doc(alias = "memfd_create")]
    pub fn memfd(length: usize) -> Result<Self, Error> {
        Self::map(length, "memfd_create", || Mapping::sealed_file(length))
    }

    /// Allocates `length` bytes in a memory file that other processes may map. Peers can change the
    /// bytes through the file if `peers_write`.
    pub(crate) fn for_peers(length: usize, peers_write: bool) -> rustix::io::Result<Self> {
        let mapping = Mapping::for_peers(length, peers_write)?;
        Ok(Self { base: mapping.base(), length, source: Source::ForPeers(mapping) })
    }

    /// Returns the file that other processes may map, if it has not been closed.
    pub(crate) fn peers_file(&self) -> Option<BorrowedFd<'_>> {
        match &self.source {
            Source::ForPeers(mapping) => mapping.file(),
            Source::Allocator(_) | Source::Mapping(_) => None,
        }
    }

    /// Returns private memory to which [`moved_to`](Self::moved_to) moves the contents. Returns
    /// `None` if the memory is private already.
    ///
    /// # Errors
    /// [`Error::OutOfMemory`].
    pub(crate) fn allocate_private(&self) -> Result<Option<Self>, Error> {
        match &self.source {
            Source::ForPeers(_) => Self::allocate(self.length).map(Some),
            Source::Allocator(_) | Source::Mapping(_) => Ok(None),
        }
    }

    /// Copies the contents to private memory of the same length, if there is any, and returns it.
    /// Peers that have mapped the original pages may still write these, so they are not reused.
    pub(crate) fn moved_to(self, private: Option<Self>) -> Self {
        let Some(mut private) = private else { return self };
        debug_assert_eq!(self.length, private.length);
        let length = self.length.min(private.length);
        // SAFETY: SAFETY.md F16, F31: the pages are mapped until `self` is dropped. No reference to
        // them exists, and no code of this process accesses them after the deregistration.
        unsafe { copy_out(self.base.as_ptr(), &mut private[..length]) };
        private
    }

    fn map(
        length: usize,
        verb: &'static str,
        map: impl FnOnce() -> rustix::io::Result<Mapping>,
    ) -> Result<Self, Error> {
        if length == 0 {
            return Err(Error::EmptyRegion);
        }
        let mapping = map().map_err(|errno| {
            let errno = Errno::from_raw(errno.raw_os_error());
            VerbError::new(verb, errno).with_hint(hint::map(verb, errno))
        })?;
        Ok(Self { base: mapping.base(), length, source: Source::Mapping(mapping) })
    }

    /// Returns the file, if the memory comes from [`memfd`](Self::memfd).
    pub(crate) fn file(&self) -> Option<BorrowedFd<'_>> {
        match &self.source {
            Source::Allocator(_) | Source::ForPeers(_) => None,
            Source::Mapping(mapping) => mapping.file(),
        }
    }

    /// Closes the file, if any. The memory stays mapped.
    pub(crate) fn close_file(&mut self) {
        match &mut self.source {
            Source::Allocator(_) => {}
            Source::Mapping(mapping) | Source::ForPeers(mapping) => mapping.close_file(),
        }
    }

    #[inline]
    pub(crate) fn base(&self) -> NonNull<u8> {
        self.base
    }

    /// Returns the length in bytes, without forming a reference to the memory.
    pub(crate) const fn length(&self) -> usize {
        self.length
    }
}

/// Returns the layout of `length` bytes, rounded up to whole pages.
fn layout(length: usize, alignment: usize) -> Option<Layout> {
    Layout::from_size_align(length.checked_next_multiple_of(PAGE)?, alignment.max(PAGE)).ok()
}

impl Deref for RegionMemory {
    type Target = [u8];

    #[inline]
    fn deref(&self) -> &[u8] {
        // SAFETY: SAFETY.md F16: the memory is allocated, initialised, and borrowed by `&self`.
        unsafe { std::slice::from_raw_parts(self.base.as_ptr(), self.length) }
    }
}

impl DerefMut for RegionMemory {
    #[inline]
    fn deref_mut(&mut self) -> &mut [u8] {
        // SAFETY: SAFETY.md F16: same argument as above, with a borrow by `&mut self`.
        unsafe { std::slice::from_raw_parts_mut(self.base.as_ptr(), self.length) }
    }
}

impl Drop for RegionMemory {
    fn drop(&mut self) {
        // A mapping unmaps itself.
        if let Source::Allocator(layout) = self.source {
            // SAFETY: SAFETY.md F16: the memory was allocated with this layout and is freed once. A
            // region that owns it drops it only after deregistration (F8).
            unsafe { dealloc(self.base.as_ptr(), layout) };
        }
    }
}

impl fmt::Debug for RegionMemory {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("RegionMemory")
            .field("address", &self.base)
            .field("length", &self.length)
            .finish_non_exhaustive()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn memory_is_zero_page_aligned_and_its_own() {
        let memory = RegionMemory::allocate(PAGE + 1).unwrap();
        assert_eq!((memory.len(), memory.as_ptr().addr() % PAGE), (PAGE + 1, 0));
        assert!(memory.iter().all(|&byte| byte == 0));
        assert_eq!(layout(memory.len(), 1).unwrap().size(), 2 * PAGE);
    }

    #[test]
    fn impossible_lengths_are_errors() {
        assert!(matches!(RegionMemory::allocate(0), Err(Error::EmptyRegion)));
        for length in [usize::MAX, isize::MAX as usize] {
            let error = RegionMemory::allocate(length).unwrap_err();
            assert!(matches!(error, Error::OutOfMemory { length: asked } if asked == length));
        }
    }
}
