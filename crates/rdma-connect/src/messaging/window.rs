//! A memory window for one peer.

use rdma_mem::{
    BindableRegion, Error, MemoryWindow, OwnedRegion, RemoteMemoryRegion, Rkey, WindowType,
};

/// A window of type 2, which owns its region.
#[derive(Debug)]
pub struct Window<R: BindableRegion = OwnedRegion>(Box<MemoryWindow<R>>);

impl<R: BindableRegion> Window<R> {
    /// Allocates a window for a region that was registered for binding.
    ///
    /// # Errors
    /// Returns the region with the error of [`MemoryWindow::allocate`].
    #[allow(clippy::result_large_err)] // it is the region itself
    pub fn allocate(region: R) -> Result<Self, (R, Error)> {
        Ok(Self(Box::new(MemoryWindow::allocate(region, WindowType::Two)?)))
    }

    /// Deallocates the window, whether or not it is bound. Afterwards no peer has access.
    ///
    /// # Errors
    /// Returns the window with the provider's error. Dropping the window tries again; if that fails too, it is leaked.
    pub fn close(self) -> Result<R, (Self, Error)> {
        self.0.close().map_err(|(window, error)| (Self(Box::new(window)), error))
    }

    /// Returns the window itself.
    pub const fn get_mut(&mut self) -> &mut MemoryWindow<R> {
        &mut self.0
    }

    /// Returns true if a peer may have access.
    #[must_use]
    pub const fn is_bound(&self) -> bool {
        self.0.is_bound()
    }

    /// Returns the window's key and its remote region, or `None` if the window is not bound.
    #[must_use]
    pub fn remote(&self) -> Option<(Rkey, RemoteMemoryRegion)> {
        Some((self.0.rkey()?, self.0.remote()?))
    }

    /// Returns the memory of a window that is not bound.
    ///
    /// # Panics
    /// If it is bound.
    #[must_use]
    pub fn memory(&self) -> &R {
        let Some(region) = self.0.region() else { unreachable!("it is not bound") };
        region
    }

    /// Returns the memory of a window that is not bound.
    ///
    /// # Panics
    /// If it is bound.
    pub fn memory_mut(&mut self) -> &mut R {
        let Some(region) = self.0.region_mut() else { unreachable!("it is not bound") };
        region
    }
}
