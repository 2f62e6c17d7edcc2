//! The options of a node.

use std::time::Duration;

use rdma_channel::prelude::*;
use rdma_channel::{
    AccessFlags, AckTimeout, Error, MaxAckRetries, MaxRnrRetries, MaximumTransferUnit, MinRnrTimer,
    MultiChannelBuilder, PacketSequenceNumber, ProtectionDomain,
};

use super::node::{Node, PreparedNode};
use crate::schedule::BarrierAlgorithm;

/// The default time to wait for an acknowledgement. With the default of seven retries, a rank has four seconds to
/// connect after its peers.
const PATIENCE: Duration = Duration::from_millis(500);

/// A builder of a [`Node`] without a protection domain. [`pd`](Self::pd) sets it.
#[derive(Debug)]
#[must_use]
#[non_exhaustive]
pub struct NodeWithoutPd;

impl NodeWithoutPd {
    pub(super) const fn new() -> Self {
        Self
    }

    /// Sets the protection domain of the memory that the node's requests use.
    pub fn pd(self, pd: &ProtectionDomain) -> NodeBuilder<'_> {
        let barrier = BarrierAlgorithm::BinaryTree;
        let patient = AckTimeout::min_duration_greater_than(PATIENCE).unwrap_or_default();
        let channels = pd.create_multi_channel().ack_timeout(patient);
        NodeBuilder { pd, channels, rank: None, world_size: None, barrier }
    }
}

/// Creates a [`Node`]. The [rank](Self::rank) and the [number of ranks](Self::world_size) are required.
///
/// The options and their defaults are those of channels, except that the default of [`ack_timeout`](Self::ack_timeout) is
/// 0.54 seconds, because ranks connect one after another.
#[derive(Debug)]
#[must_use]
pub struct NodeBuilder<'a> {
    pd: &'a ProtectionDomain,
    channels: MultiChannelBuilder<'a>,
    rank: Option<usize>,
    world_size: Option<usize>,
    barrier: BarrierAlgorithm,
}

/// Defines methods that set an option of the channels.
macro_rules! options {
    ($($option:ident: $value:ty,)*) => { $(
        #[doc = concat!(
            "Sets an option of the channels: [`ChannelBuilder::", stringify!($option),
            "`](rdma_channel::ChannelBuilder::", stringify!($option), ")."
        )]
        pub fn $option(mut self, $option: $value) -> Self {
            self.channels = self.channels.$option($option);
            self
        }
    )* };
}

impl<'a> NodeBuilder<'a> {
    /// The rank of this process, from 0.
    pub const fn rank(mut self, rank: usize) -> Self {
        self.rank = Some(rank);
        self
    }

    /// The number of ranks.
    pub const fn world_size(mut self, world_size: usize) -> Self {
        self.world_size = Some(world_size);
        self
    }

    /// The algorithm of the barriers. Default: [`BarrierAlgorithm::BinaryTree`].
    pub const fn barrier(mut self, barrier: BarrierAlgorithm) -> Self {
        self.barrier = barrier;
        self
    }

    options! {
        access: AccessFlags,
        max_send_wr: u32,
        max_recv_wr: u32,
        max_send_sge: u32,
        max_recv_sge: u32,
        max_rnr_retries: MaxRnrRetries,
        max_ack_retries: MaxAckRetries,
        min_rnr_timer: MinRnrTimer,
        ack_timeout: AckTimeout,
        mtu: MaximumTransferUnit,
        send_psn: PacketSequenceNumber,
        recv_psn: PacketSequenceNumber,
    }

    /// Sets other options of the channels, for example their time limits. Barriers need remote write access, and at
    /// least 8 bytes of inline data, which are the defaults.
    ///
    /// # Examples
    /// ```
    /// use std::time::Duration;
    /// use rdma_group::network::Node;
    ///
    /// # rdma_soft::install();
    /// # let pd = rdma_mem::open_device("soft0")?.allocate_pd()?;
    /// let builder = Node::builder().pd(&pd).rank(0).world_size(3);
    /// let limit = Duration::from_secs(10);
    /// let node = builder.channels(|channels| channels.receive_timeout(limit)).build()?;
    /// # Ok::<(), rdma_channel::Error>(())
    /// ```
    pub fn channels(
        mut self,
        set: impl FnOnce(MultiChannelBuilder<'a>) -> MultiChannelBuilder<'a>,
    ) -> Self {
        self.channels = set(self.channels);
        self
    }

    /// Creates the queues, and the memory of the barriers.
    ///
    /// # Errors
    /// [`Error::Missing`] without a rank or a number of ranks. [`Error::TooLarge`] if the rank is not less than that
    /// number. Otherwise, same errors as [`MultiChannelBuilder::build`], and those of
    /// [`BarrierAlgorithm::instance`].
    pub fn build(self) -> Result<PreparedNode, Error> {
        let Self { pd, channels, rank, world_size, barrier } = self;
        let rank = rank.ok_or(Error::Missing { knob: "rank" })?;
        let world_size = world_size.ok_or(Error::Missing { knob: "world_size" })?;
        if rank >= world_size {
            let number = |ranks: usize| u32::try_from(ranks).unwrap_or(u32::MAX);
            let (value, most) = (number(rank), number(world_size.saturating_sub(1)));
            return Err(Error::TooLarge { knob: "rank", value, most });
        }
        let channels = channels.num_channels(world_size).build()?;
        Ok(PreparedNode { channels, barrier: barrier.instance(pd, rank, world_size)?, rank })
    }
}

mod sealed {
    #[allow(unnameable_types)] // this seals the trait
    pub trait Sealed {}
    impl Sealed for rdma_mem::ProtectionDomain {}
}

/// Creates nodes in a protection domain.
pub trait CreateNode: sealed::Sealed {
    /// Like [`Node::builder`], with this domain.
    fn create_node(&self) -> NodeBuilder<'_>;
}

impl CreateNode for ProtectionDomain {
    fn create_node(&self) -> NodeBuilder<'_> {
        Node::builder().pd(self)
    }
}
