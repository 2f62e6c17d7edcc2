//! Memory that can be opened to peers.

use std::fmt;
use std::ops::{Deref, DerefMut};

use rdma_mem::{Error, ProtectionDomain, RegionMemory};

/// Memory of this process alone, which can be [opened to peers for a time](Self::reserve). It derefs to its bytes.
///
/// # Examples
/// See [`reserve`](Self::reserve).
pub struct Region {
    memory: RegionMemory,
    pd: ProtectionDomain,
}

impl Region {
    /// So many bytes, zero, on pages of their own. Nothing is registered before they are opened.
    ///
    /// # Errors
    /// [`Error::EmptyRegion`], [`Error::OutOfMemory`].
    pub fn allocate(pd: &ProtectionDomain, length: usize) -> Result<Self, Error> {
        Ok(Self::of(pd, RegionMemory::allocate(length)?))
    }

    /// Memory that the program has, as of huge pages.
    #[must_use]
    pub fn of(pd: &ProtectionDomain, memory: RegionMemory) -> Self {
        Self { memory, pd: pd.clone() }
    }

    /// Its memory.
    #[must_use]
    pub fn into_memory(self) -> RegionMemory {
        self.memory
    }

    /// The domain that it is registered in while it is open.
    #[must_use]
    pub const fn pd(&self) -> &ProtectionDomain {
        &self.pd
    }

    pub(crate) fn into_parts(self) -> (RegionMemory, ProtectionDomain) {
        (self.memory, self.pd)
    }
}

impl Deref for Region {
    type Target = [u8];

    fn deref(&self) -> &[u8] {
        &self.memory
    }
}

impl DerefMut for Region {
    fn deref_mut(&mut self) -> &mut [u8] {
        &mut self.memory
    }
}

impl fmt::Debug for Region {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_tuple("Region").field(&self.memory).finish()
    }
}
