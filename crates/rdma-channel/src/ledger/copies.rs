//! Registered places for what programs send inline, on devices that take less inline data than was asked for.

use std::sync::Arc;

use rdma_mem::{AccessFlags, Error, GatherList, ProtectionDomain, SharedElement, SharedRegion};

/// A place for each slot, and the dead slot's for calls. A place is free when its slot is: not before its request has completed.
#[derive(Debug)]
pub(super) struct Copies {
    region: Arc<SharedRegion>,
    /// How many bytes a place has.
    each: usize,
}

/// The bytes of a blocking call, which has nothing else in the dead slot's place.
#[derive(Debug)]
pub(crate) struct CopyOfCall {
    region: Arc<SharedRegion>,
    length: usize,
}

#[allow(clippy::expect_used)] // a slot's index is below their number
impl Copies {
    /// So many places, each of so many bytes.
    ///
    /// # Errors
    /// If they cannot be registered.
    pub(super) fn new(pd: &ProtectionDomain, places: usize, each: usize) -> Result<Self, Error> {
        let region = pd.allocate_shared_region(places.saturating_mul(each), AccessFlags::new())?;
        Ok(Self { region: Arc::new(region), each })
    }

    /// How many bytes a place has.
    pub(super) const fn each(&self) -> usize {
        self.each
    }

    /// Copies the bytes to the dead slot's place.
    pub(super) fn put_for_call(&self, bytes: &[u8]) -> CopyOfCall {
        self.put(0, bytes);
        CopyOfCall { region: Arc::clone(&self.region), length: bytes.len() }
    }

    /// Copies the bytes to a slot's place.
    pub(super) fn put(&self, place: usize, bytes: &[u8]) -> SharedElement<'_> {
        let start = place * self.each;
        self.region.write(start, bytes).expect("a place for each slot");
        self.region.element(start..start + bytes.len()).expect("a place for each slot")
    }
}

#[allow(clippy::expect_used)] // it was written there
impl CopyOfCall {
    /// What the call sends.
    pub(crate) fn list(&self) -> GatherList<'_, 1> {
        GatherList::from([self.region.element(0..self.length).expect("as long as was written")])
    }
}
