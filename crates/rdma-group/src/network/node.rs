//! Nodes: channels to all ranks, with barriers.

use std::ops::{Deref, DerefMut};
use std::time::Duration;

use rdma_channel::{MultiChannel, PreparedMultiChannel, Rejected, TransportError};

use super::barrier::{Barrier, BarrierError, PreparedBarrier};
use super::builder::NodeWithoutPd;
use super::endpoints::{EndpointsError, LocalEndpoint, RemoteEndpoints};

/// A node that is not connected yet. See the [module](super) for the steps.
#[derive(Debug)]
pub struct PreparedNode {
    pub(super) channels: PreparedMultiChannel,
    pub(super) barrier: PreparedBarrier,
    pub(super) rank: usize,
}

impl PreparedNode {
    /// Returns the addresses of this rank, which all other ranks need.
    #[must_use]
    pub fn endpoint(&self) -> LocalEndpoint {
        let (endpoints, barrier) = (self.channels.endpoints(), self.barrier.remote_mr());
        LocalEndpoint { rank: self.rank, endpoints, barrier: barrier.remote() }
    }

    /// Checks that there is one endpoint of each rank, including this one. Their order has no effect.
    ///
    /// # Errors
    /// A rank that is missing, occurs twice, does not exist, or was built for another number of ranks.
    pub fn gather_endpoints(
        &self,
        endpoints: impl IntoIterator<Item = LocalEndpoint>,
    ) -> Result<RemoteEndpoints, EndpointsError> {
        RemoteEndpoints::gather(self.rank, self.channels.endpoints().len(), endpoints)
    }

    /// Connects to all ranks, and to this rank itself.
    ///
    /// Other ranks may be slower. The device repeats requests to a rank that is not connected yet, by default for about
    /// four seconds. If a rank may need longer between the exchange and this call, run another exchange afterwards. A
    /// rank that has already ended is noticed only when a request to it fails.
    ///
    /// # Errors
    /// Same errors as [`PreparedMultiChannel::handshake`].
    pub fn handshake(self, endpoints: RemoteEndpoints) -> Result<Node, TransportError> {
        let Self { channels, barrier, rank } = self;
        let channels = channels.handshake(endpoints.channels)?;
        Ok(Node { channels, barrier: barrier.link_remote(endpoints.barriers), rank })
    }
}

/// Channels to all ranks, with barriers.
///
/// Dereferences to a [`MultiChannel`], whose peers are the ranks, so a node has all its operations. The channel to this
/// rank is connected to itself. See the [module](super) for an example.
///
/// A rank that dies is noticed when a request to it fails, or a barrier times out. Then only the connection to that rank
/// is closed, but the barriers of this node can no longer be used.
#[derive(Debug)]
pub struct Node {
    /// Destroyed before the memory of the barrier, so that no peer can write to it meanwhile.
    channels: MultiChannel,
    barrier: Barrier,
    rank: usize,
}

impl Node {
    /// Returns a builder. Set the [protection domain](NodeWithoutPd::pd) first.
    pub const fn builder() -> NodeWithoutPd {
        NodeWithoutPd::new()
    }

    /// The rank of this process.
    #[must_use]
    pub const fn rank(&self) -> usize {
        self.rank
    }

    /// The number of ranks.
    #[must_use]
    pub const fn world_size(&self) -> usize {
        self.barrier.world_size()
    }

    /// Waits until all these ranks have called this function with the same ranks. See [`Barrier::barrier`].
    ///
    /// # Errors
    /// Same errors as [`Barrier::barrier`].
    pub fn barrier(&mut self, peers: &[usize], timeout: Duration) -> Result<(), BarrierError> {
        self.barrier.barrier(&mut self.channels, peers, timeout)
    }

    /// Like [`barrier`](Self::barrier), but does not check the order of the ranks. See [`Barrier::barrier_unchecked`].
    ///
    /// # Errors
    /// Same errors as [`Barrier::barrier_unchecked`].
    pub fn barrier_unchecked(
        &mut self,
        peers: &[usize],
        timeout: Duration,
    ) -> Result<(), BarrierError> {
        self.barrier.barrier_unchecked(&mut self.channels, peers, timeout)
    }

    /// The channels and the barrier, for a scope.
    pub(super) const fn parts(&mut self) -> (&mut MultiChannel, &mut Barrier, usize) {
        (&mut self.channels, &mut self.barrier, self.rank)
    }

    /// Destroys the queue pairs. See [`MultiChannel::close`].
    ///
    /// # Errors
    /// The provider's error, together with the node.
    #[allow(clippy::result_large_err)] // the error contains the node
    pub fn close(self) -> Result<(), Rejected<Self>> {
        let Self { channels, barrier, rank } = self;
        channels.close().map_err(|rejected| {
            let Rejected { value: channels, error, .. } = rejected;
            Rejected::new(Self { channels, barrier, rank }, error)
        })
    }
}

impl Deref for Node {
    type Target = MultiChannel;

    fn deref(&self) -> &MultiChannel {
        &self.channels
    }
}

impl DerefMut for Node {
    fn deref_mut(&mut self) -> &mut MultiChannel {
        &mut self.channels
    }
}
