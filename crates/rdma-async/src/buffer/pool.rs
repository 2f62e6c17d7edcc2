//! A pool with asynchronous allocation.

use rdma_mem::{Buffer, BufferPool, Error, PoolUsage, ProtectionDomain, Recovery};
use tokio::runtime::Handle;

use super::growth::Growth;

/// A [`BufferPool`] with asynchronous allocation.
///
/// An allocation takes free registered memory without waiting. If there is none, the pool grows on one of tokio's
/// blocking threads, and only the allocations that need the new memory wait. One growth serves all allocations that are
/// waiting when it starts. An allocation never calls the provider on its task's thread, and never blocks that thread.
///
/// Clones are cheap and share the pool, which tasks of several runtimes may use. A buffer keeps its region alive, even
/// after the pool is dropped. Dropping the last clone deregisters all unused regions; a region in use is deregistered
/// with its last buffer. Deregistration is slow on real devices, so keep the pool alive while latency-sensitive tasks
/// run.
///
/// Dropping an allocation's future leaks nothing: memory that was registered for it serves other allocations.
///
/// # Examples
/// ```
/// # rdma_soft::install();
/// # tokio::runtime::Builder::new_current_thread().enable_all().build()?.block_on(async {
/// # let pd = rdma_mem::open_device("soft0")?.allocate_pd()?;
/// let pool = rdma_async::Pool::new(&pd);
/// let mut buffer = pool.allocate(200).await?;
/// buffer.fill(7);
/// let page = pool.allocate_aligned(4096, 4096).await?;
/// assert_eq!((pool.usage().buffers, pool.usage().regions), (2, 1));
/// drop((buffer, page));
/// assert_eq!(pool.trim().await?, pool.as_blocking().region_size());
/// # Ok::<(), Box<dyn std::error::Error>>(()) })?;
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
#[derive(Clone, Debug)]
pub struct Pool {
    pool: BufferPool,
    growth: Growth,
}

/// An error from allocating a buffer, or from growing or trimming a pool.
#[derive(Clone, thiserror::Error)]
#[non_exhaustive]
pub enum PoolError {
    /// The pool cannot allocate the buffer.
    #[error(transparent)]
    Memory(#[from] Error),
    /// No thread can grow or trim the pool: the runtime is shut down, or the call is not made within a tokio runtime.
    #[error(
        "the pool cannot grow outside of a tokio runtime, or after its runtime has ended: allocate within one"
    )]
    NoRuntime,
}

rdma_types::debug_messages!(
    enum PoolError {
        Memory(it),
        NoRuntime,
    }
);

impl PoolError {
    /// Returns how a program can recover from the error.
    #[must_use]
    pub const fn recovery(&self) -> Recovery {
        match self {
            Self::Memory(error) => error.recovery(),
            Self::NoRuntime => Recovery::Programming,
        }
    }
}

impl Pool {
    /// Creates a pool whose buffers [peers can only read](BufferPool::with_read_windows), and that registers [4
    /// MiB](BufferPool::DEFAULT_REGION_SIZE) at a time.
    #[must_use]
    pub fn new(pd: &ProtectionDomain) -> Self {
        BufferPool::with_read_windows(pd, BufferPool::DEFAULT_REGION_SIZE).into()
    }

    /// Allocates a buffer of `length` bytes. The bytes are zero, or left over from an earlier buffer.
    ///
    /// # Errors
    /// [`PoolError::Memory`] if the pool has to grow and cannot: [`Error::OutOfMemory`], [`Error::PoolLimit`], or the
    /// verb's error. If the pool cannot grow enough for one allocation, waiting allocations that need at least as much
    /// get the same error. An allocation that fits into free memory still succeeds. [`PoolError::NoRuntime`] if the
    /// pool has to grow, but the call is not made within a tokio runtime, or that runtime shuts down.
    #[doc(alias = "alloc_local_mr")]
    pub async fn allocate(&self, length: usize) -> Result<Buffer, PoolError> {
        self.allocate_aligned(length, 1).await
    }

    /// Same as [`allocate`](Self::allocate), but the buffer starts at a multiple of `alignment`, which is a power of
    /// two. See [`BufferPool::allocate_aligned`].
    ///
    /// # Errors
    /// [`Error::Alignment`] if `alignment` is not a power of two, and the same errors as [`allocate`](Self::allocate).
    pub async fn allocate_aligned(
        &self,
        length: usize,
        alignment: usize,
    ) -> Result<Buffer, PoolError> {
        match self.pool.try_allocate_aligned(length, alignment)? {
            Some(buffer) => Ok(buffer),
            None => self.growth.wait(&self.pool, length, alignment).await,
        }
    }

    /// Registers another region in advance: see [`BufferPool::grow`]. The growth continues if the future is dropped.
    ///
    /// # Errors
    /// Same errors as [`allocate`](Self::allocate).
    pub async fn grow(&self, bytes: usize) -> Result<usize, PoolError> {
        let pool = self.pool.clone();
        Ok(blocking(move || pool.grow(bytes)).await??)
    }

    /// Deregisters and frees the regions that no buffer uses: see [`BufferPool::trim`]. The work continues if the
    /// future is dropped.
    ///
    /// # Errors
    /// [`PoolError::NoRuntime`] if the call is not made within a tokio runtime, or that runtime shuts down.
    pub async fn trim(&self) -> Result<usize, PoolError> {
        let pool = self.pool.clone();
        blocking(move || pool.trim()).await
    }

    /// Returns how much memory the pool has, and how much of it is in use.
    #[must_use]
    pub fn usage(&self) -> PoolUsage {
        self.pool.usage()
    }

    /// Returns the underlying pool, to set its limit, get its domain, or allocate from threads without `await`.
    #[must_use]
    pub const fn as_blocking(&self) -> &BufferPool {
        &self.pool
    }
}

impl From<BufferPool> for Pool {
    /// Wraps the pool to make its allocations awaitable.
    fn from(pool: BufferPool) -> Self {
        Self { pool, growth: Growth::default() }
    }
}

/// Runs `work` on another thread, because calls to the device may take long.
async fn blocking<T: Send + 'static>(
    work: impl FnOnce() -> T + Send + 'static,
) -> Result<T, PoolError> {
    let runtime = Handle::try_current().map_err(|_| PoolError::NoRuntime)?;
    ended(runtime.spawn_blocking(work).await)
}

/// Returns the thread's result, or an error if the runtime did not run it. If the thread panicked, resumes the panic.
pub(super) fn ended<T>(done: Result<T, tokio::task::JoinError>) -> Result<T, PoolError> {
    done.map_err(|error| match error.try_into_panic() {
        Ok(panic) => std::panic::resume_unwind(panic),
        Err(_) => PoolError::NoRuntime,
    })
}
