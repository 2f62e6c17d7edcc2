//! Elements for memory that peers and copies may change at any time.

use std::ops::Range;

use rdma_types::Lkey;

use crate::device::protection_domain::ProtectionDomain;
use crate::element::{GatherElement, ScatterElement};
use crate::error::range;
use crate::error::range::RangeError;

/// A range of a [`SharedRegion`](crate::SharedRegion) or a [`DmabufRegion`](crate::DmabufRegion),
/// as the source or destination of requests.
///
/// It is `Copy` and can be both source and destination, because no Rust reference to the region's
/// bytes exists. Several requests may name the same bytes while peers and copies change them. Bytes
/// with several concurrent writers may end up as a mixture of what each of them wrote.
#[derive(Clone, Copy, Debug)]
pub struct SharedElement<'r> {
    address: u64,
    length: u32,
    lkey: Lkey,
    /// The domain, borrowed from the region, so the element cannot outlive the region.
    pd: &'r ProtectionDomain,
}

impl<'r> SharedElement<'r> {
    /// Creates the element for a range of a region that is `region` bytes long. Requests address
    /// the region's first byte as `iova`.
    #[inline]
    pub(crate) fn within(
        range: Range<usize>,
        region: usize,
        iova: u64,
        lkey: Lkey,
        pd: &'r ProtectionDomain,
    ) -> Result<Self, RangeError> {
        let Range { start, end } = range;
        let outside = RangeError::OutOfBounds { offset: start, length: 0, region };
        let length = end.checked_sub(start).ok_or(outside)?;
        range::check(start, length, region)?;
        let length = u32::try_from(length).map_err(|_| RangeError::TooLong { length })?;
        Ok(Self { address: iova.wrapping_add(start as u64), length, lkey, pd })
    }

    /// Returns the domain of the region that the bytes belong to.
    #[inline]
    #[must_use]
    pub fn pd(&self) -> &'r ProtectionDomain {
        self.pd
    }

    /// Returns the length of the element, in bytes.
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
