//! Parts of buffers.

use std::fmt;
use std::ops::{Deref, DerefMut, Range};

use rdma_mem::{Buffer, SliceMut, SliceRef};

use crate::buffer::shared::SharedBuffer;

/// An owned part of a [`Buffer`]. An operation uses only the part; [`into_inner`](Self::into_inner) returns the whole
/// buffer. Dereferences to the bytes of the part.
///
/// # Examples
/// ```
/// use rdma_async::{BufferSlice, prelude::*};
///
/// # rdma_soft::install();
/// # let pd = rdma_mem::open_device("soft0")?.allocate_pd()?;
/// let buffer = rdma_mem::BufferPool::new(&pd).allocate(100)?;
/// let mut part: BufferSlice = buffer.slice(10..20);
/// part.fill(7);
/// let whole = part.into_inner();
/// assert_eq!((whole.len(), whole[10], whole[20]), (100, 7, 0));
/// # Ok::<(), rdma_mem::Error>(())
/// ```
pub struct BufferSlice {
    whole: Buffer,
    start: usize,
    length: usize,
}

impl BufferSlice {
    /// # Panics
    /// If the range is not within the buffer.
    #[track_caller]
    fn new(whole: Buffer, range: Range<usize>) -> Self {
        let Range { start, end } = range;
        assert!(
            start <= end && end <= whole.len(),
            "{range:?} is not within {} bytes",
            whole.len()
        );
        Self { whole, start, length: end - start }
    }

    /// Returns the whole buffer.
    #[must_use]
    pub fn into_inner(self) -> Buffer {
        self.whole
    }

    /// Returns the range of the part within the buffer.
    #[must_use]
    pub const fn range(&self) -> Range<usize> {
        self.start..self.start + self.length
    }

    /// Returns the bytes of the part as registered memory.
    ///
    /// # Panics
    /// Never: the part is within the buffer.
    #[inline]
    #[must_use]
    #[allow(clippy::expect_used)] // the range was checked
    pub fn as_slice(&self) -> SliceRef<'_> {
        self.whole.get_ref(self.start, self.length).expect("within the buffer")
    }

    /// Same as [`as_slice`](Self::as_slice), but mutable.
    ///
    /// # Panics
    /// Never: the part is within the buffer.
    #[inline]
    #[must_use]
    #[allow(clippy::expect_used)] // the range was checked
    pub fn as_slice_mut(&mut self) -> SliceMut<'_> {
        self.whole.get_mut(self.start, self.length).expect("within the buffer")
    }
}

/// Converts the buffer to a part that covers all of it.
impl From<Buffer> for BufferSlice {
    #[inline]
    fn from(whole: Buffer) -> Self {
        let length = whole.len();
        Self { whole, start: 0, length }
    }
}

impl Deref for BufferSlice {
    type Target = [u8];

    #[inline]
    fn deref(&self) -> &[u8] {
        &self.whole[self.start..self.start + self.length]
    }
}

impl DerefMut for BufferSlice {
    #[inline]
    fn deref_mut(&mut self) -> &mut [u8] {
        &mut self.whole[self.start..self.start + self.length]
    }
}

impl fmt::Debug for BufferSlice {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{:?}[{:?}]", self.whole, self.range())
    }
}

mod sealed {
    #[allow(unnameable_types)] // this seals the trait
    pub trait Sealed {}
    impl Sealed for rdma_mem::Buffer {}
}

/// Conversions of a [`Buffer`] into memory for operations.
pub trait BufferExt: sealed::Sealed + Sized {
    /// Returns a part of the buffer, for an operation.
    ///
    /// # Panics
    /// If the range is not within the buffer.
    #[track_caller]
    fn slice(self, range: Range<usize>) -> BufferSlice;

    /// Returns the buffer as read-only memory, which can be the source of several operations at once.
    fn freeze(self) -> SharedBuffer;
}

impl BufferExt for Buffer {
    fn slice(self, range: Range<usize>) -> BufferSlice {
        BufferSlice::new(self, range)
    }

    fn freeze(self) -> SharedBuffer {
        SharedBuffer::new(self)
    }
}
