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

/// A channel that is not connected yet: it needs the endpoint of its peer.
///
/// [`exchange`](crate::exchange) gives both ends their peer's endpoint over a connection that
/// exists already, such as a TCP connection; [`Channel::connect`] does all of it, by an address.
///
/// # Examples
/// ```
/// use rdma_channel::prelude::*;
///
/// # rdma_soft::install();
/// let pd = rdma_mem::open_device("soft0")?.allocate_pd()?;
/// let (here, there) = (pd.create_channel().build()?, pd.create_channel().build()?);
/// let told = here.endpoint(); // what the peer has to know
/// let here = here.handshake(there.endpoint())?;
/// let there = there.handshake(told)?;
/// assert!(here.closed().is_none() && there.closed().is_none());
/// # Ok::<(), rdma_channel::TransportError>(())
/// ```
#[derive(Debug)]
pub struct PreparedChannel {
    pub(crate) qp: PreparedQueuePair,
    pub(crate) cq: CompletionQueue,
    /// What the queues were asked for: the completion queue has the capacity for it.
    pub(crate) asked: Asked,
    /// How many inline bytes were asked for.
    inline: u32,
    pub(crate) limits: Limits,
    pub(crate) pd: ProtectionDomain,
    watch: Option<(Arc<OwnedFd>, Duration)>,
}

impl PreparedChannel {
    /// With queues of its own.
    pub(crate) fn new(options: &Options) -> Result<Self, Error> {
        let cq = options.completion_queue(("num_channels", 1))?;
        let qp = options.queue_pair(&cq)?;
        let (asked, limits, pd) = options.parts();
        let (inline, watch) = (options.inline(), options.watch.clone());
        Ok(Self { qp, cq, asked, inline, limits, pd, watch })
    }

    /// The endpoint of this end, which the peer needs to connect.
    #[must_use]
    pub const fn endpoint(&self) -> QueuePairEndpoint {
        self.qp.endpoint()
    }

    /// Sets the addresses of the stream by which the ends meet, like
    /// [`PreparedQueuePair::set_stream_addresses`]. [`Channel::connect`] and its listener do so by themselves.
    pub fn set_stream_addresses(&mut self, own: IpAddr, peer: IpAddr) {
        self.qp.set_stream_addresses(own, peer);
    }

    /// Connects to the peer, which does the same with the endpoint of this one. A channel that is
    /// given its own endpoint is connected to itself.
    ///
    /// # Errors
    /// Those of [`PreparedQueuePair::handshake`].
    pub fn handshake(self, peer: QueuePairEndpoint) -> Result<Channel, Error> {
        self.connected(|qp| qp.handshake(peer))
    }

    /// What [`handshake`](Self::handshake) would connect with.
    ///
    /// # Errors
    /// Those of [`PreparedQueuePair::connect_attributes`].
    pub fn connect_attributes(&self, peer: &QueuePairEndpoint) -> Result<ConnectAttributes, Error> {
        self.qp.connect_attributes(peer)
    }

    /// Connects with these attributes, however the program got them.
    ///
    /// # Errors
    /// Those of [`PreparedQueuePair::connect`].
    pub fn connect(self, attributes: ConnectAttributes) -> Result<Channel, Error> {
        self.connected(|qp| qp.connect(attributes))
    }

    fn connected(
        self,
        connect: impl FnOnce(PreparedQueuePair) -> Result<QueuePair, Error>,
    ) -> Result<Channel, Error> {
        let Self { qp, cq, asked, inline, limits, pd, watch } = self;
        let qp = connect(qp)?;
        let given = qp.capabilities().max_inline_data;
        let mut channel = Channel { ledger: Ledger::new(cq, vec![Some(qp)], asked, limits, pd) };
        channel.ledger.provide_copies(inline, given)?;
        if let Some((stream, limit)) = watch {
            channel.ledger.watch = Some(Box::new(Watch::of_program(&stream, limit)));
        }
        Ok(channel)
    }
}
