//! Channels: one connection, and its operations one at a time.

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

/// A connection to one peer, whose operations keep their memory alive and always end.
///
/// Operations come in three forms: blocking ones below, [scoped](Self::scope) ones, of which many
/// are in flight at a time, and [unpolled](Self::send_unpolled) ones, which are `unsafe` and what
/// the others are made of.
///
/// The channel has a completion queue of its own, and unless it [spins](crate::Wait::Spin) a completion
/// channel, to sleep on while it waits. A channel can be moved to another thread, and used by one at a
/// time.
///
/// # Blocking operations
/// Each posts one request and waits until it is done, so that its memory is borrowed as long as the
/// device may use it. A call takes no longer than the limit of its kind of operation, an option of
/// the [builder](crate::ChannelBuilder): by default 30 seconds, and for [`receive`](Self::receive)
/// no limit, as for a socket. A call whose deadline passes has **closed** the channel: the queue
/// pair goes to its error state, which is the only way to have a device let go of a request. Later
/// calls say [`TransportError::Closed`], with the reason. A request that failed closes the channel,
/// too.
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
    /// The options of a new channel, when it was given [its domain](WithoutPd::pd); as
    /// `pd.create_channel()` of the [prelude](crate::prelude).
    pub const fn builder() -> WithoutPd<Self> {
        WithoutPd::new()
    }

    #[inline(always)]
    fn block<'data>(&mut self, wr: impl Post<'data>) -> Result<WorkSuccess, TransportError> {
        self.ledger.block(|ledger| Ok(ledger.only()), wr)
    }

    /// Sends a message, which goes into the peer's next receive. The send is done when the peer has
    /// the message (RC), or when the message has left (UC).
    ///
    /// # Errors
    /// Any [`TransportError`]. A refused post leaves the channel as it was; any other error has
    /// closed the channel, and so has a limit that was over before the queue had a free slot.
    #[inline(always)]
    pub fn send(&mut self, wr: SendWorkRequest<'_, '_>) -> Result<WorkSuccess, TransportError> {
        self.block(wr)
    }

    /// Takes one message of the peer.
    ///
    /// # Errors
    /// Any [`TransportError`]. A refused post leaves the channel as it was; any other error has
    /// closed the channel, and so has a limit that was over before the queue had a free slot.
    #[inline(always)]
    pub fn receive(
        &mut self,
        wr: ReceiveWorkRequest<'_, '_>,
    ) -> Result<WorkSuccess, TransportError> {
        self.block(wr)
    }

    /// Writes into memory of the peer.
    ///
    /// # Errors
    /// Any [`TransportError`]. A refused post leaves the channel as it was; any other error has
    /// closed the channel, and so has a limit that was over before the queue had a free slot.
    #[inline(always)]
    pub fn write(&mut self, wr: WriteWorkRequest<'_, '_>) -> Result<WorkSuccess, TransportError> {
        self.block(wr)
    }

    /// Reads memory of the peer.
    ///
    /// # Errors
    /// Any [`TransportError`]. A refused post leaves the channel as it was; any other error has
    /// closed the channel, and so has a limit that was over before the queue had a free slot.
    #[inline(always)]
    pub fn read(&mut self, wr: ReadWorkRequest<'_, '_>) -> Result<WorkSuccess, TransportError> {
        self.block(wr)
    }

    /// An atomic operation of either kind on memory of the peer.
    ///
    /// # Errors
    /// Any [`TransportError`]. A refused post leaves the channel as it was; any other error has
    /// closed the channel, and so has a limit that was over before the queue had a free slot.
    #[inline(always)]
    pub fn atomic(&mut self, wr: AtomicWorkRequest<'_, '_>) -> Result<WorkSuccess, TransportError> {
        self.block(wr)
    }

    /// The protection domain whose memory the requests use.
    #[must_use]
    pub fn pd(&self) -> &ProtectionDomain {
        &self.ledger.pd
    }

    /// How many requests of the send queue, and how many receives, can be in flight: as set by the
    /// builder.
    #[must_use]
    pub fn depths(&self) -> (u32, u32) {
        let only = self.ledger.only();
        (only.send.capacity(), only.receive.capacity())
    }

    /// Whether the channel has been closed, and by what: a closed channel takes no requests.
    #[must_use]
    pub fn closed(&self) -> Option<CloseReason> {
        self.ledger.only().closed()
    }

    /// Returns a snapshot of the channel's counters.
    ///
    /// # Examples
    /// ```
    /// use rdma_channel::{Channel, ReceiveWorkRequest, SendWorkRequest, prelude::*};
    ///
    /// rdma_soft::install();
    /// let pd = rdma_mem::open_device("soft0")?.allocate_pd()?;
    /// let (one, other) = (pd.create_channel().build()?, pd.create_channel().build()?);
    /// let (at_one, at_other) = (one.endpoint(), other.endpoint());
    /// let (mut one, mut other) = (one.handshake(at_other)?, other.handshake(at_one)?);
    /// other.scope(|other| {
    ///     let receive = other.post_receive(ReceiveWorkRequest::only_immediate())?;
    ///     one.send(SendWorkRequest::only_immediate(7))?;
    ///     receive.wait()
    /// })??;
    /// let counters = one.counters();
    /// assert_eq!((counters.posted, counters.completed, counters.failed), (1, 1, 0));
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    #[must_use]
    pub fn counters(&self) -> ConnectionCounters {
        self.ledger.counters()
    }

    /// The peer that the channel was connected to, and the attributes. `None` if its queue pair had
    /// to be destroyed.
    #[must_use]
    pub fn peer(&self) -> Option<ConnectAttributes> {
        self.ledger.qp(0).ok().and_then(QueuePair::peer)
    }

    /// The QPN of the channel's queue pair. `None` if that had to be destroyed.
    #[doc(alias = "qp_num")]
    #[must_use]
    pub fn qpn(&self) -> Option<Qpn> {
        self.ledger.qp(0).ok().map(QueuePair::qpn)
    }

    /// The state of the channel's queue pair, as the device says.
    ///
    /// # Errors
    /// What the provider says, or [`TransportError::Closed`] if the queue pair had to be destroyed.
    #[doc(alias = "ibv_query_qp")]
    pub fn state(&self) -> Result<QpState, TransportError> {
        Ok(self.ledger.qp(0)?.state()?)
    }

    /// The attributes of the channel's queue pair, as the device has them.
    ///
    /// # Errors
    /// Those of [`state`](Self::state).
    #[doc(alias = "ibv_query_qp")]
    pub fn query(&self) -> Result<QueuePairAttributes, TransportError> {
        Ok(self.ledger.qp(0)?.query()?)
    }

    /// How many completions matched no request in flight: none, unless the device is broken.
    /// Unmatched completions release no memory.
    #[must_use]
    pub fn stray_completions(&self) -> u64 {
        self.ledger.unmatched.get()
    }
}

/// Its queue pair, its peer, and what has closed it.
impl fmt::Debug for Channel {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let only = self.ledger.only();
        write!(f, "Channel({only:?})")
    }
}

impl Channel {
    /// Destroys the channel's queue pair: after that the device uses no memory of its requests.
    ///
    /// # Errors
    /// What the provider says, with the channel.
    #[doc(alias = "ibv_destroy_qp")]
    #[allow(clippy::result_large_err)] // it is the channel itself
    pub fn close(mut self) -> Result<(), Rejected<Self>> {
        self.ledger.close().map_err(|error| Rejected::new(self, error.into()))
    }
}
