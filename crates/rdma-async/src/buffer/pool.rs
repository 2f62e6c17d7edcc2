//! Pools whose allocations are awaited.

use rdma_mem::{Buffer, BufferPool, Error, PoolUsage, ProtectionDomain, Recovery};
use tokio::runtime::Handle;

use super::growth::Growth;

/// A [`BufferPool`] whose allocations are awaited.
///
/// An allocation takes a buffer of what is registered, at once. When there is none, the pool grows on one of tokio's blocking
/// threads, and only those that need it wait for it: one growth is for all that wait when it begins. So no task ever calls the
/// provider, or waits for another one that does.
///
/// Clones are cheap and name the same pool, which tasks of several runtimes may use. Buffers keep their region, also when the
/// pool is gone: with its last clone what no buffer uses is deregistered, which takes its time on real devices, and with the
/// last buffer the rest. So keep the pool as long as there are tasks that must not wait.
///
/// A future that is dropped leaves nothing: what has been registered for it is for others.
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

/// Why a pool has no buffer.
#[derive(Clone, thiserror::Error)]
#[non_exhaustive]
pub enum PoolError {
    /// What was asked for cannot be had.
    #[error(transparent)]
    Memory(#[from] Error),
    /// There is no thread for it: the runtime has ended, or this is not called within one of tokio.
    #[error(
        "the pool has to call the provider, and there is no runtime of tokio for that, or it has ended"
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
    /// What a program can do about it.
    #[must_use]
    pub const fn recovery(&self) -> Recovery {
        match self {
            Self::Memory(error) => error.recovery(),
            Self::NoRuntime => Recovery::Programming,
        }
    }
}

impl Pool {
    /// A pool that registers [4 MiB](BufferPool::DEFAULT_REGION_SIZE) at a time.
    #[must_use]
    pub fn new(pd: &ProtectionDomain) -> Self {
        BufferPool::new(pd).into()
    }

    /// A buffer of `length` bytes. They are zero, or what an earlier buffer left there.
    ///
    /// # Errors
    /// [`PoolError::Memory`] if the pool has to grow and cannot: [`Error::OutOfMemory`], [`Error::PoolLimit`], or what the
    /// verb says. All that wait for the same growth are told the same, but those that a smaller one is enough for.
    /// [`PoolError::NoRuntime`] if it has to grow and this is not called within a runtime of tokio, or that ends.
    #[doc(alias = "alloc_local_mr")]
    pub async fn allocate(&self, length: usize) -> Result<Buffer, PoolError> {
        self.allocate_aligned(length, 1).await
    }

    /// As [`allocate`](Self::allocate), and the buffer begins at a multiple of `alignment`, a power of two. See
    /// [`BufferPool::allocate_aligned`].
    ///
    /// # Errors
    /// [`Error::Alignment`], and those of `allocate`.
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

    /// Registers another region, for later: see [`BufferPool::grow`]. It goes on if the future is dropped.
    ///
    /// # Errors
    /// Those of [`allocate`](Self::allocate).
    pub async fn grow(&self, bytes: usize) -> Result<usize, PoolError> {
        let pool = self.pool.clone();
        Ok(blocking(move || pool.grow(bytes)).await??)
    }

    /// Deregisters and frees the regions that no buffer uses: see [`BufferPool::trim`]. It goes on if the future is dropped.
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

    /// The same pool, for threads that may wait: for its limit, its domain, and what is allocated without `await`.
    #[must_use]
    pub const fn as_blocking(&self) -> &BufferPool {
        &self.pool
    }
}

impl From<BufferPool> for Pool {
    /// The same pool, whose buffers can be awaited.
    fn from(pool: BufferPool) -> Self {
        Self { pool, growth: Growth::default() }
    }
}

/// Does on another thread what a device may take its time for.
async fn blocking<T: Send + 'static>(
    work: impl FnOnce() -> T + Send + 'static,
) -> Result<T, PoolError> {
    let runtime = Handle::try_current().map_err(|_| PoolError::NoRuntime)?;
    ended(runtime.spawn_blocking(work).await)
}

/// What a thread has done, or that there was none. Its panic goes on.
pub(super) fn ended<T>(done: Result<T, tokio::task::JoinError>) -> Result<T, PoolError> {
    done.map_err(|error| match error.try_into_panic() {
        Ok(panic) => std::panic::resume_unwind(panic),
        Err(_) => PoolError::NoRuntime,
    })
}
