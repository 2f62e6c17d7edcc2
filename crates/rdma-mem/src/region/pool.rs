//! Pools of registered buffers.
#![allow(unsafe_code)]

pub(crate) mod buffer;
pub(crate) mod carved;

use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use rdma_types::AccessFlags;

use crate::device::protection_domain::ProtectionDomain;
use crate::error::Error;
use crate::region::pool::buffer::Buffer;
use crate::region::pool::carved::PoolRegion;

/// Registered buffers of any length, carved out of a few large regions, because registration is slow.
///
/// A pool has nothing at first. When no region has enough free memory it registers another one, of
/// the pool's region size, or larger if one buffer needs more; what is in no use is given back to
/// the system by [`trim`](Self::trim) and when the pool and its buffers are dropped. Lengths are
/// rounded up to 64 bytes, where each buffer begins that is not [the rest](Buffer::split_at) of another one.
///
/// Peers have no right to any of it: a key for peers would be one for all buffers of a region. For
/// peers there are [`SharedRegion`](crate::SharedRegion), and, where the device has them, a
/// [`MemoryWindow`](crate::MemoryWindow), which takes a buffer.
///
/// Clones are cheap and name the same pool, which any thread may use. While it registers another
/// region, others who allocate wait.
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
    regions: Mutex<Vec<Arc<PoolRegion>>>,
}

/// The memory that a pool has, and how much of it is in use.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[non_exhaustive]
pub struct PoolUsage {
    /// How many regions are registered for it.
    pub regions: usize,
    /// How long they are together, in bytes.
    pub registered_bytes: usize,
    /// How many buffers there are. Those that are parts of one count as that one.
    pub buffers: usize,
    /// What the buffers take, in bytes: their lengths, each rounded up to 64.
    pub used_bytes: usize,
}

impl BufferPool {
    /// What [`new`](Self::new) registers at a time, in bytes: 4 MiB.
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
        let access = if windows { access.with_mw_bind() } else { access };
        let (pd, regions) = (pd.clone(), Mutex::default());
        Self(Arc::new(Pool { pd, access, region_size: bytes, regions }))
    }

    /// A buffer of `length` bytes. They are zero, or what an earlier buffer left there.
    ///
    /// # Errors
    /// If another region is needed and cannot be had: [`Error::OutOfMemory`], or what the verb
    /// says; the hint is about the limit of locked memory.
    pub fn allocate(&self, length: usize) -> Result<Buffer, Error> {
        // A child might wait without a limit for a lock that another thread held when it was
        // forked.
        self.0.pd.check_process()?;
        let mut regions = self.regions();
        let found = regions.iter().find_map(|region| Some((region, region.take(length)?)));
        let (region, range) = match found {
            Some((region, range)) => (Arc::clone(region), range),
            None => {
                let size = self.0.region_size.max(length);
                let region = PoolRegion::new(&self.0.pd, self.0.access, size)?;
                let range = region.take(length).ok_or(Error::OutOfMemory { length })?;
                let region = Arc::new(region);
                regions.push(Arc::clone(&region));
                (region, range)
            }
        };
        // SAFETY: SAFETY.md F16: just taken from this region, for so many bytes.
        Ok(unsafe { Buffer::new(region, range, length) })
    }

    /// Deregisters and frees the regions that no buffer uses. Returns how many bytes that are;
    /// none in a forked child.
    #[must_use = "it says what was given back; `let _ =` if that does not matter"]
    pub fn trim(&self) -> usize {
        if self.0.pd.check_process().is_err() {
            return 0;
        }
        let unused: Vec<_> =
            self.regions().extract_if(.., |region| region.in_use().buffers == 0).collect();
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

    /// How much is registered at a time, in bytes, if no buffer needs more.
    #[must_use]
    pub fn region_size(&self) -> usize {
        self.0.region_size
    }

    /// The protection domain that the pool registers in.
    #[must_use]
    pub fn pd(&self) -> &ProtectionDomain {
        &self.0.pd
    }

    fn regions(&self) -> MutexGuard<'_, Vec<Arc<PoolRegion>>> {
        self.0.regions.lock().unwrap_or_else(PoisonError::into_inner)
    }
}
