//! Buffers that several operations read at once.

use std::fmt;
use std::ops::{Deref, Range};
use std::sync::Arc;

use rdma_mem::{Buffer, SliceRef};

/// A read-only [`Buffer`] with cheap clones, which can be the source of several operations at once.
///
/// # Examples
/// ```
/// use rdma_async::prelude::*;
///
/// # rdma_soft::install();
/// # let pd = rdma_mem::open_device("soft0")?.allocate_pd()?;
/// let mut buffer = rdma_mem::BufferPool::new(&pd).allocate(100)?;
/// buffer.fill(7);
/// let shared = buffer.freeze();
/// let other = shared.slice(10..20);
/// assert_eq!((shared.len(), other.len(), other[0]), (100, 10, 7));
/// // Exclusive again after all other handles are dropped.
/// let shared = shared.try_thaw().unwrap_err();
/// drop(other);
/// assert_eq!(shared.try_thaw().unwrap().len(), 100);
/// # Ok::<(), rdma_mem::Error>(())
/// ```
#[derive(Clone)]
pub struct SharedBuffer {
    whole: Arc<Buffer>,
    start: usize,
    length: usize,
}

impl SharedBuffer {
    pub(crate) fn new(whole: Buffer) -> Self {
        let length = whole.len();
        Self { whole: Arc::new(whole), start: 0, length }
    }

    /// Returns a part of the buffer, which keeps the whole buffer alive.
    ///
    /// # Panics
    /// If the range is not within the buffer.
    #[must_use]
    #[track_caller]
    pub fn slice(&self, range: Range<usize>) -> Self {
        let Range { start, end } = range;
        assert!(
            start <= end && end <= self.length,
            "{range:?} is not within {} bytes",
            self.length
        );
        Self { whole: Arc::clone(&self.whole), start: self.start + start, length: end - start }
    }

    /// Returns the whole buffer, if no clone and no operation uses it.
    ///
    /// # Errors
    /// Returns the shared buffer if it is still used.
    pub fn try_thaw(self) -> Result<Buffer, Self> {
        let Self { whole, start, length } = self;
        Arc::try_unwrap(whole).map_err(|whole| Self { whole, start, length })
    }

    /// Returns the bytes as registered memory.
    ///
    /// # Panics
    /// Never: the part is within the buffer.
    #[inline]
    #[must_use]
    #[allow(clippy::expect_used)] // the range was checked
    pub fn as_slice(&self) -> SliceRef<'_> {
        self.whole.get_ref(self.start, self.length).expect("within the buffer")
    }
}

impl Deref for SharedBuffer {
    type Target = [u8];

    #[inline]
    fn deref(&self) -> &[u8] {
        &self.whole[self.start..self.start + self.length]
    }
}

impl fmt::Debug for SharedBuffer {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{:?}[{}..{}]", self.whole, self.start, self.start + self.length)
    }
}
