//! Scatter/gather elements: the parts of memory that a work request names.

pub(crate) mod inline;
pub(crate) mod list;
pub(crate) mod of_region;
pub(crate) mod piece;
pub(crate) mod prefetch;
pub(crate) mod shared;
pub(crate) mod slice;

use std::fmt;
use std::marker::PhantomData;

use rdma_sys::ibv_sge;
use rdma_types::Lkey;

use crate::region::unowned::MemoryRegion;

/// A part of registered memory that a request reads from: data to send or to write.
///
/// It has the layout of C's `ibv_sge`, and borrows the region and the data. A request can name
/// several elements, up to the queue pair's limit; together, their bytes form one message.
///
/// # Examples
/// ```
/// use rdma_mem::{GatherElement, ScatterGatherElementError};
///
/// rdma_soft::install();
/// let pd = rdma_mem::open_device("soft0")?.allocate_pd()?;
/// let memory = [7; 64];
/// let region = pd.register_local_mr_slice(&memory[..32])?;
/// assert_eq!(GatherElement::new(&region, &memory[8..16]).length(), 8);
/// assert_eq!(
///     GatherElement::new_checked(&region, &memory[30..34]).unwrap_err(),
///     ScatterGatherElementError::SliceNotWithinBounds,
/// );
/// # Ok::<(), rdma_mem::Error>(())
/// ```
#[doc(alias = "ibv_sge")]
#[derive(Clone, Copy)]
#[repr(transparent)]
pub struct GatherElement<'a> {
    sge: ibv_sge,
    borrow: PhantomData<(&'a MemoryRegion, &'a [u8])>,
}

/// A part of registered memory that a request writes to: the buffer for a receive, or for the
/// response to a read.
///
/// It has the layout of C's `ibv_sge`, and borrows the region and the memory. It is not `Copy`,
/// because the memory is exclusive.
#[doc(alias = "ibv_sge")]
#[repr(transparent)]
pub struct ScatterElement<'a> {
    sge: ibv_sge,
    borrow: PhantomData<(&'a MemoryRegion, &'a mut [u8])>,
}

/// The reason that a slice cannot be an element of a region.
#[derive(Clone, Copy, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum ScatterGatherElementError {
    /// The slice's length does not fit in the 32-bit length of an element.
    #[error("the slice exceeds 4294967295 bytes, the limit of an element: use several elements")]
    SliceTooBig,
    /// The slice is not entirely within the region.
    #[error("the slice is not within the bounds of the memory region")]
    SliceNotWithinBounds,
}

rdma_types::debug_messages!(
    enum ScatterGatherElementError {
        SliceTooBig,
        SliceNotWithinBounds,
    }
);

/// Checks that `data` can be an element of the region: first its length, then its bounds.
#[inline]
fn check(region: &MemoryRegion, data: &[u8]) -> Result<(), ScatterGatherElementError> {
    if u32::try_from(data.len()).is_err() {
        Err(ScatterGatherElementError::SliceTooBig)
    } else if !region.encloses_slice(data) {
        Err(ScatterGatherElementError::SliceNotWithinBounds)
    } else {
        Ok(())
    }
}

#[cold]
#[inline(never)]
#[track_caller]
#[allow(clippy::panic)] // documented for `new`
fn refuse(region: &MemoryRegion, error: ScatterGatherElementError) -> ! {
    panic!("{error}: {region:?}");
}

impl<'a> GatherElement<'a> {
    /// Creates the element for `data`.
    ///
    /// # Panics
    /// Panics, in every build, if `data` is not within the region or is longer than 4 GiB - 1.
    #[inline]
    #[must_use]
    #[track_caller]
    pub fn new(region: &'a MemoryRegion, data: &'a [u8]) -> Self {
        if let Err(error) = check(region, data) {
            refuse(region, error);
        }
        Self::new_unchecked(region, data)
    }

    /// Creates the element for `data`.
    ///
    /// # Errors
    /// Returns an error if `data` is not within the region or is longer than 4 GiB - 1.
    #[inline]
    pub fn new_checked(
        region: &'a MemoryRegion,
        data: &'a [u8],
    ) -> Result<Self, ScatterGatherElementError> {
        check(region, data)?;
        Ok(Self::new_unchecked(region, data))
    }

    /// Creates the element for `data` without checking its bounds.
    ///
    /// This is safe: the device refuses an element outside its region with an error completion,
    /// which ends the connection. If the slice is longer than 4 GiB - 1, the element covers its
    /// first 4 GiB - 1 bytes.
    #[inline]
    #[must_use]
    pub fn new_unchecked(region: &'a MemoryRegion, data: &'a [u8]) -> Self {
        let address = region.device_address(data.as_ptr().expose_provenance());
        Self::from_parts(address, data.len(), region.lkey())
    }

    #[inline]
    pub(crate) fn from_parts(address: u64, length: usize, lkey: Lkey) -> Self {
        Self { sge: sge(address, length, lkey), borrow: PhantomData }
    }

    /// Returns the length of the element, in bytes.
    #[inline]
    #[must_use]
    pub const fn length(&self) -> u32 {
        self.sge.length
    }

    /// Returns the C struct.
    #[inline]
    #[must_use]
    pub const fn as_raw(&self) -> &ibv_sge {
        &self.sge
    }
}

impl<'a> ScatterElement<'a> {
    /// Creates the element for `room`.
    ///
    /// # Panics
    /// Panics, in every build, if `room` is not within the region or is longer than 4 GiB - 1.
    #[inline]
    #[must_use]
    #[track_caller]
    pub fn new(region: &'a MemoryRegion, room: &'a mut [u8]) -> Self {
        if let Err(error) = check(region, room) {
            refuse(region, error);
        }
        Self::new_unchecked(region, room)
    }

    /// Creates the element for `room`.
    ///
    /// # Errors
    /// Returns an error if `room` is not within the region or is longer than 4 GiB - 1.
    #[inline]
    pub fn new_checked(
        region: &'a MemoryRegion,
        room: &'a mut [u8],
    ) -> Result<Self, ScatterGatherElementError> {
        check(region, room)?;
        Ok(Self::new_unchecked(region, room))
    }

    /// Creates the element for `room` without checking its bounds, like
    /// [`GatherElement::new_unchecked`].
    #[inline]
    #[must_use]
    pub fn new_unchecked(region: &'a MemoryRegion, room: &'a mut [u8]) -> Self {
        // `as_mut_ptr`, because a pointer from `as_ptr` must not be used for writing.
        let address = region.device_address(room.as_mut_ptr().expose_provenance());
        Self::from_parts(address, room.len(), region.lkey())
    }

    #[inline]
    pub(crate) fn from_parts(address: u64, length: usize, lkey: Lkey) -> Self {
        Self { sge: sge(address, length, lkey), borrow: PhantomData }
    }

    /// Returns the length of the element, in bytes.
    #[inline]
    #[must_use]
    pub const fn length(&self) -> u32 {
        self.sge.length
    }

    /// Returns the C struct.
    #[inline]
    #[must_use]
    pub const fn as_raw(&self) -> &ibv_sge {
        &self.sge
    }
}

#[inline]
fn sge(address: u64, length: usize, lkey: Lkey) -> ibv_sge {
    // Clamp, do not wrap: 4 GiB must not become 0, which can mean "nothing" or "everything".
    let length = u32::try_from(length).unwrap_or(u32::MAX);
    ibv_sge { addr: address, length, lkey: lkey.get() }
}

fn debug(name: &str, sge: &ibv_sge, f: &mut fmt::Formatter<'_>) -> fmt::Result {
    f.debug_struct(name)
        .field("address", &format_args!("{:#x}", sge.addr))
        .field("length", &sge.length)
        .field("lkey", &Lkey::new(sge.lkey))
        .finish()
}

impl fmt::Debug for GatherElement<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        debug("GatherElement", &self.sge, f)
    }
}

impl fmt::Debug for ScatterElement<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        debug("ScatterElement", &self.sge, f)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn elements_are_the_structs_of_c() {
        assert_eq!(size_of::<GatherElement<'_>>(), size_of::<ibv_sge>());
        assert_eq!(align_of::<ScatterElement<'_>>(), align_of::<ibv_sge>());
    }

    #[test]
    fn lengths_are_clamped_and_never_wrap() {
        let length = |length| sge(0, length, Lkey::new(1)).length;
        assert_eq!(length(u32::MAX as usize), u32::MAX);
        assert_eq!(length(1 << 32), u32::MAX, "4 GiB is not 0");
        assert_eq!(length(usize::MAX), u32::MAX);
    }
}
