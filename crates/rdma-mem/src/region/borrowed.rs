//! Regions over borrowed memory, without access for peers.
#![allow(unsafe_code)]

use std::fmt;
use std::marker::PhantomData;
use std::ptr::NonNull;

use rdma_types::AccessFlags;

use crate::device::protection_domain::ProtectionDomain;
use crate::error::Error;
use crate::region::local::LocalRegion;
use crate::region::registration::Registration;
use crate::region::relaxed;

/// Registered memory that the region borrows exclusively. Use it for bytes that are stored
/// elsewhere and cannot move to an [`OwnedRegion`](crate::OwnedRegion).
///
/// It derefs to the bytes. [`as_slice_mut`](LocalRegion::as_slice_mut),
/// [`split_at`](LocalRegion::split_at) and [`get_mut`](LocalRegion::get_mut) return parts of it
/// with the region's key. An element made from such a part is always valid.
///
/// No peer can access it, and it has no `remote()`. The reason is that forgetting a region
/// (`std::mem::forget`) ends its borrow but leaves it registered. A peer with the key could then
/// write to memory that other code already uses.
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
pub type BorrowedRegion<'a> = LocalRegion<PhantomData<&'a mut [u8]>>;

impl ProtectionDomain {
    /// Registers a slice for local access and borrows it. Requests can read from its bytes and
    /// write to them.
    ///
    /// # Errors
    /// [`Error::EmptyRegion`]; [`Error::Environment`] if `RDMA_RELAXED_ORDERING` has an invalid
    /// value; or the verb's error, with a hint about the limit of locked memory.
    #[doc(alias = "ibv_reg_mr")]
    pub fn register_borrowed<'a>(&self, memory: &'a mut [u8]) -> Result<BorrowedRegion<'a>, Error> {
        let (length, base) = (memory.len(), NonNull::from(memory).cast());
        let access = relaxed::relax(AccessFlags::new().with_local_write())?;
        // SAFETY: SAFETY.md F8, F29: the memory is borrowed until the region is dropped, which
        // deregisters it first. If the region is forgotten, or cannot be deregistered, the memory
        // may be unmapped while it is registered. Even then, the memory is mapped whenever a
        // request can use it. No new element can be created, and the code that posted an earlier
        // element keeps its bytes valid until the request completes. The rkey is useless to a peer,
        // because it grants no right, and no window can be bound to the region.
        let registration = unsafe { Registration::mapped(self, base, length, access, PhantomData) };
        let registration = registration.map_err(|(_, error)| error)?;
        // SAFETY: SAFETY.md F16: the memory is a slice, so it is mapped and initialised. It is
        // exclusively borrowed while the region lives, and no peer has a right to it.
        Ok(unsafe { BorrowedRegion::new(registration) })
    }
}

impl BorrowedRegion<'_> {
    /// Deregisters the region and ends the borrow.
    ///
    /// # Errors
    /// Returns the region, which is still registered, and the provider's error.
    #[doc(alias = "ibv_dereg_mr")]
    #[allow(clippy::result_large_err)] // it is the region itself
    pub fn close(self) -> Result<(), (Self, Error)> {
        self.deregister().map(|PhantomData| ())
    }
}

impl fmt::Debug for BorrowedRegion<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_tuple("BorrowedRegion").field(self.registration()).finish()
    }
}
