//! Regions that own their memory and expose it as an array of values.

use std::fmt;
use std::marker::PhantomData;
use std::ops::{Deref, DerefMut};

use bytemuck::Pod;

use crate::device::protection_domain::ProtectionDomain;
use crate::element::slice::{SliceMut, SliceRef};
use crate::error::Error;
use crate::region::memory::PAGE;
use crate::region::owned::OwnedRegion;

/// An [`OwnedRegion`] whose bytes are consecutive values of type `T`.
///
/// `T` is plain old data ([`Pod`], which the crate `bytemuck` derives for structs). Therefore any
/// bytes that a device writes form a valid `T`, and a `T` that is sent has no padding. Both sides
/// must use the same layout (`#[repr(C)]`) and byte order.
///
/// The array derefs to its values, which are initially zero. Requests take registered slices of it,
/// which deref to bytes.
///
/// # Examples
/// ```
/// # rdma_soft::install();
/// # let pd = rdma_mem::open_device("soft0")?.allocate_pd()?;
/// let mut samples = pd.allocate_array::<u32>(1000)?;
/// samples[7] = 49;
/// let piece = samples.get_ref(7, 2).unwrap(); // to send two of them
/// assert_eq!(piece.gather_element().length(), 8);
/// assert_eq!(piece[..4], 49_u32.to_ne_bytes());
/// # Ok::<(), rdma_mem::Error>(())
/// ```
#[doc(alias = "ibv_mr")]
pub struct OwnedArray<T> {
    /// The region. Its length is a multiple of `T`'s size, and it is aligned for `T`.
    region: OwnedRegion,
    values: PhantomData<T>,
}

impl ProtectionDomain {
    /// Allocates and registers memory for `count` zeroed values; the memory consists of whole
    /// pages.
    ///
    /// # Errors
    /// Same errors as [`allocate_region`](Self::allocate_region), including [`Error::EmptyRegion`]
    /// for a length of 0 bytes.
    #[doc(alias = "ibv_reg_mr")]
    pub fn allocate_array<T: Pod>(&self, count: usize) -> Result<OwnedArray<T>, Error> {
        const { assert!(align_of::<T>() <= PAGE, "more than a page's alignment") };
        // If the length overflows `usize`, it does not fit into memory anyway, so saturating is
        // enough.
        let length = count.saturating_mul(size_of::<T>());
        Ok(OwnedArray { region: self.allocate_region(length)?, values: PhantomData })
    }
}

impl<T: Pod> OwnedArray<T> {
    /// Returns the length in values. Forms no reference to them, so a request may be using them.
    #[inline]
    #[must_use]
    pub const fn len(&self) -> usize {
        self.region.len() / size_of::<T>()
    }

    /// Returns true if the array has no values.
    #[inline]
    #[must_use]
    pub const fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// Returns a slice of `count` values starting at `index`, as a source for sends and writes.
    /// `None` unless all of the values are within the array.
    #[inline]
    #[must_use]
    pub fn get_ref(&self, index: usize, count: usize) -> Option<SliceRef<'_>> {
        let (offset, length) = bytes::<T>(index, count)?;
        self.region.get_ref(offset, length)
    }

    /// Returns an exclusive slice of `count` values starting at `index`, which can also be the
    /// destination of receives and reads. `None` unless all of the values are within the array.
    #[inline]
    #[must_use]
    pub fn get_mut(&mut self, index: usize, count: usize) -> Option<SliceMut<'_>> {
        let (offset, length) = bytes::<T>(index, count)?;
        self.region.get_mut(offset, length)
    }

    /// Returns a slice of the whole array, as a source for sends and writes.
    #[inline]
    #[must_use]
    pub fn as_slice(&self) -> SliceRef<'_> {
        self.region.as_slice()
    }

    /// Returns an exclusive slice of the whole array, which can also be the destination of receives
    /// and reads.
    #[inline]
    #[must_use]
    pub fn as_slice_mut(&mut self) -> SliceMut<'_> {
        self.region.as_slice_mut()
    }

    /// Returns the underlying region.
    #[must_use]
    pub fn into_region(self) -> OwnedRegion {
        self.region
    }
}

/// Returns the offset and length in bytes of a range of values.
#[inline]
fn bytes<T>(index: usize, count: usize) -> Option<(usize, usize)> {
    Some((index.checked_mul(size_of::<T>())?, count.checked_mul(size_of::<T>())?))
}

impl<T: Pod> Deref for OwnedArray<T> {
    type Target = [T];

    #[inline]
    fn deref(&self) -> &[T] {
        bytemuck::cast_slice(&self.region)
    }
}

impl<T: Pod> DerefMut for OwnedArray<T> {
    #[inline]
    fn deref_mut(&mut self) -> &mut [T] {
        bytemuck::cast_slice_mut(&mut self.region)
    }
}

impl<T> fmt::Debug for OwnedArray<T> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "OwnedArray<{}>({:?})", std::any::type_name::<T>(), self.region)
    }
}
