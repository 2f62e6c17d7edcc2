//! Elements of inline data.

use std::fmt;
use std::marker::PhantomData;

use rdma_sys::ibv_sge;

use crate::element::ScatterGatherElementError;

/// Inline data: bytes that are copied into a request when it is posted.
///
/// It has the layout of C's `ibv_sge`, like the other elements. Its address is the pointer to the
/// data, which the processor copies before the post returns. It has no key, because the memory
/// needs no registration.
///
/// An inline element can be made only from a slice. The address in a
/// [`GatherElement`](crate::GatherElement) is the one that a *device* uses for the memory. For some
/// regions it equals the pointer, but it can be any number: the `iova` of a
/// [`DmabufRegion`](crate::DmabufRegion), or 0 with [`ZERO_BASED`](crate::AccessFlags::ZERO_BASED).
/// Therefore the two kinds of element cannot be converted into each other. Memory that peers may
/// write ([`SharedRegion`](crate::SharedRegion)) is never available as a slice, so copy the data
/// out of it first.
///
/// # Examples
/// ```
/// use rdma_mem::InlineElement;
///
/// let elements = [InlineElement::new(b"head"), InlineElement::new(&[7; 12])];
/// assert_eq!(elements.map(|element| element.length()), [4, 12]);
/// ```
#[doc(alias = "ibv_sge")]
#[doc(alias = "IBV_SEND_INLINE")]
#[derive(Clone, Copy)]
#[repr(transparent)]
pub struct InlineElement<'a> {
    sge: ibv_sge,
    borrow: PhantomData<&'a [u8]>,
}

impl<'a> InlineElement<'a> {
    /// Creates the element for `data`.
    ///
    /// # Panics
    /// Panics, in every build, if `data` is longer than 4 GiB - 1.
    #[inline]
    #[must_use]
    #[track_caller]
    pub fn new(data: &'a [u8]) -> Self {
        match length(data.len()) {
            Ok(length) => Self::of(data, length),
            Err(error) => refuse(error),
        }
    }

    /// Creates the element for `data`.
    ///
    /// # Errors
    /// Returns an error if `data` is longer than 4 GiB - 1.
    #[inline]
    pub fn new_checked(data: &'a [u8]) -> Result<Self, ScatterGatherElementError> {
        length(data.len()).map(|length| Self::of(data, length))
    }

    #[inline]
    fn of(data: &'a [u8], length: u32) -> Self {
        let addr = data.as_ptr().expose_provenance() as u64;
        Self { sge: ibv_sge { addr, length, lkey: 0 }, borrow: PhantomData }
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

/// Converts the length to C's integer type.
#[inline]
fn length(bytes: usize) -> Result<u32, ScatterGatherElementError> {
    u32::try_from(bytes).map_err(|_| ScatterGatherElementError::SliceTooBig)
}

#[cold]
#[inline(never)]
#[track_caller]
#[allow(clippy::panic)] // documented for `new`
fn refuse(error: ScatterGatherElementError) -> ! {
    panic!("{error}");
}

impl fmt::Debug for InlineElement<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("InlineElement")
            .field("address", &format_args!("{:#x}", self.sge.addr))
            .field("length", &self.sge.length)
            .finish()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn it_is_the_struct_of_c_with_the_pointer_and_without_a_key() {
        assert_eq!(size_of::<InlineElement<'_>>(), size_of::<ibv_sge>());
        assert_eq!(align_of::<InlineElement<'_>>(), align_of::<ibv_sge>());
        let data = [1, 2, 3];
        let element = InlineElement::new(&data);
        let checked = InlineElement::new_checked(&data).unwrap();
        let addr = data.as_ptr().addr() as u64;
        for ibv_sge { addr: at, length, lkey } in [element, checked].map(|it| *it.as_raw()) {
            assert_eq!((at, length, lkey), (addr, 3, 0));
        }
        assert!(format!("{element:?}").contains(&format!("{addr:#x}, length: 3")));
        assert_eq!(InlineElement::new(&[]).length(), 0);
    }

    #[test]
    fn lengths_above_32_bits_are_refused() {
        assert_eq!(length(u32::MAX as usize), Ok(u32::MAX));
        let too_big = Err(ScatterGatherElementError::SliceTooBig);
        assert_eq!((length(1 << 32), length(usize::MAX)), (too_big, too_big));
    }
}
