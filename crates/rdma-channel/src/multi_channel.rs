//! Connections to several peers.

use std::fmt;

use rdma_connect::{CloseReason, ConnectionCounters, Rejected, TransportError};
use rdma_mem::ProtectionDomain;
use rdma_qp::{ConnectAttributes, QpState, QueuePair, WorkSuccess};

use self::joining::Joining;
use self::to_peer::{
    PeerAtomicWorkRequest, PeerReadWorkRequest, PeerReceiveWorkRequest, PeerSendWorkRequest,
    PeerWriteWorkRequest, ToPeer,
};
use crate::channel::builder::WithoutPd;
use crate::ledger::Ledger;
use crate::request::Post;

mod batch;
mod collective;
pub(crate) mod joining;
mod members;
pub(crate) mod prepared;
pub(crate) mod remote_memory_region;
mod scope;
pub(crate) mod to_peer;

/// Connections to several peers, with a common protection domain and a common completion queue. Peers are identified by
/// indices from 0.
///
/// The operations, forms and limits are the same as those of a [`Channel`](crate::Channel), but each request names its
/// peer. Collectives perform one operation for each of several peers: [`scatter_send`](Self::scatter_send),
/// [`scatter_write`](Self::scatter_write), [`gather_receive`](Self::gather_receive), [`gather_read`](Self::gather_read)
/// and [`multicast_send`](Self::multicast_send).
///
/// To send plain bytes, numbers or rented memory to one peer, select it with [`Scope::to`](crate::Scope::to).
/// [`ToPeer::from_wr`] adds a peer to a request with flags.
///
/// A failed operation, or a blocking call that times out, closes only the connection to its peer. The other connections
/// stay open. Only a failure of the completion queue closes all connections.
///
/// Peers can be [added](Self::add), up to the [limit](crate::ChannelBuilder::max_channels) set in the builder. They can
/// also be [removed](Self::remove), even after a failure. A peer keeps its index until it is removed. A collective uses
/// the peers that its requests name. If one of them does not exist, nothing is posted.
///
/// A `MultiChannel` can be moved to another thread, but only one thread can use it at a time.
///
/// # Examples
/// ```
/// use rdma_channel::{
///     PeerReceiveWorkRequest, PeerSendWorkRequest, ScopeError, TransportError, prelude::*,
/// };
///
/// rdma_soft::install();
/// let pd = rdma_mem::open_device("soft0")?.allocate_pd()?;
/// let prepared = pd.create_multi_channel().num_channels(3).build()?;
/// let endpoints = prepared.endpoints();
/// let mut channels = prepared.handshake(endpoints)?; // each to itself
///
/// let mut memory = [1, 2, 3, 0, 0, 0];
/// let region = pd.register_local_mr_slice(&memory)?;
/// let (from, to) = memory.split_at_mut(3);
/// let data: Vec<_> = from.chunks(1).map(|byte| [region.gather_element(byte)]).collect();
/// let mut buffer: Vec<_> = to.chunks_mut(1).map(|byte| [region.scatter_element(byte)]).collect();
/// channels
///     .scope(|s| {
///         let buffers = buffer.iter_mut().enumerate();
///         s.post_gather_receive(buffers.map(|(peer, buffer)| PeerReceiveWorkRequest::new(peer, buffer)))?;
///         let data = data.iter().enumerate();
///         s.post_scatter_send(data.map(|(peer, data)| PeerSendWorkRequest::new(peer, data)))?;
///         Ok::<(), ScopeError<TransportError>>(())
///     })
///     .unwrap();
/// assert_eq!(memory, [1, 2, 3, 1, 2, 3]);
/// # Ok::<(), TransportError>(())
/// ```
pub struct MultiChannel {
    pub(crate) ledger: Ledger,
    joining: Joining,
}

/// Formats, for each peer, the queue pair, the peer, and the reason why the connection is closed.
impl fmt::Debug for MultiChannel {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("MultiChannel")?;
        f.debug_list().entries(self.ledger.queues.iter()).finish()
    }
}

impl MultiChannel {
    /// Returns a builder for new channels. Set the [protection domain](WithoutPd::pd) first. The
    /// [prelude](crate::prelude) has a shorter form: `pd.create_multi_channel()`.
    pub const fn builder() -> WithoutPd<Self> {
        WithoutPd::new()
    }

    #[inline(always)]
    fn block<'data, W: Post<'data>>(
        &mut self,
        wr: ToPeer<W>,
    ) -> Result<WorkSuccess, TransportError> {
        let ToPeer { peer, wr } = wr;
        self.ledger.block(|ledger| ledger.connection(peer), wr)
    }

    /// Sends a message to a peer; see [`Channel::send`](crate::Channel::send).
    ///
    /// # Errors
    /// Same errors as [`Channel::send`](crate::Channel::send), and [`TransportError::NoSuchPeer`].
    #[inline]
    pub fn send(&mut self, wr: PeerSendWorkRequest<'_, '_>) -> Result<WorkSuccess, TransportError> {
        self.block(wr)
    }

    /// Receives one message from a peer; see [`Channel::receive`](crate::Channel::receive).
    ///
    /// # Errors
    /// Same errors as [`Channel::receive`](crate::Channel::receive), and [`TransportError::NoSuchPeer`].
    #[inline]
    pub fn receive(
        &mut self,
        wr: PeerReceiveWorkRequest<'_, '_>,
    ) -> Result<WorkSuccess, TransportError> {
        self.block(wr)
    }

    /// Writes to a peer's memory; see [`Channel::write`](crate::Channel::write).
    ///
    /// # Errors
    /// Same errors as [`Channel::write`](crate::Channel::write), and [`TransportError::NoSuchPeer`].
    #[inline]
    pub fn write(
        &mut self,
        wr: PeerWriteWorkRequest<'_, '_>,
    ) -> Result<WorkSuccess, TransportError> {
        self.block(wr)
    }

    /// Reads a peer's memory; see [`Channel::read`](crate::Channel::read).
    ///
    /// # Errors
    /// Same errors as [`Channel::read`](crate::Channel::read), and [`TransportError::NoSuchPeer`].
    #[inline]
    pub fn read(&mut self, wr: PeerReadWorkRequest<'_, '_>) -> Result<WorkSuccess, TransportError> {
        self.block(wr)
    }

    /// Performs an atomic operation (fetch-and-add or compare-and-swap) on a peer's memory.
    ///
    /// # Errors
    /// Same errors as [`Channel::atomic`](crate::Channel::atomic), and [`TransportError::NoSuchPeer`].
    #[inline]
    pub fn atomic(
        &mut self,
        wr: PeerAtomicWorkRequest<'_, '_>,
    ) -> Result<WorkSuccess, TransportError> {
        self.block(wr)
    }

    /// The protection domain of the memory that the requests use.
    #[must_use]
    pub fn pd(&self) -> &ProtectionDomain {
        &self.ledger.pd
    }

    /// The reason why the connection to a peer was closed; `None` if it is open. A closed connection accepts no
    /// requests.
    ///
    /// # Errors
    /// [`TransportError::NoSuchPeer`] if the peer does not exist.
    pub fn closed(&self, peer: usize) -> Result<Option<CloseReason>, TransportError> {
        Ok(self.ledger.connection(peer)?.closed())
    }

    /// Returns a snapshot of the counters of all channels together, including those of removed peers.
    #[must_use]
    pub fn counters(&self) -> ConnectionCounters {
        self.ledger.counters()
    }

    /// The peer and the attributes of a connection.
    ///
    /// # Errors
    /// [`TransportError::NoSuchPeer`], or [`TransportError::Closed`] if no peer has this index or the queue pair had to
    /// be destroyed.
    pub fn peer(&self, peer: usize) -> Result<Option<ConnectAttributes>, TransportError> {
        self.ledger.qp(peer).map(QueuePair::peer)
    }

    /// The state of the queue pair to a peer, queried from the device.
    ///
    /// # Errors
    /// Same errors as [`peer`](Self::peer), and the provider's error of `ibv_query_qp`.
    #[doc(alias = "ibv_query_qp")]
    pub fn state(&self, peer: usize) -> Result<QpState, TransportError> {
        Ok(self.ledger.qp(peer)?.state()?)
    }

    /// The number of completions that matched no request in flight, like
    /// [`Channel::stray_completions`](crate::Channel::stray_completions).
    #[must_use]
    pub fn stray_completions(&self) -> u64 {
        self.ledger.unmatched.get()
    }

    /// Destroys the queue pairs. After that, the device no longer uses the memory of the channels' requests.
    ///
    /// # Errors
    /// The provider's error, together with the channels. Some queue pairs may already be destroyed.
    #[doc(alias = "ibv_destroy_qp")]
    #[allow(clippy::result_large_err)] // the error contains the channels
    pub fn close(mut self) -> Result<(), Rejected<Self>> {
        self.ledger.close().map_err(|error| Rejected::new(self, error.into()))
    }
}
