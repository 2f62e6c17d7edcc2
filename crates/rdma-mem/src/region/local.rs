//! Regions without access for peers, whose bytes are visible as slices.
#![allow(unsafe_code)]

use std::ops::{Deref, DerefMut};

use rdma_sys::ibv_mr;
use rdma_types::Lkey;

use crate::device::protection_domain::ProtectionDomain;
use crate::element::piece::Piece;
use crate::element::slice::{SliceMut, SliceRef};
use crate::error::{Error, range};
use crate::region::registration::Registration;

/// Registered memory that no peer can access. `M` owns or borrows the memory, which makes the
/// region an [`OwnedRegion`](crate::OwnedRegion) or a [`BorrowedRegion`](crate::BorrowedRegion).
///
/// The region derefs to its bytes. [`as_slice_mut`](Self::as_slice_mut),
/// [`split_at`](Self::split_at), [`get_ref`](Self::get_ref) and [`get_mut`](Self::get_mut) return
/// parts of it with the region's key. An element made from such a part is always valid.
///
/// # Examples
/// ```
/// # rdma_soft::install();
/// # let pd = rdma_mem::open_device("soft0")?.allocate_pd()?;
/// let mut region = pd.allocate_region(4096)?; // an `OwnedRegion`
/// region[..5].copy_from_slice(b"hello");
/// let hello = region.get_ref(0, 5).ok_or("outside of the region")?; // for a request
/// assert_eq!(hello.gather_element().length(), 5);
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
#[doc(alias = "ibv_mr")]
pub struct LocalRegion<M>(Registration<M>);

impl<M> LocalRegion<M> {
    /// # Safety
    /// While the value exists, its memory is mapped and initialised, and this registration gives
    /// peers no right to it. Besides the value, only two parties access the memory in that time.
    /// One is a device, for requests posted on this machine by code that promised not to use the
    /// memory until they complete. The other is peers, through a memory window that owns the value.
    pub(crate) unsafe fn new(registration: Registration<M>) -> Self {
        Self(registration)
    }

    pub(crate) fn registration(&self) -> &Registration<M> {
        &self.0
    }

    #[inline]
    fn whole(&self) -> Piece<'_> {
        // SAFETY: SAFETY.md F16: the piece is the whole region, which is mapped while the value
        // lives, by the contract of `new`.
        unsafe { self.0.piece(0, self.0.length()) }
    }

    /// Deregisters the region and returns the owner or the borrow of the memory.
    #[allow(clippy::result_large_err)] // it is the region itself
    pub(crate) fn deregister(self) -> Result<M, (Self, Error)> {
        self.0.close().map_err(|(registration, error)| (Self(registration), error))
    }

    /// Returns the length in bytes. Forms no reference to the bytes, so a request may be using them.
    #[inline]
    #[must_use]
    pub const fn len(&self) -> usize {
        self.0.length()
    }

    /// Returns true if the region has no bytes.
    #[inline]
    #[must_use]
    pub const fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// Returns a slice of `length` bytes at `offset`, as a source for sends and writes. `None` if
    /// the bytes are not within the region.
    #[inline]
    #[must_use]
    pub fn get_ref(&self, offset: usize, length: usize) -> Option<SliceRef<'_>> {
        range::check(offset, length, self.0.length()).ok()?;
        // SAFETY: SAFETY.md F16: the range is checked, and mapped while the value lives, by the
        // contract of `new`.
        let piece = unsafe { self.0.piece(offset, length) };
        // SAFETY: SAFETY.md F16: by the contract of `new`, the bytes are initialised. `&self`
        // borrows them: a window that lends the region owns it by value. A device writes them only
        // for requests posted on this machine, by code that promised not to use the bytes until
        // those requests complete.
        Some(unsafe { SliceRef::new(piece) })
    }

    /// Returns an exclusive slice of `length` bytes at `offset`, which can also be the destination
    /// of receives and reads. `None` if the bytes are not within the region.
    #[inline]
    #[must_use]
    pub fn get_mut(&mut self, offset: usize, length: usize) -> Option<SliceMut<'_>> {
        range::check(offset, length, self.0.length()).ok()?;
        // SAFETY: SAFETY.md F16: the range is checked, and mapped while the value lives, by the
        // contract of `new`.
        let piece = unsafe { self.0.piece(offset, length) };
        // SAFETY: SAFETY.md F16: same argument as in `get_ref`, with a borrow by `&mut self`.
        Some(unsafe { SliceMut::new(piece) })
    }

    /// Returns a slice of the whole region, as a source for sends and writes.
    #[inline]
    #[must_use]
    pub fn as_slice(&self) -> SliceRef<'_> {
        // SAFETY: SAFETY.md F16: same argument as in `get_ref`.
        unsafe { SliceRef::new(self.whole()) }
    }

    /// Returns an exclusive slice of the whole region, which can also be the destination of
    /// receives and reads.
    #[inline]
    #[must_use]
    pub fn as_slice_mut(&mut self) -> SliceMut<'_> {
        // SAFETY: SAFETY.md F16: same argument as in `get_ref`, with a borrow by `&mut self`.
        unsafe { SliceMut::new(self.whole()) }
    }

    /// Splits the region into two exclusive slices: the first `middle` bytes and the rest.
    ///
    /// `region[..].split_at(middle)` splits the bytes without their registration.
    ///
    /// # Panics
    /// Panics if `middle` is more than the length.
    #[inline]
    #[must_use]
    #[track_caller]
    pub fn split_at(&mut self, middle: usize) -> (SliceMut<'_>, SliceMut<'_>) {
        self.as_slice_mut().split_at(middle)
    }

    /// Returns the key for this machine's own requests.
    #[inline]
    #[must_use]
    pub fn lkey(&self) -> Lkey {
        self.0.lkey()
    }

    /// Returns the protection domain that the region was registered in.
    #[must_use]
    pub fn pd(&self) -> &ProtectionDomain {
        self.0.pd()
    }

    /// Returns the C object, which lives as long as `self`.
    #[inline]
    #[must_use]
    pub fn as_raw(&self) -> *mut ibv_mr {
        self.0.as_raw()
    }
}

impl<M> Deref for LocalRegion<M> {
    type Target = [u8];

    #[inline]
    fn deref(&self) -> &[u8] {
        // SAFETY: SAFETY.md F16: same argument as in `get_ref`.
        unsafe { self.whole().bytes() }
    }
}

impl<M> DerefMut for LocalRegion<M> {
    #[inline]
    fn deref_mut(&mut self) -> &mut [u8] {
        // SAFETY: SAFETY.md F16: same argument as in `get_ref`, with a borrow by `&mut self`.
        unsafe { self.whole().bytes_mut() }
    }
}
