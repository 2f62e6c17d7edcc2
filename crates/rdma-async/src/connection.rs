//! Connections: what operations are asked of.

use std::fmt;
use std::sync::Arc;

use rdma_connect::{CloseReason, PeerAddress, TransportError};
use rdma_mem::{ProtectionDomain, RemoteMemoryRegion};
use rdma_qp::Qpn;

use crate::buffer::held::{Source, Target};
use crate::buffer::view::BufferSlice;
use crate::ledger::post::Request;
use crate::link::{Inner, Link};
use crate::operation::Op;
use crate::operation::kinds::{
    Atomic, Kind, Read, Receive, ReceiveImmediate, Received, SendOut, Write,
};

/// A connection to a peer. Clones are cheap, and name the same connection: many tasks use it at once.
///
/// Its operations are lazy ([`Op`]), and have their memory by value. The queue pair is destroyed with the last clone and
/// the last operation that [owns](Op::into_owned) the connection, or is on [borrowed memory](crate::RemoteRegion); what is with the device then is over.
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
    fn op<K: Kind>(&self, memory: K::Memory, request: Request) -> Op<'_, K> {
        Op::new(Link::Borrowed(&self.0), memory, request)
    }

    /// Sends a message, which takes a receive of the peer's. It has completed when that has the message: as long as there is
    /// none, it is sent again and again, as often as [`max_rnr_retries`](rdma_qp::QueuePairBuilder::max_rnr_retries) says.
    #[doc(alias = "message")]
    #[doc(alias = "IBV_WR_SEND")]
    #[inline]
    pub fn send<B: Source>(&self, from: B) -> Op<'_, SendOut<B>> {
        self.op(from, Request::Send(None))
    }

    /// Sends a message and a number.
    #[doc(alias = "IBV_WR_SEND_WITH_IMM")]
    #[inline]
    pub fn send_with_imm<B: Source>(&self, from: B, immediate: u32) -> Op<'_, SendOut<B>> {
        self.op(from, Request::Send(Some(immediate)))
    }

    /// Receives a message into this memory, with the number that may come with it.
    ///
    /// If the operation is dropped after it was posted, a message may still come into its memory: then
    /// [`take_unclaimed`](Self::take_unclaimed) has both. So a receive that is made anew after each `timeout` misses
    /// messages: post it once, and await `&mut posted`.
    #[doc(alias = "message")]
    #[doc(alias = "ibv_post_recv")]
    #[inline]
    pub fn receive<B: Target>(&self, into: B) -> Op<'_, Receive<B>> {
        self.op(into, Request::Receive)
    }

    /// Receives the number of a send or a write that brings no bytes here. `None` if none came with it.
    #[inline]
    pub fn receive_imm(&self) -> Op<'_, ReceiveImmediate> {
        self.op((), Request::Receive)
    }

    /// Writes into the peer's memory, which notices nothing.
    #[doc(alias = "IBV_WR_RDMA_WRITE")]
    #[inline]
    pub fn write<B: Source>(&self, from: B, to: impl Into<RemoteMemoryRegion>) -> Op<'_, Write<B>> {
        self.op(from, Request::Write(to.into(), None))
    }

    /// Writes into the peer's memory, and tells it a number, which takes a receive of the peer's.
    #[doc(alias = "IBV_WR_RDMA_WRITE_WITH_IMM")]
    #[inline]
    pub fn write_with_imm<B: Source>(
        &self,
        from: B,
        to: impl Into<RemoteMemoryRegion>,
        immediate: u32,
    ) -> Op<'_, Write<B>> {
        self.op(from, Request::Write(to.into(), Some(immediate)))
    }

    /// Reads from the peer's memory.
    #[doc(alias = "IBV_WR_RDMA_READ")]
    #[inline]
    pub fn read<B: Target>(&self, into: B, from: impl Into<RemoteMemoryRegion>) -> Op<'_, Read<B>> {
        self.op(into, Request::Read(from.into()))
    }

    /// Puts `swap` into 8 bytes of the peer's memory, if these are `compare`, and gives what they were.
    #[doc(alias = "IBV_WR_ATOMIC_CMP_AND_SWP")]
    #[inline]
    pub fn compare_and_swap(
        &self,
        at: impl Into<RemoteMemoryRegion>,
        compare: u64,
        swap: u64,
    ) -> Op<'_, Atomic> {
        self.op((), Request::CompareAndSwap(at.into(), compare, swap))
    }

    /// Adds to 8 bytes of the peer's memory, and gives what they were. It wraps.
    #[doc(alias = "IBV_WR_ATOMIC_FETCH_AND_ADD")]
    #[inline]
    pub fn fetch_add(&self, at: impl Into<RemoteMemoryRegion>, add: u64) -> Op<'_, Atomic> {
        self.op((), Request::FetchAdd(at.into(), add))
    }

    /// The next message that has come for a receive that was dropped, with its memory, if it had some. Messages whose
    /// receives were dropped before they came are in the order in which they came.
    #[must_use]
    pub fn take_unclaimed(&self) -> Option<Received<Option<BufferSlice>>> {
        let arrived = self.0.ledger.lock().at(self.0.place).next_arrived()?;
        Some(Received::new(arrived.memory, &arrived.success))
    }

    /// Ends the connection: destroys its queue pair. What is with the device is over then, and fails with
    /// [`TransportError::Closed`], with its memory. While another thread does the same, this one returns at once.
    ///
    /// # Errors
    /// If the provider refuses to destroy the queue pair.
    pub fn close(&self) -> Result<(), TransportError> {
        Ok(self.0.close(CloseReason::Asked)?)
    }

    /// Which of its queue pairs it has, or has had last: the number is the same at both ends, each
    /// [`reconnect`](Self::reconnect) brings a higher one, and that of a connection which was made by an address begins with 0.
    /// The connections of one control connection have the count together: a connection may skip numbers.
    #[must_use]
    pub fn epoch(&self) -> u32 {
        self.0.look(|place| place.epoch)
    }

    /// Why the connection takes no more operations, if it does not. That a request has failed is known when somebody has waited
    /// for one.
    #[must_use]
    pub fn closed(&self) -> Option<CloseReason> {
        self.0.look(|place| place.closed())
    }

    /// The number of its queue pair.
    #[doc(alias = "qp_num")]
    #[must_use]
    pub fn qpn(&self) -> Qpn {
        self.0.look(|place| place.qpn)
    }

    /// Whom it is to.
    #[must_use]
    pub fn peer(&self) -> Option<PeerAddress> {
        self.0.look(|place| place.peer)
    }

    /// The domain whose memory it uses.
    #[must_use]
    pub fn pd(&self) -> &ProtectionDomain {
        &self.0.pd
    }
}

/// In one line.
impl fmt::Debug for Connection {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Connection(QPN {}", self.qpn())?;
        self.peer().map_or(Ok(()), |peer| write!(f, " to {peer}"))?;
        self.closed().map_or(Ok(()), |reason| write!(f, ", closed, since {reason}"))?;
        f.write_str(")")
    }
}
