//! Regions that own their memory and give peers no access.
#![allow(unsafe_code)]

use std::fmt;

use rdma_types::AccessFlags;

use crate::device::protection_domain::ProtectionDomain;
use crate::error::Error;
use crate::region::local::LocalRegion;
use crate::region::memory::RegionMemory;
use crate::region::registration::Registration;
use crate::region::relaxed;

/// Registered memory that the region owns and that no peer can access. Use it for messages to send
/// and receive.
///
/// The region derefs to its bytes. [`get_ref`](LocalRegion::get_ref) and
/// [`get_mut`](LocalRegion::get_mut) return parts of it with the region's key. An element made from
/// such a part is always valid.
///
/// [`close`](OwnedRegion::close) returns the memory, which can then be [registered for
/// peers](ProtectionDomain::register_shared). The memory of a closed shared region can likewise be
/// [registered as an owned region](ProtectionDomain::register_owned).
///
/// A message's bytes may arrive in any order ([`RELAXED_ORDERING`](AccessFlags::RELAXED_ORDERING)),
/// but all of them have arrived when the message completes. Set `RDMA_RELAXED_ORDERING=0` in the
/// environment to keep the bytes in order.
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
    /// Allocates `length` zeroed bytes on separate pages, and registers them for local access.
    ///
    /// # Errors
    /// [`Error::EmptyRegion`]; [`Error::OutOfMemory`]; [`Error::Environment`] if
    /// `RDMA_RELAXED_ORDERING` has an invalid value; or the verb's error, with a hint about the
    /// limit of locked memory.
    #[doc(alias("ibv_reg_mr", "alloc_local_mr", "register"))]
    pub fn allocate_region(&self, length: usize) -> Result<OwnedRegion, Error> {
        self.register_owned(RegionMemory::allocate(length)?).map_err(|(_, error)| error)
    }

    /// Registers memory, such as that of a closed region, for local access. If the memory is a
    /// [file](RegionMemory::memfd), its descriptor is closed, so no further process can map it.
    ///
    /// # Errors
    /// Returns the unchanged memory, and one of the errors of
    /// [`allocate_region`](Self::allocate_region).
    #[doc(alias = "ibv_reg_mr")]
    pub fn register_owned(
        &self,
        memory: RegionMemory,
    ) -> Result<OwnedRegion, (RegionMemory, Error)> {
        OwnedRegion::register_with(self, memory, AccessFlags::new().with_local_write())
    }

    /// Allocates `length` zeroed bytes on separate pages, and registers them for a
    /// [`MemoryWindow`](crate::MemoryWindow), which takes the region by value.
    ///
    /// # Errors
    /// Same errors as [`allocate_region`](Self::allocate_region). A device without windows may
    /// refuse the registration.
    #[doc(alias = "IBV_ACCESS_MW_BIND")]
    pub fn allocate_bindable_region(&self, length: usize) -> Result<OwnedRegion, Error> {
        self.register_bindable(RegionMemory::allocate(length)?).map_err(|(_, error)| error)
    }

    /// Registers memory, such as that of a closed region, like
    /// [`allocate_bindable_region`](Self::allocate_bindable_region).
    ///
    /// # Errors
    /// Returns the unchanged memory, and one of the errors of
    /// [`allocate_bindable_region`](Self::allocate_bindable_region).
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
        // SAFETY: SAFETY.md F8: both callers grant peers no right, so the rkey is useless.
        let mut registration = unsafe { Registration::owning(pd, memory, access) }?;
        // The region exposes its bytes as a slice, so no other code may access them through a file.
        // Besides, one open descriptor per region would be too many.
        registration.memory_mut().close_file();
        // SAFETY: SAFETY.md F16: the memory is mapped and initialised, and the registration owns
        // it. No peer has a right to it, and no file exists through which others could write it.
        Ok(unsafe { Self::new(registration) })
    }

    /// Deregisters the region and returns the memory.
    ///
    /// # Errors
    /// Returns the region, which is still registered, and the provider's error.
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
