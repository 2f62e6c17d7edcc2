//! Memory that several regions share.
#![allow(unsafe_code)]

use std::fmt;
use std::ops::Range;
use std::sync::Arc;

use rdma_types::{AccessFlags, Rkey};

use crate::device::protection_domain::ProtectionDomain;
use crate::error::Error;
use crate::region::memory::RegionMemory;
use crate::region::registration::Registration;
use crate::remote::RemoteMemoryRegion;

/// Memory that is open to several peers at the same time. Each peer has its own range, rights and
/// key.
///
/// It has no view of its bytes: while a [part](CommonRegion) of it is registered, peers may change
/// them. After all parts are closed and all clones are dropped,
/// [`try_into_memory`](Self::try_into_memory) returns the memory.
///
/// # Examples
/// ```
/// use rdma_mem::{AccessFlags, CommonMemory, RegionMemory};
///
/// rdma_soft::install();
/// let pd = rdma_mem::open_device("soft0")?.allocate_pd()?;
/// let memory = CommonMemory::new(RegionMemory::allocate(8192)?);
/// let to_read = memory.open(&pd, 0..8192, AccessFlags::new().with_remote_read())?;
/// let to_write = memory.open(&pd, 100..200, AccessFlags::new().with_local_write().with_remote_write())?;
/// assert_ne!(to_read.rkey(), to_write.rkey());
/// assert_eq!(to_write.remote().length(), 100);
///
/// let memory = memory.try_into_memory().unwrap_err(); // it is open
/// to_read.close().map_err(|(_, error)| error)?;
/// to_write.close().map_err(|(_, error)| error)?;
/// assert_eq!(memory.try_into_memory().unwrap().len(), 8192);
/// # Ok::<(), rdma_mem::Error>(())
/// ```
#[derive(Clone)]
pub struct CommonMemory(Arc<RegionMemory>);

impl CommonMemory {
    /// Creates common memory from exclusive memory.
    #[must_use]
    pub fn new(memory: RegionMemory) -> Self {
        Self(Arc::new(memory))
    }

    /// Returns the length, in bytes.
    #[must_use]
    #[allow(clippy::len_without_is_empty)] // no region is empty
    pub fn len(&self) -> usize {
        self.0.length()
    }

    /// Registers `range` of the memory, in bytes from the beginning, with these access flags.
    ///
    /// # Errors
    /// [`Error::EmptyRegion`] for 0 bytes; [`Error::Access`] for flags that the verbs forbid;
    /// [`Error::NoAtomics`] for remote atomics on a device without atomics; or the verb's error,
    /// with a hint about the limit of locked memory.
    ///
    /// # Panics
    /// Panics if the range is not within the memory.
    #[doc(alias = "ibv_reg_mr")]
    #[track_caller]
    pub fn open(
        &self,
        pd: &ProtectionDomain,
        range: Range<usize>,
        access: AccessFlags,
    ) -> Result<CommonRegion, Error> {
        let is_within = range.start <= range.end && range.end <= self.len();
        assert!(is_within, "{range:?} is not within {} bytes", self.len());
        let (length, memory) = (range.len(), self.clone());
        // SAFETY: SAFETY.md F16: the range is within the memory, which `self` keeps alive.
        let base = unsafe { self.0.base().add(range.start) };
        // SAFETY: SAFETY.md F8, F16, F29: the memory stays mapped until the last clone is dropped,
        // and the registration has a clone. Any holder of the rkey may use the memory, because no
        // reference to it is formed while more than one clone exists.
        let region = unsafe { Registration::mapped(pd, base, length, access, memory) };
        region.map(CommonRegion).map_err(|(_, error)| error)
    }

    /// Returns the memory for exclusive use.
    ///
    /// # Errors
    /// Returns `self` if other clones or open parts exist.
    pub fn try_into_memory(self) -> Result<RegionMemory, Self> {
        Arc::try_unwrap(self.0).map_err(Self)
    }
}

impl fmt::Debug for CommonMemory {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_tuple("CommonMemory").field(&self.0).finish()
    }
}

/// A part of [`CommonMemory`] that is open to peers, with its own rights and key.
#[doc(alias = "ibv_mr")]
#[derive(Debug)]
pub struct CommonRegion(Registration<CommonMemory>);

impl CommonRegion {
    /// Returns the part's address, length and key, for sending to a peer.
    #[must_use]
    pub fn remote(&self) -> RemoteMemoryRegion {
        self.0.remote()
    }

    /// Returns the key for peers.
    #[must_use]
    pub fn rkey(&self) -> Rkey {
        self.0.rkey()
    }

    /// Returns the length, in bytes.
    #[must_use]
    #[allow(clippy::len_without_is_empty)] // no region is empty
    pub fn len(&self) -> usize {
        self.0.length()
    }

    /// Returns the protection domain that the part was registered in.
    #[must_use]
    pub fn pd(&self) -> &ProtectionDomain {
        self.0.pd()
    }

    /// Returns the memory that this region is a part of.
    #[must_use]
    pub fn memory(&self) -> &CommonMemory {
        self.0.memory()
    }

    /// Deregisters the part, which ends the access of peers through its key. Returns the memory.
    ///
    /// # Errors
    /// Returns the part, which is still registered, and the provider's error.
    #[doc(alias = "ibv_dereg_mr")]
    #[allow(clippy::result_large_err)] // it is the region itself
    pub fn close(self) -> Result<CommonMemory, (Self, Error)> {
        self.0.close().map_err(|(registration, error)| (Self(registration), error))
    }
}
