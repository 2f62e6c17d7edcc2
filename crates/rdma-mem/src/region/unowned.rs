//! Regions over the caller's memory.
#![allow(unsafe_code)]

use std::ptr::NonNull;

use rdma_sys::ibv_mr;
use rdma_types::{AccessFlags, Lkey, Rkey};

use crate::device::protection_domain::ProtectionDomain;
use crate::error::Error;
use crate::error::verb::VerbError;
use crate::object::ownership::Ownership;
use crate::region::registration::Registration;
use crate::remote::RemoteMemoryRegion;

/// A registration of memory that the region neither owns nor borrows.
///
/// The caller keeps the memory and uses it freely. Each element proves that the memory is alive,
/// because [`gather_element`](Self::gather_element) takes the slice itself. The region has no view
/// of the memory. If the memory can belong to the region, use the simpler
/// [`OwnedRegion`](crate::OwnedRegion), or the safe [`SharedRegion`](crate::SharedRegion) for
/// peers.
///
/// The software device checks that this memory is still mapped, for each copy that it makes after
/// the post. A check takes about a microsecond. Memory that a region owns or borrows needs no
/// check.
///
/// # Examples
/// ```
/// rdma_soft::install();
/// let pd = rdma_mem::open_device("soft0")?.allocate_pd()?;
/// let mut memory = [0; 64];
/// let region = pd.register_local_mr_slice(&memory)?;
/// let (header, body) = memory.split_at_mut(16);
/// let elements = [region.gather_element(header), region.gather_element(body)];
/// assert_eq!(elements[1].length(), 48);
/// # Ok::<(), rdma_mem::Error>(())
/// ```
#[doc(alias = "ibv_mr")]
#[derive(Debug)]
pub struct MemoryRegion(Registration<()>);

impl ProtectionDomain {
    /// Registers a slice for local access: requests of this machine can read and write its bytes.
    /// Peers have no access.
    ///
    /// The region does not borrow the slice, so there is one hazard. Suppose that the memory is
    /// unmapped and other memory is mapped at the same addresses while the region lives. Elements
    /// are still accepted, but a NIC uses the old pages. This loses data, but does not violate
    /// memory safety.
    ///
    /// # Errors
    /// [`Error::EmptyRegion`], or the verb's error, with a hint about the limit of locked memory.
    #[doc(alias = "ibv_reg_mr")]
    pub fn register_local_mr_slice(&self, memory: &[u8]) -> Result<MemoryRegion, Error> {
        let access = AccessFlags::new().with_local_write();
        // SAFETY: SAFETY.md F8: the memory is a slice, and no peer can use it. One clause is not
        // met: the memory might not stay mapped. Nothing depends on that clause here. Registering
        // does not access the memory. Local access happens only through elements, and each element
        // proves that the memory is alive (and exclusive, if it is written) at that time.
        unsafe { self.register_mr_with_access(memory.as_ptr().cast_mut(), memory.len(), access) }
    }

    /// Registers memory by its address for local access, like
    /// [`register_local_mr_slice`](Self::register_local_mr_slice).
    ///
    /// # Errors
    /// Same errors as [`register_local_mr_slice`](Self::register_local_mr_slice), and `EFAULT` if
    /// the memory is not mapped, or is read-only.
    ///
    /// # Safety
    /// This process may use the memory, and the memory stays mapped while the region is registered.
    #[doc(alias = "ibv_reg_mr")]
    pub unsafe fn register_local_mr(
        &self,
        address: *mut u8,
        length: usize,
    ) -> Result<MemoryRegion, Error> {
        let access = AccessFlags::new().with_local_write();
        // SAFETY: SAFETY.md F8: the caller upholds the same contract.
        unsafe { self.register_mr_with_access(address, length, access) }
    }

    /// Registers memory that peers may read and write.
    ///
    /// # Errors
    /// Same errors as [`register_local_mr`](Self::register_local_mr).
    ///
    /// # Safety
    /// The contract of [`register_mr_with_access`](Self::register_mr_with_access) applies.
    #[doc(alias = "ibv_reg_mr")]
    pub unsafe fn register_shared_mr(
        &self,
        address: *mut u8,
        length: usize,
    ) -> Result<MemoryRegion, Error> {
        let access = AccessFlags::new().with_local_write().with_remote_read().with_remote_write();
        // SAFETY: SAFETY.md F8: the caller upholds the same contract.
        unsafe { self.register_mr_with_access(address, length, access) }
    }

    /// Registers memory with any access; see `man ibv_reg_mr`.
    ///
    /// With [`AccessFlags::ZERO_BASED`], addresses in requests of peers and of this machine start
    /// at 0. Elements and [`remote`](MemoryRegion::remote) account for this.
    ///
    /// # Errors
    /// Same errors as [`register_local_mr`](Self::register_local_mr), [`Error::Access`] for flags
    /// that the verbs forbid, and [`Error::NoAtomics`] for remote atomics on a device without
    /// atomics.
    ///
    /// # Safety
    /// This process may use the memory. It stays mapped until the region is deregistered, or, if
    /// that fails, for the life of the process (SAFETY.md F8). While it is registered, these
    /// conditions hold too. If `access` lets peers write the memory, no Rust reference to it
    /// exists, and every access is atomic or volatile. If `access` lets peers read it, no `&mut` to
    /// it exists. If `access` lets peers execute atomics, the words are accessed only with 8-byte
    /// atomics.
    #[doc(alias = "ibv_reg_mr")]
    pub unsafe fn register_mr_with_access(
        &self,
        address: *mut u8,
        length: usize,
        access: AccessFlags,
    ) -> Result<MemoryRegion, Error> {
        let base = NonNull::new(address).ok_or_else(no_address)?;
        // SAFETY: SAFETY.md F8: the caller upholds the same contract.
        let registration = unsafe { Registration::new(self, base, length, access, ()) };
        registration.map(MemoryRegion).map_err(|((), error)| error)
    }
}

impl MemoryRegion {
    /// Wraps a region that was registered elsewhere. Its C object contains the address, the length
    /// and the keys, but not the `access` of the registration.
    ///
    /// # Errors
    /// [`Error::Verb`] if the region has no address. Such a region belongs to a dma-buf (use
    /// [`DmabufRegion`](crate::DmabufRegion)), or covers the whole address space (implicit ODP).
    ///
    /// # Safety
    /// The caller upholds the contract of [`Ownership`]. The region belongs to this domain, and was
    /// registered with `access` by `ibv_reg_mr`, or by a verb that sets the first address in
    /// requests (`ibv_reg_mr_iova`). That address is the memory's own, or 0 if `access` has
    /// [`AccessFlags::ZERO_BASED`]. While this value lives, the memory meets the contract of
    /// [`register_mr_with_access`](ProtectionDomain::register_mr_with_access).
    ///
    /// # Examples
    /// ```
    /// use std::ptr::NonNull;
    /// use rdma_mem::{AccessFlags, MemoryRegion, Ownership};
    ///
    /// rdma_soft::install();
    /// let pd = rdma_mem::open_device("soft0")?.allocate_pd()?;
    /// let mut memory = [0_u8; 64];
    /// let (access, start) = (AccessFlags::new().with_local_write(), memory.as_mut_ptr().cast());
    /// // SAFETY: a live domain of this table, and memory that outlives the region.
    /// let raw = unsafe { (pd.verbs().reg_mr)(pd.as_raw(), start, 64, access.bits().cast_signed()) };
    /// let raw = NonNull::new(raw).unwrap();
    /// // SAFETY: just registered like this, and not deregistered elsewhere.
    /// let region = unsafe { MemoryRegion::from_raw(raw, &pd, access, Ownership::Owned) }?;
    /// assert_eq!(region.gather_element(&memory[..16]).length(), 16);
    /// # Ok::<(), rdma_mem::Error>(())
    /// ```
    pub unsafe fn from_raw(
        raw: NonNull<ibv_mr>,
        pd: &ProtectionDomain,
        access: AccessFlags,
        ownership: Ownership,
    ) -> Result<Self, Error> {
        // SAFETY: SAFETY.md F1: the region is live and never changes.
        let ibv_mr { addr, length, .. } = unsafe { raw.read() };
        let base = NonNull::new(addr.cast()).ok_or_else(no_address)?;
        // SAFETY: SAFETY.md F2, F6, F8, F9: by this function's contract; the address and length
        // come from the region.
        let registration =
            unsafe { Registration::from_raw(pd, raw, base, length, access, (), ownership) };
        Ok(Self(registration))
    }

    /// Returns the address of the first byte, in this process.
    #[inline]
    #[must_use]
    pub fn address(&self) -> usize {
        self.0.base().as_ptr().addr()
    }

    /// Returns the length, in bytes.
    #[inline]
    #[must_use]
    pub fn length(&self) -> usize {
        self.0.length()
    }

    /// Returns the key for this machine's own requests.
    #[inline]
    #[must_use]
    pub fn lkey(&self) -> Lkey {
        self.0.lkey()
    }

    /// Returns the key for peers; useless if the region has no remote access.
    #[inline]
    #[must_use]
    pub fn rkey(&self) -> Rkey {
        self.0.rkey()
    }

    /// Returns the region's address, length and key, for sending to a peer.
    #[must_use]
    pub fn remote(&self) -> RemoteMemoryRegion {
        self.0.remote()
    }

    /// Returns the protection domain that the region was registered in.
    #[must_use]
    pub fn pd(&self) -> &ProtectionDomain {
        self.0.pd()
    }

    /// Returns true if `length` bytes at `address` lie within the region.
    #[inline]
    #[must_use]
    pub fn encloses(&self, address: *const u8, length: usize) -> bool {
        let offset = address.addr().checked_sub(self.address());
        let end = offset.and_then(|offset| offset.checked_add(length));
        end.is_some_and(|end| end <= self.length())
    }

    /// Returns true if the slice lies within the region.
    #[inline]
    #[must_use]
    pub fn encloses_slice(&self, slice: &[u8]) -> bool {
        self.encloses(slice.as_ptr(), slice.len())
    }

    /// Deregisters the region.
    ///
    /// # Errors
    /// Returns the region, which is still registered, and the provider's error.
    #[doc(alias = "ibv_dereg_mr")]
    #[allow(clippy::result_large_err)] // it is the region itself
    pub fn close(self) -> Result<(), (Self, Error)> {
        self.0.close().map_err(|(registration, error)| (Self(registration), error))
    }

    pub(crate) fn registration(&self) -> &Registration<()> {
        &self.0
    }

    /// Returns the C object, which lives as long as `self`.
    #[inline]
    #[must_use]
    pub fn as_raw(&self) -> *mut ibv_mr {
        self.0.as_raw()
    }

    /// Returns the address that requests use for the memory at `address`.
    #[inline]
    pub(crate) fn device_address(&self, address: usize) -> u64 {
        self.0.device_address(address.wrapping_sub(self.address()))
    }
}

fn no_address() -> VerbError {
    let hint = Some("the address is NULL".into());
    VerbError::new("ibv_reg_mr", rdma_sys::Errno::EFAULT).with_hint(hint)
}
