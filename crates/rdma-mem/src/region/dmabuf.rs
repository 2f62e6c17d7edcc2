//! Regions over dma-buf memory.
#![allow(unsafe_code)]

use std::fmt;
use std::ops::Range;
use std::os::fd::{AsRawFd, BorrowedFd};
use std::ptr::NonNull;

use rdma_sys::{Errno, ibv_mr};
use rdma_types::{AccessFlags, Lkey, Rkey};

use crate::device::protection_domain::ProtectionDomain;
use crate::element::shared::SharedElement;
use crate::error::Error;
use crate::error::range::RangeError;
use crate::error::verb::VerbError;
use crate::object::handle::Handle;
use crate::object::ownership::Ownership;
use crate::region::hint;
use crate::remote::RemoteMemoryRegion;

/// Registered memory of a dma-buf, a file descriptor through which the kernel shares memory such as
/// a GPU's. The processor need not be able to access the memory.
///
/// The memory is not mapped into the process, so the region has no view of the bytes; requests name
/// [ranges](Self::element) of it. The region keeps the memory alive: the descriptor may be closed
/// after the registration.
///
/// In requests of this machine and of peers, the region's addresses start at `iova`. `iova` can be
/// any number that has the same offset within a page as the region's start in the dma-buf.
///
/// The software device accepts dma-bufs that can be mapped. It also accepts sealed memory files
/// ([`RegionMemory::memfd`](crate::RegionMemory::memfd)).
///
/// # Examples
/// ```
/// use std::os::fd::AsFd;
/// use rdma_mem::GatherElement;
///
/// # use rustix::fs::{MemfdFlags, SealFlags, fcntl_add_seals, ftruncate, memfd_create};
/// # let file = memfd_create("example", MemfdFlags::CLOEXEC | MemfdFlags::ALLOW_SEALING).unwrap();
/// # ftruncate(&file, 8192).unwrap();
/// # fcntl_add_seals(&file, SealFlags::SHRINK).unwrap();
/// rdma_soft::install();
/// let pd = rdma_mem::open_device("soft0")?.allocate_pd()?;
/// // Two pages of a file, which have address 0 in requests.
/// let region = pd.register_local_dmabuf_mr(file.as_fd(), 0, 8192, 0)?;
/// drop(file);
/// let element = GatherElement::from(region.element(4096..8192).unwrap());
/// assert_eq!((element.length(), region.iova()), (4096, 0));
/// # Ok::<(), rdma_mem::Error>(())
/// ```
#[doc(alias = "ibv_mr")]
pub struct DmabufRegion {
    handle: Handle<ibv_mr, ProtectionDomain>,
    iova: u64,
    length: usize,
    lkey: Lkey,
    rkey: Rkey,
}

impl ProtectionDomain {
    /// Registers `length` bytes at `offset` in a dma-buf for local access: requests of this machine
    /// can read and write them. Peers have no access. See `man ibv_reg_dmabuf_mr`.
    ///
    /// This is safe, even if other code has mapped the memory and formed a slice of it. That code
    /// has promised that no process changes the file while the slice exists, although any process
    /// with a descriptor could. Requests of this machine change the file just as a safe call of
    /// `write(2)` does.
    ///
    /// # Errors
    /// [`Error::Unsupported`] from a libibverbs before rdma-core 34; [`Error::EmptyRegion`];
    /// [`Error::PageOffset`] if `offset` and `iova` are not at the same offset within a page.
    /// Otherwise the verb's error, with a hint. `EOPNOTSUPP` means that the device's driver does
    /// not support dma-bufs. `EINVAL` means that the range is not within the file, or that the file
    /// is not a dma-buf.
    #[doc(alias = "ibv_reg_dmabuf_mr")]
    pub fn register_local_dmabuf_mr(
        &self,
        fd: BorrowedFd<'_>,
        offset: u64,
        length: usize,
        iova: u64,
    ) -> Result<DmabufRegion, Error> {
        let access = AccessFlags::new().with_local_write();
        // SAFETY: SAFETY.md F8: this access gives peers no right to read or write the memory.
        unsafe { self.register_dmabuf_mr_with_access(fd, offset, length, iova, access) }
    }

    /// Registers dma-buf memory that peers may read and write.
    ///
    /// # Errors
    /// Same errors as [`register_local_dmabuf_mr`](Self::register_local_dmabuf_mr).
    ///
    /// # Safety
    /// The contract of [`register_dmabuf_mr_with_access`](Self::register_dmabuf_mr_with_access)
    /// applies.
    #[doc(alias = "ibv_reg_dmabuf_mr")]
    pub unsafe fn register_shared_dmabuf_mr(
        &self,
        fd: BorrowedFd<'_>,
        offset: u64,
        length: usize,
        iova: u64,
    ) -> Result<DmabufRegion, Error> {
        let access = AccessFlags::new().with_local_write().with_remote_read().with_remote_write();
        // SAFETY: SAFETY.md F8: the caller upholds the same contract.
        unsafe { self.register_dmabuf_mr_with_access(fd, offset, length, iova, access) }
    }

    /// Registers dma-buf memory with any access that dma-bufs support: local write, remote read,
    /// remote write, remote atomics, relaxed ordering.
    ///
    /// # Errors
    /// Same errors as [`register_local_dmabuf_mr`](Self::register_local_dmabuf_mr), and
    /// [`Error::Access`] for flags that the verbs forbid.
    ///
    /// # Safety
    /// These conditions hold while the memory is registered. If `access` lets peers write it, no
    /// process has a reference to it through any mapping of the file. In that case, every access by
    /// a process is atomic or volatile. If `access` lets peers read it, no process has a `&mut` to
    /// it. Requests of this machine change the file as described for
    /// [`register_local_dmabuf_mr`](Self::register_local_dmabuf_mr).
    #[doc(alias = "ibv_reg_dmabuf_mr")]
    pub unsafe fn register_dmabuf_mr_with_access(
        &self,
        fd: BorrowedFd<'_>,
        offset: u64,
        length: usize,
        iova: u64,
        access: AccessFlags,
    ) -> Result<DmabufRegion, Error> {
        check(offset, length, iova, access)?;
        self.check_process()?;
        let register = self.verbs().reg_dmabuf_mr()?;
        let flags = access.bits().cast_signed();
        // SAFETY: SAFETY.md F1, F2: the domain is live and belongs to this table, and the file is
        // open. The memory belongs to the file, which the provider keeps alive (man
        // ibv_reg_dmabuf_mr).
        let raw = unsafe { register(self.as_raw(), offset, length, iova, fd.as_raw_fd(), flags) };
        let raw = Errno::check_null(raw).map_err(|errno| {
            let hint = hint::register_dmabuf(self.context(), errno, length);
            VerbError::new("ibv_reg_dmabuf_mr", errno).with_hint(hint)
        })?;
        // SAFETY: SAFETY.md F2, F8, F9: the region has just been registered through this table, in
        // this domain, with this length and starting at `iova`, so no other code has it. This
        // function's contract covers the memory.
        Ok(unsafe { DmabufRegion::of(raw, self, length, iova, Ownership::Owned) })
    }
}

impl DmabufRegion {
    /// Wraps a region that was registered elsewhere with `ibv_reg_dmabuf_mr`. Its C object contains
    /// the length and the keys, but not `iova`, the address of the region's first byte in requests.
    ///
    /// A region over other memory, for example from `ibv_reg_mr_iova`, can also be wrapped if the
    /// program needs only [elements made from ranges](Self::element).
    ///
    /// # Safety
    /// The caller upholds the contract of [`Ownership`]. The region belongs to this domain, and
    /// starts at `iova` in requests. The memory meets the contract of
    /// [`register_dmabuf_mr_with_access`](ProtectionDomain::register_dmabuf_mr_with_access).
    ///
    /// If the memory does not belong to a dma-buf, two more conditions apply, because safe code in
    /// `rdma-channel` posts elements. The memory stays mapped while it is registered. No reference
    /// to it exists until the value is dropped and all requests that name an element of it have
    /// completed.
    ///
    /// # Examples
    /// ```
    /// use std::ptr::NonNull;
    /// use rdma_mem::{AccessFlags, DmabufRegion, GatherElement, Ownership};
    ///
    /// rdma_soft::install();
    /// let pd = rdma_mem::open_device("soft0")?.allocate_pd()?;
    /// let mut memory = [0_u64; 8];
    /// let access = AccessFlags::new().with_local_write().bits().cast_signed();
    /// let (start, length, iova) = (memory.as_mut_ptr().cast(), 64, 4096);
    /// let register = pd.verbs().reg_mr_iova()?;
    /// // SAFETY: a live domain of this table, and memory that outlives the region.
    /// let raw = unsafe { register(pd.as_raw(), start, length, iova, access) };
    /// let raw = NonNull::new(raw).unwrap();
    /// // SAFETY: just registered like this, and not deregistered elsewhere.
    /// let region = unsafe { DmabufRegion::from_raw(raw, &pd, iova, Ownership::Owned) };
    /// let element = GatherElement::from(region.element(8..16).unwrap());
    /// assert_eq!((region.iova(), element.length()), (4096, 8));
    /// # Ok::<(), rdma_mem::Error>(())
    /// ```
    #[must_use]
    pub unsafe fn from_raw(
        raw: NonNull<ibv_mr>,
        pd: &ProtectionDomain,
        iova: u64,
        ownership: Ownership,
    ) -> Self {
        // SAFETY: SAFETY.md F1: the region is live, and its length never changes.
        let length = unsafe { (*raw.as_ptr()).length };
        // SAFETY: SAFETY.md F2, F6, F8, F9: by this function's contract.
        unsafe { Self::of(raw, pd, length, iova, ownership) }
    }

    /// # Safety
    /// The contract of [`from_raw`](Self::from_raw) applies. The region has `length` bytes.
    unsafe fn of(
        raw: NonNull<ibv_mr>,
        pd: &ProtectionDomain,
        length: usize,
        iova: u64,
        ownership: Ownership,
    ) -> Self {
        let (deregister, verb) = (pd.verbs().dereg_mr, "ibv_dereg_mr");
        // SAFETY: SAFETY.md F2, F8, F9: by this function's contract; the handle keeps the domain
        // alive. When the handle is dropped, no code of this crate uses the region, because such
        // code borrows it. By the contract of posting, all requests that name its memory have
        // completed.
        let handle = unsafe { Handle::from_raw(raw, deregister, verb, pd.clone(), ownership) };
        // SAFETY: SAFETY.md F1: the region is live, and its keys never change.
        let mr = unsafe { raw.read() };
        Self { handle, iova, length, lkey: Lkey::new(mr.lkey), rkey: Rkey::new(mr.rkey) }
    }

    /// Returns the address of the region's first byte in requests of this machine and of peers.
    #[inline]
    #[must_use]
    pub fn iova(&self) -> u64 {
        self.iova
    }

    /// Returns the length, in bytes.
    #[inline]
    #[must_use]
    #[allow(clippy::len_without_is_empty)] // no region is empty
    pub fn len(&self) -> usize {
        self.length
    }

    /// Returns the element for a range, as the source or destination of requests.
    ///
    /// # Errors
    /// Returns an error if the range is not within the region, or longer than 4 GiB - 1.
    #[inline]
    pub fn element(&self, range: Range<usize>) -> Result<SharedElement<'_>, RangeError> {
        SharedElement::within(range, self.length, self.iova, self.lkey, self.pd())
    }

    /// Returns the region's address, length and key, for sending to a peer.
    #[must_use]
    pub fn remote(&self) -> RemoteMemoryRegion {
        RemoteMemoryRegion::new(self.iova, self.length, self.rkey)
    }

    /// Returns the key for this machine's own requests.
    #[inline]
    #[must_use]
    pub fn lkey(&self) -> Lkey {
        self.lkey
    }

    /// Returns the key for peers; useless if the region has no remote access.
    #[inline]
    #[must_use]
    pub fn rkey(&self) -> Rkey {
        self.rkey
    }

    /// Returns the protection domain that the region was registered in.
    #[must_use]
    pub fn pd(&self) -> &ProtectionDomain {
        self.handle.needs()
    }

    /// Deregisters the region and releases the dma-buf.
    ///
    /// # Errors
    /// Returns the region, which is still registered, and the provider's error.
    #[doc(alias = "ibv_dereg_mr")]
    #[allow(clippy::result_large_err)] // it is the region itself
    pub fn close(self) -> Result<(), (Self, Error)> {
        let Self { handle, iova, length, lkey, rkey } = self;
        match handle.close() {
            Ok(_) => Ok(()),
            Err((handle, error)) => Err((Self { handle, iova, length, lkey, rkey }, error)),
        }
    }

    /// Returns the C object, which lives as long as `self`.
    #[inline]
    #[must_use]
    pub fn as_raw(&self) -> *mut ibv_mr {
        self.handle.as_ptr()
    }
}

/// Returns an error for arguments that every device would refuse.
fn check(offset: u64, length: usize, iova: u64, access: AccessFlags) -> Result<(), Error> {
    if length == 0 {
        return Err(Error::EmptyRegion);
    }
    access.check()?;
    let page = rustix::param::page_size() as u64;
    if !(offset ^ iova).is_multiple_of(page) {
        return Err(Error::PageOffset { offset, iova, page });
    }
    if iova.checked_add(length as u64).is_none() || offset.checked_add(length as u64).is_none() {
        let error = VerbError::new("ibv_reg_dmabuf_mr", Errno::EINVAL);
        return Err(error.with_hint(Some("the range goes beyond 64 bits".into())).into());
    }
    Ok(())
}

impl fmt::Debug for DmabufRegion {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("DmabufRegion")
            .field("iova", &format_args!("{:#x}", self.iova))
            .field("length", &self.length)
            .field("lkey", &self.lkey)
            .field("rkey", &self.rkey)
            .finish_non_exhaustive()
    }
}
