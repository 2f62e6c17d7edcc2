//! What a protection domain registers, each as the region's own constructor does.
#![allow(unsafe_code)]

use std::os::fd::BorrowedFd;

use bytemuck::Pod;
use rdma_types::AccessFlags;

use crate::device::protection_domain::ProtectionDomain;
use crate::error::Error;
use crate::region::array::OwnedArray;
use crate::region::borrowed::BorrowedRegion;
use crate::region::dmabuf::DmabufRegion;
use crate::region::memory::RegionMemory;
use crate::region::owned::OwnedRegion;
use crate::region::shared::SharedRegion;
use crate::region::unowned::MemoryRegion;

impl ProtectionDomain {
    /// Allocates and registers memory for this machine's own use; as [`OwnedRegion::allocate`].
    ///
    /// # Errors
    /// Those of that constructor.
    #[doc(alias("alloc_local_mr", "register"))]
    pub fn allocate_region(&self, length: usize) -> Result<OwnedRegion, Error> {
        OwnedRegion::allocate(self, length)
    }

    /// Allocates and registers memory for values, for this machine's own use; as [`OwnedArray::allocate`].
    ///
    /// # Errors
    /// Those of that constructor.
    pub fn allocate_array<T: Pod>(&self, count: usize) -> Result<OwnedArray<T>, Error> {
        OwnedArray::allocate(self, count)
    }

    /// Allocates and registers memory that a [`MemoryWindow`](crate::MemoryWindow) can lend to peers; as
    /// [`OwnedRegion::allocate_bindable`].
    ///
    /// # Errors
    /// Those of that constructor.
    pub fn allocate_bindable_region(&self, length: usize) -> Result<OwnedRegion, Error> {
        OwnedRegion::allocate_bindable(self, length)
    }

    /// Allocates and registers memory that peers may use; as [`SharedRegion::allocate`].
    ///
    /// # Errors
    /// Those of that constructor.
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
    /// Those of that constructor.
    pub fn register_owned(
        &self,
        memory: RegionMemory,
    ) -> Result<OwnedRegion, (RegionMemory, Error)> {
        OwnedRegion::register(self, memory)
    }

    /// Registers memory of a closed region for peers; as [`SharedRegion::register`].
    ///
    /// # Errors
    /// Those of that constructor.
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
    /// Those of that constructor.
    #[doc(alias = "ibv_reg_mr")]
    pub fn register_borrowed<'a>(&self, memory: &'a mut [u8]) -> Result<BorrowedRegion<'a>, Error> {
        BorrowedRegion::register(self, memory)
    }

    /// Registers a slice for local access; as [`MemoryRegion::register_local_mr_slice`].
    ///
    /// # Errors
    /// Those of that constructor.
    #[doc(alias = "ibv_reg_mr")]
    pub fn register_local_mr_slice(&self, memory: &[u8]) -> Result<MemoryRegion, Error> {
        MemoryRegion::register_local_mr_slice(self, memory)
    }

    /// Registers memory for local access; as [`MemoryRegion::register_local_mr`].
    ///
    /// # Errors
    /// Those of that constructor.
    ///
    /// # Safety
    /// What that constructor asks for.
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
    /// Those of that constructor.
    ///
    /// # Safety
    /// What that constructor asks for.
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
    /// Those of that constructor.
    ///
    /// # Safety
    /// What that constructor asks for.
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
    /// Those of that constructor.
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
    /// Those of that constructor.
    ///
    /// # Safety
    /// What that constructor asks for.
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
    /// Those of that constructor.
    ///
    /// # Safety
    /// What that constructor asks for.
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
}
