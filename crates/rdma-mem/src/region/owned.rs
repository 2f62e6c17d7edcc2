//! Regions with memory of their own, for this machine alone.
#![allow(unsafe_code)]

use std::fmt;

use rdma_types::AccessFlags;

use crate::device::protection_domain::ProtectionDomain;
use crate::error::Error;
use crate::region::local::LocalRegion;
use crate::region::memory::RegionMemory;
use crate::region::registration::Registration;
use crate::region::relaxed;

/// Registered memory that the region owns and no peer can reach. Use it for messages to send and receive.
///
/// The region derefs to its bytes. Pieces of it that carry the region's key come from
/// [`get_ref`](LocalRegion::get_ref) and [`get_mut`](LocalRegion::get_mut); an element made from
/// one cannot be wrong.
///
/// [`close`](OwnedRegion::close) returns the memory, which can then be [registered for
/// peers](ProtectionDomain::register_shared), and the other way round.
///
/// The bytes of a message may arrive in any order ([`RELAXED_ORDERING`](AccessFlags::RELAXED_ORDERING)); after the
/// completion all of them are there. `RDMA_RELAXED_ORDERING=0` in the environment turns that off.
///
/// # Examples
/// ```
/// use rdma_mem::AccessFlags;
///
/// rdma_soft::install();
/// let pd = rdma_mem::open_device("soft0")?.allocate_pd()?;
/// let mut region = pd.allocate_region(1 << 20)?;
/// region[..5].copy_from_slice(b"hello");
/// assert_eq!(region.get_ref(0, 5).unwrap().gather_element().length(), 5);
///
/// // The same memory, for peers to read.
/// let memory = region.close().map_err(|(_, error)| error)?;
/// let access = AccessFlags::new().with_remote_read();
/// let shared = pd.register_shared(memory, access).map_err(|(_, error)| error)?;
/// assert_eq!(shared.remote().length(), 1 << 20);
/// # Ok::<(), rdma_mem::Error>(())
/// ```
#[doc(alias = "ibv_mr")]
pub type OwnedRegion = LocalRegion<RegionMemory>;

impl ProtectionDomain {
    /// Allocates `length` zeroed bytes on pages of their own, and registers them for local access.
    ///
    /// # Errors
    /// [`Error::EmptyRegion`], [`Error::OutOfMemory`], or the verb's: the hint is about the limit
    /// of locked memory.
    #[doc(alias("ibv_reg_mr", "alloc_local_mr", "register"))]
    pub fn allocate_region(&self, length: usize) -> Result<OwnedRegion, Error> {
        self.register_owned(RegionMemory::allocate(length)?).map_err(|(_, error)| error)
    }

    /// Registers memory of a closed region again, for local access. If it is a [file](RegionMemory::memfd),
    /// closes its descriptor, after which no process can map the memory.
    ///
    /// # Errors
    /// Same errors as [`allocate_region`](Self::allocate_region), with the unchanged memory.
    #[doc(alias = "ibv_reg_mr")]
    pub fn register_owned(
        &self,
        memory: RegionMemory,
    ) -> Result<OwnedRegion, (RegionMemory, Error)> {
        OwnedRegion::register_with(self, memory, AccessFlags::new().with_local_write())
    }

    /// Allocates `length` zeroed bytes on pages of their own, and registers them so that a
    /// [`MemoryWindow`](crate::MemoryWindow) can be bound to them, which takes the region by value.
    ///
    /// # Errors
    /// Same errors as [`allocate_region`](Self::allocate_region); a device without windows may refuse it.
    #[doc(alias = "IBV_ACCESS_MW_BIND")]
    pub fn allocate_bindable_region(&self, length: usize) -> Result<OwnedRegion, Error> {
        self.register_bindable(RegionMemory::allocate(length)?).map_err(|(_, error)| error)
    }

    /// Registers memory of a closed region again; same as
    /// [`allocate_bindable_region`](Self::allocate_bindable_region) otherwise.
    ///
    /// # Errors
    /// Same errors as [`allocate_bindable_region`](Self::allocate_bindable_region), with the unchanged memory.
    #[doc(alias = "IBV_ACCESS_MW_BIND")]
    pub fn register_bindable(
        &self,
        memory: RegionMemory,
    ) -> Result<OwnedRegion, (RegionMemory, Error)> {
        let access = AccessFlags::new().with_local_write().with_mw_bind();
        OwnedRegion::register_with(self, memory, access)
    }
}

impl OwnedRegion {
    fn register_with(
        pd: &ProtectionDomain,
        memory: RegionMemory,
        access: AccessFlags,
    ) -> Result<Self, (RegionMemory, Error)> {
        let access = match relaxed::relax(access) {
            Ok(access) => access,
            Err(error) => return Err((memory, error)),
        };
        // SAFETY: SAFETY.md F8: both callers give no right for peers, so that the rkey is worth
        // nothing.
        let mut registration = unsafe { Registration::owning(pd, memory, access) }?;
        // It shows its bytes as a slice, so nobody is to get at them by way of a file; and a
        // descriptor for each region would be many.
        registration.memory_mut().close_file();
        // SAFETY: SAFETY.md F16: mapped and initialised by its allocation, and the registration's
        // own; no peer has a right to it, and there is no file by which others might write it.
        Ok(unsafe { Self::new(registration) })
    }

    /// Deregisters, and gives the memory back.
    ///
    /// # Errors
    /// The provider's error, with the region, which is still registered.
    #[doc(alias = "ibv_dereg_mr")]
    #[allow(clippy::result_large_err)] // it is the region itself
    pub fn close(self) -> Result<RegionMemory, (Self, Error)> {
        self.deregister()
    }
}

impl fmt::Debug for OwnedRegion {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_tuple("OwnedRegion").field(self.registration()).finish()
    }
}
