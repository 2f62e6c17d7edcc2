//! Peers that are added and removed.

use rdma_connect::TransportError;
use rdma_qp::QueuePairEndpoint;

use super::MultiChannel;
use super::joining::PreparedPeer;
use crate::scope::Scope;

impl MultiChannel {
    /// Creates a queue pair for one more peer, with the options of the builder. [`add`](Self::add) connects it.
    ///
    /// # Errors
    /// [`TransportError::TooManyPeers`] if there are as many peers as there
    /// [can be](crate::ChannelBuilder::max_channels), those included that are prepared;
    /// [`TransportError::IbvError`] with those of [`QueuePairBuilder::build`](rdma_qp::QueuePairBuilder::build).
    ///
    /// # Examples
    /// A peer that has gone is replaced.
    /// ```
    /// use rdma_channel::{CloseReason, TransportError, prelude::*};
    ///
    /// rdma_soft::install();
    /// let pd = rdma_mem::open_device("soft0")?.allocate_pd()?;
    /// let mut center = pd.create_multi_channel().max_channels(2).build()?.handshake([])?;
    /// let mut peers = Vec::new();
    /// for _ in 0..2 {
    ///     let (here, there) = (center.prepare()?, pd.create_channel().build()?);
    ///     let told = here.endpoint(); // what the peer has to know
    ///     center.add(here, there.endpoint())?;
    ///     peers.push(there.handshake(told)?);
    /// }
    /// assert!(matches!(center.prepare(), Err(TransportError::TooManyPeers { most: 2, .. })));
    ///
    /// center.remove(0)?;
    /// assert_eq!(center.closed(0)?, Some(CloseReason::Absent));
    /// let (here, there) = (center.prepare()?, pd.create_channel().build()?);
    /// let told = here.endpoint();
    /// assert_eq!(center.add(here, there.endpoint())?, 0); // the lowest index that is free
    /// peers[0] = there.handshake(told)?;
    /// assert!(center.peers().eq([0, 1]));
    /// # Ok::<(), TransportError>(())
    /// ```
    #[doc(alias = "ibv_create_qp")]
    pub fn prepare(&self) -> Result<PreparedPeer, TransportError> {
        self.ledger.check_process()?;
        let most = self.most();
        if self.num_channels() + self.joining.prepared() >= most {
            return Err(TransportError::TooManyPeers { most });
        }
        Ok(self.joining.prepare(&self.ledger.cq)?)
    }

    /// Connects to one more peer, which does the same with the endpoint of the prepared one. Returns its index: the
    /// lowest that is free.
    ///
    /// # Errors
    /// [`TransportError::ForeignPeer`] if other channels have prepared it; [`TransportError::IbvError`] with those of
    /// [`PreparedChannel::handshake`](crate::PreparedChannel::handshake). The prepared one is destroyed then.
    pub fn add(
        &mut self,
        prepared: PreparedPeer,
        endpoint: QueuePairEndpoint,
    ) -> Result<usize, TransportError> {
        let qp = self.joining.take(prepared).ok_or(TransportError::ForeignPeer)?;
        self.ledger.check_process()?;
        let most = self.most();
        let peer = self.ledger.lowest_absent().ok_or(TransportError::TooManyPeers { most })?;
        let qp = qp.handshake(endpoint)?;
        let (asked, given) = (self.joining.inline(), qp.capabilities().max_inline_data);
        self.ledger.provide_copies(asked, given)?;
        self.ledger.add(peer, qp);
        Ok(peer)
    }

    /// Ends the connection to a peer, whether it was closed or not, and destroys its queue pair. Its index is free for
    /// the [next](Self::add) one.
    ///
    /// What it still has in flight, which are [unpolled](Self::send_unpolled) operations, is flushed, for no longer
    /// than the [drain limit](crate::ChannelBuilder::drain_timeout), and its memory is the caller's again when this
    /// has succeeded. Nobody is told how these operations ended: ask their handles before. No completion of the
    /// peer is taken for one of the next.
    ///
    /// Until then, operations with that index are [`TransportError::Closed`], with
    /// [`CloseReason::Absent`](crate::CloseReason::Absent).
    ///
    /// # Errors
    /// - [`TransportError::NoSuchPeer`], and [`TransportError::Closed`] if no peer is there, or in a forked child;
    /// - what the provider says if the queue pair cannot be destroyed. The connection stays closed, in its place,
    ///   which no other peer gets, and its memory may be the device's. It can be removed again.
    #[doc(alias = "ibv_destroy_qp")]
    pub fn remove(&mut self, peer: usize) -> Result<(), TransportError> {
        let removed = self.ledger.remove(peer);
        self.ledger.say_news();
        removed
    }

    /// The number of peers that there can be at a time.
    fn most(&self) -> usize {
        self.ledger.queues.len()
    }

    /// How many peers there are, those included whose connections are closed.
    #[must_use]
    pub fn num_channels(&self) -> usize {
        self.ledger.members().count()
    }

    /// The indices of the peers that there are, those included whose connections are closed.
    pub fn peers(&self) -> impl Iterator<Item = usize> {
        self.ledger.members()
    }
}

impl Scope<'_, '_, MultiChannel> {
    /// How many peers there are, those included whose connections are closed.
    #[must_use]
    pub fn num_channels(&self) -> usize {
        self.only.ledger().members().count()
    }

    /// The indices of the peers that there are, as [`MultiChannel::peers`].
    pub fn peers(&self) -> impl Iterator<Item = usize> {
        self.only.ledger().members()
    }
}
