//! Buffers of a pool.
#![allow(unsafe_code)]

use std::fmt;
use std::ops::{Deref, DerefMut};
use std::ptr::NonNull;
use std::sync::Arc;

use rdma_types::Lkey;

use crate::device::protection_domain::ProtectionDomain;
use crate::element::slice::{SliceMut, SliceRef};
use crate::error::range;
use crate::region::memory::RegionMemory;
use crate::region::pool::carved::{PoolRegion, Range};
use crate::region::registration::Registration;

/// Registered bytes from a [`BufferPool`](crate::BufferPool), owned: for this machine's own requests,
/// as an [`OwnedRegion`](crate::OwnedRegion), but made without a registration.
///
/// It derefs to its bytes. Dropping it gives them back to the pool; until then it keeps their region
/// alive, also when the pool is gone.
///
/// Within are raw parts and no reference to the bytes: it can be moved while a device writes them.
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

// SAFETY: SAFETY.md F16: as `Box<[u8]>`, which it stands for; the pool's region is `Send` and `Sync`.
unsafe impl Send for Buffer {}
// SAFETY: SAFETY.md F16: `&Buffer` gives `&[u8]` and nothing more.
unsafe impl Sync for Buffer {}

impl Buffer {
    /// # Safety
    /// `range` is of `region`, has at least `length` bytes, is nobody else's, and has not been given
    /// back.
    pub(crate) unsafe fn new(region: Arc<PoolRegion>, range: Range, length: usize) -> Self {
        // SAFETY: SAFETY.md F16: within the region by this function's contract.
        let base = unsafe { region.registration().base().add(range.offset()) };
        Self { range, base, length, region }
    }

    /// All of it, to send or write from.
    #[inline]
    #[must_use]
    pub fn as_slice(&self) -> SliceRef<'_> {
        let (address, lkey, pd) = (self.device_address(), self.lkey(), self.pd());
        // SAFETY: SAFETY.md F16: the buffer's own bytes, initialised, borrowed by `&self`; address, key and
        // domain are of their region.
        unsafe { SliceRef::new(self.base, self.length, address, lkey, pd) }
    }

    /// All of it, exclusively: also to receive or read into.
    #[inline]
    #[must_use]
    pub fn as_slice_mut(&mut self) -> SliceMut<'_> {
        let (address, lkey, pd) = (self.device_address(), self.lkey(), self.pd());
        // SAFETY: SAFETY.md F16: as above, by `&mut self`.
        unsafe { SliceMut::new(self.base, self.length, address, lkey, pd) }
    }

    /// `length` bytes at `offset`, to send or write from; `None` if they are not within the buffer.
    #[inline]
    #[must_use]
    pub fn get_ref(&self, offset: usize, length: usize) -> Option<SliceRef<'_>> {
        range::check(offset, length, self.length).ok()?;
        Some(self.as_slice().split_at(offset).1.split_at(length).0)
    }

    /// `length` bytes at `offset`, exclusively: also to receive or read into. `None` if they are not
    /// within the buffer.
    #[inline]
    #[must_use]
    pub fn get_mut(&mut self, offset: usize, length: usize) -> Option<SliceMut<'_>> {
        range::check(offset, length, self.length).ok()?;
        Some(self.as_slice_mut().split_at(offset).1.split_at(length).0)
    }

    /// The key for this machine's own requests.
    #[inline]
    #[must_use]
    pub fn lkey(&self) -> Lkey {
        self.region.registration().lkey()
    }

    /// The domain that the pool registers in.
    #[inline]
    #[must_use]
    pub fn pd(&self) -> &ProtectionDomain {
        self.region.registration().pd()
    }

    /// Of all buffers of its region.
    pub(crate) fn registration(&self) -> &Registration<RegionMemory> {
        self.region.registration()
    }

    #[inline]
    pub(crate) fn device_address(&self) -> u64 {
        self.registration().device_address(self.range.offset())
    }
}

impl Deref for Buffer {
    type Target = [u8];

    #[inline]
    fn deref(&self) -> &[u8] {
        // SAFETY: SAFETY.md F16: the buffer's own bytes, initialised, borrowed by `&self`. The device
        // writes them only for requests whose poster promised that nobody else uses them.
        unsafe { std::slice::from_raw_parts(self.base.as_ptr(), self.length) }
    }
}

impl DerefMut for Buffer {
    #[inline]
    fn deref_mut(&mut self) -> &mut [u8] {
        // SAFETY: SAFETY.md F16: as above, by `&mut self`.
        unsafe { std::slice::from_raw_parts_mut(self.base.as_ptr(), self.length) }
    }
}

impl Drop for Buffer {
    fn drop(&mut self) {
        self.region.give_back(self.range);
    }
}

impl fmt::Debug for Buffer {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Buffer({} bytes at {:?}, {:?})", self.length, self.base, self.lkey())
    }
}
