//! Memory that can be opened to peers.

use rdma_connect::messaging::Window;
use std::fmt;
use std::ops::{Deref, DerefMut};

use rdma_mem::{AccessFlags, Error, OwnedRegion, ProtectionDomain, RegionMemory, SharedRegion};

/// Memory of this process that can be opened for a limited time, to [all peers](Self::reserve) or to
/// [one](Self::reserve_for). Dereferences to its bytes.
///
/// # Examples
/// See [`reserve`](Self::reserve).
pub struct Region {
    memory: Memory,
    pd: ProtectionDomain,
}

#[derive(Debug)]
enum Memory {
    Plain(RegionMemory),
    /// Registered for windows, without rights for peers.
    Bindable(Box<OwnedRegion>),
    /// Like `Bindable`, with a window that is not bound.
    Window(Window),
}

impl Region {
    /// Allocates `length` zeroed bytes on their own pages, without registering them.
    ///
    /// # Errors
    /// [`Error::EmptyRegion`], [`Error::OutOfMemory`].
    #[doc(alias = "alloc_local_mr")]
    pub fn allocate(pd: &ProtectionDomain, length: usize) -> Result<Self, Error> {
        Ok(Self::of(pd, RegionMemory::allocate(length)?))
    }

    /// Creates a region from memory that the program already has, for example huge pages.
    #[must_use]
    pub fn of(pd: &ProtectionDomain, memory: RegionMemory) -> Self {
        Self::of_plain(pd.clone(), memory)
    }

    /// Returns the memory. If [`reserve_for`](Self::reserve_for) registered it, the memory is deregistered first.
    ///
    /// # Errors
    /// If the provider refuses to deregister the memory, returns its error and the region, which can still be used.
    #[allow(clippy::result_large_err)] // it is the region itself
    pub fn into_memory(self) -> Result<RegionMemory, (Self, Error)> {
        self.into_plain().map(|(memory, _)| memory)
    }

    #[allow(clippy::result_large_err)] // it is the region itself
    fn into_plain(self) -> Result<(RegionMemory, ProtectionDomain), (Self, Error)> {
        let Self { memory, pd } = self;
        let region = match memory {
            Memory::Plain(memory) => return Ok((memory, pd)),
            Memory::Bindable(region) => *region,
            Memory::Window(window) => match window.close() {
                Ok(region) => region,
                Err((window, error)) => return Err((Self::of_window(pd, window), error)),
            },
        };
        match region.close() {
            Ok(memory) => Ok((memory, pd)),
            Err((region, error)) => Err((Self::of_bindable(pd, region), error)),
        }
    }

    /// Returns the domain in which the memory is registered while it is open. A [lent](crate::Connection::lend) region
    /// is registered in the domain of the connection instead.
    #[must_use]
    pub const fn pd(&self) -> &ProtectionDomain {
        &self.pd
    }

    pub(super) const fn of_plain(pd: ProtectionDomain, memory: RegionMemory) -> Self {
        Self { memory: Memory::Plain(memory), pd }
    }

    pub(super) fn of_bindable(pd: ProtectionDomain, region: OwnedRegion) -> Self {
        Self { memory: Memory::Bindable(Box::new(region)), pd }
    }

    /// Creates a region with a window that is not bound.
    pub(super) fn of_window(pd: ProtectionDomain, window: Window) -> Self {
        debug_assert!(!window.is_bound(), "a bound window does not show its bytes");
        Self { memory: Memory::Window(window), pd }
    }

    /// Registers the memory for peers, in `domain` or, if that is `None`, in the region's domain. Also returns the
    /// region's domain.
    ///
    /// # Errors
    /// Returns the region with the provider's error.
    #[allow(clippy::result_large_err)] // it is the region itself
    pub(crate) fn open(
        self,
        domain: Option<&ProtectionDomain>,
        access: AccessFlags,
    ) -> Result<(SharedRegion, ProtectionDomain), (Self, Error)> {
        let (memory, pd) = self.into_plain()?;
        match domain.unwrap_or(&pd).register_shared(memory, access) {
            Ok(open) => Ok((open, pd)),
            Err((memory, error)) => Err((Self::of_plain(pd, memory), error)),
        }
    }

    /// Returns the region's window, which is created if needed.
    ///
    /// # Errors
    /// Returns the region with the provider's error.
    #[allow(clippy::result_large_err)] // it is the region itself
    pub(super) fn into_window(self) -> Result<(Window, ProtectionDomain), (Self, Error)> {
        let Self { memory, pd } = self;
        let region = match memory {
            Memory::Window(window) => return Ok((window, pd)),
            Memory::Bindable(region) => *region,
            Memory::Plain(memory) => match pd.register_bindable(memory) {
                Ok(region) => region,
                Err((memory, error)) => return Err((Self::of_plain(pd, memory), error)),
            },
        };
        match Window::allocate(region) {
            Ok(window) => Ok((window, pd)),
            Err((region, error)) => Err((Self::of_bindable(pd, region), error)),
        }
    }

    /// Returns the region's window.
    ///
    /// # Errors
    /// Returns the region if it has no window.
    #[allow(clippy::result_large_err)] // it is the region itself
    pub(super) fn take_window(self) -> Result<(Window, ProtectionDomain), Self> {
        match self {
            Self { memory: Memory::Window(window), pd } => Ok((window, pd)),
            without => Err(without),
        }
    }
}

impl Deref for Region {
    type Target = [u8];

    fn deref(&self) -> &[u8] {
        match &self.memory {
            Memory::Plain(memory) => memory,
            Memory::Bindable(region) => region,
            Memory::Window(window) => window.memory(),
        }
    }
}

impl DerefMut for Region {
    fn deref_mut(&mut self) -> &mut [u8] {
        match &mut self.memory {
            Memory::Plain(memory) => memory,
            Memory::Bindable(region) => region,
            Memory::Window(window) => window.memory_mut(),
        }
    }
}

impl fmt::Debug for Region {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_tuple("Region").field(&self.memory).finish()
    }
}
