//! Descriptions of a peer's memory.

pub(crate) mod fields;
pub(crate) mod typed;

use std::array::{self, TryFromSliceError};
use std::ops::Range;

use rdma_types::Rkey;

/// A peer's memory: its address, length and key.
///
/// A peer creates it with [`SharedRegion::remote`](crate::SharedRegion::remote) and sends it here.
/// It is a description, not a proof: the peer's device refuses an invalid access with an error
/// completion. Posting checks that a request stays within the length.
///
/// # Examples
/// ```
/// use rdma_mem::RemoteMemoryRegion;
///
/// let memory = RemoteMemoryRegion::new(0x1000, 256, 0x42);
/// let tail = memory.sub_region(192).unwrap();
/// assert_eq!((tail.address(), tail.length()), (0x10c0, 64));
/// assert_eq!(memory.slice(250..260), None);
/// assert_eq!(memory.rkey(), 0x42);
/// ```
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[cfg_attr(feature = "serde", derive(serde::Serialize, serde::Deserialize))]
pub struct RemoteMemoryRegion {
    #[cfg_attr(feature = "serde", serde(rename = "addr"))]
    address: u64,
    length: usize,
    rkey: Rkey,
}

impl RemoteMemoryRegion {
    /// The length of the encoding that [`to_bytes`](Self::to_bytes) returns, in bytes.
    pub const BYTES: usize = 20;

    /// Describes `length` bytes at `addr` in the peer's memory, with this key.
    #[inline]
    #[must_use]
    pub fn new(addr: u64, length: usize, rkey: impl Into<Rkey>) -> Self {
        Self { address: addr, length, rkey: rkey.into() }
    }

    /// Returns the address of the first byte in the peer's memory.
    #[inline]
    #[must_use]
    pub const fn address(&self) -> u64 {
        self.address
    }

    /// Returns the length, in bytes.
    #[inline]
    #[must_use]
    pub const fn length(&self) -> usize {
        self.length
    }

    /// Returns the key.
    #[inline]
    #[must_use]
    pub const fn rkey(&self) -> Rkey {
        self.rkey
    }

    /// Encodes the region as bytes, for a message to the peer that will use it. The peer decodes
    /// them with [`from_bytes`](Self::from_bytes).
    ///
    /// The format is address (8 bytes), length (8 bytes), key (4 bytes), each in network order. It
    /// has no version; the protocol that sends it may add one.
    ///
    /// # Examples
    /// ```
    /// use rdma_mem::RemoteMemoryRegion;
    ///
    /// let memory = RemoteMemoryRegion::new(0x1000, 256, 0x42);
    /// let bytes = memory.to_bytes();
    /// assert_eq!(bytes, *b"\0\0\0\0\0\0\x10\0\0\0\0\0\0\0\x01\0\0\0\0\x42");
    /// assert_eq!(RemoteMemoryRegion::from_bytes(bytes), memory);
    /// ```
    #[inline]
    #[must_use]
    pub fn to_bytes(self) -> [u8; Self::BYTES] {
        let mut bytes = [0; Self::BYTES];
        bytes[..8].copy_from_slice(&self.address.to_be_bytes());
        bytes[8..16].copy_from_slice(&self.length.to_be_bytes());
        bytes[16..].copy_from_slice(&u32::from(self.rkey).to_be_bytes());
        bytes
    }

    /// Decodes the bytes that [`to_bytes`](Self::to_bytes) returned.
    ///
    /// All byte values are valid. The peer's device checks the description when a request uses it.
    #[inline]
    #[must_use]
    pub fn from_bytes(bytes: [u8; Self::BYTES]) -> Self {
        Self {
            address: u64::from_be_bytes(part(&bytes, 0)),
            length: usize::from_be_bytes(part(&bytes, 8)),
            rkey: u32::from_be_bytes(part(&bytes, 16)).into(),
        }
    }

    /// Returns the part of the region that starts at `offset`, in bytes. The part is empty if
    /// `offset` equals the length; `None` if `offset` is larger, or if the address overflows.
    #[inline]
    #[must_use]
    pub fn sub_region(&self, offset: usize) -> Option<Self> {
        let length = self.length.checked_sub(offset)?;
        let address = self.address.checked_add(offset as u64)?;
        Some(Self { address, length, rkey: self.rkey })
    }

    /// Like [`sub_region`](Self::sub_region), but returns an empty region past the end. If the
    /// address would overflow, it is clamped to the highest one.
    #[inline]
    #[must_use]
    pub const fn sub_region_unchecked(&self, offset: usize) -> Self {
        Self {
            address: self.address.saturating_add(offset as u64),
            length: self.length.saturating_sub(offset),
            rkey: self.rkey,
        }
    }

    /// Returns the part in `range`, in bytes from the beginning; `None` if the range is not within
    /// the memory, or if an address overflows.
    #[inline]
    #[must_use]
    pub fn slice(&self, range: Range<usize>) -> Option<Self> {
        let Range { start, end } = range;
        let length = end.checked_sub(start)?;
        let rest = self.sub_region(start)?;
        rest.address.checked_add(length as u64)?;
        (length <= rest.length).then_some(Self { length, ..rest })
    }

    /// Returns the region from the field at `offset` in element `index` to the end, if it has at
    /// least `length` bytes. The macros in `fields` use it, for example
    /// [`remote_array_field!`](crate::remote_array_field).
    #[doc(hidden)]
    #[inline]
    #[must_use]
    pub fn __element(
        &self,
        index: usize,
        stride: usize,
        offset: usize,
        length: usize,
    ) -> Option<Self> {
        let rest = self.sub_region(index.checked_mul(stride)?.checked_add(offset)?)?;
        rest.address.checked_add(length as u64)?;
        (length <= rest.length).then_some(rest)
    }

    /// Like [`__element`](Self::__element), but also works past the end.
    #[doc(hidden)]
    #[inline]
    #[must_use]
    pub const fn __element_unchecked(&self, index: usize, stride: usize, offset: usize) -> Self {
        self.sub_region_unchecked(index.saturating_mul(stride).saturating_add(offset))
    }
}

/// Decodes the bytes of a message, like [`RemoteMemoryRegion::from_bytes`]. Fails unless there are
/// exactly [`BYTES`](RemoteMemoryRegion::BYTES).
///
/// # Examples
/// ```
/// use rdma_mem::RemoteMemoryRegion;
///
/// let memory = RemoteMemoryRegion::new(0x1000, 256, 0x42);
/// let message = memory.to_bytes().to_vec();
/// assert_eq!(RemoteMemoryRegion::try_from(&message[..])?, memory);
/// assert!(RemoteMemoryRegion::try_from(&message[1..]).is_err());
/// # Ok::<(), std::array::TryFromSliceError>(())
/// ```
impl TryFrom<&[u8]> for RemoteMemoryRegion {
    type Error = TryFromSliceError;

    #[inline]
    fn try_from(bytes: &[u8]) -> Result<Self, Self::Error> {
        bytes.try_into().map(Self::from_bytes)
    }
}

/// Returns the `N` bytes at index `at`.
#[inline]
fn part<const N: usize>(bytes: &[u8; RemoteMemoryRegion::BYTES], at: usize) -> [u8; N] {
    array::from_fn(|index| bytes[at + index])
}

#[cfg(test)]
mod tests {
    use super::*;

    fn region(address: u64, length: usize) -> RemoteMemoryRegion {
        RemoteMemoryRegion::new(address, length, 7)
    }

    #[test]
    fn the_end_is_an_empty_region_and_beyond_is_none() {
        let memory = region(100, 10);
        assert_eq!(memory.sub_region(10), Some(region(110, 0)));
        assert_eq!(memory.sub_region(11), None);
        assert_eq!(memory.slice(10..10), Some(region(110, 0)));
        assert_eq!(memory.slice(3..8), Some(region(103, 5)));
        assert_eq!(memory.slice(3..11), None);
        #[allow(clippy::reversed_empty_ranges)]
        let reversed = memory.slice(8..3);
        assert_eq!(reversed, None);
    }

    #[test]
    fn nothing_wraps_or_panics() {
        let memory = region(u64::MAX - 4, usize::MAX);
        assert_eq!(memory.sub_region(5), None);
        assert_eq!(memory.slice(5..6), None);
        assert_eq!(memory.sub_region_unchecked(9), region(u64::MAX, usize::MAX - 9));
        assert_eq!(region(100, 10).sub_region_unchecked(11), region(111, 0));
        assert_eq!(region(100, 10).sub_region_unchecked(usize::MAX).length(), 0);
    }
}
