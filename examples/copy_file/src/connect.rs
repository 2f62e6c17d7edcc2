//! Connects the two sides of a copy.

use std::net::IpAddr;
use std::time::Duration;

use rdma::prelude::*;
use rdma::qp::{AckTimeout, MaxRnrRetries, MinRnrTimer};

use super::receiver::Receiver;
use super::sender::Sender;
use super::{Error, Settings};

/// A channel that is not connected yet, and the slots that it will use.
#[derive(Debug)]
pub(crate) struct Prepared<Slots> {
    channel: PreparedChannel,
    slots: Slots,
    settings: Settings,
}

/// Connects two channels of this device. Each has its own protection domain and memory.
pub(crate) fn connect(device: &str, settings: Settings) -> Result<(Sender, Receiver), Error> {
    let context = open_device(device)?;
    let near = prepare_sender(&context, settings)?;
    let far = prepare_receiver(&context, settings)?;
    let (near_end, far_end, remote) = (near.endpoint(), far.endpoint(), far.remote());
    Ok((near.connect(far_end, remote)?, far.connect(near_end)?))
}

/// Prepares the side that reads the file and sends it.
pub(crate) fn prepare_sender(
    context: &Context,
    settings: Settings,
) -> Result<Prepared<OwnedRegion>, Error> {
    let (pd, bytes) = (context.allocate_pd()?, settings.registered_bytes());
    let channel = prepare(&pd, settings)?;
    let slots = pd.allocate_region(bytes);
    let slots = slots.map_err(|source| Error::Registration { bytes, source })?;
    Ok(Prepared { channel, slots, settings })
}

/// Prepares the side that lends its memory and writes the file.
pub(crate) fn prepare_receiver(
    context: &Context,
    settings: Settings,
) -> Result<Prepared<SharedRegion>, Error> {
    let (pd, bytes) = (context.allocate_pd()?, settings.registered_bytes());
    let channel = prepare(&pd, settings)?;
    let slots = pd.allocate_shared_region(bytes, RIGHTS);
    let slots = slots.map_err(|source| Error::Registration { bytes, source })?;
    Ok(Prepared { channel, slots, settings })
}

impl<Slots> Prepared<Slots> {
    /// Sets the addresses of the TCP stream between the two sides.
    pub(crate) fn meet_by(&mut self, (own, peer): (IpAddr, IpAddr)) {
        self.channel.set_stream_addresses(own, peer);
    }

    /// Returns the endpoint that the other side needs in order to connect.
    pub(crate) fn endpoint(&self) -> QueuePairEndpoint {
        self.channel.endpoint()
    }
}

impl Prepared<OwnedRegion> {
    pub(crate) fn connect(
        self,
        peer: QueuePairEndpoint,
        remote: RemoteMemoryRegion,
    ) -> Result<Sender, Error> {
        let Self { channel, slots, settings } = self;
        Ok(Sender::new(channel.handshake(peer)?, slots, remote, settings))
    }
}

impl Prepared<SharedRegion> {
    /// Returns the slots to which the sender writes.
    pub(crate) fn remote(&self) -> RemoteMemoryRegion {
        self.slots.remote()
    }

    pub(crate) fn connect(self, peer: QueuePairEndpoint) -> Result<Receiver, Error> {
        let Self { channel, slots, settings } = self;
        Ok(Receiver::new(channel.handshake(peer)?, slots, settings))
    }
}

/// The rights to the slots, and those of the queue pairs. The sender only writes. But on `soft0`, a
/// sender in another process can write the slots without packets only if it may also read them.
const RIGHTS: AccessFlags =
    AccessFlags::new().with_local_write().with_remote_write().with_remote_read();

/// The minimum time without an acknowledgement after which a message is retransmitted.
const UNACKNOWLEDGED: Duration = Duration::from_secs(2);
/// The minimum time between two attempts to send a message that finds no receive.
const RETRY: Duration = Duration::from_micros(2560);

/// Prepares a channel whose queues can hold `depth` messages in each direction.
fn prepare(pd: &ProtectionDomain, settings: Settings) -> Result<PreparedChannel, Error> {
    // The depth is at most 4096.
    let depth = u32::try_from(settings.depth()).unwrap_or(u32::MAX);
    let channel = pd
        .create_channel()
        .max_send_wr(depth)
        .max_recv_wr(depth)
        // The receiver never writes to the sender's memory, but a credit is a write of zero bytes,
        // which needs this right too.
        .access(RIGHTS)
        // Both sides post receives before the first message, so a side without receives has failed.
        // Six retries take 15 ms.
        .max_rnr_retries(MaxRnrRetries::limited(6).unwrap_or_default())
        .min_rnr_timer(MinRnrTimer::min_duration_greater_than(RETRY))
        // On some devices, a stopped process acknowledges nothing. With all retries, the timeout is
        // longer than the limit for a sign of life.
        .ack_timeout(AckTimeout::min_duration_greater_than(UNACKNOWLEDGED).unwrap_or_default())
        .build()?;
    Ok(channel)
}
