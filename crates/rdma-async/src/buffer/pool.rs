//! Pools whose allocations are awaited.

use rdma_mem::{Buffer, BufferPool, Error, PoolUsage, ProtectionDomain, Recovery};
use tokio::runtime::Handle;

use super::growth::Growth;

/// A [`BufferPool`] whose allocations are awaited.
///
/// An allocation uses registered memory at once if some is free. Otherwise the pool grows on one of tokio's blocking
/// threads, and only the allocations that need it wait. One growth serves all allocations that wait when it starts. So
/// no task ever calls the provider, or waits for another task that does.
///
/// Clones are cheap and share the pool, which tasks of several runtimes may use. Buffers keep their region alive,
/// even without the pool. Dropping the last clone deregisters the regions that no buffer uses, which is slow on real
/// devices; the last buffer of a region deregisters it. So keep the pool while tasks run that must not wait.
///
/// A dropped future leaks nothing: memory that was registered for it serves other allocations.
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

/// The error of an allocation.
#[derive(Clone, thiserror::Error)]
#[non_exhaustive]
pub enum PoolError {
    /// The pool cannot allocate that buffer.
    #[error(transparent)]
    Memory(#[from] Error),
    /// No thread can grow the pool: the runtime has ended, or this is not called within one of tokio.
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
    /// Returns what a program can do about the error.
    #[must_use]
    pub const fn recovery(&self) -> Recovery {
        match self {
            Self::Memory(error) => error.recovery(),
            Self::NoRuntime => Recovery::Programming,
        }
    }
}

impl Pool {
    /// A pool [without windows](BufferPool::without_windows) that registers
    /// [4 MiB](BufferPool::DEFAULT_REGION_SIZE) at a time.
    #[must_use]
    pub fn new(pd: &ProtectionDomain) -> Self {
        BufferPool::without_windows(pd, BufferPool::DEFAULT_REGION_SIZE).into()
    }

    /// Allocates a buffer of `length` bytes. They are zero, or what an earlier buffer has left there.
    ///
    /// # Errors
    /// [`PoolError::Memory`] if the pool has to grow and cannot: [`Error::OutOfMemory`], [`Error::PoolLimit`], or the
    /// verb's error. All allocations that wait for the same growth get its error, except those that need less memory
    /// than is available. [`PoolError::NoRuntime`] if the pool has to grow and this is not called within a runtime of
    /// tokio, or that runtime ends.
    #[doc(alias = "alloc_local_mr")]
    pub async fn allocate(&self, length: usize) -> Result<Buffer, PoolError> {
        self.allocate_aligned(length, 1).await
    }

    /// Same as [`allocate`](Self::allocate), for a buffer that begins at a multiple of `alignment`, a power of two.
    /// See [`BufferPool::allocate_aligned`].
    ///
    /// # Errors
    /// [`Error::Alignment`]; otherwise same errors as [`allocate`](Self::allocate).
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

    /// Registers another region in advance: see [`BufferPool::grow`]. It continues if the future is dropped.
    ///
    /// # Errors
    /// Same errors as [`allocate`](Self::allocate).
    pub async fn grow(&self, bytes: usize) -> Result<usize, PoolError> {
        let pool = self.pool.clone();
        Ok(blocking(move || pool.grow(bytes)).await??)
    }

    /// Deregisters and frees the regions that no buffer uses: see [`BufferPool::trim`]. It continues if the future is
    /// dropped.
    ///
    /// # Errors
    /// [`PoolError::NoRuntime`].
    pub async fn trim(&self) -> Result<usize, PoolError> {
        let pool = self.pool.clone();
        blocking(move || pool.trim()).await
    }

    /// The memory that the pool has, and how much of it is in use.
    #[must_use]
    pub fn usage(&self) -> PoolUsage {
        self.pool.usage()
    }

    /// The underlying pool, for its limit, its domain, and for threads that allocate without `await`.
    #[must_use]
    pub const fn as_blocking(&self) -> &BufferPool {
        &self.pool
    }
}

impl From<BufferPool> for Pool {
    /// Converts the pool to one with awaited allocations.
    fn from(pool: BufferPool) -> Self {
        Self { pool, growth: Growth::default() }
    }
}

/// Runs a call of the device on another thread, because it may take time.
async fn blocking<T: Send + 'static>(
    work: impl FnOnce() -> T + Send + 'static,
) -> Result<T, PoolError> {
    let runtime = Handle::try_current().map_err(|_| PoolError::NoRuntime)?;
    ended(runtime.spawn_blocking(work).await)
}

/// Returns the result of the thread, or that there was no thread. A panic of the thread continues here.
pub(super) fn ended<T>(done: Result<T, tokio::task::JoinError>) -> Result<T, PoolError> {
    done.map_err(|error| match error.try_into_panic() {
        Ok(panic) => std::panic::resume_unwind(panic),
        Err(_) => PoolError::NoRuntime,
    })
}
