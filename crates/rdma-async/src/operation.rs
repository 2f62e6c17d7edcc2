//! Operations as futures.

pub(crate) mod failed;
pub(crate) mod kinds;
pub(crate) mod limit;
pub(crate) mod outcome;
pub(crate) mod post;
pub(crate) mod posted;
pub(crate) mod ring;
pub(crate) mod run;
pub(crate) mod work;

use std::fmt;
use std::future::IntoFuture;
use std::time::Duration;

use self::failed::Failed;
use self::kinds::{Kind, take};
use self::limit::Limit;
use self::post::Post;
use self::posted::Posted;
use self::run::Run;
use self::work::Work;
use crate::connection::Connection;
use crate::ledger::post::RequestSpec;
use crate::link::Link;

/// An operation that has been described but not posted. Nothing happens until it is awaited or [posted](Self::post). It
/// owns its memory.
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
/// // Post the receive before the peer is notified.
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

    /// Awaits the operation for at most this time, starting with the first poll. [`Duration::MAX`] means no limit, even
    /// if the [connection has one](crate::ConnectionOptions::operation_timeout).
    ///
    /// If the operation has not completed by then, it fails with
    /// [`TransportError::Timeout`](rdma_connect::TransportError::Timeout). The connection stays open, and the request
    /// stays with the device, which may still execute it. [`Failed::memory`] is then `None`, and the memory is released
    /// when the request completes. If a message arrives for a receive that has timed out, it is kept for
    /// [`take_unclaimed`](Connection::take_unclaimed). If the operation was still waiting for a slot, nothing was
    /// posted, and [`Failed`] has the memory.
    ///
    /// To be able to wait again, [post](Self::post) the operation and await `&mut posted` in a tokio `timeout` instead.
    ///
    /// # Panics
    /// If the operation has to wait outside of a tokio runtime with time (`enable_time`), and the limit is not zero.
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
    /// // The receive is still posted.
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

    /// Posts the operation. The future is ready when the device has accepted the request, and returns a future for the
    /// outcome.
    ///
    /// It waits while no slot is free. A slot becomes free when an outcome is taken, or, if the [`Posted`] was dropped,
    /// when the request completes. A task that posts more operations than the queue holds, and takes no outcome,
    /// therefore waits forever. If this future is dropped early, nothing is posted.
    ///
    /// # Errors
    /// Each error returns the memory:
    ///
    /// - [`Closed`](rdma_connect::TransportError::Closed);
    /// - [`PostError`](rdma_connect::TransportError::PostError);
    /// - [`LeaseOver`](rdma_connect::TransportError::LeaseOver) for an operation on [borrowed
    ///   memory](crate::RemoteRegion);
    /// - [`WouldBlock`](rdma_connect::TransportError::WouldBlock) if the queue was created without slots;
    /// - [`IbvError`](rdma_connect::TransportError::IbvError) if the word for the result of an atomic operation cannot
    ///   be registered.
    pub fn post(self) -> Post<'c, K> {
        Post::new(self.into_work())
    }

    /// Posts the operation, and then polls for the outcome like [`Posted::busy_poll`].
    ///
    /// # Errors
    /// Same errors as awaiting the operation.
    pub async fn busy_poll(self, limit: Duration) -> Result<K::Output, Failed<K::Memory>> {
        self.post().await?.busy_poll(limit).await
    }

    /// Posts the operation now, without waiting for a slot.
    ///
    /// # Errors
    /// [`TransportError::WouldBlock`](rdma_connect::TransportError::WouldBlock) if no slot is free; otherwise the same
    /// errors as [`post`](Self::post). Each error returns the memory.
    pub fn try_post(self) -> Result<Posted<'c, K>, Failed<K::Memory>> {
        let Self { link, memory, request } = self;
        let mut memory = Some(memory);
        match link.post::<K>(&request, &mut memory, &mut false) {
            Ok(id) => Ok(Posted::new(link, id)),
            Err(refusal) => Err(Failed::new(take(&mut memory), refusal.into())),
        }
    }

    #[inline]
    fn into_work(self) -> Work<'c, K> {
        let Self { link, memory, request } = self;
        Work::new(link, memory, request)
    }

    /// Makes the operation own its connection, for `tokio::spawn` and for fields of structs. This increments a
    /// reference count.
    ///
    /// # Panics
    /// If the operation borrows a connection other than `connection`.
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
