//! Registered buffers for inline data, on devices that support less inline data than the program requested.

use std::sync::Arc;

use rdma_mem::{AccessFlags, Error, GatherList, ProtectionDomain, SharedElement, SharedRegion};

/// One buffer per slot. Blocking calls use the buffer of the dead slot. Each other buffer is free exactly when its slot
/// is free, and therefore never before the request has completed.
#[derive(Debug)]
pub(super) struct Copies {
    region: Arc<SharedRegion>,
    /// The size of each buffer in bytes.
    each: usize,
}

/// The copied bytes of a blocking call. Only one call at a time uses the dead slot's buffer.
#[derive(Debug)]
pub(crate) struct CallCopy {
    region: Arc<SharedRegion>,
    length: usize,
}

#[allow(clippy::expect_used)] // slot indices are below the number of buffers
impl Copies {
    /// Registers `places` buffers of `each` bytes.
    ///
    /// # Errors
    /// Returns an error if the memory cannot be registered.
    pub(super) fn new(pd: &ProtectionDomain, places: usize, each: usize) -> Result<Self, Error> {
        let region = pd.allocate_shared_region(places.saturating_mul(each), AccessFlags::new())?;
        Ok(Self { region: Arc::new(region), each })
    }

    /// Returns the size of each buffer in bytes.
    pub(super) const fn each(&self) -> usize {
        self.each
    }

    /// Copies the bytes to the dead slot's buffer.
    pub(super) fn put_for_call(&self, bytes: &[u8]) -> CallCopy {
        self.put(0, bytes);
        CallCopy { region: Arc::clone(&self.region), length: bytes.len() }
    }

    /// Copies the bytes to a slot's buffer.
    pub(super) fn put(&self, place: usize, bytes: &[u8]) -> SharedElement<'_> {
        let start = place * self.each;
        self.region.write(start, bytes).expect("each slot has a buffer");
        self.region.element(start..start + bytes.len()).expect("each slot has a buffer")
    }
}

#[allow(clippy::expect_used)] // the bytes were written there
impl CallCopy {
    /// Returns the gather list of the call.
    pub(crate) fn list(&self) -> GatherList<'_, 1> {
        GatherList::from([self.region.element(0..self.length).expect("the written length")])
    }
}
