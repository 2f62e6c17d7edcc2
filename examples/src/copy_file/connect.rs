//! From a device's name to two sides that are connected to each other.

use rdma_channel::{PreparedChannel, prelude::*};
use rdma_mem::{AccessFlags, OwnedRegion, ProtectionDomain, SharedRegion, open_device};
use rdma_qp::MaxRnrRetries;

use super::receiver::Receiver;
use super::sender::Sender;
use super::{Error, Settings};

/// Two channels of a device, each with its own domain and memory, connected to each other.
pub(crate) fn connect(device: &str, settings: Settings) -> Result<(Sender, Receiver), Error> {
    let context = open_device(device)?;
    let bytes = settings.registered_bytes();
    let registration = |source| Error::Registration { bytes, source };

    let near_pd = context.allocate_pd()?;
    let near = prepare(&near_pd, settings)?;
    let near_slots = OwnedRegion::allocate(&near_pd, bytes).map_err(registration)?;
    let far_pd = context.allocate_pd()?;
    let far = prepare(&far_pd, settings)?;
    let access = AccessFlags::new().with_local_write().with_remote_write();
    let far_slots = SharedRegion::allocate(&far_pd, bytes, access).map_err(registration)?;

    let (near_end, far_end) = (near.endpoint(), far.endpoint());
    let (near, far) = (near.handshake(far_end)?, far.handshake(near_end)?);
    let remote = far_slots.remote();
    Ok((Sender::new(near, near_slots, remote, settings), Receiver::new(far, far_slots, settings)))
}

/// Queues for `depth` messages in each direction.
fn prepare(pd: &ProtectionDomain, settings: Settings) -> Result<PreparedChannel, Error> {
    // At most 4096.
    let depth = u32::try_from(settings.depth()).unwrap_or(u32::MAX);
    let channel = pd
        .create_channel()
        .max_send_wr(depth)
        .max_recv_wr(depth)
        // To the sender nothing is written, but with a write of nothing comes the credit.
        .access(AccessFlags::new().with_local_write().with_remote_write())
        // Both sides have met before the first message: one without room then has gone.
        .max_rnr_retries(MaxRnrRetries::default())
        .build()?;
    Ok(channel)
}
