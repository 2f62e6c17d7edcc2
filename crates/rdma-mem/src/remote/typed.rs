//! Typed views of a peer's memory.

use std::fmt;
use std::hash::{Hash, Hasher};
use std::marker::PhantomData;
use std::ops::Range;

use bytemuck::Pod;

use crate::remote::RemoteMemoryRegion;

/// A value of type `T` in a peer's memory, with exactly the size of a `T`.
///
/// `T` is plain old data. Therefore any bytes that are read from the peer form a valid `T`, and a
/// `T` that is written has no padding. Both sides must use the same layout (`#[repr(C)]`) and byte
/// order. Like [`RemoteMemoryRegion`], into which it can be converted, it is a description, not a
/// proof.
///
/// [`RemoteMemoryRegion::typed`] and [`RemoteSlice::get`] create it, and so does
/// [`remote_ref!`](crate::remote_ref) for fields.
///
/// # Examples
/// ```
/// use rdma_mem::RemoteMemoryRegion;
///
/// let board = RemoteMemoryRegion::new(0x1000, 4096, 7);
/// let counter = board.typed::<u64>(64).unwrap();
/// assert_eq!((counter.address(), counter.region().length()), (0x1040, 8));
/// assert!(board.typed::<u64>(4089).is_none()); // its last byte is past the end
/// ```
pub struct RemoteRef<T> {
    region: RemoteMemoryRegion,
    value: PhantomData<fn() -> T>,
}

/// Consecutive values of type `T` in a peer's memory, with exactly their total size.
///
/// The rules of [`RemoteRef`] apply. [`RemoteMemoryRegion::array`] creates it.
///
/// # Examples
/// ```
/// use rdma_mem::RemoteMemoryRegion;
///
/// let board = RemoteMemoryRegion::new(0x1000, 100, 7);
/// let slots = board.array::<u64>(0, 12).unwrap();
/// assert_eq!(slots.get(11).unwrap().address(), 0x1058);
/// assert!(slots.get(12).is_none() && board.array::<u64>(0, 13).is_none());
/// assert_eq!(slots.slice(2..4).unwrap().region().length(), 16);
/// ```
pub struct RemoteSlice<T> {
    region: RemoteMemoryRegion,
    length: usize,
    values: PhantomData<fn() -> T>,
}

impl RemoteMemoryRegion {
    /// Returns the `T` at `offset` (in bytes); `None` if it is not entirely within the memory.
    #[inline]
    #[must_use]
    pub fn typed<T: Pod>(&self, offset: usize) -> Option<RemoteRef<T>> {
        let region = self.slice(offset..offset.checked_add(size_of::<T>())?)?;
        Some(RemoteRef { region, value: PhantomData })
    }

    /// Returns the `length` values that begin at `offset` (in bytes); `None` if they are not all
    /// entirely within the memory.
    #[inline]
    #[must_use]
    pub fn array<T: Pod>(&self, offset: usize, length: usize) -> Option<RemoteSlice<T>> {
        let bytes = length.checked_mul(size_of::<T>())?;
        let region = self.slice(offset..offset.checked_add(bytes)?)?;
        Some(RemoteSlice { region, length, values: PhantomData })
    }
}

impl<T: Pod> RemoteRef<T> {
    /// Returns the address of the value in the peer's memory.
    #[inline]
    #[must_use]
    pub const fn address(&self) -> u64 {
        self.region.address()
    }

    /// Returns the remote region that holds the value, for use in requests.
    #[inline]
    #[must_use]
    pub const fn region(&self) -> RemoteMemoryRegion {
        self.region
    }

    /// Implements [`remote_ref!`](crate::remote_ref).
    #[doc(hidden)]
    #[inline]
    #[must_use]
    pub fn __field<S>(
        region: &RemoteMemoryRegion,
        offset: usize,
        _get: fn(S) -> T,
    ) -> Option<Self> {
        region.typed(offset)
    }
}

impl<T: Pod> RemoteSlice<T> {
    /// Returns the number of values.
    #[inline]
    #[must_use]
    pub const fn len(&self) -> usize {
        self.length
    }

    /// Returns true if the slice has no values.
    #[inline]
    #[must_use]
    pub const fn is_empty(&self) -> bool {
        self.length == 0
    }

    /// Returns the address of the first byte in the peer's memory.
    #[inline]
    #[must_use]
    pub const fn address(&self) -> u64 {
        self.region.address()
    }

    /// Returns the remote region that holds the values, for use in requests.
    #[inline]
    #[must_use]
    pub const fn region(&self) -> RemoteMemoryRegion {
        self.region
    }

    /// Returns the value at an index; `None` if the index is out of range.
    #[inline]
    #[must_use]
    pub fn get(&self, index: usize) -> Option<RemoteRef<T>> {
        if index >= self.length {
            return None;
        }
        self.region.typed(index.checked_mul(size_of::<T>())?)
    }

    /// Returns the values in a range of indices; `None` if the range is out of bounds.
    #[inline]
    #[must_use]
    pub fn slice(&self, range: Range<usize>) -> Option<Self> {
        let length = range.end.checked_sub(range.start)?;
        if range.end > self.length {
            return None;
        }
        self.region.array(range.start.checked_mul(size_of::<T>())?, length)
    }
}

impl<T: Pod> From<RemoteRef<T>> for RemoteMemoryRegion {
    #[inline]
    fn from(value: RemoteRef<T>) -> Self {
        value.region
    }
}

impl<T: Pod> From<RemoteSlice<T>> for RemoteMemoryRegion {
    #[inline]
    fn from(values: RemoteSlice<T>) -> Self {
        values.region
    }
}

/// Implements the standard traits by hand, because a derive would require the same traits of `T`. A
/// description of a `T` is `Copy` even if `T` is not.
macro_rules! describe {
    ($($Type:ident($($field:ident),+)),*) => {$(
        impl<T> Clone for $Type<T> {
            #[inline]
            fn clone(&self) -> Self {
                *self
            }
        }

        impl<T> Copy for $Type<T> {}

        impl<T> PartialEq for $Type<T> {
            fn eq(&self, other: &Self) -> bool {
                $(self.$field == other.$field)&&+
            }
        }

        impl<T> Eq for $Type<T> {}

        impl<T> Hash for $Type<T> {
            fn hash<H: Hasher>(&self, state: &mut H) {
                $(self.$field.hash(state);)+
            }
        }

        impl<T> fmt::Debug for $Type<T> {
            fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                let (name, of) = (stringify!($Type), std::any::type_name::<T>());
                write!(f, "{name}<{of}>({:?})", self.region)
            }
        }
    )*};
}

describe!(RemoteRef(region), RemoteSlice(region, length));
