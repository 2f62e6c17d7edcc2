//! Slices that carry the key of their region.
#![allow(unsafe_code)]

use std::array;
use std::fmt;
use std::iter::FusedIterator;
use std::marker::PhantomData;
use std::ops::{Deref, DerefMut};

use crate::device::protection_domain::ProtectionDomain;
use crate::element::piece::Piece;
use crate::element::{GatherElement, ScatterElement};

/// A shared slice of registered bytes, from [`OwnedRegion::get_ref`](crate::OwnedRegion::get_ref)
/// or [`BorrowedRegion::get_ref`](crate::BorrowedRegion::get_ref).
///
/// # Examples
/// ```
/// # rdma_soft::install();
/// # let pd = rdma_mem::open_device("soft0")?.allocate_pd()?;
/// let region = pd.allocate_region(64)?;
/// let part = region.get_ref(60, 4).ok_or("outside of the region")?;
/// assert_eq!(part.gather_element().length(), 4);
/// assert!(region.get_ref(60, 5).is_none());
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
#[derive(Clone, Copy)]
pub struct SliceRef<'r> {
    piece: Piece<'r>,
    borrow: PhantomData<&'r [u8]>,
}

/// An exclusive slice of registered bytes, from
/// [`OwnedRegion::get_mut`](crate::OwnedRegion::get_mut) or
/// [`BorrowedRegion::get_mut`](crate::BorrowedRegion::get_mut).
///
/// It consists of raw parts, without a reference to the bytes, so it can be moved while a device
/// writes them. A request takes it by value. To use it in several requests at a time, split it first
/// with [`split_at`](Self::split_at), [`into_array`](Self::into_array) or
/// [`into_chunks`](Self::into_chunks). `chunks_mut` and indexing come from `[u8]`, and return plain
/// bytes without a key.
///
/// # Examples
/// ```
/// # rdma_soft::install();
/// # let pd = rdma_mem::open_device("soft0")?.allocate_pd()?;
/// let mut region = pd.allocate_region(64)?;
/// let (mut header, body) = region.as_slice_mut().split_at(16);
/// header.fill(1); // plain bytes until a request takes the slice
/// let pieces: Vec<_> = body.into_chunks(16).collect(); // one for each of three requests
/// assert_eq!((header.len(), pieces.len()), (16, 3));
/// # Ok::<(), rdma_mem::Error>(())
/// ```
pub struct SliceMut<'r> {
    piece: Piece<'r>,
    borrow: PhantomData<&'r mut [u8]>,
}

// SAFETY: SAFETY.md F16: it represents a `&[u8]`, which is `Send`.
unsafe impl Send for SliceRef<'_> {}
// SAFETY: SAFETY.md F16: it represents a `&[u8]`, which is `Sync`.
unsafe impl Sync for SliceRef<'_> {}
// SAFETY: SAFETY.md F16: it represents a `&mut [u8]`, which is `Send`.
unsafe impl Send for SliceMut<'_> {}
// SAFETY: SAFETY.md F16: it represents a `&mut [u8]`, which is `Sync`.
unsafe impl Sync for SliceMut<'_> {}

impl<'r> SliceRef<'r> {
    /// # Safety
    /// The bytes are initialised and borrowed for `'r`: only a device writes them. The device does
    /// so only for requests posted on this machine, by code that promised not to use the bytes
    /// until those requests complete.
    #[inline]
    pub(crate) unsafe fn new(piece: Piece<'r>) -> Self {
        Self { piece, borrow: PhantomData }
    }

    /// Returns the length in bytes. Forms no reference to the bytes, so a request may be using them.
    #[inline]
    #[must_use]
    pub const fn len(&self) -> usize {
        self.piece.length
    }

    /// Returns true if the slice has no bytes.
    #[inline]
    #[must_use]
    pub const fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// Returns the domain of the region that the bytes belong to.
    #[inline]
    #[must_use]
    pub fn pd(&self) -> &'r ProtectionDomain {
        self.piece.pd
    }

    /// Returns the element for these bytes, or for the first 4 GiB - 1 of them.
    #[inline]
    #[must_use]
    pub fn gather_element(&self) -> GatherElement<'r> {
        GatherElement::from_parts(self.piece.address, self.piece.length, self.piece.lkey)
    }

    /// Splits the slice into the first `middle` bytes and the rest.
    ///
    /// # Panics
    /// Panics if `middle` is more than the length.
    #[inline]
    #[must_use]
    #[track_caller]
    pub fn split_at(self, middle: usize) -> (Self, Self) {
        let (first, rest) = self.piece.split_at(middle);
        (Self { piece: first, ..self }, Self { piece: rest, ..self })
    }
}

impl<'r> SliceMut<'r> {
    /// # Safety
    /// The bytes are initialised and exclusively borrowed for `'r`: apart from this slice, only a
    /// device reads or writes them. The device does so only for requests posted on this machine, by
    /// code that promised not to use the bytes until those requests complete.
    #[inline]
    pub(crate) unsafe fn new(piece: Piece<'r>) -> Self {
        Self { piece, borrow: PhantomData }
    }

    /// Returns the length in bytes. Forms no reference to the bytes, so a request may be using them.
    #[inline]
    #[must_use]
    pub const fn len(&self) -> usize {
        self.piece.length
    }

    /// Returns true if the slice has no bytes.
    #[inline]
    #[must_use]
    pub const fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// Returns the domain of the region that the bytes belong to.
    #[inline]
    #[must_use]
    pub fn pd(&self) -> &'r ProtectionDomain {
        self.piece.pd
    }

    /// Returns an element from which these bytes, or the first 4 GiB - 1 of them, can be read.
    #[inline]
    #[must_use]
    pub fn gather_element(&self) -> GatherElement<'_> {
        GatherElement::from_parts(self.piece.address, self.piece.length, self.piece.lkey)
    }

    /// Returns an element through which these bytes, or the first 4 GiB - 1 of them, can be
    /// written.
    #[inline]
    #[must_use]
    pub fn scatter_element(&mut self) -> ScatterElement<'_> {
        ScatterElement::from_parts(self.piece.address, self.piece.length, self.piece.lkey)
    }

    /// Returns the element for these bytes, or for the first 4 GiB - 1 of them, with the full
    /// lifetime of their borrow.
    #[inline]
    pub(crate) fn into_scatter_element(self) -> ScatterElement<'r> {
        ScatterElement::from_parts(self.piece.address, self.piece.length, self.piece.lkey)
    }

    /// Returns the same bytes as a shared slice.
    #[inline]
    #[must_use]
    pub fn as_shared(&self) -> SliceRef<'_> {
        SliceRef { piece: self.piece, borrow: PhantomData }
    }

    /// Returns the same bytes with a shorter lifetime; the slice can be used again afterwards.
    #[inline]
    #[must_use]
    pub fn reborrow(&mut self) -> SliceMut<'_> {
        SliceMut { piece: self.piece, borrow: PhantomData }
    }

    /// Splits the slice into the first `middle` bytes and the rest.
    ///
    /// # Panics
    /// Panics if `middle` is more than the length.
    #[inline]
    #[must_use]
    #[track_caller]
    pub fn split_at(self, middle: usize) -> (Self, Self) {
        let (first, rest) = self.piece.split_at(middle);
        (Self { piece: first, ..self }, Self { piece: rest, ..self })
    }

    /// Splits the slice into slices of `size` bytes each, in order. The last one is shorter if the
    /// length is not a multiple of `size`. An empty slice has no chunks.
    ///
    /// This method is not called `chunks`, because that name would hide the byte slice's method.
    ///
    /// # Panics
    /// Panics if `size` is 0.
    ///
    /// # Examples
    /// ```
    /// # rdma_soft::install();
    /// # let pd = rdma_mem::open_device("soft0")?.allocate_pd()?;
    /// let mut region = pd.allocate_region(10)?;
    /// for mut piece in region.as_slice_mut().into_chunks(4) {
    ///     let length = piece.len() as u8;
    ///     piece.fill(length); // here a receive would be posted for each
    /// }
    /// assert_eq!(region[..], [4, 4, 4, 4, 4, 4, 4, 4, 2, 2]);
    /// # Ok::<(), rdma_mem::Error>(())
    /// ```
    #[inline]
    #[track_caller]
    pub fn into_chunks(
        self,
        size: usize,
    ) -> impl ExactSizeIterator<Item = SliceMut<'r>> + FusedIterator {
        assert!(size != 0, "chunks of 0 bytes");
        let mut rest = self;
        (0..rest.piece.length.div_ceil(size)).map(move |_| rest.take_first(size))
    }

    /// Splits the slice into an array of `N` slices of equal length, in order.
    ///
    /// # Errors
    /// Returns the slice if its length is not a multiple of `N`, or if `N` is 0.
    ///
    /// # Examples
    /// ```
    /// # rdma_soft::install();
    /// # let pd = rdma_mem::open_device("soft0")?.allocate_pd()?;
    /// let mut region = pd.allocate_region(8192)?;
    /// let [from, to] = region.as_slice_mut().into_array().expect("two halves");
    /// assert_eq!((from.len(), to.len()), (4096, 4096));
    /// assert!(region.as_slice_mut().into_array::<3>().is_err());
    /// # Ok::<(), rdma_mem::Error>(())
    /// ```
    #[inline]
    pub fn into_array<const N: usize>(self) -> Result<[SliceMut<'r>; N], Self> {
        if self.piece.length.checked_rem(N) != Some(0) {
            return Err(self);
        }
        let (size, mut rest) = (self.piece.length / N, self);
        Ok(array::from_fn(|_| rest.take_first(size)))
    }

    /// Splits off and returns the first `length` bytes, or all if there are fewer.
    #[inline]
    fn take_first(&mut self, length: usize) -> Self {
        let (first, rest) = self.piece.split_at(length.min(self.piece.length));
        self.piece = rest;
        Self { piece: first, borrow: PhantomData }
    }
}

impl<'r> From<SliceMut<'r>> for SliceRef<'r> {
    #[inline]
    fn from(slice: SliceMut<'r>) -> Self {
        Self { piece: slice.piece, borrow: PhantomData }
    }
}

impl Deref for SliceRef<'_> {
    type Target = [u8];

    #[inline]
    fn deref(&self) -> &[u8] {
        // SAFETY: SAFETY.md F16: by the contract of `new`, the bytes are initialised, and borrowed
        // for longer than the result.
        unsafe { self.piece.bytes() }
    }
}

impl Deref for SliceMut<'_> {
    type Target = [u8];

    #[inline]
    fn deref(&self) -> &[u8] {
        // SAFETY: SAFETY.md F16: by the contract of `new`, the bytes are initialised, and borrowed
        // for longer than the result.
        unsafe { self.piece.bytes() }
    }
}

impl DerefMut for SliceMut<'_> {
    #[inline]
    fn deref_mut(&mut self) -> &mut [u8] {
        // SAFETY: SAFETY.md F16: by the contract of `new`, the bytes are initialised, and
        // exclusively borrowed for longer than the result; `&mut self` reborrows them.
        unsafe { self.piece.bytes_mut() }
    }
}

impl fmt::Debug for SliceRef<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.piece.debug("SliceRef", f)
    }
}

impl fmt::Debug for SliceMut<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.piece.debug("SliceMut", f)
    }
}
