//! Pools of registered buffers.
#![allow(unsafe_code)]

pub(crate) mod buffer;
pub(crate) mod carved;

use std::sync::atomic::{AtomicUsize, Ordering::Relaxed};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use rdma_types::AccessFlags;

use crate::device::protection_domain::ProtectionDomain;
use crate::error::Error;
use crate::region::pool::buffer::Buffer;
use crate::region::pool::carved::{PoolRegion, Range, UNIT, longest_region, region_length};

/// A pool of registered buffers of any length. It carves them out of a few large regions, because
/// registration is slow.
///
/// A pool is initially empty. If no region has enough free memory, the pool registers another one.
/// That region has the pool's region size, more if one buffer needs more, or less near the
/// [limit](Self::set_limit). [`trim`](Self::trim) returns unused regions to the system, and so does
/// dropping the pool and its buffers. Lengths are rounded up to multiples of 64 bytes. A buffer
/// begins at a multiple of 64 bytes, unless it was [split](Buffer::split_at) from another one.
///
/// Peers have no access to buffers, because a key for peers would cover all buffers in a region.
/// For peers, use a [`SharedRegion`](crate::SharedRegion). If the device has windows, a
/// [`MemoryWindow`](crate::MemoryWindow) can take a buffer and open it to peers.
///
/// Clones are cheap and share the pool, which any thread may use. While the pool registers another
/// region, only threads that need the new region wait. Other threads can still allocate and release
/// memory that is already registered.
///
/// # Examples
/// ```
/// rdma_soft::install();
/// let pd = rdma_mem::open_device("soft0")?.allocate_pd()?;
/// let pool = rdma_mem::BufferPool::new(&pd);
/// let (mut request, answer) = (pool.allocate(200)?, pool.allocate(4096)?);
/// request[..5].copy_from_slice(b"hello");
/// assert_eq!((pool.usage().buffers, pool.usage().regions), (2, 1));
/// drop((request, answer));
/// assert_eq!(pool.trim(), pool.region_size());
/// # Ok::<(), rdma_mem::Error>(())
/// ```
#[derive(Clone, Debug)]
pub struct BufferPool(Arc<Pool>);

#[derive(Debug)]
struct Pool {
    pd: ProtectionDomain,
    access: AccessFlags,
    /// Whether windows may only give peers the right to read.
    is_read_only: bool,
    region_size: usize,
    limit: AtomicUsize,
    /// This lock is never held during a call to the provider.
    regions: Mutex<Vec<Arc<PoolRegion>>>,
    /// Held by the thread that registers another region. Acquired before `regions` is locked.
    growth: Mutex<()>,
}

/// The amount of memory that a pool has registered, and the amount in use.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[non_exhaustive]
pub struct PoolUsage {
    /// The number of regions.
    pub regions: usize,
    /// The total length of all regions, in bytes.
    pub registered_bytes: usize,
    /// The number of buffers. A buffer that was split counts once.
    pub buffers: usize,
    /// The bytes that buffers use: their lengths, each rounded up to a multiple of 64, plus
    /// alignment padding.
    pub used_bytes: usize,
}

impl BufferPool {
    /// The region size that [`new`](Self::new) uses, in bytes: 4 MiB.
    pub const DEFAULT_REGION_SIZE: usize = 4 << 20;

    /// Creates a pool that registers 4 MiB at a time.
    #[must_use]
    pub fn new(pd: &ProtectionDomain) -> Self {
        Self::with_region_size(pd, Self::DEFAULT_REGION_SIZE)
    }

    /// Creates a pool that registers `bytes` at a time, or up to an eighth more.
    #[must_use]
    pub fn with_region_size(pd: &ProtectionDomain, bytes: usize) -> Self {
        Self::with_access(pd, bytes, for_windows(pd), false)
    }

    /// Like [`with_region_size`](Self::with_region_size), but its buffers cannot be used with
    /// windows. No peer can write them, so the device may transfer a message's bytes in any order
    /// ([`RELAXED_ORDERING`](AccessFlags::RELAXED_ORDERING)), which is faster on some hosts. All
    /// bytes have arrived when the message completes. Set `RDMA_RELAXED_ORDERING=0` in the
    /// environment to keep the bytes in order.
    ///
    /// # Examples
    /// ```
    /// use rdma_mem::BufferPool;
    ///
    /// rdma_soft::install();
    /// let pd = rdma_mem::open_device("soft0")?.allocate_pd()?;
    /// let pool = BufferPool::without_windows(&pd, BufferPool::DEFAULT_REGION_SIZE);
    /// let buffer = pool.allocate(4096)?; // for messages
    /// # drop(buffer);
    /// # Ok::<(), rdma_mem::Error>(())
    /// ```
    #[must_use]
    pub fn without_windows(pd: &ProtectionDomain, bytes: usize) -> Self {
        Self::with_access(pd, bytes, AccessFlags::new().with_local_write(), false)
    }

    /// Like [`without_windows`](Self::without_windows), but if the device has windows, they can open
    /// the buffers to peers for reading. Windows cannot give peers other rights.
    ///
    /// # Examples
    /// ```
    /// use rdma_mem::{AccessFlags, BindError, BufferPool, MemoryWindow, WindowType};
    ///
    /// rdma_soft::install();
    /// let pd = rdma_mem::open_device("soft0")?.allocate_pd()?;
    /// let pool = BufferPool::with_read_windows(&pd, BufferPool::DEFAULT_REGION_SIZE);
    /// let window = MemoryWindow::allocate(pool.allocate(4096)?, WindowType::Two);
    /// let mut window = window.map_err(|(_, error)| error)?;
    /// let write = AccessFlags::new().with_remote_write();
    /// let refused = window.prepare_bind(0..4096, write).unwrap_err();
    /// assert_eq!(refused, BindError::ReadOnly { access: write });
    /// # Ok::<(), rdma_mem::Error>(())
    /// ```
    #[must_use]
    pub fn with_read_windows(pd: &ProtectionDomain, bytes: usize) -> Self {
        Self::with_access(pd, bytes, for_windows(pd), true)
    }

    fn with_access(
        pd: &ProtectionDomain,
        bytes: usize,
        access: AccessFlags,
        is_read_only: bool,
    ) -> Self {
        Self(Arc::new(Pool {
            pd: pd.clone(),
            access,
            is_read_only,
            region_size: bytes,
            limit: AtomicUsize::new(usize::MAX),
            regions: Mutex::default(),
            growth: Mutex::default(),
        }))
    }

    /// Allocates a buffer of `length` bytes. Each byte is zero, or left over from an earlier
    /// buffer.
    ///
    /// # Errors
    /// Returns an error if another region is needed and cannot be registered. The error is
    /// [`Error::OutOfMemory`], [`Error::PoolLimit`], [`Error::Environment`] (an invalid
    /// `RDMA_RELAXED_ORDERING`), or the verb's error, with a hint about the limit of locked memory.
    /// In a forked child, returns [`Error::Forked`].
    #[doc(alias = "alloc_local_mr")]
    pub fn allocate(&self, length: usize) -> Result<Buffer, Error> {
        self.0.pd.check_process()?;
        match self.take(length, |region| region.take(length)) {
            Some(buffer) => Ok(buffer),
            None => self.grow_and_take(length, UNIT),
        }
    }

    /// Like [`allocate`](Self::allocate), but the buffer begins at a multiple of `alignment`, which
    /// is any power of two. This may use up to `alignment` additional bytes.
    ///
    /// # Errors
    /// [`Error::Alignment`], and the errors of [`allocate`](Self::allocate).
    ///
    /// # Examples
    /// ```
    /// # rdma_soft::install();
    /// # let pd = rdma_mem::open_device("soft0")?.allocate_pd()?;
    /// let pool = rdma_mem::BufferPool::new(&pd);
    /// let page = pool.allocate_aligned(100, 4096)?;
    /// assert_eq!((page.len(), page.as_ptr().addr() % 4096), (100, 0));
    /// assert!(pool.allocate_aligned(100, 3).is_err());
    /// # Ok::<(), rdma_mem::Error>(())
    /// ```
    pub fn allocate_aligned(&self, length: usize, alignment: usize) -> Result<Buffer, Error> {
        match self.try_allocate_aligned(length, alignment)? {
            Some(buffer) => Ok(buffer),
            None => self.grow_and_take(length, alignment),
        }
    }

    /// Like [`allocate`](Self::allocate), but only from memory that is already registered; `None`
    /// if another region is needed. It never calls the provider, and never waits for a thread that
    /// does.
    ///
    /// # Errors
    /// [`Error::Forked`] in a forked child.
    ///
    /// # Examples
    /// ```
    /// # rdma_soft::install();
    /// # let pd = rdma_mem::open_device("soft0")?.allocate_pd()?;
    /// let pool = rdma_mem::BufferPool::new(&pd);
    /// assert!(pool.try_allocate(100)?.is_none());
    /// pool.grow(1 << 20)?;
    /// assert!(pool.try_allocate(100)?.is_some());
    /// # Ok::<(), rdma_mem::Error>(())
    /// ```
    pub fn try_allocate(&self, length: usize) -> Result<Option<Buffer>, Error> {
        self.0.pd.check_process()?;
        Ok(self.take(length, |region| region.take(length)))
    }

    /// Like [`allocate_aligned`](Self::allocate_aligned), but only from memory that is already
    /// registered, as in [`try_allocate`](Self::try_allocate).
    ///
    /// # Errors
    /// [`Error::Alignment`], [`Error::Forked`] in a forked child.
    pub fn try_allocate_aligned(
        &self,
        length: usize,
        alignment: usize,
    ) -> Result<Option<Buffer>, Error> {
        if !alignment.is_power_of_two() {
            return Err(Error::Alignment { alignment });
        }
        self.0.pd.check_process()?;
        Ok(self.take(length, |region| region.take_aligned(length, alignment)))
    }

    /// Registers another region for later allocations, large enough for a buffer of `bytes` bytes.
    /// Returns the region's length, in bytes.
    ///
    /// # Errors
    /// Same errors as [`allocate`](Self::allocate).
    pub fn grow(&self, bytes: usize) -> Result<usize, Error> {
        self.0.pd.check_process()?;
        let _growth = self.growth();
        let region = self.register(bytes, UNIT)?;
        let length = region.registration().length();
        self.regions().push(region);
        Ok(length)
    }

    /// Returns a buffer from a registered region in which `take` finds at least `length` bytes. The
    /// caller has already checked the process: a forked child might wait forever for a lock that
    /// another thread held at the fork.
    #[inline]
    fn take(&self, length: usize, take: impl Fn(&PoolRegion) -> Option<Range>) -> Option<Buffer> {
        let regions = self.regions();
        let (region, range) = regions.iter().find_map(|region| Some((region, take(region)?)))?;
        // SAFETY: SAFETY.md F16: the range was just taken from this region, for `length` bytes.
        Some(unsafe { Buffer::new(Arc::clone(region), range, length) })
    }

    #[cold]
    fn grow_and_take(&self, length: usize, alignment: usize) -> Result<Buffer, Error> {
        let _growth = self.growth();
        // Another thread may have grown the pool while this one waited for the lock.
        if let Some(buffer) = self.try_allocate_aligned(length, alignment)? {
            return Ok(buffer);
        }
        let region = self.register(length, alignment)?;
        let range = region.take_aligned(length, alignment).ok_or(Error::OutOfMemory { length })?;
        self.regions().push(Arc::clone(&region));
        // SAFETY: SAFETY.md F16: the range was just taken from this region, for `length` bytes.
        Ok(unsafe { Buffer::new(region, range, length) })
    }

    /// Registers a region for a new buffer. The caller holds the `growth` lock, so only one
    /// registration runs at a time.
    fn register(&self, length: usize, alignment: usize) -> Result<Arc<PoolRegion>, Error> {
        let limit = self.limit();
        let Pool { pd, access, is_read_only, region_size, .. } = &*self.0;
        let region_of = |length| region_length(length).ok_or(Error::OutOfMemory { length });
        let (needed, wanted) = (region_of(length)?, region_of(length.max(*region_size))?);
        let registered = self.usage().registered_bytes;
        let left = limit.saturating_sub(registered);
        if needed > left {
            return Err(Error::PoolLimit { length, registered, limit });
        }
        let size = wanted.min(longest_region(left));
        Ok(Arc::new(PoolRegion::new(pd, *access, *is_read_only, size, alignment)?))
    }

    /// Sets the maximum number of registered bytes, for all clones of the pool. Initially there is
    /// no limit. Regions that are already registered stay.
    ///
    /// # Examples
    /// ```
    /// # rdma_soft::install();
    /// # let pd = rdma_mem::open_device("soft0")?.allocate_pd()?;
    /// let pool = rdma_mem::BufferPool::new(&pd);
    /// pool.set_limit(1 << 20);
    /// let buffer = pool.allocate(1 << 20)?;
    /// let error = pool.allocate(1).unwrap_err();
    /// assert!(error.to_string().contains("set a higher limit"));
    /// drop(buffer);
    /// assert!(pool.allocate(1).is_ok());
    /// # Ok::<(), rdma_mem::Error>(())
    /// ```
    pub fn set_limit(&self, bytes: usize) {
        self.0.limit.store(bytes, Relaxed);
    }

    /// Returns the number of bytes that the pool may register; [`usize::MAX`] without a [limit](Self::set_limit).
    #[must_use]
    pub fn limit(&self) -> usize {
        self.0.limit.load(Relaxed)
    }

    /// Deregisters and frees the regions that no buffer uses. Returns the number of bytes freed,
    /// which is 0 in a forked child. A region may remain if another thread is dropping the region's
    /// last buffer at the same time.
    #[must_use = "it returns the number of freed bytes; `let _ =` if that does not matter"]
    pub fn trim(&self) -> usize {
        if self.0.pd.check_process().is_err() {
            return 0;
        }
        // Each buffer holds its region, so a region owned only by the pool is deregistered here,
        // and not by a buffer that is being dropped. The lock is not held during the
        // deregistration.
        let unused: Vec<_> =
            self.regions().extract_if(.., |region| Arc::strong_count(region) == 1).collect();
        unused.iter().map(|region| region.registration().length()).sum()
    }

    /// Returns how much memory the pool has registered and how much is in use; all zeros in a
    /// forked child.
    #[must_use]
    pub fn usage(&self) -> PoolUsage {
        let mut usage = PoolUsage::default();
        if self.0.pd.check_process().is_err() {
            return usage;
        }
        for region in self.regions().iter() {
            let used = region.in_use();
            usage.regions += 1;
            usage.registered_bytes += region.registration().length();
            usage.buffers += used.buffers;
            usage.used_bytes += used.bytes;
        }
        usage
    }

    /// Returns the region size that the pool was created with, in bytes. Regions can be up to an
    /// eighth longer, or longer still if one buffer needs more. Near the [limit](Self::set_limit)
    /// they are shorter.
    #[must_use]
    pub fn region_size(&self) -> usize {
        self.0.region_size
    }

    /// Returns the protection domain in which the pool registers.
    #[must_use]
    pub fn pd(&self) -> &ProtectionDomain {
        &self.0.pd
    }

    fn growth(&self) -> MutexGuard<'_, ()> {
        self.0.growth.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn regions(&self) -> MutexGuard<'_, Vec<Arc<PoolRegion>>> {
        self.0.regions.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// Returns the access of regions that windows can be bound to, if the device has windows. Others may
/// refuse such regions.
fn for_windows(pd: &ProtectionDomain) -> AccessFlags {
    let access = AccessFlags::new().with_local_write();
    let has_windows = pd.context().query_device().is_ok_and(|device| device.max_mw > 0);
    if has_windows { access.with_mw_bind() } else { access }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)] // helpers of tests

    use super::*;

    /// If `trim` removed the region from the pool, the thread that drops the buffer would
    /// deregister it.
    #[test]
    #[cfg_attr(miri, ignore = "the software device copies in assembly")]
    fn a_region_that_a_buffer_still_has_is_not_trimmed() {
        rdma_soft::install();
        let pd = crate::open_device("soft0").unwrap().allocate_pd().unwrap();
        let pool = BufferPool::with_region_size(&pd, 4096);
        let buffer = pool.allocate(64).unwrap();
        // This is the state in the middle of dropping a buffer, which has returned its range but
        // still holds its region.
        let region = Arc::clone(&pool.regions()[0]);
        drop(buffer);
        assert_eq!((pool.usage().buffers, pool.trim(), pool.usage().regions), (0, 0, 1));
        drop(region);
        assert_eq!((pool.trim(), pool.usage().regions), (4096, 0));
    }
}
