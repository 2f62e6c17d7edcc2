//! Connections to peers, and the operations that they offer.

use std::fmt;
use std::sync::Arc;

use rdma_connect::{CloseReason, ConnectionCounters, PeerAddress, TransportError};
use rdma_mem::{ProtectionDomain, RemoteMemoryRegion};
use rdma_qp::Qpn;

use crate::buffer::held::{Source, Target};
use crate::buffer::view::BufferSlice;
use crate::ledger::post::RequestSpec;
use crate::link::{Inner, Link};
use crate::operation::Op;
use crate::operation::kinds::{
    Atomic, Kind, Read, Receive, ReceiveImmediate, Received, SendOut, Write,
};

/// A connection to a peer. Clones are cheap and share the connection, which many tasks can use at once.
///
/// Its operations are lazy ([`Op`]) and own their memory. Dropping the last clone destroys the queue pair and so ends
/// all its requests, unless an operation [owns](Op::into_owned) the connection or uses [borrowed
/// memory](crate::RemoteRegion).
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
/// use rdma_mem::{AccessFlags, BufferPool};
///
/// let access = AccessFlags::new().with_local_write().with_remote_write().with_remote_read();
/// let board = pd.allocate_shared_region(8, access)?; // the peer's
/// let mut word = BufferPool::new(&pd).allocate(8)?;
/// word.copy_from_slice(b"the word");
/// let word = one.write(word, board.remote()).await?;
/// let word = one.read(word, board.remote()).await?;
/// assert_eq!(*word, *b"the word");
/// # Ok::<(), Box<dyn std::error::Error>>(()) })?;
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
#[derive(Clone)]
pub struct Connection(Arc<Inner>);

impl Connection {
    pub(crate) fn new(inner: Inner) -> Self {
        Self(Arc::new(inner))
    }

    pub(crate) const fn inner(&self) -> &Arc<Inner> {
        &self.0
    }

    #[inline]
    fn op<K: Kind>(&self, memory: K::Memory, request: RequestSpec) -> Op<'_, K> {
        Op::new(Link::Borrowed(&self.0), memory, request)
    }

    /// Sends a message, which consumes a receive of the peer. The operation completes once the message is in the memory
    /// of that receive. While the peer has no receive posted, the device retries up to
    /// [`max_rnr_retries`](rdma_qp::QueuePairBuilder::max_rnr_retries) times.
    #[doc(alias = "message")]
    #[doc(alias = "IBV_WR_SEND")]
    #[inline]
    pub fn send<B: Source>(&self, from: B) -> Op<'_, SendOut<B>> {
        self.op(from, RequestSpec::Send(None))
    }

    /// Sends a message with immediate data.
    #[doc(alias = "IBV_WR_SEND_WITH_IMM")]
    #[inline]
    pub fn send_with_imm<B: Source>(&self, from: B, immediate: u32) -> Op<'_, SendOut<B>> {
        self.op(from, RequestSpec::Send(Some(immediate)))
    }

    /// Receives a message into this memory, with its immediate data if it has any.
    ///
    /// If the operation is dropped after it was posted, a message may still arrive in its memory:
    /// [`take_unclaimed`](Self::take_unclaimed) returns both. A program that drops a receive after a timeout and posts
    /// another therefore misses messages. Post the receive once and await `&mut posted` instead.
    #[doc(alias = "message")]
    #[doc(alias = "ibv_post_recv")]
    #[inline]
    pub fn receive<B: Target>(&self, into: B) -> Op<'_, Receive<B>> {
        self.op(into, RequestSpec::Receive)
    }

    /// Receives a message that puts no bytes into the receive's memory: an empty send, or a write with immediate data.
    /// Returns the immediate data, or `None` if there is none.
    #[inline]
    pub fn receive_imm(&self) -> Op<'_, ReceiveImmediate> {
        self.op((), RequestSpec::Receive)
    }

    /// Writes into the peer's memory. The peer is not notified.
    #[doc(alias = "IBV_WR_RDMA_WRITE")]
    #[inline]
    pub fn write<B: Source>(&self, from: B, to: impl Into<RemoteMemoryRegion>) -> Op<'_, Write<B>> {
        self.op(from, RequestSpec::Write(to.into(), None))
    }

    /// Writes into the peer's memory with immediate data, which consumes a receive of the peer.
    #[doc(alias = "IBV_WR_RDMA_WRITE_WITH_IMM")]
    #[inline]
    pub fn write_with_imm<B: Source>(
        &self,
        from: B,
        to: impl Into<RemoteMemoryRegion>,
        immediate: u32,
    ) -> Op<'_, Write<B>> {
        self.op(from, RequestSpec::Write(to.into(), Some(immediate)))
    }

    /// Reads from the peer's memory.
    #[doc(alias = "IBV_WR_RDMA_READ")]
    #[inline]
    pub fn read<B: Target>(&self, into: B, from: impl Into<RemoteMemoryRegion>) -> Op<'_, Read<B>> {
        self.op(into, RequestSpec::Read(from.into()))
    }

    /// Compares 8 bytes of the peer's memory with `compare`, and sets them to `swap` if they are equal. Returns the
    /// old value.
    #[doc(alias = "IBV_WR_ATOMIC_CMP_AND_SWP")]
    #[inline]
    pub fn compare_and_swap(
        &self,
        at: impl Into<RemoteMemoryRegion>,
        compare: u64,
        swap: u64,
    ) -> Op<'_, Atomic> {
        self.op((), RequestSpec::CompareAndSwap(at.into(), compare, swap))
    }

    /// Adds to 8 bytes of the peer's memory, wrapping, and returns the old value.
    #[doc(alias = "IBV_WR_ATOMIC_FETCH_AND_ADD")]
    #[inline]
    pub fn fetch_add(&self, at: impl Into<RemoteMemoryRegion>, add: u64) -> Op<'_, Atomic> {
        self.op((), RequestSpec::FetchAdd(at.into(), add))
    }

    /// Returns the next message that arrived for a dropped receive, with the memory of the receive if it had any.
    /// Messages that arrive after their receives were dropped are returned in order of arrival.
    #[must_use]
    pub fn take_unclaimed(&self) -> Option<Received<Option<BufferSlice>>> {
        let arrived = self.0.ledger.lock().at(self.0.entry).next_arrived()?;
        Some(Received::new(arrived.memory, &arrived.success))
    }

    /// Ends the connection: destroys its queue pair. Outstanding operations fail with [`TransportError::Closed`] and
    /// return their memory. If another thread is already doing this, the call returns immediately.
    ///
    /// # Errors
    /// If the provider refuses to destroy the queue pair.
    pub fn close(&self) -> Result<(), TransportError> {
        Ok(self.0.close(CloseReason::Asked)?)
    }

    /// Returns the epoch: the number of the current or last queue pair, which is the same at both ends. Each
    /// [`reconnect`](Self::reconnect) increases it. A connection that was made by address starts at 0. All connections
    /// that share one control connection share the count, so a single connection may skip numbers.
    #[must_use]
    pub fn epoch(&self) -> u32 {
        self.0.look(|entry| entry.epoch)
    }

    /// Returns why the connection accepts no further operations, or `None` while it does. The failure of a request is
    /// noticed only when its completion is polled, for example while an operation is awaited.
    #[must_use]
    pub fn closed(&self) -> Option<CloseReason> {
        self.0.look(|entry| entry.closed())
    }

    /// Returns a snapshot of the connection's counters.
    ///
    /// # Examples
    /// ```
    /// # rdma_soft::install();
    /// # tokio::runtime::Builder::new_current_thread().enable_io().build()?.block_on(async {
    /// # let context = rdma_mem::open_device("soft0")?;
    /// # let pd = context.allocate_pd()?;
    /// # let driver = rdma_async::Driver::spawn(&context)?;
    /// # let qp = || rdma_qp::prelude::CreateQueuePair::create_qp(&pd);
    /// # let (one, other) = (driver.prepare(qp())?, driver.prepare(qp())?);
    /// # let (at_one, at_other) = (one.endpoint(), other.endpoint());
    /// # let (one, other) = (one.handshake(at_other)?, other.handshake(at_one)?);
    /// # let pool = rdma_mem::BufferPool::new(&pd);
    /// let receive = other.receive(pool.allocate(100)?).post().await?;
    /// one.send(pool.allocate(60)?).await?;
    /// receive.await?;
    /// let counters = one.counters();
    /// assert_eq!((counters.posted, counters.completed, counters.failed), (1, 1, 0));
    /// # Ok::<(), Box<dyn std::error::Error>>(()) })?;
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    #[must_use]
    pub fn counters(&self) -> ConnectionCounters {
        self.0.look(|entry| entry.counters())
    }

    /// Returns the number of the current queue pair.
    #[doc(alias = "qp_num")]
    #[must_use]
    pub fn qpn(&self) -> Qpn {
        self.0.look(|entry| entry.qpn)
    }

    /// Returns the address of the peer, or `None` if it is unknown.
    #[must_use]
    pub fn peer(&self) -> Option<PeerAddress> {
        self.0.look(|entry| entry.peer)
    }

    /// Returns the protection domain of the connection's memory.
    #[must_use]
    pub fn pd(&self) -> &ProtectionDomain {
        &self.0.pd
    }
}

/// Prints the connection on one line.
impl fmt::Debug for Connection {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Connection(QPN {}", self.qpn())?;
        self.peer().map_or(Ok(()), |peer| write!(f, " to {peer}"))?;
        self.closed().map_or(Ok(()), |reason| write!(f, ", closed, since {reason}"))?;
        f.write_str(")")
    }
}
