//! Peers that are prepared, and not added yet.

use std::sync::Arc;

use rdma_qp::{CompletionQueue, Error, PreparedQueuePair, QueuePairEndpoint};

use crate::channel::options::Options;

/// What it takes to prepare more peers.
#[derive(Debug)]
pub(super) struct Joining {
    options: Box<Options>,
    /// Each prepared peer has a clone, which tells how many there are, and that they are of these channels.
    prepared: Arc<()>,
}

/// A peer that [`MultiChannel::prepare`](crate::MultiChannel::prepare) has made, and which waits for the endpoint of the
/// other end.
///
/// It can go to another thread, which exchanges the endpoints. When it is dropped there can be another one.
#[derive(Debug)]
pub struct PreparedPeer {
    /// Destroyed before it is not counted any more.
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

    /// How many inline bytes each peer is asked for.
    pub(super) const fn inline(&self) -> u32 {
        self.options.inline()
    }

    /// How many peers are prepared, and not added yet. No other thread makes more of them.
    pub(super) fn prepared(&self) -> usize {
        Arc::strong_count(&self.prepared) - 1
    }

    /// Another one, whose completions come to that queue, which is always the same.
    pub(super) fn prepare(&self, cq: &CompletionQueue) -> Result<PreparedPeer, Error> {
        let qp = self.options.queue_pair(cq)?;
        Ok(PreparedPeer { qp, of: Arc::clone(&self.prepared) })
    }

    /// The queue pair of one that was prepared here, and not elsewhere.
    pub(super) fn take(&self, peer: PreparedPeer) -> Option<PreparedQueuePair> {
        let PreparedPeer { qp, of } = peer;
        Arc::ptr_eq(&of, &self.prepared).then_some(qp)
    }
}
