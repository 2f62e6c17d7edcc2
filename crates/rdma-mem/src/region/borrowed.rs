//! Regions over borrowed memory, for this machine alone.
#![allow(unsafe_code)]

use std::marker::PhantomData;
use std::ops::{Deref, DerefMut};
use std::ptr::NonNull;

use rdma_sys::ibv_mr;
use rdma_types::{AccessFlags, Lkey};

use crate::device::protection_domain::ProtectionDomain;
use crate::element::slice::{SliceMut, SliceRef};
use crate::error::Error;
use crate::region::registration::Registration;

/// Registered memory that the region borrows, exclusively: for bytes that live elsewhere and cannot
/// move to an [`OwnedRegion`](crate::OwnedRegion).
///
/// It derefs to the bytes. Pieces of it that carry the region's key come from
/// [`as_slice_mut`](Self::as_slice_mut), [`split_at`](Self::split_at) and [`get_mut`](Self::get_mut);
/// an element made from one cannot be wrong.
///
/// No peer can reach it, and there is no `remote()`: a region that is forgotten (`std::mem::forget`)
/// ends its borrow and stays registered, so that a peer with the key would write to memory that
/// somebody else has by then.
///
/// # Examples
/// ```
/// rdma_soft::install();
/// let pd = rdma_mem::open_device("soft0")?.allocate_pd()?;
/// let mut memory = vec![0; 64];
/// let mut region = pd.register_borrowed(&mut memory)?;
/// let (mut header, body) = region.split_at(16);
/// header.fill(1);
/// assert_eq!((header.gather_element().length(), body.gather_element().length()), (16, 48));
/// drop(region);
/// assert_eq!(memory[15..17], [1, 0]);
/// # Ok::<(), rdma_mem::Error>(())
/// ```
#[doc(alias = "ibv_mr")]
#[derive(Debug)]
pub struct BorrowedRegion<'a>(Registration<PhantomData<&'a mut [u8]>>);

impl<'a> BorrowedRegion<'a> {
    /// Registers a slice for local access: for what is sent from here, and for what arrives in
    /// receives and answers to reads.
    ///
    /// # Errors
    /// [`Error::EmptyRegion`], or the verb's: the hint tells about the limit of locked memory.
    #[doc(alias = "ibv_reg_mr")]
    pub fn register(pd: &ProtectionDomain, memory: &'a mut [u8]) -> Result<Self, Error> {
        let (length, base) = (memory.len(), NonNull::from(memory).cast());
        let access = AccessFlags::new().with_local_write();
        // SAFETY: SAFETY.md F8: borrowed until the region is dropped, which deregisters it first. That the memory
        // stays mapped as long as it is registered is not kept where the region is forgotten, or cannot be
        // deregistered. Nothing depends on it then: no element can be made any more, and whoever posted one sees
        // to its bytes until its request is over. The rkey is worth nothing to a peer, who has no right here.
        let registration = unsafe { Registration::new(pd, base, length, access, PhantomData) };
        registration.map(Self).map_err(|(_, error)| error)
    }

    /// `length` bytes at `offset`, to send or write from; `None` if they are not within the region.
    #[inline]
    #[must_use]
    pub fn get_ref(&self, offset: usize, length: usize) -> Option<SliceRef<'_>> {
        // SAFETY: SAFETY.md F16: the memory is a slice that is borrowed for as long as the region lives, no peer
        // can reach it, and a request of this machine names it only if its poster promised to leave it alone.
        unsafe { self.0.slice(offset, length) }
    }

    /// `length` bytes at `offset`, exclusively: also to receive or read into. `None` if they are not
    /// within the region.
    #[inline]
    #[must_use]
    pub fn get_mut(&mut self, offset: usize, length: usize) -> Option<SliceMut<'_>> {
        // SAFETY: SAFETY.md F16: as above, by `&mut self`.
        unsafe { self.0.slice_mut(offset, length) }
    }

    /// The whole region, to send or write from.
    #[inline]
    #[must_use]
    pub fn as_slice(&self) -> SliceRef<'_> {
        // SAFETY: SAFETY.md F16: as `get_ref`.
        unsafe { self.0.whole() }
    }

    /// The whole region, exclusively: also to receive or read into.
    #[inline]
    #[must_use]
    pub fn as_slice_mut(&mut self) -> SliceMut<'_> {
        // SAFETY: SAFETY.md F16: as above, by `&mut self`.
        unsafe { self.0.whole_mut() }
    }

    /// The first `middle` bytes and the rest, both exclusively.
    ///
    /// # Panics
    /// If `middle` is more than the length.
    #[inline]
    #[must_use]
    pub fn split_at(&mut self, middle: usize) -> (SliceMut<'_>, SliceMut<'_>) {
        self.as_slice_mut().split_at(middle)
    }

    /// The key for this machine's own requests.
    #[inline]
    #[must_use]
    pub fn lkey(&self) -> Lkey {
        self.0.lkey()
    }

    /// The domain that it was registered in.
    #[must_use]
    pub fn pd(&self) -> &ProtectionDomain {
        self.0.pd()
    }

    /// Deregisters, which ends the borrow.
    ///
    /// # Errors
    /// What the provider says, with the region, which is still registered.
    #[doc(alias = "ibv_dereg_mr")]
    #[allow(clippy::result_large_err)] // it is the region itself
    pub fn close(self) -> Result<(), (Self, Error)> {
        match self.0.close() {
            Ok(_) => Ok(()),
            Err((registration, error)) => Err((Self(registration), error)),
        }
    }

    /// The C object, live as long as `self`.
    #[inline]
    #[must_use]
    pub fn as_raw(&self) -> *mut ibv_mr {
        self.0.as_raw()
    }
}

impl Deref for BorrowedRegion<'_> {
    type Target = [u8];

    #[inline]
    fn deref(&self) -> &[u8] {
        // SAFETY: SAFETY.md F16: as `get_ref`.
        unsafe { self.0.bytes() }
    }
}

impl DerefMut for BorrowedRegion<'_> {
    #[inline]
    fn deref_mut(&mut self) -> &mut [u8] {
        // SAFETY: SAFETY.md F16: as above, by `&mut self`.
        unsafe { self.0.bytes_mut() }
    }
}
