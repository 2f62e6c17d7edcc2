//! Operations of a scope with one peer.

use std::fmt;

use rdma_connect::{CloseReason, Operation, TransportError};
use rdma_mem::{GatherList, InlineElement, ProtectionDomain, RemoteMemoryRegion};
use rdma_qp::{
    AtomicWorkRequest, ReadWorkRequest, ReceiveWorkRequest, SendWorkRequest, WriteWorkRequest,
};

use super::pending_work::{PendingWork, ScopedPendingWork};
use crate::ledger::post::NotPosted;
use crate::ledger::queues::Connection;
use crate::ledger::queues::Kept;
use crate::ledger::ticket::Ticket;
use crate::ledger::{Ledger, SlotWait};
use crate::request::Post;

/// Posts operations with one peer. The operations complete before their [scope](crate::Scope) ends.
///
/// The scope of a channel dereferences to a `ScopedPeer` with [`Deref`](std::ops::Deref). The scope of a
/// [`MultiChannel`](crate::MultiChannel) returns [one for each peer](crate::Scope::to).
///
/// # Examples
/// A function for both kinds of scopes:
/// ```
/// use std::time::Duration;
/// use rdma_channel::{ScopedPeer, TransportError, prelude::*};
///
/// fn greet(peer: &ScopedPeer<'_>) -> Result<(), TransportError> {
///     peer.send_inline(b"hello")?;
///     Ok(())
/// }
///
/// # rdma_soft::install();
/// # let pd = rdma_mem::open_device("soft0")?.allocate_pd()?;
/// # let channel = pd.create_channel().max_inline_data(8).build()?;
/// # let endpoint = channel.endpoint();
/// # let mut channel = channel.handshake(endpoint)?; // to itself
/// # let prepared = pd.create_multi_channel().num_channels(2).max_inline_data(8).build()?;
/// # let endpoints = prepared.endpoints();
/// # let mut channels = prepared.handshake(endpoints)?; // each to itself
/// let mut memory = pd.allocate_region(8)?;
/// let greeted = channel.scope(|s| {
///     let received = s.receive_into(memory.as_slice_mut())?;
///     greet(s)?;
///     received.done(Duration::from_secs(10)).map(drop)?;
///     Ok::<_, TransportError>(())
/// });
/// assert!(greeted.is_ok());
/// let greeted = channels.scope(|s| {
///     let second = s.to(1)?;
///     let received = second.receive_into(memory.as_slice_mut())?;
///     greet(&second)?;
///     received.done(Duration::from_secs(10)).map(drop)?;
///     Ok::<_, TransportError>(())
/// });
/// assert!(greeted.is_ok());
/// # Ok::<(), TransportError>(())
/// ```
#[derive(Clone, Copy)]
pub struct ScopedPeer<'scope> {
    ledger: &'scope Ledger,
    connection: &'scope Connection,
    kept: Kept<'scope>,
}

/// Formats the connection like a channel.
impl fmt::Debug for ScopedPeer<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "ScopedPeer({:?})", self.connection)
    }
}

impl<'scope> ScopedPeer<'scope> {
    #[inline(always)]
    pub(crate) const fn new(
        ledger: &'scope Ledger,
        connection: &'scope Connection,
        kept: Kept<'scope>,
    ) -> Self {
        Self { ledger, connection, kept }
    }

    #[inline(always)]
    pub(crate) const fn ledger(&self) -> &'scope Ledger {
        self.ledger
    }

    #[inline(always)]
    pub(crate) const fn connection(&self) -> &'scope Connection {
        self.connection
    }

    #[inline(always)]
    pub(crate) const fn kept(&self) -> Kept<'scope> {
        self.kept
    }

    /// Returns the same scope for another peer.
    pub(crate) fn to(&self, peer: usize) -> Result<Self, TransportError> {
        Ok(Self { connection: self.ledger.connection(peer)?, ..*self })
    }

    /// Posts a request with rented memory.
    #[inline(always)]
    pub(crate) fn post_rented<'b, W: Post<'b>>(
        &self,
        request: W,
        wait: SlotWait,
        kept: Kept<'b>,
    ) -> Result<Ticket<'scope>, NotPosted<'scope>> {
        self.ledger.post(self.connection, request, wait, kept)
    }

    /// Posts a request of any kind.
    #[inline(always)]
    pub(crate) fn post<'data: 'scope, W: Post<'data>>(
        &self,
        request: W,
    ) -> Result<ScopedPendingWork<'scope>, TransportError> {
        // With `?`, the compiler would not know the state of the slot when the handle is dropped.
        match self.ledger.post_slot(self.connection, request, SlotWait::Usual, self.kept) {
            Ok(slot) => Ok(PendingWork::new(Ticket::new(self.ledger, slot))),
            Err(refused) => Err(refused.into()),
        }
    }

    /// Posts a message to the peer.
    ///
    /// Waits for a free slot in the queue, for at most the time limit of a send.
    ///
    /// # Errors
    /// The reason why the request was not posted. If the device may have accepted it all the same (see
    /// [`posted`](rdma_qp::PostError::posted)), the scope waits for it.
    #[inline(always)]
    pub fn post_send<'data: 'scope>(
        &self,
        wr: SendWorkRequest<'_, 'data>,
    ) -> Result<ScopedPendingWork<'scope>, TransportError> {
        self.post(wr)
    }

    /// Posts a write to the peer's memory.
    ///
    /// Waits for a free slot in the queue, for at most the time limit of a write.
    ///
    /// # Errors
    /// The reason why the request was not posted. If the device may have accepted it all the same (see
    /// [`posted`](rdma_qp::PostError::posted)), the scope waits for it.
    #[inline(always)]
    pub fn post_write<'data: 'scope>(
        &self,
        wr: WriteWorkRequest<'_, 'data>,
    ) -> Result<ScopedPendingWork<'scope>, TransportError> {
        self.post(wr)
    }

    /// Posts a read of the peer's memory.
    ///
    /// Waits for a free slot in the queue, for at most the time limit of a read.
    ///
    /// # Errors
    /// The reason why the request was not posted. If the device may have accepted it all the same (see
    /// [`posted`](rdma_qp::PostError::posted)), the scope waits for it.
    #[inline(always)]
    pub fn post_read<'data: 'scope>(
        &self,
        wr: ReadWorkRequest<'_, 'data>,
    ) -> Result<ScopedPendingWork<'scope>, TransportError> {
        self.post(wr)
    }

    /// Posts an atomic operation on the peer's memory.
    ///
    /// Waits for a free slot in the queue, for at most the time limit of an atomic operation.
    ///
    /// # Errors
    /// The reason why the request was not posted. If the device may have accepted it all the same (see
    /// [`posted`](rdma_qp::PostError::posted)), the scope waits for it.
    #[inline(always)]
    pub fn post_atomic<'data: 'scope>(
        &self,
        wr: AtomicWorkRequest<'_, 'data>,
    ) -> Result<ScopedPendingWork<'scope>, TransportError> {
        self.post(wr)
    }

    /// Posts a receive for a message from the peer.
    ///
    /// # Errors
    /// The reason why the request was not posted. If the device may have accepted it all the same (see
    /// [`posted`](rdma_qp::PostError::posted)), the scope waits for it. If the queue is full, the post fails at once
    /// with [`TransportError::WouldBlock`]. If the builder has set a [limit for
    /// receives](crate::ChannelBuilder::receive_timeout), the post first waits that long for a free slot.
    #[inline(always)]
    pub fn post_receive<'data: 'scope>(
        &self,
        wr: ReceiveWorkRequest<'_, 'data>,
    ) -> Result<ScopedPendingWork<'scope>, TransportError> {
        self.post(wr)
    }

    /// Posts these bytes as a message to the peer, like [`Channel::send_inline`](crate::Channel::send_inline). The post
    /// copies the bytes, so they are borrowed only during the call.
    ///
    /// Waits for a free slot in the queue, for at most the time limit of a send.
    ///
    /// # Errors
    /// Same errors as [`post_send`](Self::post_send), and those of
    /// [`Channel::send_inline`](crate::Channel::send_inline) for too many bytes.
    ///
    /// # Examples
    /// Several lines of text, sent from the same string:
    /// ```
    /// use rdma_channel::{TransportError, prelude::*};
    /// use rdma_qp::ReceiveWorkRequest;
    /// # rdma_soft::install();
    /// # let pd = rdma_mem::open_device("soft0")?.allocate_pd()?;
    /// # let channel = pd.create_channel().max_inline_data(16).build()?;
    /// # let endpoint = channel.endpoint();
    /// # let mut channel = channel.handshake(endpoint)?; // to itself
    /// let mut buffer = pd.allocate_region(16)?;
    /// channel
    ///     .scope(|s| {
    ///         let (first, second) = buffer.as_slice_mut().split_at(8);
    ///         let _receives = [s.receive_into(first)?, s.receive_into(second)?];
    ///         let mut line = String::new();
    ///         for name in ["first", "second"] {
    ///             line.clear();
    ///             line.push_str(name);
    ///             s.send_inline(line.as_bytes())?;
    ///         }
    ///         Ok::<_, TransportError>(())
    ///     })
    ///     .unwrap();
    /// assert_eq!(&buffer[..], b"first\0\0\0second\0\0");
    /// # Ok::<(), TransportError>(())
    /// ```
    #[doc(alias = "IBV_SEND_INLINE")]
    #[inline]
    pub fn send_inline(&self, data: &[u8]) -> Result<ScopedPendingWork<'scope>, TransportError> {
        if self.ledger.has_copies()
            && let Some(copy) = self.ledger.copy_for_slot(self.connection, Operation::Send, data)?
        {
            return self.post_send(SendWorkRequest::from_list(&GatherList::from([copy])));
        }
        self.post_send(SendWorkRequest::inline(&[InlineElement::new_checked(data)?]))
    }

    /// Posts a write of these bytes to the beginning of `remote`, like [`send_inline`](Self::send_inline).
    ///
    /// # Errors
    /// Same errors as [`send_inline`](Self::send_inline).
    #[doc(alias = "IBV_SEND_INLINE")]
    #[inline]
    pub fn write_inline(
        &self,
        data: &[u8],
        remote: RemoteMemoryRegion,
    ) -> Result<ScopedPendingWork<'scope>, TransportError> {
        if self.ledger.has_copies()
            && let Some(copy) =
                self.ledger.copy_for_slot(self.connection, Operation::Write, data)?
        {
            return self.post_write(WriteWorkRequest::from_list(&GatherList::from([copy]), remote));
        }
        self.post_write(WriteWorkRequest::inline(&[InlineElement::new_checked(data)?], remote))
    }

    /// The protection domain of the memory that the requests use.
    #[must_use]
    pub const fn pd(&self) -> &ProtectionDomain {
        &self.ledger.pd
    }

    /// The reason why the connection was closed and its operations were flushed. `None` if the connection is open.
    #[must_use]
    pub const fn closed(&self) -> Option<CloseReason> {
        self.connection.closed()
    }
}
