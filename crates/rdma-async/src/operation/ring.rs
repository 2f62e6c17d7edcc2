//! Receives that are posted in advance, in a ring of buffers.

use std::collections::VecDeque;
use std::fmt;
use std::mem::ManuallyDrop;
use std::ops::Deref;

use rdma_connect::TransportError;
use rdma_mem::Buffer;

use super::failed::Failed;
use super::kinds::{Receive, Received};
use super::posted::Posted;
use crate::buffer::held::Target;
use crate::connection::Connection;

/// A ring of buffers that are posted as receives and return messages in order of arrival.
///
/// While fewer messages are in flight than buffers are posted, an arriving message finds a receive, so the peer's send
/// never [waits](crate::guide#receives-that-are-posted-ahead) for one. The program chooses the number of buffers and
/// their length. A message longer than its buffer fails the connection.
///
/// [`next`](Self::next) returns the next message. Its buffer is reposted when the [`RingMessage`] is dropped, or, if
/// the message was [taken](RingMessage::take), when the buffer is [returned](Self::give_back). If the program posts
/// other receives on the same connection, messages fill all receives in the order in which they were posted. After
/// [`reconnect`](Connection::reconnect), `next` first returns the error of each receive of the old queue pair, and then
/// reposts its buffer.
///
/// Dropping the ring leaves its receives posted, as dropping a [`Posted`] does.
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
/// // Two receives of 64 bytes, reused in order for any number of messages.
/// let mut ring = other.receive_ring([pool.allocate(64)?, pool.allocate(64)?])?;
/// for length in 1..10 {
///     one.send(pool.allocate(length)?).await?;
///     let message = ring.next().await?;
///     assert_eq!(message.len(), length);
/// } // dropping the message posts its buffer again
/// # Ok::<(), Box<dyn std::error::Error>>(()) })?;
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
pub struct ReceiveRing<'c, B: Target = Buffer> {
    connection: &'c Connection,
    /// The posted receives. They complete in this order.
    posted: VecDeque<Posted<'c, Receive<B>>>,
    /// Buffers that could not be reposted.
    idle: Vec<B>,
    refused: Option<TransportError>,
}

impl Connection {
    /// Posts a receive for each of these buffers, in order. The ring then returns the messages.
    ///
    /// # Errors
    /// [`TransportError::WouldBlock`] if the queue has no room for all of them (see
    /// [`max_recv_wr`](rdma_qp::QueuePairBuilder::max_recv_wr)); otherwise the same errors as
    /// [`Op::try_post`](crate::Op::try_post). Receives that have already been posted stay posted, as with a dropped
    /// ring.
    #[doc(alias = "ibv_post_recv")]
    pub fn receive_ring<B: Target>(
        &self,
        buffers: impl IntoIterator<Item = B>,
    ) -> Result<ReceiveRing<'_, B>, TransportError> {
        let (posted, idle) = (VecDeque::new(), Vec::new());
        let mut ring = ReceiveRing { connection: self, posted, idle, refused: None };
        for buffer in buffers {
            ring.give_back(buffer);
        }
        ring.refused.take().map_or(Ok(ring), Err)
    }
}

impl<'c, B: Target> ReceiveRing<'c, B> {
    /// Waits for the next message. Dropping the future early loses no message, because the next call waits for the same
    /// one. The wait can therefore be limited with a tokio `timeout`.
    ///
    /// # Errors
    /// - the error of the receive, if it failed: the connection has ended, and the ring keeps the buffer;
    /// - if no receive is posted, the reason: [`TransportError::Closed`], or [`TransportError::WouldBlock`] if all
    ///   buffers were [taken](RingMessage::take) or other receives fill the queue.
    pub async fn next(&mut self) -> Result<RingMessage<'_, 'c, B>, TransportError> {
        if !self.idle.is_empty() {
            self.post_idle();
        }
        let Some(first) = self.posted.front_mut() else {
            return Err(self.refused.take().unwrap_or(TransportError::WouldBlock));
        };
        let received = first.await;
        self.posted.pop_front();
        match received {
            Ok(received) => Ok(RingMessage { ring: self, received: Some(received) }),
            Err(Failed { memory, error }) => {
                self.idle.extend(memory);
                Err(error)
            }
        }
    }

    /// Returns the number of posted receives. While a message is being read, this is one less than the number of
    /// buffers.
    #[must_use]
    pub fn posted(&self) -> usize {
        self.posted.len()
    }

    /// Posts a buffer that was [taken](RingMessage::take) with its message, or a new one. If it cannot be posted now,
    /// [`next`](Self::next) tries again before it waits.
    pub fn give_back(&mut self, buffer: B) {
        self.idle.push(buffer);
        self.post_idle();
    }

    /// Posts the idle buffers without waiting, because `drop` calls this.
    fn post_idle(&mut self) {
        self.refused = None;
        while let Some(buffer) = self.idle.pop() {
            match self.connection.receive(buffer).try_post() {
                Ok(receive) => self.posted.push_back(receive),
                Err(Failed { memory, error }) => {
                    self.idle.extend(memory);
                    self.refused = Some(error);
                    return;
                }
            }
        }
    }
}

impl<B: Target> fmt::Debug for ReceiveRing<'_, B> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let (posted, idle) = (self.posted.len(), self.idle.len());
        write!(f, "ReceiveRing({posted} posted, {idle} idle, {:?})", self.connection)
    }
}

/// A message of a [`ReceiveRing`]. Dereferences to the received bytes. Dropping it reposts its buffer.
///
/// The bytes are empty for an RDMA write with immediate data, which writes elsewhere.
pub struct RingMessage<'r, 'c, B: Target = Buffer> {
    ring: &'r mut ReceiveRing<'c, B>,
    /// `None` once the message was taken.
    received: Option<Received<B>>,
}

impl<B: Target> RingMessage<'_, '_, B> {
    /// Returns the immediate data, if any.
    #[must_use]
    pub fn immediate(&self) -> Option<u32> {
        self.received.as_ref().and_then(|received| received.immediate)
    }

    /// Takes the message with its buffer out of the ring, for example to send the buffer or to keep several. The ring
    /// has one receive fewer until the buffer is [returned](ReceiveRing::give_back).
    ///
    /// # Panics
    /// Never: a message is taken once.
    #[must_use = "the ring has one receive less until the buffer is returned"]
    #[allow(clippy::expect_used)] // only this method takes it, and it consumes the message
    pub fn take(mut self) -> Received<B> {
        self.received.take().expect("taken once")
    }
}

impl<B: Target + Deref<Target = [u8]>> Deref for RingMessage<'_, '_, B> {
    type Target = [u8];

    fn deref(&self) -> &[u8] {
        self.received.as_ref().map_or(&[], Received::bytes)
    }
}

impl<B: Target> Drop for RingMessage<'_, '_, B> {
    fn drop(&mut self) {
        let Some(Received { memory, .. }) = self.received.take() else { return };
        if self.ring.connection.pd().context().check_process().is_err() {
            // A forked child owns none of this.
            let _ = ManuallyDrop::new(memory);
            return;
        }
        self.ring.give_back(memory);
    }
}

impl<B: Target> fmt::Debug for RingMessage<'_, '_, B> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let length = self.received.as_ref().map_or(0, |received| received.length);
        write!(f, "RingMessage({length} bytes)")
    }
}
