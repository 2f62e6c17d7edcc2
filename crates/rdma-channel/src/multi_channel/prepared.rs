//! Channels that are not connected yet.

use rdma_connect::TransportError;
use rdma_qp::{CompletionQueue, PreparedQueuePair, QueuePairEndpoint};

use super::MultiChannel;
use super::joining::Joining;
use crate::channel::options::Options;
use crate::ledger::Ledger;

/// Channels that are not connected yet. They need the endpoints of their peers.
///
/// [`exchange`](crate::exchange) exchanges endpoints with one peer over an existing connection. If all peers are in one
/// process, use [`exchange_all`](crate::exchange_all).
#[derive(Debug)]
pub struct PreparedMultiChannel {
    pub(crate) qps: Vec<PreparedQueuePair>,
    pub(crate) cq: CompletionQueue,
    /// The maximum number of peers. The completion queue has room for all of them.
    pub(crate) most: usize,
    pub(crate) options: Box<Options>,
}

impl PreparedMultiChannel {
    /// The endpoints to send to the peers, in order.
    #[must_use]
    pub fn endpoints(&self) -> Box<[QueuePairEndpoint]> {
        self.qps.iter().map(PreparedQueuePair::endpoint).collect()
    }

    /// Connects to the peers, whose endpoints are passed in the same order. Each peer connects to the endpoint that was
    /// sent to it.
    ///
    /// # Errors
    /// [`TransportError::EndpointCount`] if the numbers of endpoints and channels differ. In that case, nothing is
    /// connected. Otherwise, same errors as [`PreparedChannel::handshake`](crate::PreparedChannel::handshake).
    ///
    /// # Examples
    /// ```
    /// use rdma_channel::prelude::*;
    /// # rdma_soft::install();
    /// # let pd = rdma_mem::open_device("soft0")?.allocate_pd()?;
    /// let center = pd.create_multi_channel().num_channels(2).build()?;
    /// let (one, other) = (pd.create_channel().build()?, pd.create_channel().build()?);
    ///
    /// let ends = center.endpoints(); // one for each peer
    /// let center = center.handshake([one.endpoint(), other.endpoint()])?;
    /// let (one, other) = (one.handshake(ends[0])?, other.handshake(ends[1])?);
    /// # assert!(center.peer(0)?.is_some() && one.peer() != other.peer());
    /// # Ok::<(), rdma_channel::TransportError>(())
    /// ```
    pub fn handshake(
        self,
        endpoints: impl IntoIterator<Item = QueuePairEndpoint>,
    ) -> Result<MultiChannel, TransportError> {
        let Self { qps, cq, most, options } = self;
        let channels = qps.len();
        let endpoints: Vec<_> = endpoints.into_iter().take(channels.saturating_add(1)).collect();
        if endpoints.len() != channels {
            return Err(TransportError::EndpointCount { channels, endpoints: endpoints.len() });
        }
        let pairs = qps.into_iter().zip(endpoints);
        let qps = pairs.map(|(qp, peer)| qp.handshake(peer).map(Some));
        let mut qps = qps.collect::<Result<Vec<_>, _>>()?;
        qps.resize_with(most, || None);
        let (asked, limits, pd) = options.parts();
        let given = qps.iter().flatten().map(|qp| qp.capabilities().max_inline_data).min();
        let mut ledger = Ledger::new(cq, qps, asked, limits, pd);
        ledger.provide_copies(options.inline(), given.unwrap_or(u32::MAX))?;
        Ok(MultiChannel { ledger, joining: Joining::new(options) })
    }
}
