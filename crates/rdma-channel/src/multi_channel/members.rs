//! Adds and removes peers.

use rdma_connect::TransportError;
use rdma_qp::QueuePairEndpoint;

use super::MultiChannel;
use super::joining::PreparedPeer;
use crate::scope::Scope;

impl MultiChannel {
    /// Creates a queue pair for another peer, with the options of the builder. [`add`](Self::add) connects it.
    ///
    /// # Errors
    /// [`TransportError::TooManyPeers`] if the number of peers, including prepared ones, has reached its
    /// [maximum](crate::ChannelBuilder::max_channels). [`TransportError::IbvError`] for the errors of
    /// [`QueuePairBuilder::build`](rdma_qp::QueuePairBuilder::build). [`TransportError::Closed`] in a forked child.
    ///
    /// # Examples
    /// Replacing a peer that has gone:
    /// ```
    /// use rdma_channel::{CloseReason, TransportError, prelude::*};
    ///
    /// rdma_soft::install();
    /// let pd = rdma_mem::open_device("soft0")?.allocate_pd()?;
    /// let mut center = pd.create_multi_channel().max_channels(2).build()?.handshake([])?;
    /// let mut peers = Vec::new();
    /// for _ in 0..2 {
    ///     let (here, there) = (center.prepare()?, pd.create_channel().build()?);
    ///     let endpoint = here.endpoint(); // sent to the peer
    ///     center.add(here, there.endpoint())?;
    ///     peers.push(there.handshake(endpoint)?);
    /// }
    /// assert!(matches!(center.prepare(), Err(TransportError::TooManyPeers { most: 2, .. })));
    ///
    /// center.remove(0)?;
    /// assert_eq!(center.closed(0)?, Some(CloseReason::Absent));
    /// let (here, there) = (center.prepare()?, pd.create_channel().build()?);
    /// let endpoint = here.endpoint();
    /// assert_eq!(center.add(here, there.endpoint())?, 0); // the lowest free index
    /// peers[0] = there.handshake(endpoint)?;
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

    /// Connects to another peer, which must do the same with the endpoint of the prepared peer. Returns the new peer's
    /// index, which is the lowest free one.
    ///
    /// # Errors
    /// [`TransportError::ForeignPeer`] if other channels have prepared the peer. [`TransportError::IbvError`] for the
    /// errors of [`PreparedChannel::handshake`](crate::PreparedChannel::handshake). [`TransportError::Closed`] in a
    /// forked child. After an error, the prepared peer is destroyed.
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

    /// Ends the connection to a peer, even if it is already closed, and destroys its queue pair. The next peer that is
    /// [added](Self::add) can get the same index.
    ///
    /// [Unpolled](Self::send_unpolled) operations that are still in flight are flushed, which takes at most the [drain
    /// limit](crate::ChannelBuilder::drain_timeout). If `remove` succeeds, the device no longer uses their memory.
    /// Their results are discarded, so poll their handles first. The next peer with this index never gets completions
    /// of the removed peer.
    ///
    /// Until another peer gets this index, operations with it fail with [`TransportError::Closed`] and
    /// [`CloseReason::Absent`](crate::CloseReason::Absent).
    ///
    /// # Errors
    /// - [`TransportError::NoSuchPeer`], or [`TransportError::Closed`] if no peer has this index, or in a forked child;
    /// - the provider's error if the queue pair cannot be destroyed. The connection stays closed and keeps its index,
    ///   and the device may still use the memory of its operations. `remove` can be called again.
    #[doc(alias = "ibv_destroy_qp")]
    pub fn remove(&mut self, peer: usize) -> Result<(), TransportError> {
        let removed = self.ledger.remove(peer);
        self.ledger.emit_events();
        removed
    }

    /// The maximum number of peers at a time.
    fn most(&self) -> usize {
        self.ledger.queues.len()
    }

    /// The number of peers, including those with closed connections.
    #[must_use]
    pub fn num_channels(&self) -> usize {
        self.ledger.members().count()
    }

    /// The indices of the peers, including those with closed connections.
    pub fn peers(&self) -> impl Iterator<Item = usize> {
        self.ledger.members()
    }
}

impl Scope<'_, '_, MultiChannel> {
    /// The number of peers, including those with closed connections.
    #[must_use]
    pub fn num_channels(&self) -> usize {
        self.only.ledger().members().count()
    }

    /// The indices of the peers, like [`MultiChannel::peers`].
    pub fn peers(&self) -> impl Iterator<Item = usize> {
        self.only.ledger().members()
    }
}
