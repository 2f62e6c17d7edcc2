//! Slices that carry the key of their region.
#![allow(unsafe_code)]

use std::fmt;
use std::marker::PhantomData;
use std::ops::{Deref, DerefMut};

use crate::device::protection_domain::ProtectionDomain;
use crate::element::piece::Piece;
use crate::element::{GatherElement, ScatterElement};

/// Registered bytes, shared: what [`OwnedRegion::get_ref`](crate::OwnedRegion::get_ref) gives, and
/// [`BorrowedRegion::get_ref`](crate::BorrowedRegion::get_ref).
#[derive(Clone, Copy)]
pub struct SliceRef<'r> {
    piece: Piece<'r>,
    borrow: PhantomData<&'r [u8]>,
}

/// Registered bytes, exclusive: what [`OwnedRegion::get_mut`](crate::OwnedRegion::get_mut) gives,
/// and [`BorrowedRegion::get_mut`](crate::BorrowedRegion::get_mut).
///
/// Within are raw parts and no reference to the bytes: it can be moved while a device writes them.
pub struct SliceMut<'r> {
    piece: Piece<'r>,
    borrow: PhantomData<&'r mut [u8]>,
}

// SAFETY: SAFETY.md F16: as `&[u8]`, which it stands for.
unsafe impl Send for SliceRef<'_> {}
// SAFETY: SAFETY.md F16: as `&[u8]`.
unsafe impl Sync for SliceRef<'_> {}
// SAFETY: SAFETY.md F16: as `&mut [u8]`, which it stands for.
unsafe impl Send for SliceMut<'_> {}
// SAFETY: SAFETY.md F16: as `&mut [u8]`.
unsafe impl Sync for SliceMut<'_> {}

impl<'r> SliceRef<'r> {
    /// # Safety
    /// The bytes are initialised and borrowed for `'r`: nobody writes them but a device, for
    /// requests of this machine whose poster promised that nobody uses them meanwhile.
    #[inline]
    pub(crate) unsafe fn new(piece: Piece<'r>) -> Self {
        Self { piece, borrow: PhantomData }
    }

    /// The domain of the region that the bytes belong to.
    #[inline]
    #[must_use]
    pub fn pd(&self) -> &'r ProtectionDomain {
        self.piece.pd
    }

    /// The element for these bytes. Of more than 4 GiB - 1 only so many are taken.
    #[inline]
    #[must_use]
    pub fn gather_element(&self) -> GatherElement<'r> {
        GatherElement::from_parts(self.piece.address, self.piece.length, self.piece.lkey)
    }

    /// Two slices: the first `middle` bytes, and the rest.
    ///
    /// # Panics
    /// If `middle` is more than the length.
    #[inline]
    #[must_use]
    pub fn split_at(self, middle: usize) -> (Self, Self) {
        let (first, rest) = self.piece.split_at(middle);
        (Self { piece: first, ..self }, Self { piece: rest, ..self })
    }
}

impl<'r> SliceMut<'r> {
    /// # Safety
    /// The bytes are initialised and exclusively borrowed for `'r`: nobody else reads or writes
    /// them but a device, for requests of this machine whose poster promised that nobody uses them
    /// meanwhile.
    #[inline]
    pub(crate) unsafe fn new(piece: Piece<'r>) -> Self {
        Self { piece, borrow: PhantomData }
    }

    /// The domain of the region that the bytes belong to.
    #[inline]
    #[must_use]
    pub fn pd(&self) -> &'r ProtectionDomain {
        self.piece.pd
    }

    /// The element for these bytes, to read from.
    #[inline]
    #[must_use]
    pub fn gather_element(&self) -> GatherElement<'_> {
        GatherElement::from_parts(self.piece.address, self.piece.length, self.piece.lkey)
    }

    /// The element for these bytes, to write to. Of more than 4 GiB - 1 only so many are taken.
    #[inline]
    #[must_use]
    pub fn scatter_element(&mut self) -> ScatterElement<'_> {
        ScatterElement::from_parts(self.piece.address, self.piece.length, self.piece.lkey)
    }

    /// The element for these bytes, as long as they are borrowed.
    #[inline]
    pub(crate) fn into_scatter_element(self) -> ScatterElement<'r> {
        ScatterElement::from_parts(self.piece.address, self.piece.length, self.piece.lkey)
    }

    /// The same bytes, shared.
    #[inline]
    #[must_use]
    pub fn as_shared(&self) -> SliceRef<'_> {
        SliceRef { piece: self.piece, borrow: PhantomData }
    }

    /// The same bytes, for a shorter time: the slice can be used again after it.
    #[inline]
    #[must_use]
    pub fn reborrow(&mut self) -> SliceMut<'_> {
        SliceMut { piece: self.piece, borrow: PhantomData }
    }

    /// Two slices: the first `middle` bytes, and the rest.
    ///
    /// # Panics
    /// If `middle` is more than the length.
    #[inline]
    #[must_use]
    pub fn split_at(self, middle: usize) -> (Self, Self) {
        let (first, rest) = self.piece.split_at(middle);
        (Self { piece: first, ..self }, Self { piece: rest, ..self })
    }
}

impl Deref for SliceRef<'_> {
    type Target = [u8];

    #[inline]
    fn deref(&self) -> &[u8] {
        // SAFETY: SAFETY.md F16: initialised and borrowed for longer, by the contract of `new`.
        unsafe { self.piece.bytes() }
    }
}

impl Deref for SliceMut<'_> {
    type Target = [u8];

    #[inline]
    fn deref(&self) -> &[u8] {
        // SAFETY: SAFETY.md F16: initialised and borrowed for longer, by the contract of `new`.
        unsafe { self.piece.bytes() }
    }
}

impl DerefMut for SliceMut<'_> {
    #[inline]
    fn deref_mut(&mut self) -> &mut [u8] {
        // SAFETY: SAFETY.md F16: initialised and exclusively borrowed for longer, by the contract
        // of `new`, and lent on by `&mut self`.
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
