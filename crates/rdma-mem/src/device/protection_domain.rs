//! Protection domains.
#![allow(unsafe_code)]

use std::os::fd::BorrowedFd;
use std::ptr::NonNull;
use std::sync::Arc;

use rdma_sys::{Verbs, ibv_pd};
use rdma_types::AccessFlags;

use crate::device::context::{Context, check_null};
use crate::error::Error;
use crate::fork::Forked;
use crate::object::handle::Handle;
use crate::object::ownership::Ownership;
use crate::region::borrowed::BorrowedRegion;
use crate::region::dmabuf::DmabufRegion;
use crate::region::memory::RegionMemory;
use crate::region::owned::OwnedRegion;
use crate::region::shared::SharedRegion;
use crate::region::unowned::MemoryRegion;

/// A protection domain (PD): the fence within which queue pairs may use memory regions.
///
/// A queue pair reaches only regions of its own domain, for its own requests as for those of its peer.
/// Clones are cheap and name the same domain; whatever is made from it keeps it alive.
///
/// # Examples
/// ```
/// rdma_soft::install();
/// let pd = rdma_mem::open_device("soft0")?.allocate_pd()?;
/// let mut region = pd.allocate_region(4096)?;
/// region[..5].copy_from_slice(b"hello");
/// # Ok::<(), rdma_mem::Error>(())
/// ```
#[doc(alias = "ibv_pd")]
#[derive(Clone, Debug)]
pub struct ProtectionDomain(Arc<Handle<ibv_pd, Context>>);

impl ProtectionDomain {
    /// Allocates a domain; see `man ibv_alloc_pd`.
    ///
    /// # Errors
    /// If the provider refuses.
    #[doc(alias = "ibv_alloc_pd")]
    pub fn allocate(context: &Context) -> Result<Self, Error> {
        context.check_process()?;
        let verbs = context.verbs();
        // SAFETY: SAFETY.md F1, F2: a live context of this table.
        let raw = check_null("ibv_alloc_pd", unsafe { (verbs.alloc_pd)(context.as_raw()) })?;
        let context = context.clone();
        // SAFETY: SAFETY.md F2, F9: just allocated by this table; it needs the context. What is made
        // from the domain holds a clone of it (F6).
        let handle = unsafe { Handle::new(raw, verbs.dealloc_pd, "ibv_dealloc_pd", context) };
        Ok(Self(Arc::new(handle)))
    }

    /// Makes one of a domain that was allocated elsewhere, a parent domain too. [`Ownership`] has an
    /// example.
    ///
    /// # Safety
    /// What [`Ownership`] says; the domain is of this context.
    #[must_use]
    pub unsafe fn from_raw(raw: NonNull<ibv_pd>, context: &Context, ownership: Ownership) -> Self {
        let (deallocate, verb) = (context.verbs().dealloc_pd, "ibv_dealloc_pd");
        // SAFETY: SAFETY.md F2, F6, F9: this function's contract; it needs the context.
        let handle = unsafe { Handle::from_raw(raw, deallocate, verb, context.clone(), ownership) };
        Self(Arc::new(handle))
    }

    /// The context that it was made from.
    #[must_use]
    pub fn context(&self) -> &Context {
        self.0.needs()
    }

    /// Allocates and registers memory for this machine's own use; as [`OwnedRegion::allocate`].
    ///
    /// # Errors
    /// As there.
    pub fn allocate_region(&self, length: usize) -> Result<OwnedRegion, Error> {
        OwnedRegion::allocate(self, length)
    }

    /// Allocates and registers memory that a [`MemoryWindow`](crate::MemoryWindow) can lend to peers; as
    /// [`OwnedRegion::allocate_bindable`].
    ///
    /// # Errors
    /// As there.
    pub fn allocate_bindable_region(&self, length: usize) -> Result<OwnedRegion, Error> {
        OwnedRegion::allocate_bindable(self, length)
    }

    /// Allocates and registers memory that peers may use; as [`SharedRegion::allocate`].
    ///
    /// # Errors
    /// As there.
    pub fn allocate_shared_region(
        &self,
        length: usize,
        access: AccessFlags,
    ) -> Result<SharedRegion, Error> {
        SharedRegion::allocate(self, length, access)
    }

    /// Registers memory of a closed region again; as [`OwnedRegion::register`].
    ///
    /// # Errors
    /// As there.
    pub fn register_owned(
        &self,
        memory: RegionMemory,
    ) -> Result<OwnedRegion, (RegionMemory, Error)> {
        OwnedRegion::register(self, memory)
    }

    /// Registers memory of a closed region for peers; as [`SharedRegion::register`].
    ///
    /// # Errors
    /// As there.
    pub fn register_shared(
        &self,
        memory: RegionMemory,
        access: AccessFlags,
    ) -> Result<SharedRegion, (RegionMemory, Error)> {
        SharedRegion::register(self, memory, access)
    }

    /// Registers a slice for this machine's own use, and borrows it; as [`BorrowedRegion::register`].
    ///
    /// # Errors
    /// As there.
    #[doc(alias = "ibv_reg_mr")]
    pub fn register_borrowed<'a>(&self, memory: &'a mut [u8]) -> Result<BorrowedRegion<'a>, Error> {
        BorrowedRegion::register(self, memory)
    }

    /// Registers a slice for local access; as [`MemoryRegion::register_local_mr_slice`].
    ///
    /// # Errors
    /// As there.
    #[doc(alias = "ibv_reg_mr")]
    pub fn register_local_mr_slice(&self, memory: &[u8]) -> Result<MemoryRegion, Error> {
        MemoryRegion::register_local_mr_slice(self, memory)
    }

    /// Registers memory for local access; as [`MemoryRegion::register_local_mr`].
    ///
    /// # Errors
    /// As there.
    ///
    /// # Safety
    /// As there.
    #[doc(alias = "ibv_reg_mr")]
    pub unsafe fn register_local_mr(
        &self,
        address: *mut u8,
        length: usize,
    ) -> Result<MemoryRegion, Error> {
        // SAFETY: SAFETY.md F8: the same contract.
        unsafe { MemoryRegion::register_local_mr(self, address, length) }
    }

    /// Registers memory that peers may read and write; as [`MemoryRegion::register_shared_mr`].
    ///
    /// # Errors
    /// As there.
    ///
    /// # Safety
    /// As there.
    #[doc(alias = "ibv_reg_mr")]
    pub unsafe fn register_shared_mr(
        &self,
        address: *mut u8,
        length: usize,
    ) -> Result<MemoryRegion, Error> {
        // SAFETY: SAFETY.md F8: the same contract.
        unsafe { MemoryRegion::register_shared_mr(self, address, length) }
    }

    /// Registers memory with any access; as [`MemoryRegion::register_mr_with_access`].
    ///
    /// # Errors
    /// As there.
    ///
    /// # Safety
    /// As there.
    #[doc(alias = "ibv_reg_mr")]
    pub unsafe fn register_mr_with_access(
        &self,
        address: *mut u8,
        length: usize,
        access: AccessFlags,
    ) -> Result<MemoryRegion, Error> {
        // SAFETY: SAFETY.md F8: the same contract.
        unsafe { MemoryRegion::register_mr_with_access(self, address, length, access) }
    }

    /// Registers memory of a dma-buf for local access; as
    /// [`DmabufRegion::register_local_dmabuf_mr`].
    ///
    /// # Errors
    /// As there.
    #[doc(alias = "ibv_reg_dmabuf_mr")]
    pub fn register_local_dmabuf_mr(
        &self,
        fd: BorrowedFd<'_>,
        offset: u64,
        length: usize,
        iova: u64,
    ) -> Result<DmabufRegion, Error> {
        DmabufRegion::register_local_dmabuf_mr(self, fd, offset, length, iova)
    }

    /// Registers memory of a dma-buf that peers may read and write; as
    /// [`DmabufRegion::register_shared_dmabuf_mr`].
    ///
    /// # Errors
    /// As there.
    ///
    /// # Safety
    /// As there.
    #[doc(alias = "ibv_reg_dmabuf_mr")]
    pub unsafe fn register_shared_dmabuf_mr(
        &self,
        fd: BorrowedFd<'_>,
        offset: u64,
        length: usize,
        iova: u64,
    ) -> Result<DmabufRegion, Error> {
        // SAFETY: SAFETY.md F8: the same contract.
        unsafe { DmabufRegion::register_shared_dmabuf_mr(self, fd, offset, length, iova) }
    }

    /// Registers memory of a dma-buf with any access; as
    /// [`DmabufRegion::register_dmabuf_mr_with_access`].
    ///
    /// # Errors
    /// As there.
    ///
    /// # Safety
    /// As there.
    #[doc(alias = "ibv_reg_dmabuf_mr")]
    pub unsafe fn register_dmabuf_mr_with_access(
        &self,
        fd: BorrowedFd<'_>,
        offset: u64,
        length: usize,
        iova: u64,
        access: AccessFlags,
    ) -> Result<DmabufRegion, Error> {
        // SAFETY: SAFETY.md F8: the same contract.
        unsafe {
            DmabufRegion::register_dmabuf_mr_with_access(self, fd, offset, length, iova, access)
        }
    }

    /// Deallocates the domain.
    ///
    /// # Errors
    /// With the domain: [`Error::StillUsed`] if a clone or something made from it is alive, or what
    /// the provider says.
    #[doc(alias = "ibv_dealloc_pd")]
    pub fn close(self) -> Result<(), (Self, Error)> {
        match Arc::try_unwrap(self.0) {
            Ok(handle) => {
                handle.close().map(drop).map_err(|(handle, error)| (Self(Arc::new(handle)), error))
            }
            Err(shared) => Err((Self(shared), Error::StillUsed { what: "protection domain" })),
        }
    }

    /// Whether both are clones of one domain.
    #[inline]
    #[must_use]
    pub fn is_same(&self, other: &Self) -> bool {
        Arc::ptr_eq(&self.0, &other.0)
    }

    /// Whether this process is the one that made it. Who calls verbs on [`as_raw`](Self::as_raw) that are
    /// not on the data path asks first.
    ///
    /// # Errors
    /// If it is a child that was forked since.
    pub fn check_process(&self) -> Result<(), Forked> {
        self.0.check_process()
    }

    /// The functions of the domain's provider.
    #[inline]
    #[must_use]
    pub fn verbs(&self) -> &'static Verbs {
        self.context().verbs()
    }

    /// The C object, live as long as `self` or a clone.
    #[inline]
    #[must_use]
    pub fn as_raw(&self) -> *mut ibv_pd {
        self.0.as_ptr()
    }
}
