//! The objects that a program creates before its first connection.

use rdma_connect::ConnectError;
use rdma_mem::{Buffer, Context, ProtectionDomain};
use tokio::net::ToSocketAddrs;

use crate::buffer::pool::{Pool, PoolError};
use crate::connection::Connection;
use crate::control::listener::Listener;
use crate::control::options::ConnectionOptions;
use crate::driver::Driver;

/// A device that is ready for connections: a [`Driver`], a protection domain, connection options, and a [`Pool`] of
/// memory. A program creates one and uses it to connect and listen; clones share everything.
///
/// A program with several domains, or with different options per connection, uses [`Driver::connect`] and
/// [`Driver::listen`].
///
/// # Examples
/// ```
/// # rdma_soft::install();
/// # tokio::runtime::Builder::new_current_thread().enable_all().build()?.block_on(async {
/// use rdma_async::{BufferExt as _, Endpoint};
///
/// let endpoint = Endpoint::new(&rdma_mem::open_device("soft0")?)?;
/// let listener = endpoint.listen("127.0.0.1:0").await?;
/// let address = listener.local_addr();
/// let server = async {
///     let connection = listener.accept().await?;
///     let question = connection.receive(endpoint.allocate(64).await?).await?;
///     connection.send(question.memory.slice(0..question.length)).await?;
///     Ok::<(), Box<dyn std::error::Error + Send + Sync>>(())
/// };
/// let client = async {
///     let connection = endpoint.connect(address).await?; // in a program, another process
///     let answer = connection.receive(endpoint.allocate(64).await?).post().await?;
///     connection.send(endpoint.buffer(b"hello").await?).await?;
///     let answer = answer.await?;
///     assert_eq!(answer.memory[..answer.length], *b"hello");
///     Ok(())
/// };
/// tokio::try_join!(server, client)?;
/// # Ok::<(), Box<dyn std::error::Error + Send + Sync>>(()) })?;
/// # Ok::<(), Box<dyn std::error::Error + Send + Sync>>(())
/// ```
#[derive(Clone, Debug)]
pub struct Endpoint {
    driver: Driver,
    options: ConnectionOptions,
    pool: Pool,
}

impl Endpoint {
    /// Creates a driver, a protection domain and a pool on this device. Connections get the [default
    /// options](ConnectionOptions::new).
    ///
    /// # Errors
    /// [`ConnectError::Verbs`] if the device has no protection domain left; [`ConnectError::Io`] with an error of
    /// [`Driver::spawn`].
    ///
    /// # Panics
    /// If this is not called within a tokio runtime with I/O.
    pub fn new(context: &Context) -> Result<Self, ConnectError> {
        let pd = context.allocate_pd().map_err(rdma_qp::Error::from)?;
        Self::with_options(&pd, ConnectionOptions::new(&pd))
    }

    /// Like [`new`](Self::new), but with the program's own domain and options. The options must use the same domain.
    ///
    /// # Errors
    /// [`ConnectError::Io`] with an error of [`Driver::spawn`].
    ///
    /// # Panics
    /// If this is not called within a tokio runtime with I/O.
    pub fn with_options(
        pd: &ProtectionDomain,
        options: impl Into<ConnectionOptions>,
    ) -> Result<Self, ConnectError> {
        let tried = || format!("watching the completions of {}", pd.context().device().name());
        let driver = Driver::spawn(pd.context());
        let driver = driver.map_err(|source| ConnectError::Io { tried: tried(), source })?;
        Ok(Self { driver, options: options.into(), pool: Pool::new(pd) })
    }

    /// Connects to a [`Listener`] or to a listener for channels.
    ///
    /// # Errors
    /// Same errors as [`Driver::connect`].
    ///
    /// # Panics
    /// If this is not called within a tokio runtime with I/O and time.
    pub async fn connect(&self, addr: impl ToSocketAddrs) -> Result<Connection, ConnectError> {
        Ok(self.driver.connect(addr, self.options.clone()).await?.0)
    }

    /// Listens for clients. For port 0, the kernel chooses a port.
    ///
    /// # Errors
    /// Same errors as [`Driver::listen`].
    ///
    /// # Panics
    /// If this is not called within a tokio runtime with I/O and time.
    pub async fn listen(&self, addr: impl ToSocketAddrs) -> Result<Listener, ConnectError> {
        self.driver.listen(addr, self.options.clone()).await
    }

    /// Allocates a buffer from the pool: see [`Pool::allocate`].
    ///
    /// # Errors
    /// Same errors as [`Pool::allocate`].
    pub async fn allocate(&self, length: usize) -> Result<Buffer, PoolError> {
        self.pool.allocate(length).await
    }

    /// Allocates a buffer from the pool and copies `bytes` into it.
    ///
    /// # Errors
    /// Same errors as [`Pool::allocate`].
    pub async fn buffer(&self, bytes: &[u8]) -> Result<Buffer, PoolError> {
        let mut buffer = self.pool.allocate(bytes.len()).await?;
        buffer.copy_from_slice(bytes);
        Ok(buffer)
    }

    pub(crate) const fn options(&self) -> &ConnectionOptions {
        &self.options
    }

    /// Returns the driver, for connections with other options.
    #[must_use]
    pub const fn driver(&self) -> &Driver {
        &self.driver
    }

    /// Returns the domain of the connections and of the pool.
    #[must_use]
    pub fn pd(&self) -> &ProtectionDomain {
        self.pool.as_blocking().pd()
    }

    /// Returns the pool.
    #[must_use]
    pub const fn pool(&self) -> &Pool {
        &self.pool
    }
}
