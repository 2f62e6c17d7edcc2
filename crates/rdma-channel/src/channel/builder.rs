//! The options of a channel, and of channels to several peers.

use std::marker::PhantomData;
use std::time::Duration;

use rdma_mem::{AccessFlags, ProtectionDomain};
#[cfg(doc)]
use rdma_qp::QueuePairBuilder;
use rdma_qp::{
    AckTimeout, Error, GidChoice, Inline, MaxAckRetries, MaxRnrRetries, MaximumTransferUnit,
    MinRnrTimer, PacketSequenceNumber, QueuePairType,
};

use super::Channel;
use super::options::{Options, RendezvousOptions, ServerKnobs};
use super::prepared::PreparedChannel;
use crate::deadline::Wait;
use crate::multi_channel::MultiChannel;
use crate::multi_channel::prepared::PreparedMultiChannel;

/// Creates a [`Channel`], or, as a [`MultiChannelBuilder`], channels to several peers.
///
/// It has the options of a [`QueuePairBuilder`], and time limits for operations. No existing queues can be passed in,
/// because each channel creates its queues. All options are optional, except that a builder of channels to several
/// peers needs their [number](ChannelBuilder::num_channels) or their [maximum number](ChannelBuilder::max_channels).
///
/// # Examples
/// ```
/// use std::time::Duration;
/// use rdma_channel::prelude::*;
///
/// rdma_soft::install();
/// let pd = rdma_mem::open_device("soft0")?.allocate_pd()?;
/// let prepared = pd
///     .create_channel()
///     .max_send_wr(128)
///     .receive_timeout(Duration::from_secs(10))
///     .build()?;
/// println!("send this to the peer: {:?}", prepared.endpoint());
/// # Ok::<(), rdma_qp::Error>(())
/// ```
#[must_use]
#[derive(Debug)]
pub struct ChannelBuilder<'a, C = Channel> {
    pub(crate) options: Options,
    pub(crate) rendezvous: RendezvousOptions,
    pub(crate) server: ServerKnobs,
    num_channels: Option<usize>,
    max_channels: Option<usize>,
    makes: PhantomData<fn() -> C>,
    /// Keeps the domain borrowed, so it can be closed only after its builders are dropped.
    pd: PhantomData<&'a ProtectionDomain>,
}

/// Creates a [`MultiChannel`]. The options are the same as for a channel, and apply to each connection.
///
/// # Examples
/// ```
/// use rdma_channel::prelude::*;
///
/// rdma_soft::install();
/// let pd = rdma_mem::open_device("soft0")?.allocate_pd()?;
/// let prepared = pd.create_multi_channel().num_channels(3).max_send_wr(128).build()?;
/// assert_eq!(prepared.endpoints().len(), 3);
/// # Ok::<(), rdma_qp::Error>(())
/// ```
pub type MultiChannelBuilder<'a> = ChannelBuilder<'a, MultiChannel>;

impl<C> Clone for ChannelBuilder<'_, C> {
    fn clone(&self) -> Self {
        Self { options: self.options.clone(), rendezvous: self.rendezvous.clone(), ..*self }
    }
}

impl<'a, C> ChannelBuilder<'a, C> {
    pub(crate) fn new(pd: &'a ProtectionDomain) -> Self {
        Self {
            options: Options::new(pd),
            rendezvous: RendezvousOptions::default(),
            server: ServerKnobs::default(),
            num_channels: None,
            max_channels: None,
            makes: PhantomData,
            pd: PhantomData,
        }
    }

    /// Returns a builder of another type with the same options.
    pub(crate) fn into_builder_of<D>(self) -> ChannelBuilder<'a, D> {
        let Self { options, rendezvous, server, num_channels, max_channels, pd, .. } = self;
        let makes = PhantomData;
        ChannelBuilder { options, rendezvous, server, num_channels, max_channels, makes, pd }
    }

    /// The maximum number of outstanding requests in the send queue. Default: 16.
    pub fn max_send_wr(mut self, max_send_wr: u32) -> Self {
        self.options.max_send_wr = max_send_wr;
        self
    }

    /// The maximum number of outstanding receives. Default: 16.
    pub fn max_recv_wr(mut self, max_recv_wr: u32) -> Self {
        self.options.max_recv_wr = max_recv_wr;
        self
    }

    /// The transport, RC or UC. Default: RC. With UC, messages can be lost, and a send succeeds once the message has
    /// left this end.
    pub fn qp_type(mut self, qp_type: QueuePairType) -> Self {
        self.options.qp_type = qp_type;
        self
    }

    /// Makes every request of the send queue produce a completion, even if it is marked unsignaled. Default: no.
    pub fn sq_sig_all(mut self, sq_sig_all: bool) -> Self {
        self.options.sq_sig_all = sq_sig_all;
        self
    }

    /// The time limit of a send. Default: 30 seconds. In all time limits of this builder, [`Duration::MAX`] means no
    /// limit.
    pub fn send_timeout(mut self, send: Duration) -> Self {
        self.options.limits.send = send;
        self
    }

    /// The time limit of a receive. Default: no limit, as for a socket.
    pub fn receive_timeout(mut self, receive: Duration) -> Self {
        self.options.limits.receive = receive;
        self
    }

    /// The time limit of an RDMA write. Default: 30 seconds.
    pub fn write_timeout(mut self, write: Duration) -> Self {
        self.options.limits.write = write;
        self
    }

    /// The time limit of an RDMA read. Default: 30 seconds.
    pub fn read_timeout(mut self, read: Duration) -> Self {
        self.options.limits.read = read;
        self
    }

    /// The time limit of an atomic operation. Default: 30 seconds.
    pub fn atomic_timeout(mut self, atomic: Duration) -> Self {
        self.options.limits.atomic = atomic;
        self
    }

    /// The time limit for operations that are still in flight when a scope ends. If it expires, the operations are
    /// flushed, and the flush has the same time limit. Default: 5 seconds.
    pub fn drain_timeout(mut self, drain: Duration) -> Self {
        (self.options.limits.drain, self.options.limits.flush) = (drain, drain);
        self
    }

    /// The way the channel waits: by polling or by sleeping. Default: [`Wait::SpinThenSleep`].
    ///
    /// A channel that can sleep has a completion channel, which needs one more file descriptor.
    #[doc(alias = "ibv_create_comp_channel")]
    pub fn wait(mut self, wait: Wait) -> Self {
        self.options.limits.wait = wait;
        self
    }

    /// The access that the peer gets through this channel. The memory must allow the access, too. Default: remote read
    /// and write. See [`QueuePairBuilder::access`].
    pub fn access(mut self, access: AccessFlags) -> Self {
        self.options.qp = self.options.qp.access(access);
        self
    }

    /// The maximum number of elements in a request of the send queue. See [`QueuePairBuilder::max_send_sge`].
    pub fn max_send_sge(mut self, max_send_sge: u32) -> Self {
        self.options.qp = self.options.qp.max_send_sge(max_send_sge);
        self
    }

    /// The maximum number of elements in a receive. See [`QueuePairBuilder::max_recv_sge`].
    pub fn max_recv_sge(mut self, max_recv_sge: u32) -> Self {
        self.options.qp = self.options.qp.max_recv_sge(max_recv_sge);
        self
    }

    /// The maximum number of bytes in an inline request. An exact number makes `build` fail on devices that support
    /// less; [`Inline::UpTo`] does not. Default: up to 64. See [`QueuePairBuilder::max_inline_data`].
    ///
    /// If the device supports less than `UpTo` allows, the channel registers a buffer of the `UpTo` size for each
    /// request that its queues can hold. [`send_inline`](Channel::send_inline) and
    /// [`write_inline`](Channel::write_inline), here and in scopes, copy their data into such a buffer if the device
    /// cannot send it inline. A program that uses these methods therefore works on every device. Requests built by the
    /// program ([`SendWorkRequest::inline`](rdma_qp::SendWorkRequest::inline)) are bound by the device's limit.
    pub fn max_inline_data(mut self, max_inline_data: impl Into<Inline>) -> Self {
        self.options.qp = self.options.qp.max_inline_data(max_inline_data);
        self
    }

    /// The port. See [`QueuePairBuilder::port`].
    pub fn port(mut self, port: u8) -> Self {
        self.options.qp = self.options.qp.port(port);
        self
    }

    /// The choice among the port's GIDs. See [`QueuePairBuilder::gid_choice`].
    pub fn gid_choice(mut self, gid_choice: GidChoice) -> Self {
        self.options.qp = self.options.qp.gid_choice(gid_choice);
        self
    }

    /// The index of the GID. See [`QueuePairBuilder::gid_index`].
    pub fn gid_index(mut self, gid_index: u8) -> Self {
        self.options.qp = self.options.qp.gid_index(gid_index);
        self
    }

    /// The path MTU. See [`QueuePairBuilder::mtu`].
    pub fn mtu(mut self, mtu: MaximumTransferUnit) -> Self {
        self.options.qp = self.options.qp.mtu(mtu);
        self
    }

    /// The PSN of the first packet sent by this end. See [`QueuePairBuilder::send_psn`].
    pub fn send_psn(mut self, send_psn: PacketSequenceNumber) -> Self {
        self.options.qp = self.options.qp.send_psn(send_psn);
        self
    }

    /// The PSN of the peer's first packet. See [`QueuePairBuilder::recv_psn`].
    pub fn recv_psn(mut self, recv_psn: PacketSequenceNumber) -> Self {
        self.options.qp = self.options.qp.recv_psn(recv_psn);
        self
    }

    /// The maximum number of RDMA reads and atomics in flight from this end. See [`QueuePairBuilder::max_rd_atomic`].
    pub fn max_rd_atomic(mut self, max_rd_atomic: u8) -> Self {
        self.options.qp = self.options.qp.max_rd_atomic(max_rd_atomic);
        self
    }

    /// The maximum number of RDMA reads and atomics from the peer that are in progress at a time. See
    /// [`QueuePairBuilder::max_dest_rd_atomic`].
    pub fn max_dest_rd_atomic(mut self, max_dest_rd_atomic: u8) -> Self {
        self.options.qp = self.options.qp.max_dest_rd_atomic(max_dest_rd_atomic);
        self
    }

    /// The time to wait for an acknowledgement. See [`QueuePairBuilder::ack_timeout`].
    pub fn ack_timeout(mut self, ack_timeout: AckTimeout) -> Self {
        self.options.qp = self.options.qp.ack_timeout(ack_timeout);
        self
    }

    /// The maximum number of times that an unacknowledged packet is retransmitted. See
    /// [`QueuePairBuilder::max_ack_retries`].
    pub fn max_ack_retries(mut self, max_ack_retries: MaxAckRetries) -> Self {
        self.options.qp = self.options.qp.max_ack_retries(max_ack_retries);
        self
    }

    /// The maximum number of retries when the peer has no receive posted. Default: unlimited, because the operation's
    /// time limit ends the retries. See [`QueuePairBuilder::max_rnr_retries`].
    pub fn max_rnr_retries(mut self, max_rnr_retries: MaxRnrRetries) -> Self {
        self.options.qp = self.options.qp.max_rnr_retries(max_rnr_retries);
        self
    }

    /// The time that the peer must wait before it retries when no receive is posted here. Default: 0.64 ms. See
    /// [`QueuePairBuilder::min_rnr_timer`].
    pub fn min_rnr_timer(mut self, min_rnr_timer: MinRnrTimer) -> Self {
        self.options.qp = self.options.qp.min_rnr_timer(min_rnr_timer);
        self
    }

    /// The index of the partition key. See [`QueuePairBuilder::pkey_index`].
    pub fn pkey_index(mut self, pkey_index: u16) -> Self {
        self.options.qp = self.options.qp.pkey_index(pkey_index);
        self
    }

    /// The service level. See [`QueuePairBuilder::service_level`].
    pub fn service_level(mut self, service_level: u8) -> Self {
        self.options.qp = self.options.qp.service_level(service_level);
        self
    }

    /// The traffic class of routed packets. See [`QueuePairBuilder::traffic_class`].
    pub fn traffic_class(mut self, traffic_class: u8) -> Self {
        self.options.qp = self.options.qp.traffic_class(traffic_class);
        self
    }

    /// The maximum number of routers that a packet passes. See [`QueuePairBuilder::hop_limit`].
    pub fn hop_limit(mut self, hop_limit: u8) -> Self {
        self.options.qp = self.options.qp.hop_limit(hop_limit);
        self
    }

    /// The flow label of routed packets. See [`QueuePairBuilder::flow_label`].
    pub fn flow_label(mut self, flow_label: u32) -> Self {
        self.options.qp = self.options.qp.flow_label(flow_label);
        self
    }

    /// Posts through the `ibv_wr_*` calls if the device supports them. See [`QueuePairBuilder::extended`].
    pub fn extended(mut self, extended: bool) -> Self {
        self.options.qp = self.options.qp.extended(extended);
        self
    }
}

impl ChannelBuilder<'_> {
    /// Creates the channel's queues.
    ///
    /// # Errors
    /// Same errors as [`QueuePairBuilder::build`]. [`Error::NotConnected`] for UD, which has no connections.
    /// [`Error::TooLarge`] if the queues are to hold more requests than WR IDs can distinguish.
    #[doc(alias = "ibv_create_qp")]
    pub fn build(self) -> Result<PreparedChannel, Error> {
        PreparedChannel::new(&self.options)
    }
}

impl MultiChannelBuilder<'_> {
    /// The initial number of peers. Required, unless [`max_channels`](Self::max_channels) is set; then the default is
    /// 0.
    pub fn num_channels(mut self, num_channels: usize) -> Self {
        self.num_channels = Some(num_channels);
        self
    }

    /// The maximum number of peers at a time, for programs that [add](MultiChannel::add) peers later. Default: the
    /// initial number.
    ///
    /// The completion queue is created for this number and is never resized.
    pub fn max_channels(mut self, max_channels: usize) -> Self {
        self.max_channels = Some(max_channels);
        self
    }

    /// Creates a queue pair for each initial peer, and one completion queue with room for the completions of the
    /// maximum number of peers.
    ///
    /// # Errors
    /// Same errors as [`build`](ChannelBuilder::build) for a single channel, counting the requests of all channels
    /// together. [`Error::Missing`] if no number of channels is set. [`Error::TooLarge`] if the initial number exceeds
    /// the maximum.
    #[doc(alias = "ibv_create_qp")]
    pub fn build(self) -> Result<PreparedMultiChannel, Error> {
        let (knob, most) = match (self.num_channels, self.max_channels) {
            (_, Some(most)) => ("max_channels", most),
            (Some(count), None) => ("num_channels", count),
            (None, None) => return Err(Error::Missing { knob: "num_channels" }),
        };
        let number = |peers: usize| u32::try_from(peers).unwrap_or(u32::MAX);
        let count = self.num_channels.unwrap_or(0);
        if count > most {
            let (value, most) = (number(count), number(most));
            return Err(Error::TooLarge { knob: "num_channels", value, most });
        }
        let cq = self.options.completion_queue((knob, number(most)))?;
        let qps = (0..count).map(|_| self.options.queue_pair(&cq)).collect::<Result<_, _>>()?;
        Ok(PreparedMultiChannel { qps, cq, most, options: Box::new(self.options) })
    }
}

/// A builder without a protection domain. [`pd`](WithoutPd::pd) sets it.
#[must_use]
#[derive(Debug)]
pub struct WithoutPd<C>(PhantomData<fn() -> C>);

impl<C> WithoutPd<C> {
    pub(crate) const fn new() -> Self {
        Self(PhantomData)
    }
}

impl<C> WithoutPd<C> {
    /// Sets the protection domain of the channel's memory.
    pub fn pd(self, pd: &ProtectionDomain) -> ChannelBuilder<'_, C> {
        ChannelBuilder::new(pd)
    }
}
