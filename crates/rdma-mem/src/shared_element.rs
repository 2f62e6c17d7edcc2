//! Elements over memory that nobody has for himself.

use std::marker::PhantomData;

use rdma_types::Lkey;

use crate::{GatherElement, ScatterElement, SharedRegion};

/// A range of a [`SharedRegion`], as source or destination of requests.
///
/// `Copy`, and both at once, because nothing promises that a shared region's bytes are exclusive.
#[derive(Clone, Copy, Debug)]
pub struct SharedElement<'r> {
    address: u64,
    length: u32,
    lkey: Lkey,
    region: PhantomData<&'r SharedRegion>,
}

impl SharedElement<'_> {
    #[inline]
    pub(crate) fn new(address: u64, length: u32, lkey: Lkey) -> Self {
        Self { address, length, lkey, region: PhantomData }
    }

    /// How many bytes it has.
    #[inline]
    #[must_use]
    pub const fn length(&self) -> u32 {
        self.length
    }
}

impl<'r> From<SharedElement<'r>> for GatherElement<'r> {
    #[inline]
    fn from(element: SharedElement<'r>) -> Self {
        Self::from_parts(element.address, element.length as usize, element.lkey)
    }
}

impl<'r> From<SharedElement<'r>> for ScatterElement<'r> {
    #[inline]
    fn from(element: SharedElement<'r>) -> Self {
        Self::from_parts(element.address, element.length as usize, element.lkey)
    }
}
