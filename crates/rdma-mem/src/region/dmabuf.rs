//! Regions of memory from a dma-buf.
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

/// Registered memory from a file descriptor: a dma-buf, the kernel's interface for sharing memory, such as that of a
/// GPU. It need not be the processor's memory.
///
/// The memory is not mapped into the process, so the region has no view of the bytes; requests name
/// [ranges](Self::element). The region keeps the memory alive: the descriptor may be closed after
/// the registration.
///
/// Addresses in requests of this machine and of peers start at `iova`. It can be any number with the same offset within
/// a page as `offset`.
///
/// The software device accepts dma-bufs that can be mapped, and sealed files in memory
/// ([`RegionMemory::memfd`](crate::RegionMemory::memfd)) instead.
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
    /// Registers `length` bytes at `offset` of a dma-buf for local access: they can be sent, and can be received or
    /// read into. Peers have no access. See `man ibv_reg_dmabuf_mr`.
    ///
    /// This is safe, although the memory may be mapped elsewhere and visible as a slice. The code that created that
    /// slice has promised that no process changes the file meanwhile. Any process with a descriptor can do so. Requests
    /// of this machine change the file like `write(2)`.
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
        // SAFETY: SAFETY.md F8: the access lets peers neither write nor read it.
        unsafe { self.register_dmabuf_mr_with_access(fd, offset, length, iova, access) }
    }

    /// Registers memory of a dma-buf that peers may read and write.
    ///
    /// # Errors
    /// The errors are those of [`register_local_dmabuf_mr`](Self::register_local_dmabuf_mr).
    ///
    /// # Safety
    /// The contract is that of
    /// [`register_dmabuf_mr_with_access`](Self::register_dmabuf_mr_with_access).
    #[doc(alias = "ibv_reg_dmabuf_mr")]
    pub unsafe fn register_shared_dmabuf_mr(
        &self,
        fd: BorrowedFd<'_>,
        offset: u64,
        length: usize,
        iova: u64,
    ) -> Result<DmabufRegion, Error> {
        let access = AccessFlags::new().with_local_write().with_remote_read().with_remote_write();
        // SAFETY: SAFETY.md F8: the same contract.
        unsafe { self.register_dmabuf_mr_with_access(fd, offset, length, iova, access) }
    }

    /// Registers memory of a dma-buf with any access that dma-bufs support: local write, remote read, write and
    /// atomics, relaxed ordering.
    ///
    /// # Errors
    /// The errors are those of [`register_local_dmabuf_mr`](Self::register_local_dmabuf_mr), and [`Error::Access`] for
    /// flags that the verbs forbid.
    ///
    /// # Safety
    /// While `access` lets peers write the memory, no process has a reference to it by any mapping of the file. Every
    /// access of a process is atomic or volatile then. While it lets them read the memory, no process has a `&mut`.
    /// Requests of this machine change the file as described for
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
        // SAFETY: SAFETY.md F1, F2: a live domain of this table and an open file. The memory
        // belongs to the file, which the provider keeps alive (man ibv_reg_dmabuf_mr).
        let raw = unsafe { register(self.as_raw(), offset, length, iova, fd.as_raw_fd(), flags) };
        let raw = Errno::check_null(raw).map_err(|errno| {
            let hint = hint::register_dmabuf(self.context(), errno, length);
            VerbError::new("ibv_reg_dmabuf_mr", errno).with_hint(hint)
        })?;
        // SAFETY: SAFETY.md F2, F8, F9: just registered by this table, in this domain, with this length and starting at
        // `iova`, so no other code has it. The memory is as this function's contract requires.
        Ok(unsafe { DmabufRegion::of(raw, self, length, iova, Ownership::Owned) })
    }
}

impl DmabufRegion {
    /// Wraps a region that was registered elsewhere, by `ibv_reg_dmabuf_mr`. Its C object has the length and the keys,
    /// but not `iova`, the address of its first byte in requests.
    ///
    /// A region of other memory can be wrapped too if elements by range are enough: one that was registered by
    /// `ibv_reg_mr_iova`, for example.
    ///
    /// # Safety
    /// [`Ownership`] states the contract. The region is of this domain, and starts at `iova` in requests. The memory
    /// meets the contract of [`register_dmabuf_mr_with_access`](ProtectionDomain::register_dmabuf_mr_with_access).
    ///
    /// Memory that is not a dma-buf's has two more conditions. It stays mapped while it is registered. No reference to it
    /// exists until the value and all requests that name an element of it have ended. Safe code of `rdma-channel`
    /// posts elements.
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
        // SAFETY: SAFETY.md F1: a live region, whose length does not change.
        let length = unsafe { (*raw.as_ptr()).length };
        // SAFETY: SAFETY.md F2, F6, F8, F9: this function's contract.
        unsafe { Self::of(raw, pd, length, iova, ownership) }
    }

    /// # Safety
    /// The contract is that of [`from_raw`](Self::from_raw), and the region has `length` bytes.
    unsafe fn of(
        raw: NonNull<ibv_mr>,
        pd: &ProtectionDomain,
        length: usize,
        iova: u64,
        ownership: Ownership,
    ) -> Self {
        let (deregister, verb) = (pd.verbs().dereg_mr, "ibv_dereg_mr");
        // SAFETY: SAFETY.md F2, F8, F9: this function's contract; it needs the domain. Code here that uses the region
        // borrows it. By the contract of posting, requests that name its memory have completed.
        let handle = unsafe { Handle::from_raw(raw, deregister, verb, pd.clone(), ownership) };
        // SAFETY: SAFETY.md F1: a live region, whose keys do not change.
        let mr = unsafe { raw.read() };
        Self { handle, iova, length, lkey: Lkey::new(mr.lkey), rkey: Rkey::new(mr.rkey) }
    }

    /// Returns the address of its first byte in requests of this machine and of peers.
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

    /// Returns the element for a range, to send or write from, or to receive or read into.
    ///
    /// # Errors
    /// Returns an error if the range is not within the region, or longer than 4 GiB - 1.
    #[inline]
    pub fn element(&self, range: Range<usize>) -> Result<SharedElement<'_>, RangeError> {
        SharedElement::within(range, self.length, self.iova, self.lkey, self.pd())
    }

    /// Returns the region as a peer names it, for sending to that peer.
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

    /// Deregisters the region, and releases the dma-buf.
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

/// Finds mistakes that every device refuses.
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
