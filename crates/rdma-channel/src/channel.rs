//! Channels: one connection with blocking operations.

use std::fmt;

use rdma_connect::{CloseReason, ConnectionCounters, Rejected, TransportError};
use rdma_mem::ProtectionDomain;
use rdma_qp::{
    AtomicWorkRequest, ConnectAttributes, QpState, Qpn, QueuePair, QueuePairAttributes,
    ReadWorkRequest, ReceiveWorkRequest, SendWorkRequest, WorkSuccess, WriteWorkRequest,
};

use self::builder::WithoutPd;
use crate::ledger::Ledger;
use crate::request::Post;

mod batch;
pub(crate) mod blocking;
pub(crate) mod builder;
pub(crate) mod exchanging;
pub(crate) mod options;
pub(crate) mod prepared;
pub(crate) mod slices;
pub(crate) mod waiting;
pub(crate) mod watch;

/// A connection to one peer. Its operations keep their memory alive until they end, and they always end.
///
/// Operations come in three forms: the blocking ones below, [scoped](Self::scope) ones, which can be in flight at the
/// same time, and [unpolled](Self::send_unpolled) ones. Unpolled operations are `unsafe`, and are meant for programs
/// that build their own layer.
///
/// The channel has its own completion queue. Unless it [spins](crate::Wait::Spin), it also has a completion channel to
/// sleep on. A channel can be moved to another thread, but only one thread can use it at a time.
///
/// # Blocking operations
/// Each operation posts one request and waits until the request completes, so the memory stays borrowed while the
/// device may use it. Each kind of operation has a time limit for the call, set in the
/// [builder](crate::ChannelBuilder). The default is 30 seconds; [`receive`](Self::receive) has no limit by default,
/// like a socket.
///
/// A call that times out **closes** the channel: the queue pair enters its error state. That is the only way to make a
/// device release a request. Later calls fail with [`TransportError::Closed`], which contains the reason. A request
/// that fails also closes the channel.
///
/// # Examples
/// ```
/// use rdma_channel::prelude::*;
/// use rdma_mem::{GatherList, ScatterList};
/// use rdma_qp::{ReceiveWorkRequest, SendWorkRequest};
///
/// rdma_soft::install();
/// let pd = rdma_mem::open_device("soft0")?.allocate_pd()?;
/// let (here, there) = (pd.create_channel().build()?, pd.create_channel().build()?);
/// let (here_end, there_end) = (here.endpoint(), there.endpoint());
/// let (mut here, mut there) = (here.handshake(there_end)?, there.handshake(here_end)?);
///
/// let receiver = std::thread::spawn({
///     let pd = pd.clone();
///     move || -> Result<Vec<u8>, rdma_channel::TransportError> {
///         let mut buffer = pd.allocate_region(64)?;
///         let mut list = ScatterList::from([buffer.as_slice_mut()]);
///         let bytes = there.receive(ReceiveWorkRequest::from_list(&mut list))?.scattered_bytes();
///         Ok(buffer[..bytes.unwrap_or(0)].to_vec())
///     }
/// });
/// let mut data = pd.allocate_region(5)?;
/// data.copy_from_slice(b"hello");
/// here.send(SendWorkRequest::from_list(&GatherList::from([data.as_slice()])))?;
/// assert_eq!(receiver.join().unwrap()?, b"hello");
/// # Ok::<(), rdma_channel::TransportError>(())
/// ```
pub struct Channel {
    pub(crate) ledger: Ledger,
}

impl Channel {
    /// Returns a builder for a new channel. Set the [protection domain](WithoutPd::pd) first. The
    /// [prelude](crate::prelude) has a shorter form: `pd.create_channel()`.
    pub const fn builder() -> WithoutPd<Self> {
        WithoutPd::new()
    }

    #[inline(always)]
    fn block<'data>(&mut self, wr: impl Post<'data>) -> Result<WorkSuccess, TransportError> {
        self.ledger.block(|ledger| Ok(ledger.only()), wr)
    }

    /// Sends a message, which arrives in the peer's next receive. The send completes when the peer has received the
    /// message (RC), or when the message has left this end (UC).
    ///
    /// # Errors
    /// Any [`TransportError`]. If the post is refused, or the queue is full and the call does not wait
    /// ([`WouldBlock`](TransportError::WouldBlock)), the channel stays usable. Any other error closes the channel. That
    /// includes a time limit that expires before the queue has a free slot.
    #[inline(always)]
    pub fn send(&mut self, wr: SendWorkRequest<'_, '_>) -> Result<WorkSuccess, TransportError> {
        self.block(wr)
    }

    /// Receives one message from the peer.
    ///
    /// # Errors
    /// Any [`TransportError`]. If the post is refused, or the queue is full and the call does not wait
    /// ([`WouldBlock`](TransportError::WouldBlock)), the channel stays usable. Any other error closes the channel. That
    /// includes a time limit that expires before the queue has a free slot.
    #[inline(always)]
    pub fn receive(
        &mut self,
        wr: ReceiveWorkRequest<'_, '_>,
    ) -> Result<WorkSuccess, TransportError> {
        self.block(wr)
    }

    /// Writes to the peer's memory.
    ///
    /// # Errors
    /// Any [`TransportError`]. If the post is refused, or the queue is full and the call does not wait
    /// ([`WouldBlock`](TransportError::WouldBlock)), the channel stays usable. Any other error closes the channel. That
    /// includes a time limit that expires before the queue has a free slot.
    #[inline(always)]
    pub fn write(&mut self, wr: WriteWorkRequest<'_, '_>) -> Result<WorkSuccess, TransportError> {
        self.block(wr)
    }

    /// Reads the peer's memory.
    ///
    /// # Errors
    /// Any [`TransportError`]. If the post is refused, or the queue is full and the call does not wait
    /// ([`WouldBlock`](TransportError::WouldBlock)), the channel stays usable. Any other error closes the channel. That
    /// includes a time limit that expires before the queue has a free slot.
    #[inline(always)]
    pub fn read(&mut self, wr: ReadWorkRequest<'_, '_>) -> Result<WorkSuccess, TransportError> {
        self.block(wr)
    }

    /// Performs an atomic operation (fetch-and-add or compare-and-swap) on the peer's memory.
    ///
    /// # Errors
    /// Any [`TransportError`]. If the post is refused, or the queue is full and the call does not wait
    /// ([`WouldBlock`](TransportError::WouldBlock)), the channel stays usable. Any other error closes the channel. That
    /// includes a time limit that expires before the queue has a free slot.
    #[inline(always)]
    pub fn atomic(&mut self, wr: AtomicWorkRequest<'_, '_>) -> Result<WorkSuccess, TransportError> {
        self.block(wr)
    }

    /// The protection domain of the memory that the requests use.
    #[must_use]
    pub fn pd(&self) -> &ProtectionDomain {
        &self.ledger.pd
    }

    /// The maximum number of send queue requests in flight, and the maximum number of receives in flight, as set in the
    /// builder.
    #[must_use]
    pub fn depths(&self) -> (u32, u32) {
        let only = self.ledger.only();
        (only.send.capacity(), only.receive.capacity())
    }

    /// The reason why the channel was closed; `None` if it is open. A closed channel accepts no requests.
    #[must_use]
    pub fn closed(&self) -> Option<CloseReason> {
        self.ledger.only().closed()
    }

    /// Returns a snapshot of the channel's counters.
    ///
    /// # Examples
    /// ```
    /// use std::time::Duration;
    /// use rdma_channel::{ReceiveWorkRequest, SendWorkRequest, prelude::*};
    ///
    /// rdma_soft::install();
    /// let pd = rdma_mem::open_device("soft0")?.allocate_pd()?;
    /// let (one, other) = (pd.create_channel().build()?, pd.create_channel().build()?);
    /// let (at_one, at_other) = (one.endpoint(), other.endpoint());
    /// let (mut one, mut other) = (one.handshake(at_other)?, other.handshake(at_one)?);
    /// other.scope(|s| {
    ///     let receive = s.post_receive(ReceiveWorkRequest::only_immediate())?;
    ///     one.send(SendWorkRequest::only_immediate(7))?;
    ///     receive.wait(Duration::from_secs(10)).map(drop)
    /// })?;
    /// let counters = one.counters();
    /// assert_eq!((counters.posted, counters.completed, counters.failed), (1, 1, 0));
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    #[must_use]
    pub fn counters(&self) -> ConnectionCounters {
        self.ledger.counters()
    }

    /// The peer and the attributes of the connection. `None` if an error forced the channel to destroy the queue pair.
    #[must_use]
    pub fn peer(&self) -> Option<ConnectAttributes> {
        self.ledger.qp(0).ok().and_then(QueuePair::peer)
    }

    /// The QPN of the channel's queue pair. `None` if an error forced the channel to destroy the queue pair.
    #[doc(alias = "qp_num")]
    #[must_use]
    pub fn qpn(&self) -> Option<Qpn> {
        self.ledger.qp(0).ok().map(QueuePair::qpn)
    }

    /// The state of the channel's queue pair, queried from the device.
    ///
    /// # Errors
    /// The provider's error, or [`TransportError::Closed`] if the queue pair had to be destroyed.
    #[doc(alias = "ibv_query_qp")]
    pub fn state(&self) -> Result<QpState, TransportError> {
        Ok(self.ledger.qp(0)?.state()?)
    }

    /// The attributes of the channel's queue pair, queried from the device.
    ///
    /// # Errors
    /// Same errors as [`state`](Self::state).
    #[doc(alias = "ibv_query_qp")]
    pub fn query(&self) -> Result<QueuePairAttributes, TransportError> {
        Ok(self.ledger.qp(0)?.query()?)
    }

    /// The number of completions that matched no request in flight. It is 0 unless the device is faulty. A stray
    /// completion releases no memory.
    #[must_use]
    pub fn stray_completions(&self) -> u64 {
        self.ledger.unmatched.get()
    }
}

/// Formats the queue pair, the peer, and the reason why the channel is closed.
impl fmt::Debug for Channel {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let only = self.ledger.only();
        write!(f, "Channel({only:?})")
    }
}

impl Channel {
    /// Destroys the channel's queue pair. After that, the device no longer uses the memory of the channel's requests.
    ///
    /// # Errors
    /// The provider's error, together with the channel.
    #[doc(alias = "ibv_destroy_qp")]
    #[allow(clippy::result_large_err)] // the error contains the channel
    pub fn close(mut self) -> Result<(), Rejected<Self>> {
        self.ledger.close().map_err(|error| Rejected::new(self, error.into()))
    }
}
