//! Connections to several peers.

use std::time::Duration;

use rdma_mem::{InlineElement, ProtectionDomain};
use rdma_qp::{AtomicResult, ConnectAttributes, QpState, QueuePair, WorkSuccess};

use crate::core::Core;
use crate::{CloseReason, Operation, TransportError, WithoutPd};

mod builder;
mod collective;
mod prepared;
mod remote_memory_region;
mod scope;
mod unpolled;
mod work_request;

pub use builder::MultiChannelBuilder;
pub use prepared::PreparedMultiChannel;
pub use remote_memory_region::PeerRemoteMemoryRegion;
pub use work_request::{
    PeerAtomicWorkRequest, PeerReadWorkRequest, PeerReceiveWorkRequest, PeerSendWorkRequest,
    PeerWriteWorkRequest,
};

/// Connections to several peers, counted from 0, which share a protection domain and a completion queue.
///
/// It does what a [`Channel`](crate::Channel) does, in the same forms and with the same limits, to the peer that each
/// request names; and collectives, one operation for each of several peers: [`scatter_send`](Self::scatter_send),
/// [`scatter_write`](Self::scatter_write), [`gather_receive`](Self::gather_receive),
/// [`gather_read`](Self::gather_read) and [`multicast_send`](Self::multicast_send).
///
/// What closes a channel closes here the connection to one peer: an operation that failed, or a blocking call that
/// ran out of time. The others go on. Only a failure of the completion queue closes all.
///
/// It can be moved to another thread, and used by one at a time.
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
/// let mut room: Vec<_> = to.chunks_mut(1).map(|byte| [region.scatter_element(byte)]).collect();
/// channels
///     .scope(|s| {
///         let rooms = room.iter_mut().enumerate();
///         s.post_gather_receive(rooms.map(|(peer, room)| PeerReceiveWorkRequest::new(peer, room)))?;
///         let data = data.iter().enumerate();
///         s.post_scatter_send(data.map(|(peer, data)| PeerSendWorkRequest::new(peer, data)))?;
///         Ok::<(), ScopeError<TransportError>>(())
///     })
///     .unwrap();
/// assert_eq!(memory, [1, 2, 3, 1, 2, 3]);
/// # Ok::<(), TransportError>(())
/// ```
#[derive(Debug)]
pub struct MultiChannel {
    core: Core,
}

/// The blocking operations of one kind of request, with one peer.
macro_rules! blocking {
    ($($(#[$doc:meta])* $name:ident, $name_timeout:ident: $request:ident => $operation:ident, $post:ident;)+) => {$(
        $(#[$doc])*
        ///
        /// # Errors
        /// As of [`Channel::send`](crate::Channel::send), and [`TransportError::NoSuchPeer`].
        #[inline]
        pub fn $name(&mut self, wr: $request<'_, '_>) -> Result<WorkSuccess, TransportError> {
            self.core.$post(wr.peer, Operation::$operation, wr.wr, None)
        }

        #[doc = concat!("As [`", stringify!($name), "`](Self::", stringify!($name), "), with a limit of its own. [`Duration::MAX`] is none.")]
        ///
        /// # Errors
        /// As there.
        #[inline]
        pub fn $name_timeout(
            &mut self,
            wr: $request<'_, '_>,
            timeout: Duration,
        ) -> Result<WorkSuccess, TransportError> {
            self.core.$post(wr.peer, Operation::$operation, wr.wr, Some(timeout))
        }
    )+};
}

impl MultiChannel {
    /// The knobs of new channels, when it was told [their domain](WithoutPd::pd); as `pd.create_multi_channel()` of
    /// the [prelude](crate::prelude).
    pub const fn builder() -> WithoutPd<Self> {
        WithoutPd::new()
    }

    blocking! {
        /// Sends a message to a peer; as [`Channel::send`](crate::Channel::send).
        send, send_timeout: PeerSendWorkRequest => Send, block_send;
        /// Takes one message of a peer; as [`Channel::receive`](crate::Channel::receive).
        receive, receive_timeout: PeerReceiveWorkRequest => Receive, block_receive;
        /// Writes into memory of a peer; as [`Channel::write`](crate::Channel::write).
        write, write_timeout: PeerWriteWorkRequest => Write, block_send;
        /// Reads memory of a peer; as [`Channel::read`](crate::Channel::read).
        read, read_timeout: PeerReadWorkRequest => Read, block_send;
        /// An atomic operation on memory of a peer, of either kind.
        atomic, atomic_timeout: PeerAtomicWorkRequest => Atomic, block_send;
    }

    /// Sends these bytes to a peer as one message; as [`Channel::send_inline`](crate::Channel::send_inline).
    ///
    /// # Errors
    /// Those of [`Channel::send_inline`](crate::Channel::send_inline), and [`TransportError::NoSuchPeer`].
    #[doc(alias = "IBV_SEND_INLINE")]
    #[inline]
    pub fn send_inline(&mut self, peer: usize, data: &[u8]) -> Result<WorkSuccess, TransportError> {
        self.send(PeerSendWorkRequest::inline(peer, &[InlineElement::new_checked(data)?]))
    }

    /// Writes these bytes to the beginning of `remote`; as [`send_inline`](Self::send_inline).
    ///
    /// # Errors
    /// As of [`send_inline`](Self::send_inline).
    #[doc(alias = "IBV_SEND_INLINE")]
    #[inline]
    pub fn write_inline(
        &mut self,
        data: &[u8],
        remote: PeerRemoteMemoryRegion,
    ) -> Result<WorkSuccess, TransportError> {
        self.write(PeerWriteWorkRequest::inline(&[InlineElement::new_checked(data)?], remote))
    }

    /// Puts `swap` into a peer's word if that is `compare`; `result` then has what it was.
    ///
    /// # Errors
    /// As of [`send`](Self::send).
    pub fn compare_and_swap<'wr, 'data: 'wr>(
        &mut self,
        result: impl Into<AtomicResult<'wr, 'data>>,
        remote: PeerRemoteMemoryRegion,
        compare: u64,
        swap: u64,
    ) -> Result<WorkSuccess, TransportError> {
        self.atomic(PeerAtomicWorkRequest::compare_and_swap(result, remote, compare, swap))
    }

    /// Adds `add` to a peer's word, wrapping; `result` then has what it was.
    ///
    /// # Errors
    /// As of [`send`](Self::send).
    pub fn fetch_add<'wr, 'data: 'wr>(
        &mut self,
        result: impl Into<AtomicResult<'wr, 'data>>,
        remote: PeerRemoteMemoryRegion,
        add: u64,
    ) -> Result<WorkSuccess, TransportError> {
        self.atomic(PeerAtomicWorkRequest::fetch_and_add(result, remote, add))
    }

    /// How many peers there are.
    #[must_use]
    pub fn num_channels(&self) -> usize {
        self.core.lanes.len()
    }

    /// The domain whose memory it uses.
    #[must_use]
    pub fn pd(&self) -> &ProtectionDomain {
        &self.core.pd
    }

    /// Whether the connection to a peer has been closed, and by what: then it takes no requests any more.
    ///
    /// # Errors
    /// [`TransportError::NoSuchPeer`].
    pub fn closed(&self, peer: usize) -> Result<Option<CloseReason>, TransportError> {
        Ok(self.core.lane(peer)?.closed.get())
    }

    /// Whom a connection is to, and how.
    ///
    /// # Errors
    /// [`TransportError::NoSuchPeer`], or [`TransportError::Closed`] if its queue pair had to be destroyed.
    pub fn peer(&self, peer: usize) -> Result<Option<ConnectAttributes>, TransportError> {
        self.core.qp(peer).map(QueuePair::peer)
    }

    /// The state of the queue pair to a peer, as the device says.
    ///
    /// # Errors
    /// As of [`peer`](Self::peer), or what the provider says.
    #[doc(alias = "ibv_query_qp")]
    pub fn state(&self, peer: usize) -> Result<QpState, TransportError> {
        Ok(self.core.qp(peer)?.state()?)
    }

    /// How many completions came that were of no request under way, as
    /// [`Channel::stray_completions`](crate::Channel::stray_completions).
    #[must_use]
    pub fn stray_completions(&self) -> u64 {
        self.core.strays.get()
    }

    /// Destroys the queue pairs: after that the device uses no memory of their requests.
    ///
    /// # Errors
    /// What the provider says, with the channels, of which some may be destroyed.
    #[doc(alias = "ibv_destroy_qp")]
    #[allow(clippy::result_large_err)] // it is the channels themselves
    pub fn close(mut self) -> Result<(), (Self, rdma_qp::Error)> {
        self.core.close().map_err(|error| (self, error))
    }
}
