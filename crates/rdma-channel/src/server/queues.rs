//! The queues of a server, and the queue pair of each client.

use std::sync::Arc;

use rdma_qp::{
    CompletionQueue, Error, PreparedQueuePair, QueuePair, QueuePairEndpoint, SharedReceiveQueue,
};

use crate::channel::options::Options;
use crate::rendezvous::address::StreamAddresses;
use crate::rendezvous::half_open::{MakeEnds, NoEnd};

/// What the queue pairs of all clients share.
#[derive(Debug)]
pub(super) struct Queues {
    options: Options,
    pub(super) cq: CompletionQueue,
    pub(super) srq: SharedReceiveQueue,
    max_peers: u32,
    /// Held by each queue pair that there is.
    places: Arc<()>,
}

/// The queue pair of a client, and its place among all.
#[derive(Debug)]
pub(super) struct End {
    pub(super) qp: QueuePair,
    place: Arc<()>,
}

impl Queues {
    /// With a completion queue that so many clients cannot overflow.
    pub(super) fn new(options: Options, max_peers: u32) -> Result<Self, Error> {
        let cq = options.shared_completion_queue(max_peers)?;
        let srq = options.shared_receive_queue()?;
        Ok(Self { options, cq, srq, max_peers, places: Arc::default() })
    }
}

impl MakeEnds for Queues {
    type Prepared = (PreparedQueuePair, Arc<()>);
    type End = End;

    fn prepare(
        &self,
        stream: StreamAddresses,
    ) -> Result<(Self::Prepared, QueuePairEndpoint), NoEnd> {
        // Beside those that have a place, this one has the count.
        if Arc::strong_count(&self.places) > self.max_peers as usize {
            return Err(NoEnd::Full(format!(
                "the server has as many clients as it takes, {}: come again when one has left",
                self.max_peers
            )));
        }
        let mut prepared =
            self.options.queue_pair_of(&self.cq, &self.srq).map_err(NoEnd::Failed)?;
        if let Some((own, peer)) = stream {
            prepared.set_stream_addresses(own, peer);
        }
        let endpoint = prepared.endpoint();
        Ok(((prepared, Arc::clone(&self.places)), endpoint))
    }

    fn connect(
        &self,
        (prepared, place): Self::Prepared,
        peer: QueuePairEndpoint,
    ) -> Result<End, Error> {
        Ok(End { qp: prepared.handshake(peer)?, place })
    }
}

impl End {
    /// Destroys the queue pair.
    ///
    /// # Errors
    /// With the queue pair, and with its place, since it may have completions.
    #[allow(clippy::result_large_err)] // it is the queue pair itself
    pub(super) fn close(self) -> Result<(), (Self, Error)> {
        let Self { qp, place } = self;
        qp.close().map_err(|(qp, error)| (Self { qp, place }, error))
    }
}
