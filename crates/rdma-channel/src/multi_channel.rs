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

/// Connections to several peers, counted from 0, which share a protection domain and a completion queue.
///
/// These channels do what a [`Channel`](crate::Channel) does, in the same forms and with the same
/// limits, to the peer that each request names; and collectives, one operation for each of several
/// peers: [`scatter_send`](Self::scatter_send), [`scatter_write`](Self::scatter_write),
/// [`gather_receive`](Self::gather_receive), [`gather_read`](Self::gather_read) and
/// [`multicast_send`](Self::multicast_send).
///
/// Plain bytes, numbers and rented memory go to one peer by [`Scope::to`](crate::Scope::to), and a request with flags by
/// [`ToPeer::from_wr`].
///
/// What closes a channel closes here the connection to one peer: an operation that failed, or a
/// blocking call that did not end before its deadline. The others go on. Only a failure of the
/// completion queue closes all.
///
/// Peers can be [added](Self::add), up to as many as the [builder](crate::ChannelBuilder::max_channels) was told, and
/// [removed](Self::remove), those that have failed too. Each has an index, which stays the same as long as it is there.
/// A collective goes to the peers that its requests name: if one of them is not there, nothing is posted.
///
/// A `MultiChannel` can be moved to another thread, and used by one at a time.
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

/// For each peer the queue pair, the peer, and what has closed the connection.
impl fmt::Debug for MultiChannel {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("MultiChannel")?;
        f.debug_list().entries(self.ledger.queues.iter()).finish()
    }
}

impl MultiChannel {
    /// The options of new channels, when it was given [their domain](WithoutPd::pd); as
    /// `pd.create_multi_channel()` of the [prelude](crate::prelude).
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
    /// Those of [`Channel::send`](crate::Channel::send), and [`TransportError::NoSuchPeer`].
    #[inline]
    pub fn send(&mut self, wr: PeerSendWorkRequest<'_, '_>) -> Result<WorkSuccess, TransportError> {
        self.block(wr)
    }

    /// Takes one message of a peer; see [`Channel::receive`](crate::Channel::receive).
    ///
    /// # Errors
    /// Those of [`Channel::receive`](crate::Channel::receive), and [`TransportError::NoSuchPeer`].
    #[inline]
    pub fn receive(
        &mut self,
        wr: PeerReceiveWorkRequest<'_, '_>,
    ) -> Result<WorkSuccess, TransportError> {
        self.block(wr)
    }

    /// Writes into memory of a peer; see [`Channel::write`](crate::Channel::write).
    ///
    /// # Errors
    /// Those of [`Channel::write`](crate::Channel::write), and [`TransportError::NoSuchPeer`].
    #[inline]
    pub fn write(
        &mut self,
        wr: PeerWriteWorkRequest<'_, '_>,
    ) -> Result<WorkSuccess, TransportError> {
        self.block(wr)
    }

    /// Reads memory of a peer; see [`Channel::read`](crate::Channel::read).
    ///
    /// # Errors
    /// Those of [`Channel::read`](crate::Channel::read), and [`TransportError::NoSuchPeer`].
    #[inline]
    pub fn read(&mut self, wr: PeerReadWorkRequest<'_, '_>) -> Result<WorkSuccess, TransportError> {
        self.block(wr)
    }

    /// An atomic operation of either kind on memory of a peer.
    ///
    /// # Errors
    /// Those of [`Channel::atomic`](crate::Channel::atomic), and [`TransportError::NoSuchPeer`].
    #[inline]
    pub fn atomic(
        &mut self,
        wr: PeerAtomicWorkRequest<'_, '_>,
    ) -> Result<WorkSuccess, TransportError> {
        self.block(wr)
    }

    /// The protection domain whose memory the requests use.
    #[must_use]
    pub fn pd(&self) -> &ProtectionDomain {
        &self.ledger.pd
    }

    /// Whether the connection to a peer has been closed, and by what: then it takes no requests any more.
    ///
    /// # Errors
    /// [`TransportError::NoSuchPeer`].
    pub fn closed(&self, peer: usize) -> Result<Option<CloseReason>, TransportError> {
        Ok(self.ledger.connection(peer)?.closed())
    }

    /// Returns a snapshot of the counters of all channels together, including those of peers that have left.
    #[must_use]
    pub fn counters(&self) -> ConnectionCounters {
        self.ledger.counters()
    }

    /// The peer that a connection is to, and the attributes.
    ///
    /// # Errors
    /// [`TransportError::NoSuchPeer`], or [`TransportError::Closed`] if its queue pair had to be destroyed.
    pub fn peer(&self, peer: usize) -> Result<Option<ConnectAttributes>, TransportError> {
        self.ledger.qp(peer).map(QueuePair::peer)
    }

    /// The state of the queue pair to a peer, as the device says.
    ///
    /// # Errors
    /// Those of [`peer`](Self::peer), and what the provider returns to `ibv_query_qp`.
    #[doc(alias = "ibv_query_qp")]
    pub fn state(&self, peer: usize) -> Result<QpState, TransportError> {
        Ok(self.ledger.qp(peer)?.state()?)
    }

    /// How many completions matched no request in flight, as
    /// [`Channel::stray_completions`](crate::Channel::stray_completions).
    #[must_use]
    pub fn stray_completions(&self) -> u64 {
        self.ledger.unmatched.get()
    }

    /// Destroys the queue pairs: after that the device uses no memory of their requests.
    ///
    /// # Errors
    /// What the provider says, with the channels, of which some may be destroyed.
    #[doc(alias = "ibv_destroy_qp")]
    #[allow(clippy::result_large_err)] // it is the channels themselves
    pub fn close(mut self) -> Result<(), Rejected<Self>> {
        self.ledger.close().map_err(|error| Rejected::new(self, error.into()))
    }
}
