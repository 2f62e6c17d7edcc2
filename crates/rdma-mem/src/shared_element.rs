//! Elements over memory that nobody has for himself.

use rdma_types::Lkey;

use crate::{GatherElement, ProtectionDomain, ScatterElement};

/// A range of a [`SharedRegion`](crate::SharedRegion), as source or destination of requests.
///
/// `Copy`, and both at once, because nothing promises that a shared region's bytes are exclusive.
#[derive(Clone, Copy, Debug)]
pub struct SharedElement<'r> {
    address: u64,
    length: u32,
    lkey: Lkey,
    /// The region's own: the element lives no longer than it.
    pd: &'r ProtectionDomain,
}

impl<'r> SharedElement<'r> {
    #[inline]
    pub(crate) fn new(address: u64, length: u32, lkey: Lkey, pd: &'r ProtectionDomain) -> Self {
        Self { address, length, lkey, pd }
    }

    /// The domain of the region that the bytes belong to.
    #[inline]
    #[must_use]
    pub fn pd(&self) -> &'r ProtectionDomain {
        self.pd
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
