//! A ring of buffers for receives that are posted in advance.

use std::collections::VecDeque;
use std::fmt;
use std::ops::Deref;
use std::time::Duration;

use rdma_connect::TransportError;
use rdma_mem::SliceMut;
use rdma_qp::WorkSuccess;

use super::in_flight::{InFlight, ReceiveInto};
use super::outcome::{Late, Refused};
use super::peer::ScopedPeer;
use crate::channel::exchanging::received_bytes;
use crate::ledger::{Ledger, SlotWait, closed};

/// Buffers that are posted as receives, and returned in the order in which their messages arrive.
///
/// If more buffers are posted than messages are in flight, every message that arrives finds a posted receive.
/// Therefore, the peer's sends never [wait](crate::guide#receives-that-are-posted-ahead) for a receive. The program
/// chooses the number of buffers and their length. A message that is longer than its buffer fails the connection.
///
/// [`next`](Self::next) returns the next message. Its buffer is reposted when the [`RingMessage`] is dropped. A buffer
/// that was [taken](RingMessage::take) is reposted by [`give_back`](Self::give_back). If the program posts other
/// receives to the same peer, messages use all these receives in the order in which they were posted.
///
/// When the ring is dropped, its receives stay posted, and the scope keeps their memory until the scope ends. If no
/// messages will arrive for them, [close](crate::Scope::close) the channel before the scope ends.
///
/// # Examples
/// A server that posts its next receives before it answers:
/// ```
/// use std::time::Duration;
/// use rdma_channel::{Channel, ScopeError, TransportError};
/// use rdma_mem::OwnedRegion;
///
/// const LIMIT: Duration = Duration::from_secs(10);
///
/// /// Answers each message with its length, until one is empty. 4 receives of 1 KiB are posted.
/// fn serve(channel: &mut Channel, memory: &mut OwnedRegion) -> Result<(), TransportError> {
///     let served = channel.scope(|s| {
///         let mut ring = s.receive_ring(memory.as_slice_mut().into_chunks(1024).take(4))?;
///         loop {
///             let message = ring.next(LIMIT)?;
///             if message.is_empty() {
///                 break;
///             }
///             let length = message.len().to_le_bytes();
///             drop(message); // its buffer is posted again
///             s.send_inline(&length)?.wait(LIMIT)?;
///         }
///         s.close(); // no messages will arrive for the remaining receives
///         Ok::<_, TransportError>(())
///     });
///     served.map_err(ScopeError::flatten)
/// }
/// # use rdma_channel::prelude::*;
/// # rdma_soft::install();
/// # let pd = rdma_mem::open_device("soft0")?.allocate_pd()?;
/// # let (one, other) = (pd.create_channel().build()?, pd.create_channel().build()?);
/// # let (one_end, other_end) = (one.endpoint(), other.endpoint());
/// # let (mut client, mut server) = (one.handshake(other_end)?, other.handshake(one_end)?);
/// # let mut memory = pd.allocate_region(4096)?;
/// # let server = std::thread::spawn(move || serve(&mut server, &mut memory));
/// # let mut answer = pd.allocate_region(8)?;
/// # for length in 1..10_usize {
/// #     client.exchange_inline(&[7; 10][..length], &mut answer)?;
/// #     assert_eq!(answer[..], length.to_le_bytes());
/// # }
/// # client.send_inline(b"")?;
/// # server.join().unwrap()?;
/// # Ok::<(), TransportError>(())
/// ```
pub struct ReceiveRing<'scope> {
    peer: ScopedPeer<'scope>,
    /// The receives, in the order in which they were posted and therefore complete.
    posted: VecDeque<InFlight<'scope, SliceMut<'scope>>>,
    /// Buffers that could not be reposted; `refused` contains the reason.
    idle: Vec<SliceMut<'scope>>,
    refused: Option<TransportError>,
}

impl<'scope> ScopedPeer<'scope> {
    /// Posts a receive for each of these buffers, in order. The ring returns their messages until the scope ends.
    ///
    /// # Errors
    /// The reason why a buffer could not be posted, for example [`TransportError::WouldBlock`] if the queue cannot hold
    /// that many (see [`max_recv_wr`](crate::ChannelBuilder::max_recv_wr)). The scope keeps the buffers that were
    /// posted.
    #[doc(alias = "ibv_post_recv")]
    pub fn receive_ring<'b: 'scope>(
        &self,
        buffers: impl IntoIterator<Item = SliceMut<'b>>,
    ) -> Result<ReceiveRing<'scope>, TransportError> {
        let (posted, idle) = (VecDeque::new(), Vec::new());
        let mut ring = ReceiveRing { peer: *self, posted, idle, refused: None };
        for buffer in buffers {
            ring.give_back(buffer);
        }
        ring.refused.take().map_or(Ok(ring), Err)
    }
}

impl<'scope> ReceiveRing<'scope> {
    /// Waits for the next message, for at most `limit`. [`Duration::MAX`] means no limit.
    ///
    /// # Errors
    /// - [`TransportError::Timeout`], which changes nothing: call this again;
    /// - another error of the wait, for example [`TransportError::PeerGone`]: the receive stays in the ring;
    /// - the error of the receive, if it failed: the scope keeps its buffer;
    /// - if no receive is posted, the reason: [`TransportError::Closed`], or [`TransportError::WouldBlock`] if all
    ///   buffers were [taken](RingMessage::take) or other receives have filled the queue.
    pub fn next(&mut self, limit: Duration) -> Result<RingMessage<'_, 'scope>, TransportError> {
        if !self.idle.is_empty() {
            self.post_idle();
        }
        let Some(first) = self.posted.pop_front() else {
            return Err(self.refused.take().unwrap_or_else(|| closed(self.peer.connection())));
        };
        let finished = first.wait(limit).map_err(|Late { handle, error }| {
            self.posted.push_front(handle);
            error
        })?;
        let (buffer, success) = finished.ok()?;
        Ok(RingMessage { ring: self, buffer: Some(buffer), success })
    }

    /// The number of posted receives. While a message is being read, this is one less than the number of buffers.
    #[must_use]
    pub fn posted(&self) -> usize {
        self.posted.len()
    }

    /// Posts a buffer that was [taken](RingMessage::take) with its message, or any other buffer of this scope. If the
    /// buffer cannot be posted now, [`next`](Self::next) tries again before it waits.
    pub fn give_back<'b: 'scope>(&mut self, buffer: SliceMut<'b>) {
        self.idle.push(buffer);
        self.post_idle();
    }

    /// Posts the idle buffers. Never waits, because dropping a message also calls this.
    fn post_idle(&mut self) {
        let Self { peer, posted, idle, refused } = self;
        *refused = None;
        while let Some(buffer) = idle.pop() {
            let receive = Ledger::rent(buffer, ReceiveInto { peer, wait: SlotWait::Now });
            match receive {
                Ok(receive) => posted.push_back(receive),
                Err(Refused { buf, error }) => {
                    idle.extend(buf);
                    *refused = Some(error);
                    return;
                }
            }
        }
    }
}

impl fmt::Debug for ReceiveRing<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let (posted, idle) = (self.posted.len(), self.idle.len());
        write!(f, "ReceiveRing({posted} posted, {idle} idle, {:?})", self.peer)
    }
}

/// A message of a [`ReceiveRing`]. It dereferences to the received bytes. Dropping it reposts its buffer.
///
/// The message is empty for an RDMA write with immediate data, whose bytes are placed elsewhere.
pub struct RingMessage<'r, 'scope> {
    ring: &'r mut ReceiveRing<'scope>,
    /// `None` after the buffer was taken.
    buffer: Option<SliceMut<'scope>>,
    success: WorkSuccess,
}

impl<'scope> RingMessage<'_, 'scope> {
    /// The immediate data, if the message has any.
    #[must_use]
    pub fn immediate_data(&self) -> Option<u32> {
        self.success.immediate_data()
    }

    /// Takes the whole buffer out of the ring, together with the length of the message. Use it to send the buffer, or
    /// to read several messages at a time. The ring has one receive less until [`give_back`](ReceiveRing::give_back)
    /// returns the buffer.
    ///
    /// # Panics
    /// Never: the buffer is taken only once.
    #[must_use = "the ring has one receive less until `give_back` returns the buffer"]
    #[allow(clippy::expect_used)] // only this method takes the buffer, and it consumes the message
    pub fn take(mut self) -> (SliceMut<'scope>, usize) {
        let length = received_bytes(&self.success);
        (self.buffer.take().expect("taken once"), length)
    }
}

impl Deref for RingMessage<'_, '_> {
    type Target = [u8];

    fn deref(&self) -> &[u8] {
        let buffer = self.buffer.as_deref().unwrap_or_default();
        &buffer[..received_bytes(&self.success).min(buffer.len())]
    }
}

impl Drop for RingMessage<'_, '_> {
    fn drop(&mut self) {
        // In a forked child, the buffers belong to the parent.
        if let Some(buffer) = self.buffer.take()
            && self.ring.peer.ledger().check_process().is_ok()
        {
            self.ring.give_back(buffer);
        }
    }
}

impl fmt::Debug for RingMessage<'_, '_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "RingMessage({} bytes)", self.len())
    }
}
