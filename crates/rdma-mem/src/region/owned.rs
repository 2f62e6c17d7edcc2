//! Regions with memory of their own, for this machine alone.
#![allow(unsafe_code)]

use std::ops::{Deref, DerefMut};

use rdma_sys::ibv_mr;
use rdma_types::{AccessFlags, Lkey};

use crate::device::protection_domain::ProtectionDomain;
use crate::element::slice::{SliceMut, SliceRef};
use crate::error::Error;
use crate::region::memory::RegionMemory;
use crate::region::registration::Registration;

/// Registered memory that the region owns and no peer can reach: the one to take for what is sent and
/// received.
///
/// It derefs to its bytes. Pieces of it that carry the region's key come from
/// [`get_ref`](Self::get_ref) and [`get_mut`](Self::get_mut); an element made from one cannot be wrong.
///
/// [`close`](Self::close) gives the memory back, which can then be
/// [registered for peers](crate::SharedRegion::register), and the other way round.
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
#[derive(Debug)]
pub struct OwnedRegion(Registration<RegionMemory>);

impl OwnedRegion {
    /// Allocates `length` bytes, zero, on pages of their own, and registers them.
    ///
    /// # Errors
    /// [`Error::EmptyRegion`], [`Error::OutOfMemory`], or the verb's: the hint tells about the limit
    /// of locked memory.
    #[doc(alias = "ibv_reg_mr")]
    pub fn allocate(pd: &ProtectionDomain, length: usize) -> Result<Self, Error> {
        Self::register(pd, RegionMemory::allocate(length)?).map_err(|(_, error)| error)
    }

    /// Registers memory that was a region's before. If it is a [file](RegionMemory::memfd), its
    /// descriptor is closed, and it is none any more.
    ///
    /// # Errors
    /// As [`allocate`](Self::allocate), with the memory as it was.
    #[doc(alias = "ibv_reg_mr")]
    pub fn register(
        pd: &ProtectionDomain,
        memory: RegionMemory,
    ) -> Result<Self, (RegionMemory, Error)> {
        Self::register_with(pd, memory, AccessFlags::new().with_local_write())
    }

    /// Allocates `length` bytes, zero, on pages of their own, and registers them so that a
    /// [`MemoryWindow`](crate::MemoryWindow) can be bound to them, which takes the region by value.
    ///
    /// # Errors
    /// As [`allocate`](Self::allocate); a device without windows may refuse it.
    #[doc(alias = "IBV_ACCESS_MW_BIND")]
    pub fn allocate_bindable(pd: &ProtectionDomain, length: usize) -> Result<Self, Error> {
        Self::register_bindable(pd, RegionMemory::allocate(length)?).map_err(|(_, error)| error)
    }

    /// As [`allocate_bindable`](Self::allocate_bindable), with memory that was a region's before.
    ///
    /// # Errors
    /// As there, with the memory.
    #[doc(alias = "IBV_ACCESS_MW_BIND")]
    pub fn register_bindable(
        pd: &ProtectionDomain,
        memory: RegionMemory,
    ) -> Result<Self, (RegionMemory, Error)> {
        Self::register_with(pd, memory, AccessFlags::new().with_local_write().with_mw_bind())
    }

    fn register_with(
        pd: &ProtectionDomain,
        memory: RegionMemory,
        access: AccessFlags,
    ) -> Result<Self, (RegionMemory, Error)> {
        let (base, length) = (memory.base(), memory.len());
        // SAFETY: SAFETY.md F8: the registration owns the memory, and no peer may use it.
        let mut registration = unsafe { Registration::new(pd, base, length, access, memory) }?;
        // It shows its bytes as a slice, so nobody is to get at them by way of a file; and a
        // descriptor for each region would be many.
        registration.memory_mut().close_file();
        Ok(Self(registration))
    }

    pub(crate) fn registration(&self) -> &Registration<RegionMemory> {
        &self.0
    }

    /// `length` bytes at `offset`, to send or write from; `None` if they are not within the region.
    #[inline]
    #[must_use]
    pub fn get_ref(&self, offset: usize, length: usize) -> Option<SliceRef<'_>> {
        // SAFETY: SAFETY.md F16: the region's own memory, initialised when it was allocated, which no peer can
        // reach, and which a request of this machine names only if its poster promised to leave it alone.
        unsafe { self.0.slice(offset, length) }
    }

    /// `length` bytes at `offset`, exclusively: also to receive or read into. `None` if they are not
    /// within the region.
    #[inline]
    #[must_use]
    pub fn get_mut(&mut self, offset: usize, length: usize) -> Option<SliceMut<'_>> {
        // SAFETY: SAFETY.md F16: as above, by `&mut self`.
        unsafe { self.0.slice_mut(offset, length) }
    }

    /// The whole region, to send or write from.
    #[inline]
    #[must_use]
    pub fn as_slice(&self) -> SliceRef<'_> {
        // SAFETY: SAFETY.md F16: as `get_ref`.
        unsafe { self.0.whole() }
    }

    /// The whole region, exclusively: also to receive or read into.
    #[inline]
    #[must_use]
    pub fn as_slice_mut(&mut self) -> SliceMut<'_> {
        // SAFETY: SAFETY.md F16: as above, by `&mut self`.
        unsafe { self.0.whole_mut() }
    }

    /// The first `middle` bytes and the rest, both exclusively.
    ///
    /// # Panics
    /// If `middle` is more than the length.
    #[inline]
    #[must_use]
    pub fn split_at(&mut self, middle: usize) -> (SliceMut<'_>, SliceMut<'_>) {
        self.as_slice_mut().split_at(middle)
    }

    /// The key for this machine's own requests.
    #[inline]
    #[must_use]
    pub fn lkey(&self) -> Lkey {
        self.0.lkey()
    }

    /// The domain that it was registered in.
    #[must_use]
    pub fn pd(&self) -> &ProtectionDomain {
        self.0.pd()
    }

    /// Deregisters, and gives the memory back.
    ///
    /// # Errors
    /// What the provider says, with the region, which is still registered.
    #[doc(alias = "ibv_dereg_mr")]
    #[allow(clippy::result_large_err)] // it is the region itself
    pub fn close(self) -> Result<RegionMemory, (Self, Error)> {
        self.0.close().map_err(|(registration, error)| (Self(registration), error))
    }

    /// The C object, live as long as `self`.
    #[inline]
    #[must_use]
    pub fn as_raw(&self) -> *mut ibv_mr {
        self.0.as_raw()
    }
}

impl Deref for OwnedRegion {
    type Target = [u8];

    #[inline]
    fn deref(&self) -> &[u8] {
        // SAFETY: SAFETY.md F16: as `get_ref`.
        unsafe { self.0.bytes() }
    }
}

impl DerefMut for OwnedRegion {
    #[inline]
    fn deref_mut(&mut self) -> &mut [u8] {
        // SAFETY: SAFETY.md F16: as above, by `&mut self`.
        unsafe { self.0.bytes_mut() }
    }
}
