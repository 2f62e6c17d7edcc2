//! From a device's name to two sides that are connected to each other.

use rdma_mem::{AccessFlags, Context, OwnedRegion, ProtectionDomain, SharedRegion, open_device};
use rdma_qp::prelude::*;
use rdma_qp::{CompletionQueue, PreparedQueuePair, QueuePairEndpoint};

use super::connection::Connection;
use super::receiver::Receiver;
use super::sender::Sender;
use super::{Error, Settings};

/// Two queue pairs of a device, each with its own domain, queues and memory, connected to each other.
pub(crate) fn connect(device: &str, settings: Settings) -> Result<(Sender, Receiver), Error> {
    let context = open_device(device)?;
    let bytes = settings.registered_bytes();
    let registration = |source| Error::Registration { bytes, source };

    let near = Side::prepare(&context, settings)?;
    let near_slots = OwnedRegion::allocate(&near.pd, bytes).map_err(registration)?;
    let far = Side::prepare(&context, settings)?;
    let access = AccessFlags::new().with_local_write().with_remote_write();
    let far_slots = SharedRegion::allocate(&far.pd, bytes, access).map_err(registration)?;

    let (near_end, far_end) = (near.queue_pair.endpoint(), far.queue_pair.endpoint());
    let remote = far_slots.remote();
    // The receiver first: from then on it can take what the sender sends.
    let far = far.connect(near_end, None, settings)?;
    let near = near.connect(far_end, Some(near_slots), settings)?;
    Ok((Sender::new(near, remote, settings), Receiver::new(far, far_slots, settings)))
}

/// What a side has before it knows the other.
struct Side {
    pd: ProtectionDomain,
    completions: CompletionQueue,
    queue_pair: PreparedQueuePair,
}

impl Side {
    /// Queues for `depth` messages in each direction.
    fn prepare(context: &Context, settings: Settings) -> Result<Self, Error> {
        // At most 4096.
        let depth = u32::try_from(settings.depth()).unwrap_or(u32::MAX);
        let pd = context.allocate_pd()?;
        let completions = CompletionQueue::create(context, depth.saturating_mul(2))?;
        let queue_pair = pd
            .create_qp()
            .send_cq(&completions)
            .recv_cq(&completions)
            .max_send_wr(depth)
            .max_recv_wr(depth)
            // To the sender nothing is written, but with a write of nothing comes the credit.
            .access(AccessFlags::new().with_local_write().with_remote_write())
            .build()?;
        Ok(Self { pd, completions, queue_pair })
    }

    /// Only what the queue pair holds is needed from here on; it keeps its domain alive.
    fn connect(
        self,
        peer: QueuePairEndpoint,
        slots: Option<OwnedRegion>,
        settings: Settings,
    ) -> Result<Connection, Error> {
        let queue_pair = self.queue_pair.handshake(peer)?;
        Connection::new(queue_pair, self.completions, slots, settings)
    }
}
