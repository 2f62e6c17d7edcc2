//! Peers that are prepared but not added yet.

use std::sync::Arc;

use rdma_qp::{CompletionQueue, Error, PreparedQueuePair, QueuePairEndpoint};

use crate::channel::options::Options;

/// The options for new peers, and the number of prepared peers.
#[derive(Debug)]
pub(super) struct Joining {
    options: Box<Options>,
    /// Each prepared peer holds a clone, which counts the peer and identifies the channels that prepared it.
    prepared: Arc<()>,
}

/// A peer that [`MultiChannel::prepare`](crate::MultiChannel::prepare) has created, and that is not connected yet. It
/// needs the endpoint of the other end.
///
/// It can be moved to another thread that exchanges the endpoints. Dropping it makes room for another peer.
#[derive(Debug)]
pub struct PreparedPeer {
    /// Destroyed before `of`, so that the peer is counted until then.
    qp: PreparedQueuePair,
    of: Arc<()>,
}

impl PreparedPeer {
    /// The endpoint of this end, which the peer needs to connect.
    #[must_use]
    pub const fn endpoint(&self) -> QueuePairEndpoint {
        self.qp.endpoint()
    }
}

impl Joining {
    pub(super) fn new(options: Box<Options>) -> Self {
        Self { options, prepared: Arc::default() }
    }

    /// Returns the maximum size of inline data that the program requested for each peer, in bytes.
    pub(super) const fn inline(&self) -> u32 {
        self.options.inline()
    }

    /// Returns the number of peers that are prepared but not added yet. Other threads can reduce this number, but not
    /// increase it.
    pub(super) fn prepared(&self) -> usize {
        Arc::strong_count(&self.prepared) - 1
    }

    /// Prepares a peer whose requests complete in `cq`, which must be the same queue each time.
    pub(super) fn prepare(&self, cq: &CompletionQueue) -> Result<PreparedPeer, Error> {
        let qp = self.options.queue_pair(cq)?;
        Ok(PreparedPeer { qp, of: Arc::clone(&self.prepared) })
    }

    /// Returns the queue pair of a peer that these channels prepared. `None` if other channels prepared it.
    pub(super) fn take(&self, peer: PreparedPeer) -> Option<PreparedQueuePair> {
        let PreparedPeer { qp, of } = peer;
        Arc::ptr_eq(&of, &self.prepared).then_some(qp)
    }
}
