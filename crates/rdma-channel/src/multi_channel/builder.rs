//! The knobs of channels to several peers.

use rdma_mem::ProtectionDomain;
use rdma_qp::Error;

use crate::builder::channel_knobs;
use crate::{ChannelBuilder, MultiChannel, PreparedMultiChannel, WithoutPd};

/// Makes a [`MultiChannel`].
///
/// The knobs are those of a [`ChannelBuilder`], for each connection. [`num_channels`](Self::num_channels) has to be
/// set.
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
#[must_use]
#[derive(Clone, Debug)]
pub struct MultiChannelBuilder<'a> {
    channel: ChannelBuilder<'a>,
    num_channels: Option<usize>,
}

channel_knobs!(forward MultiChannelBuilder);

impl MultiChannelBuilder<'_> {
    /// How many peers there will be. No default.
    pub fn num_channels(mut self, num_channels: usize) -> Self {
        self.num_channels = Some(num_channels);
        self
    }

    /// Creates a queue pair for each peer, and one completion queue that holds what all of them can have under way.
    ///
    /// # Errors
    /// As of [`ChannelBuilder::build`], of all requests of all channels; [`Error::Missing`] without a number of
    /// channels.
    #[doc(alias = "ibv_create_qp")]
    pub fn build(self) -> Result<PreparedMultiChannel, Error> {
        let Self { channel, num_channels } = self;
        let count = num_channels.ok_or(Error::Missing { knob: "num_channels" })?;
        let cq = channel.completion_queue(u32::try_from(count).unwrap_or(u32::MAX))?;
        let qps = (0..count).map(|_| channel.queue_pair(&cq)).collect::<Result<_, _>>()?;
        let (asked, limits, pd) = channel.parts();
        Ok(PreparedMultiChannel { qps, cq, asked, limits, pd })
    }
}

impl WithoutPd<MultiChannel> {
    /// The domain whose memory the channels will use.
    pub fn pd(self, pd: &ProtectionDomain) -> MultiChannelBuilder<'_> {
        MultiChannelBuilder { channel: ChannelBuilder::new(pd), num_channels: None }
    }
}
