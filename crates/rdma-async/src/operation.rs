//! Operations as futures.

pub(crate) mod failed;
pub(crate) mod kinds;
pub(crate) mod limit;
pub(crate) mod post;
pub(crate) mod posted;
pub(crate) mod ring;
pub(crate) mod run;
pub(crate) mod work;

use std::fmt;
use std::future::IntoFuture;
use std::time::Duration;

use self::failed::Failed;
use self::kinds::Kind;
use self::limit::Limit;
use self::post::Post;
use self::posted::Posted;
use self::run::Run;
use self::work::Work;
use crate::buffer::held::sealed::Lease;
use crate::connection::Connection;
use crate::ledger::post::RequestSpec;
use crate::link::Link;

/// An operation that is described, and not posted yet: nothing happens before it is awaited, or
/// [posted](Self::post). It has its memory by value.
///
/// # Examples
/// ```
/// # rdma_soft::install();
/// # tokio::runtime::Builder::new_current_thread().enable_io().build()?.block_on(async {
/// # let context = rdma_mem::open_device("soft0")?;
/// # let pd = context.allocate_pd()?;
/// # let driver = rdma_async::Driver::spawn(&context)?;
/// # let all = rdma_mem::AccessFlags::new().with_local_write().with_remote_write().with_remote_read();
/// # let qp = || rdma_qp::prelude::CreateQueuePair::create_qp(&pd).access(all);
/// # let (one, other) = (driver.prepare(qp())?, driver.prepare(qp())?);
/// # let (at_one, at_other) = (one.endpoint(), other.endpoint());
/// # let (one, other) = (one.handshake(at_other)?, other.handshake(at_one)?);
/// use rdma_mem::BufferPool;
///
/// let pool = BufferPool::new(&pd);
/// // The receive stands before the peer is told.
/// let receive = other.receive(pool.allocate(64)?).post().await?;
/// let sent = one.send(pool.allocate(5)?).await?;
/// let received = receive.await?;
/// assert_eq!((sent.len(), received.length), (5, 5));
/// # Ok::<(), Box<dyn std::error::Error>>(()) })?;
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
#[must_use = "nothing is posted before it is awaited or posted"]
pub struct Op<'c, K: Kind> {
    link: Link<'c>,
    memory: K::Memory,
    request: RequestSpec,
}

impl<'c, K: Kind> Op<'c, K> {
    pub(crate) const fn new(link: Link<'c>, memory: K::Memory, request: RequestSpec) -> Self {
        Self { link, memory, request }
    }

    /// Awaits it for at most this time, which begins with the first poll. [`Duration::MAX`] is no limit, even if the
    /// [connection has one](crate::ConnectionOptions::operation_timeout).
    ///
    /// After that time the operation fails with [`TransportError::Timeout`](rdma_connect::TransportError::Timeout),
    /// unless it has completed by then. The connection stays open, and the request stays with the device, which may
    /// still execute it: [`Failed::memory`] is `None`, and the memory is released when the request has completed. A
    /// message that arrives for a receive after its time is kept for
    /// [`take_unclaimed`](Connection::take_unclaimed). If the operation still waited for a slot, nothing was posted, and
    /// [`Failed`] has the memory.
    ///
    /// To wait again instead, [post](Self::post) the operation and await `&mut posted` in a `timeout` of tokio.
    ///
    /// # Panics
    /// If the operation waits outside of a runtime of tokio with time (`enable_time`), and the limit is not zero.
    ///
    /// # Examples
    /// ```
    /// use std::time::Duration;
    /// use rdma_async::TransportError;
    ///
    /// # rdma_soft::install();
    /// # tokio::runtime::Builder::new_current_thread().enable_all().build()?.block_on(async {
    /// # let pd = rdma_mem::open_device("soft0")?.allocate_pd()?;
    /// # let driver = rdma_async::Driver::spawn(pd.context())?;
    /// # let qp = || rdma_qp::prelude::CreateQueuePair::create_qp(&pd);
    /// # let (one, other) = (driver.prepare(qp())?, driver.prepare(qp())?);
    /// # let (at_one, at_other) = (one.endpoint(), other.endpoint());
    /// # let (one, other) = (one.handshake(at_other)?, other.handshake(at_one)?);
    /// # let pool = rdma_mem::BufferPool::new(&pd);
    /// // The peer sends nothing.
    /// let late = other.receive(pool.allocate(64)?).within(Duration::from_millis(5)).await;
    /// let late = late.expect_err("no message");
    /// assert!(matches!(late.error, TransportError::Timeout { .. }) && late.memory.is_none());
    /// // Its receive is still posted.
    /// one.send(pool.allocate(5)?).await?;
    /// let message = other.take_unclaimed().expect("the message");
    /// assert_eq!(message.length, 5);
    /// # Ok::<(), Box<dyn std::error::Error>>(()) })?;
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    #[doc(alias("timeout", "deadline"))]
    pub fn within(self, limit: Duration) -> Run<'c, K> {
        Run::new(self.into_work(), Limit::new(limit))
    }

    /// Posts it: the future is ready when the request is with the device, and gives another one for the outcome. It
    /// waits while no slot is free: one is, when an outcome was taken, or its [`Posted`] dropped and the request has
    /// completed. So a task that posts more than the queue holds, and takes no outcome, waits for itself. Dropped before it is
    /// ready, nothing was posted.
    ///
    /// # Errors
    /// With the memory: [`TransportError::Closed`](rdma_connect::TransportError::Closed), [`TransportError::PostError`](rdma_connect::TransportError::PostError).
    pub fn post(self) -> Post<'c, K> {
        Post::new(self.into_work())
    }

    /// Posts it, and waits for the outcome as [`Posted::busy_poll`] does.
    ///
    /// # Errors
    /// Same errors as awaiting the operation.
    pub async fn busy_poll(self, limit: Duration) -> Result<K::Output, Failed<K::Memory>> {
        self.post().await?.busy_poll(limit).await
    }

    /// Posts it now or not at all.
    ///
    /// # Errors
    /// With the memory: [`TransportError::WouldBlock`](rdma_connect::TransportError::WouldBlock) if no slot is free; those of
    /// [`post`](Self::post).
    pub fn try_post(self) -> Result<Posted<'c, K>, Failed<K::Memory>> {
        let Self { link, memory, request } = self;
        let (mut held, mut id) = (memory.into_held(), None);
        match (link.post(&request, &mut held, &mut false, &mut id, false), id) {
            (Ok(_), Some(id)) => Ok(Posted::new(link, id)),
            (Ok(_), None) => unreachable!("it was posted"),
            (Err(refusal), _) => Err(Failed::new::<K>(held, refusal.into())),
        }
    }

    #[inline]
    fn into_work(self) -> Work<'c> {
        let Self { link, memory, request } = self;
        Work::new(link, memory.into_held(), request)
    }

    /// The same operation, which keeps its connection: for `tokio::spawn`, and for fields. It costs a reference count.
    ///
    /// # Panics
    /// If the operation is of another connection, and borrows that.
    #[track_caller]
    pub fn into_owned(self, connection: &Connection) -> Op<'static, K> {
        let Self { link, memory, request } = self;
        Op { link: link.into_owned(connection.inner()), memory, request }
    }
}

impl<'c, K: Kind> IntoFuture for Op<'c, K> {
    type Output = Result<K::Output, Failed<K::Memory>>;
    type IntoFuture = Run<'c, K>;

    #[inline]
    fn into_future(self) -> Run<'c, K> {
        Run::new(self.into_work(), Limit::OF_CONNECTION)
    }
}

impl<K: Kind> fmt::Debug for Op<'_, K> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_tuple("Op").field(&self.request).finish()
    }
}
