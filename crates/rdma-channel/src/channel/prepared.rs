//! A channel that is not connected yet.

use std::net::IpAddr;
use std::os::fd::OwnedFd;
use std::sync::Arc;
use std::time::Duration;

use rdma_mem::ProtectionDomain;
use rdma_qp::{
    CompletionQueue, ConnectAttributes, Error, PreparedQueuePair, QueuePair, QueuePairEndpoint,
};

use super::Channel;
use super::options::Options;
use crate::ledger::Ledger;
use crate::ledger::queues::Asked;
use crate::ledger::watch::Watch;
use crate::limits::Limits;

/// A channel that is not connected yet. It needs the endpoint of its peer.
///
/// [`exchange`](crate::exchange) exchanges the two endpoints over an existing connection, such as a TCP connection.
/// [`Channel::connect`] performs all steps, given an address.
///
/// # Examples
/// ```
/// use rdma_channel::prelude::*;
///
/// # rdma_soft::install();
/// let pd = rdma_mem::open_device("soft0")?.allocate_pd()?;
/// let (here, there) = (pd.create_channel().build()?, pd.create_channel().build()?);
/// let endpoint = here.endpoint(); // sent to the peer
/// let here = here.handshake(there.endpoint())?;
/// let there = there.handshake(endpoint)?;
/// assert!(here.closed().is_none() && there.closed().is_none());
/// # Ok::<(), rdma_channel::TransportError>(())
/// ```
#[derive(Debug)]
pub struct PreparedChannel {
    pub(crate) qp: PreparedQueuePair,
    pub(crate) rest: ChannelParts,
}

/// The parts of a channel without its queue pair.
#[derive(Debug)]
pub(crate) struct ChannelParts {
    cq: CompletionQueue,
    /// The requested sizes of the queues. The completion queue is large enough for both.
    asked: Asked,
    /// The maximum size of inline data that the program requested, in bytes.
    inline: u32,
    limits: Limits,
    pd: ProtectionDomain,
    watch: Option<(Arc<OwnedFd>, Duration)>,
}

impl PreparedChannel {
    /// Creates the queues of one channel.
    pub(crate) fn new(options: &Options) -> Result<Self, Error> {
        let cq = options.completion_queue(("num_channels", 1))?;
        let qp = options.queue_pair(&cq)?;
        let (asked, limits, pd) = options.parts();
        let (inline, watch) = (options.inline(), options.watch.clone());
        Ok(Self { qp, rest: ChannelParts { cq, asked, inline, limits, pd, watch } })
    }

    /// The endpoint of this channel, which the peer needs to connect.
    #[must_use]
    pub const fn endpoint(&self) -> QueuePairEndpoint {
        self.qp.endpoint()
    }

    /// Sets the addresses of the stream through which the ends exchange their endpoints, like
    /// [`PreparedQueuePair::set_stream_addresses`]. [`Channel::connect`] and its listener do this automatically.
    pub fn set_stream_addresses(&mut self, own: IpAddr, peer: IpAddr) {
        self.qp.set_stream_addresses(own, peer);
    }

    /// Connects to the peer, which must do the same with this channel's endpoint. A channel that is given its own
    /// endpoint is connected to itself.
    ///
    /// # Errors
    /// Same errors as [`PreparedQueuePair::handshake`], and the provider's error if the buffers for [inline
    /// data](crate::ChannelBuilder::max_inline_data) cannot be registered.
    pub fn handshake(self, peer: QueuePairEndpoint) -> Result<Channel, Error> {
        self.rest.channel(self.qp.handshake(peer)?)
    }

    /// The attributes that [`handshake`](Self::handshake) would use.
    ///
    /// # Errors
    /// Same errors as [`PreparedQueuePair::connect_attributes`].
    pub fn connect_attributes(&self, peer: &QueuePairEndpoint) -> Result<ConnectAttributes, Error> {
        self.qp.connect_attributes(peer)
    }

    /// Connects with these attributes, which the program can obtain in any way.
    ///
    /// # Errors
    /// Same errors as [`PreparedQueuePair::connect`], and the provider's error if the buffers for [inline
    /// data](crate::ChannelBuilder::max_inline_data) cannot be registered.
    pub fn connect(self, attributes: ConnectAttributes) -> Result<Channel, Error> {
        self.rest.channel(self.qp.connect(attributes)?)
    }
}

impl ChannelParts {
    /// Creates a channel with a connected queue pair.
    pub(crate) fn channel(self, qp: QueuePair) -> Result<Channel, Error> {
        let Self { cq, asked, inline, limits, pd, watch } = self;
        let given = qp.capabilities().max_inline_data;
        let mut channel = Channel { ledger: Ledger::new(cq, vec![Some(qp)], asked, limits, pd) };
        channel.ledger.provide_copies(inline, given)?;
        if let Some((stream, limit)) = watch {
            channel.ledger.watch = Some(Box::new(Watch::of_program(&stream, limit)));
        }
        Ok(channel)
    }
}
