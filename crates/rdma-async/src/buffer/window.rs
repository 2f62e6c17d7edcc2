//! A window to memory, for one peer.

use rdma_mem::{Error, MemoryWindow, OwnedRegion, RemoteMemoryRegion, Rkey, WindowType};

/// A window of type 2, which has its region. Not for programs: what binds are made of.
#[derive(Debug)]
#[allow(unnameable_types)] // not for programs
pub struct Window(Box<MemoryWindow<OwnedRegion>>);

impl Window {
    /// A window of a region that was registered to be bound.
    ///
    /// # Errors
    /// With the region: those of [`MemoryWindow::allocate`].
    #[allow(clippy::result_large_err)] // it is the region itself
    pub(crate) fn allocate(region: OwnedRegion) -> Result<Self, (OwnedRegion, Error)> {
        Ok(Self(Box::new(MemoryWindow::allocate(region, WindowType::Two)?)))
    }

    /// Deallocates it, bound or not: no peer has access then.
    ///
    /// # Errors
    /// The provider's error, with the window. Dropped, it is deallocated once more, or never freed.
    pub(crate) fn close(self) -> Result<OwnedRegion, (Self, Error)> {
        self.0.close().map_err(|(window, error)| (Self(Box::new(window)), error))
    }

    pub(crate) const fn get_mut(&mut self) -> &mut MemoryWindow<OwnedRegion> {
        &mut self.0
    }

    pub(crate) const fn is_bound(&self) -> bool {
        self.0.is_bound()
    }

    /// Its key, and where it is, while it is bound.
    pub(crate) fn remote(&self) -> Option<(Rkey, RemoteMemoryRegion)> {
        Some((self.0.rkey()?, self.0.remote()?))
    }

    /// The memory of one that is not bound.
    pub(crate) fn memory(&self) -> &OwnedRegion {
        let Some(region) = self.0.region() else { unreachable!("it is not bound") };
        region
    }

    /// The memory of one that is not bound.
    pub(crate) fn memory_mut(&mut self) -> &mut OwnedRegion {
        let Some(region) = self.0.region_mut() else { unreachable!("it is not bound") };
        region
    }
}
