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

/// Registered buffers of any length, carved out of a few large regions, because registration is slow.
///
/// A pool is empty at first. When no region has enough free memory it registers another one, of the pool's region
/// size, or larger if one buffer needs more. Unused regions return to the system by [`trim`](Self::trim), and when
/// the pool and its buffers are dropped. Lengths are rounded up to 64 bytes. A buffer begins at a multiple of 64
/// bytes, unless it is [the rest](Buffer::split_at) of another one.
///
/// Peers have no right to any of it: a key for peers would be one for all buffers of a region. For
/// peers there are [`SharedRegion`](crate::SharedRegion), and, where the device has them, a
/// [`MemoryWindow`](crate::MemoryWindow), which takes a buffer.
///
/// Clones are cheap and share the pool, which any thread may use. While it registers another region, only threads
/// that need one wait for it: registered memory can be allocated and released meanwhile.
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
    region_size: usize,
    limit: AtomicUsize,
    /// Never held while the provider is called.
    regions: Mutex<Vec<Arc<PoolRegion>>>,
    /// Held by the one who registers another region. Taken before that of the regions.
    growth: Mutex<()>,
}

/// The memory that a pool has, and how much of it is in use.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[non_exhaustive]
pub struct PoolUsage {
    /// The number of its regions.
    pub regions: usize,
    /// The length of all regions together, in bytes.
    pub registered_bytes: usize,
    /// The number of buffers. Parts of one buffer count as that one.
    pub buffers: usize,
    /// The bytes that buffers use: their lengths, each rounded up to 64, and the loss by their alignment.
    pub used_bytes: usize,
}

impl BufferPool {
    /// The length of a region for [`new`](Self::new), in bytes: 4 MiB.
    pub const DEFAULT_REGION_SIZE: usize = 4 << 20;

    /// A pool that registers 4 MiB at a time.
    #[must_use]
    pub fn new(pd: &ProtectionDomain) -> Self {
        Self::with_region_size(pd, Self::DEFAULT_REGION_SIZE)
    }

    /// A pool that registers `bytes` at a time, or up to an eighth more.
    #[must_use]
    pub fn with_region_size(pd: &ProtectionDomain, bytes: usize) -> Self {
        let access = AccessFlags::new().with_local_write();
        // A device without windows may refuse their flag.
        let windows = pd.context().query_device().is_ok_and(|device| device.max_mw > 0);
        Self::with_access(pd, bytes, if windows { access.with_mw_bind() } else { access })
    }

    /// Same as [`with_region_size`](Self::with_region_size), for buffers that no window is ever bound to. So no peer can
    /// write them, and the device may transfer the bytes of a message in any order
    /// ([`RELAXED_ORDERING`](AccessFlags::RELAXED_ORDERING)), which is faster on some hosts. After the completion all of
    /// them are there. `RDMA_RELAXED_ORDERING=0` in the environment turns that off.
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
        Self::with_access(pd, bytes, AccessFlags::new().with_local_write())
    }

    fn with_access(pd: &ProtectionDomain, bytes: usize, access: AccessFlags) -> Self {
        Self(Arc::new(Pool {
            pd: pd.clone(),
            access,
            region_size: bytes,
            limit: AtomicUsize::new(usize::MAX),
            regions: Mutex::default(),
            growth: Mutex::default(),
        }))
    }

    /// Allocates a buffer of `length` bytes. They are zero, or what an earlier buffer has left there.
    ///
    /// # Errors
    /// If another region is needed and cannot be registered: [`Error::OutOfMemory`], [`Error::PoolLimit`], or the
    /// verb's error; the hint is about the limit of locked memory.
    #[doc(alias = "alloc_local_mr")]
    pub fn allocate(&self, length: usize) -> Result<Buffer, Error> {
        self.0.pd.check_process()?;
        match self.take(length, |region| region.take(length)) {
            Some(buffer) => Ok(buffer),
            None => self.grow_and_take(length, UNIT),
        }
    }

    /// Same as [`allocate`](Self::allocate), for a buffer that begins at a multiple of `alignment`, any power of two.
    /// It may use up to `alignment` bytes more.
    ///
    /// # Errors
    /// [`Error::Alignment`]; otherwise same errors as [`allocate`](Self::allocate).
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

    /// Same as [`allocate`](Self::allocate), from registered memory alone: `None` if another region is needed. It
    /// never calls the provider, and waits for no thread that does.
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

    /// Same as [`allocate_aligned`](Self::allocate_aligned), from registered memory alone, like
    /// [`try_allocate`](Self::try_allocate).
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

    /// Registers another region, large enough for a buffer of `bytes` bytes, for later allocations. Returns its
    /// length, in bytes.
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

    /// A buffer of what is registered, of which `take` takes at least `length` bytes. The process was checked: a child might
    /// wait without a limit for a lock that another thread held when it was forked.
    #[inline]
    fn take(&self, length: usize, take: impl Fn(&PoolRegion) -> Option<Range>) -> Option<Buffer> {
        let regions = self.regions();
        let (region, range) = regions.iter().find_map(|region| Some((region, take(region)?)))?;
        // SAFETY: SAFETY.md F16: just taken from this region, for so many bytes.
        Some(unsafe { Buffer::new(Arc::clone(region), range, length) })
    }

    #[cold]
    fn grow_and_take(&self, length: usize, alignment: usize) -> Result<Buffer, Error> {
        let _growth = self.growth();
        // It may have grown meanwhile.
        if let Some(buffer) = self.try_allocate_aligned(length, alignment)? {
            return Ok(buffer);
        }
        let region = self.register(length, alignment)?;
        let range = region.take_aligned(length, alignment).ok_or(Error::OutOfMemory { length })?;
        self.regions().push(Arc::clone(&region));
        // SAFETY: SAFETY.md F16: just taken from this region, for so many bytes.
        Ok(unsafe { Buffer::new(region, range, length) })
    }

    /// Registers a region for a buffer, which nobody has yet. One at a time: the caller has the lock of growth.
    fn register(&self, length: usize, alignment: usize) -> Result<Arc<PoolRegion>, Error> {
        let limit = self.limit();
        let Pool { pd, access, region_size, .. } = &*self.0;
        let region_of = |length| region_length(length).ok_or(Error::OutOfMemory { length });
        let (needed, wanted) = (region_of(length)?, region_of(length.max(*region_size))?);
        let registered = self.usage().registered_bytes;
        let left = limit.saturating_sub(registered);
        if needed > left {
            return Err(Error::PoolLimit { length, registered, limit });
        }
        let size = wanted.min(longest_region(left));
        Ok(Arc::new(PoolRegion::new(pd, *access, size, alignment)?))
    }

    /// Sets the limit of registered bytes, for all clones of the pool. At first it has no limit. Regions that are
    /// registered already stay.
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

    /// The number of bytes that the pool may register; [`usize::MAX`] if it has no [limit](Self::set_limit).
    #[must_use]
    pub fn limit(&self) -> usize {
        self.0.limit.load(Relaxed)
    }

    /// Deregisters and frees the regions that no buffer uses. Returns how many bytes that are;
    /// none in a forked child. A region whose last buffer another thread is just dropping may stay.
    #[must_use = "it says what was given back; `let _ =` if that does not matter"]
    pub fn trim(&self) -> usize {
        if self.0.pd.check_process().is_err() {
            return 0;
        }
        // Each buffer has its region: when the pool alone has it, the pool deregisters it, and no buffer that is being
        // dropped. That is done without the lock.
        let unused: Vec<_> =
            self.regions().extract_if(.., |region| Arc::strong_count(region) == 1).collect();
        unused.iter().map(|region| region.registration().length()).sum()
    }

    /// The memory that the pool has, and how much of it is in use; nothing in a forked child.
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

    /// The length of a region, in bytes, if no buffer needs more.
    #[must_use]
    pub fn region_size(&self) -> usize {
        self.0.region_size
    }

    /// The protection domain that the pool registers in.
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

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)] // helpers of tests

    use super::*;

    /// Which would deregister where a buffer is dropped.
    #[test]
    fn a_region_that_a_buffer_still_has_is_not_trimmed() {
        rdma_soft::install();
        let pd = crate::open_device("soft0").unwrap().allocate_pd().unwrap();
        let pool = BufferPool::with_region_size(&pd, 4096);
        let buffer = pool.allocate(64).unwrap();
        // As while a buffer is dropped, which has given back its range, and not yet its region.
        let region = Arc::clone(&pool.regions()[0]);
        drop(buffer);
        assert_eq!((pool.usage().buffers, pool.trim(), pool.usage().regions), (0, 0, 1));
        drop(region);
        assert_eq!((pool.trim(), pool.usage().regions), (4096, 0));
    }
}
