//! The queues of a server, and the queue pair of each client.

use std::sync::Arc;

use rdma_connect::{MakeEnds, NoEnd, StreamAddresses};
use rdma_qp::{
    CompletionQueue, Error, PreparedQueuePair, QueuePair, QueuePairEndpoint, SharedReceiveQueue,
};

use crate::channel::options::{Options, ServerKnobs};

/// A server's completion queue and its receives.
#[derive(Debug)]
pub(super) struct ServerQueues {
    options: Options,
    pub(super) cq: CompletionQueue,
    pub(super) receives: Receives,
    max_peers: u32,
    /// Counts the queue pairs: each existing one holds a clone.
    places: Arc<()>,
}

/// The kind of receive queue that the clients use.
#[derive(Debug)]
pub(super) enum Receives {
    /// A queue shared by all clients.
    Shared(SharedReceiveQueue),
    /// A separate queue with this many receives for each client. Used if the device does not support shared receive
    /// queues, or if the program requests it.
    PerPeer(u32),
}

/// A client's queue pair, which counts as one place.
#[derive(Debug)]
pub(super) struct PeerQueuePair {
    pub(super) qp: QueuePair,
    pub(super) place: Arc<()>,
}

impl ServerQueues {
    /// Creates a completion queue that the clients cannot overflow.
    pub(super) fn new(options: Options, knobs: ServerKnobs) -> Result<Self, Error> {
        let max_peers = knobs.max_peers;
        let cq = options.shared_completion_queue(max_peers)?;
        let receives = Receives::new(&options, knobs)?;
        let queues = Self { options, cq, receives, max_peers, places: Arc::default() };
        if let Receives::PerPeer(each) = queues.receives {
            // Creates a queue pair only to find unsupported options now, instead of when the first client connects.
            drop(queues.options.queue_pair_with(&queues.cq, each)?);
            let most = queues.most();
            if most < max_peers {
                tracing::warn!(
                    max_peers,
                    most,
                    "`max_recv_wr` allows fewer clients than `max_peers`, since clients share no receives"
                );
            }
        }
        Ok(queues)
    }

    /// Returns the maximum number of clients at a time.
    const fn most(&self) -> u32 {
        match self.receives {
            Receives::PerPeer(each) => {
                let most = self.options.max_recv_wr / each;
                if most < self.max_peers { most } else { self.max_peers }
            }
            Receives::Shared(_) => self.max_peers,
        }
    }

    /// Returns the reason for refusing a client when the server is full.
    fn full(&self) -> String {
        let most = self.most();
        match self.receives {
            Receives::PerPeer(each) if most < self.max_peers => format!(
                "the server has receives for {most} clients, `max_recv_wr` {} in all and {each} for each: connect \
                 again after one has left, or raise `max_recv_wr`",
                self.options.max_recv_wr
            ),
            _ => format!(
                "the server has reached its limit (`max_peers` is {most}): connect again after a \
                 client has left"
            ),
        }
    }
}

impl Receives {
    fn new(options: &Options, knobs: ServerKnobs) -> Result<Self, Error> {
        let device = options.pd.context().query_device()?;
        if knobs.shares.unwrap_or(device.max_srq > 0) {
            return options.shared_receive_queue().map(Self::Shared);
        }
        let all = options.max_recv_wr;
        let each = knobs.per_peer.unwrap_or(all / knobs.max_peers).max(1);
        if each > all {
            let knob = "max_recv_wr_per_peer";
            return Err(Error::TooLarge { knob, value: each, most: all });
        }
        Ok(Self::PerPeer(each))
    }

    /// Returns the shared receive queue, if there is one.
    pub(super) const fn shared(&self) -> Option<&SharedReceiveQueue> {
        match self {
            Self::Shared(srq) => Some(srq),
            Self::PerPeer(_) => None,
        }
    }

    /// Returns the number of receives for each client; 0 if the clients share a receive queue.
    pub(super) const fn per_peer(&self) -> u32 {
        match self {
            Self::Shared(_) => 0,
            Self::PerPeer(each) => *each,
        }
    }
}

impl MakeEnds for ServerQueues {
    type Prepared = (PreparedQueuePair, Arc<()>);
    type Connected = PeerQueuePair;

    fn prepare(
        &self,
        stream: StreamAddresses,
    ) -> Result<(Self::Prepared, QueuePairEndpoint), NoEnd> {
        // The strong count includes the clone in `self`.
        if Arc::strong_count(&self.places) > self.most() as usize {
            return Err(NoEnd::Full(self.full()));
        }
        let prepared = match &self.receives {
            Receives::Shared(srq) => self.options.queue_pair_sharing(&self.cq, srq),
            Receives::PerPeer(each) => self.options.queue_pair_with(&self.cq, *each),
        };
        let mut prepared = prepared.map_err(NoEnd::Failed)?;
        if let Some((own, peer)) = stream {
            prepared.set_stream_addresses(own, peer);
        }
        let endpoint = prepared.endpoint();
        Ok(((prepared, Arc::clone(&self.places)), endpoint))
    }

    fn device(&self) -> String {
        self.options.pd.context().device().name().to_owned()
    }

    fn connect(
        &self,
        (prepared, place): Self::Prepared,
        peer: QueuePairEndpoint,
    ) -> Result<PeerQueuePair, Error> {
        Ok(PeerQueuePair { qp: prepared.handshake(peer)?, place })
    }
}

impl PeerQueuePair {
    /// Destroys the queue pair.
    ///
    /// # Errors
    /// The provider's error, with the queue pair and its place, because the queue pair may still have completions.
    #[allow(clippy::result_large_err)] // the error contains the queue pair
    pub(super) fn close(self) -> Result<(), (Self, Error)> {
        let Self { qp, place } = self;
        qp.close().map_err(|(qp, error)| (Self { qp, place }, error))
    }
}
