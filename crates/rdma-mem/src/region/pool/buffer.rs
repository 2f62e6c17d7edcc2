//! Buffers of a pool.
#![allow(unsafe_code)]

use std::fmt;
use std::ops::{Deref, DerefMut};
use std::ptr::NonNull;
use std::sync::Arc;

use rdma_types::Lkey;

use crate::device::protection_domain::ProtectionDomain;
use crate::element::piece::Piece;
use crate::element::slice::{SliceMut, SliceRef};
use crate::error::range;
use crate::region::memory::RegionMemory;
use crate::region::pool::carved::{PoolRegion, Range};
use crate::region::registration::Registration;

/// An owned buffer of registered bytes from a [`BufferPool`](crate::BufferPool). Like an
/// [`OwnedRegion`](crate::OwnedRegion), it serves this machine's own requests, but allocating it
/// needs no registration.
///
/// A buffer derefs to its bytes. Dropping the buffer returns them to the pool. Until then the
/// buffer keeps its region alive, even after the pool is dropped. In that case, dropping the last
/// buffer in a region deregisters the region.
///
/// [`split_at`](Self::split_at) splits a buffer into two, for two concurrent requests.
///
/// It consists of raw parts, without a reference to the bytes, so it can be moved while a device
/// writes them.
///
/// # Examples
/// ```
/// # rdma_soft::install();
/// # let pd = rdma_mem::open_device("soft0")?.allocate_pd()?;
/// let pool = rdma_mem::BufferPool::new(&pd);
/// let mut buffer = pool.allocate(100)?;
/// buffer.fill(7);
/// assert_eq!(buffer.as_slice().gather_element().length(), 100);
/// # Ok::<(), rdma_mem::Error>(())
/// ```
pub struct Buffer {
    range: Range,
    base: NonNull<u8>,
    length: usize,
    region: Arc<PoolRegion>,
}

// SAFETY: SAFETY.md F16: it represents a `Box<[u8]>`, which is `Send`; the pool's region is `Send`
// and `Sync`.
unsafe impl Send for Buffer {}
// SAFETY: SAFETY.md F16: `&Buffer` only gives access to a `&[u8]`.
unsafe impl Sync for Buffer {}

impl Buffer {
    /// # Safety
    /// `range` is a range of `region` with at least `length` bytes after its offset. It belongs to
    /// no other buffer, and has not been returned.
    pub(crate) unsafe fn new(region: Arc<PoolRegion>, range: Range, length: usize) -> Self {
        // SAFETY: SAFETY.md F16: by this function's contract, the offset is within the region.
        let base = unsafe { region.registration().base().add(range.offset()) };
        Self { range, base, length, region }
    }

    /// Returns `length` bytes at `offset`.
    ///
    /// # Safety
    /// The bytes are within the buffer.
    #[inline]
    unsafe fn piece(&self, offset: usize, length: usize) -> Piece<'_> {
        // SAFETY: SAFETY.md F16: by this function's contract, the offset is within the buffer.
        let base = unsafe { self.base.add(offset) };
        let address = self.device_address().wrapping_add(offset as u64);
        // SAFETY: SAFETY.md F16: the bytes are within a range of the region, which the buffer keeps
        // registered. The address, key and domain belong to that registration.
        unsafe { Piece::new(base, length, address, self.lkey(), self.pd()) }
    }

    #[inline]
    fn whole(&self) -> Piece<'_> {
        // SAFETY: SAFETY.md F16: the piece is the whole buffer.
        unsafe { self.piece(0, self.length) }
    }

    /// Returns the length in bytes. Forms no reference to the bytes, so a request may be using them.
    #[inline]
    #[must_use]
    pub const fn len(&self) -> usize {
        self.length
    }

    /// Returns true if the buffer has no bytes.
    #[inline]
    #[must_use]
    pub const fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// Returns a slice of the whole buffer, as a source for sends and writes.
    #[inline]
    #[must_use]
    pub fn as_slice(&self) -> SliceRef<'_> {
        // SAFETY: SAFETY.md F16: the bytes belong to this buffer only, are initialised, and are
        // borrowed by `&self`. No peer has a right to them except through a window, which owns the
        // buffer by value. A device writes them only for requests posted on this machine, by code
        // that promised not to use the bytes until those requests complete.
        unsafe { SliceRef::new(self.whole()) }
    }

    /// Returns an exclusive slice of the whole buffer, which can also be the destination of
    /// receives and reads.
    #[inline]
    #[must_use]
    pub fn as_slice_mut(&mut self) -> SliceMut<'_> {
        // SAFETY: SAFETY.md F16: same argument as in `as_slice`, with a borrow by `&mut self`.
        unsafe { SliceMut::new(self.whole()) }
    }

    /// Returns a slice of `length` bytes at `offset`, as a source for sends and writes. `None` if
    /// the bytes are not within the buffer.
    #[inline]
    #[must_use]
    pub fn get_ref(&self, offset: usize, length: usize) -> Option<SliceRef<'_>> {
        range::check(offset, length, self.length).ok()?;
        // SAFETY: SAFETY.md F16: the range is checked.
        let piece = unsafe { self.piece(offset, length) };
        // SAFETY: SAFETY.md F16: same argument as in `as_slice`.
        Some(unsafe { SliceRef::new(piece) })
    }

    /// Returns an exclusive slice of `length` bytes at `offset`, which can also be the destination
    /// of receives and reads. `None` if the bytes are not within the buffer.
    #[inline]
    #[must_use]
    pub fn get_mut(&mut self, offset: usize, length: usize) -> Option<SliceMut<'_>> {
        range::check(offset, length, self.length).ok()?;
        // SAFETY: SAFETY.md F16: the range is checked.
        let piece = unsafe { self.piece(offset, length) };
        // SAFETY: SAFETY.md F16: same argument as in `as_slice`, with a borrow by `&mut self`.
        Some(unsafe { SliceMut::new(piece) })
    }

    /// Splits the buffer into the first `middle` bytes and the rest. Both are ordinary buffers: one
    /// can be written and sent while a request uses the other. Their memory returns to the pool
    /// only after both are dropped. If different threads or devices write to the same 64 bytes, the
    /// two buffers slow each other down (false sharing).
    ///
    /// # Panics
    /// Panics if `middle` is more than the length.
    ///
    /// # Examples
    /// ```
    /// # rdma_soft::install();
    /// # let pd = rdma_mem::open_device("soft0")?.allocate_pd()?;
    /// let pool = rdma_mem::BufferPool::new(&pd);
    /// let (mut header, mut body) = pool.allocate(4096)?.split_at(64);
    /// header.fill(1);
    /// body.fill(2);
    /// let whole = header.unsplit(body).unwrap();
    /// assert_eq!((whole.len(), whole[63], whole[64]), (4096, 1, 2));
    /// # Ok::<(), rdma_mem::Error>(())
    /// ```
    #[must_use]
    #[track_caller]
    pub fn split_at(mut self, middle: usize) -> (Self, Self) {
        let length = self.length;
        assert!(middle <= length, "{middle} is not within {length} bytes");
        self.region.share(self.range);
        // SAFETY: SAFETY.md F16: the pointer is within the buffer, or at its end.
        let base = unsafe { self.base.add(middle) };
        let (range, region) = (self.range, Arc::clone(&self.region));
        let rest = Self { range, base, length: length - middle, region };
        self.length = middle;
        (self, rest)
    }

    /// Joins two buffers that were [split](Self::split_at). `self` is the first part.
    ///
    /// # Errors
    /// Returns both buffers unless they were split from one buffer in which `rest` directly follows
    /// `self`.
    pub fn unsplit(mut self, rest: Self) -> Result<Self, (Self, Self)> {
        let follows = self.base.as_ptr().wrapping_add(self.length) == rest.base.as_ptr();
        if !follows || !self.is_of_the_same_range(&rest) {
            return Err((self, rest));
        }
        self.length += rest.length;
        // `self` still holds the range.
        drop(rest);
        Ok(self)
    }

    fn is_of_the_same_range(&self, other: &Self) -> bool {
        Arc::ptr_eq(&self.region, &other.region) && self.range.offset() == other.range.offset()
    }

    /// Returns the key for this machine's own requests.
    #[inline]
    #[must_use]
    pub fn lkey(&self) -> Lkey {
        self.region.registration().lkey()
    }

    /// Returns the domain in which the pool registers.
    #[inline]
    #[must_use]
    pub fn pd(&self) -> &ProtectionDomain {
        self.region.registration().pd()
    }

    /// Returns the registration of the buffer's region, which all buffers in that region share.
    pub(crate) fn registration(&self) -> &Registration<RegionMemory> {
        self.region.registration()
    }

    /// Returns true if a window may only give peers the right to read the buffer.
    pub(crate) fn is_read_only(&self) -> bool {
        self.region.is_read_only()
    }

    #[inline]
    pub(crate) fn device_address(&self) -> u64 {
        let base = self.registration().base().as_ptr();
        let offset = self.base.as_ptr().addr() - base.addr();
        self.registration().device_address(offset)
    }
}

impl Deref for Buffer {
    type Target = [u8];

    #[inline]
    fn deref(&self) -> &[u8] {
        // SAFETY: SAFETY.md F16: same argument as in `as_slice`.
        unsafe { self.whole().bytes() }
    }
}

impl DerefMut for Buffer {
    #[inline]
    fn deref_mut(&mut self) -> &mut [u8] {
        // SAFETY: SAFETY.md F16: same argument as in `as_slice`, with a borrow by `&mut self`.
        unsafe { self.whole().bytes_mut() }
    }
}

impl Drop for Buffer {
    fn drop(&mut self) {
        self.region.give_back(self.range);
    }
}

impl fmt::Debug for Buffer {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.whole().debug("Buffer", f)
    }
}
