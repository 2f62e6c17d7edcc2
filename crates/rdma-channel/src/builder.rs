//! The knobs of a channel.

use std::time::Duration;

use rdma_mem::{AccessFlags, ProtectionDomain};
use rdma_qp::{
    AckTimeout, CompletionQueue, Error, MaxAckRetries, MaxRnrRetries, MaximumTransferUnit,
    MinRnrTimer, PacketSequenceNumber, QueuePair, QueuePairBuilder, QueuePairType,
};

use crate::PreparedChannel;
use crate::limits::Limits;

/// Makes a channel.
///
/// The knobs are those of a [`QueuePairBuilder`] but for the queues, which a channel has for itself, and the
/// limits of its operations. Nothing has to be set.
///
/// # Examples
/// ```
/// use std::time::Duration;
/// use rdma_channel::prelude::*;
///
/// rdma_soft::install();
/// let pd = rdma_mem::open_device("soft0")?.allocate_pd()?;
/// let prepared = pd
///     .create_channel()
///     .max_send_wr(128)
///     .receive_timeout(Duration::from_secs(10))
///     .build()?;
/// println!("tell the peer: {:?}", prepared.endpoint());
/// # Ok::<(), rdma_qp::Error>(())
/// ```
#[must_use]
#[derive(Clone, Debug)]
pub struct ChannelBuilder<'a> {
    qp: QueuePairBuilder<'a>,
    pd: &'a ProtectionDomain,
    qp_type: QueuePairType,
    max_send_wr: u32,
    max_recv_wr: u32,
    limits: Limits,
}

/// How many requests a queue holds unless it is said.
const DEPTH: u32 = 16;

macro_rules! knobs {
    ($($(#[$doc:meta])* $knob:ident: $type:ty;)+) => {$(
        $(#[$doc])*
        #[doc = concat!("See [`QueuePairBuilder::", stringify!($knob), "`].")]
        pub fn $knob(mut self, $knob: $type) -> Self {
            self.qp = self.qp.$knob($knob);
            self
        }
    )+};
}

macro_rules! limits {
    ($($(#[$doc:meta])* $name:ident => $limit:ident;)+) => {$(
        $(#[$doc])*
        pub fn $name(mut self, $limit: Duration) -> Self {
            self.limits.$limit = $limit;
            self
        }
    )+};
}

impl<'a> ChannelBuilder<'a> {
    pub(crate) fn new(pd: &'a ProtectionDomain) -> Self {
        let access = AccessFlags::new().with_remote_read().with_remote_write();
        Self {
            qp: QueuePair::builder(pd).access(access),
            pd,
            qp_type: QueuePairType::RC,
            max_send_wr: DEPTH,
            max_recv_wr: DEPTH,
            limits: Limits::DEFAULT,
        }
    }

    /// How many requests of the send queue can be under way. Default: 16.
    pub fn max_send_wr(mut self, max_send_wr: u32) -> Self {
        self.max_send_wr = max_send_wr;
        self
    }

    /// How many receives can be under way. Default: 16.
    pub fn max_recv_wr(mut self, max_recv_wr: u32) -> Self {
        self.max_recv_wr = max_recv_wr;
        self
    }

    /// RC or UC. Default: RC. Of UC a message arrives or not, and its send succeeds when it has left.
    pub fn qp_type(mut self, qp_type: QueuePairType) -> Self {
        self.qp_type = qp_type;
        self
    }

    limits! {
        /// How long a send may take. Default: 30 seconds. [`Duration::MAX`] is for ever, here and below.
        send_timeout => send;
        /// How long a receive may take. Default: for ever, as of a socket.
        receive_timeout => receive;
        /// How long an RDMA write may take. Default: 30 seconds.
        write_timeout => write;
        /// How long an RDMA read may take. Default: 30 seconds.
        read_timeout => read;
        /// How long an atomic operation may take. Default: 30 seconds.
        atomic_timeout => atomic;
        /// How long what a scope has left under way may take, and, if that is not enough, its flushes once
        /// more. Default: 5 seconds.
        drain_timeout => drain;
    }

    knobs! {
        /// What the peer may do through this channel to memory that allows it too. Default: remote read
        /// and write.
        access: AccessFlags;
        /// How many elements a request of the send queue can have.
        max_send_sge: u32;
        /// How many elements a receive can have.
        max_recv_sge: u32;
        /// How many bytes an inline request can have.
        max_inline_data: u32;
        /// The port.
        port: u8;
        /// The GID.
        gid_index: u8;
        /// The path MTU.
        mtu: MaximumTransferUnit;
        /// The number of the first packet from here.
        send_psn: PacketSequenceNumber;
        /// The number of the peer's first packet.
        recv_psn: PacketSequenceNumber;
        /// How many RDMA reads and atomics are in flight from here.
        max_rd_atomic: u8;
        /// How many RDMA reads and atomics of the peer are answered.
        max_dest_rd_atomic: u8;
        /// How long to wait for an acknowledgement.
        ack_timeout: AckTimeout;
        /// How often to send again.
        max_ack_retries: MaxAckRetries;
        /// How often to try again when the peer has no receive posted.
        max_rnr_retries: MaxRnrRetries;
        /// How long the peer has to wait when no receive is posted here.
        min_rnr_timer: MinRnrTimer;
        /// The place of the partition key.
        pkey_index: u16;
        /// The service level.
        service_level: u8;
        /// The traffic class of routed packets.
        traffic_class: u8;
        /// Over how many routers packets may go.
        hop_limit: u8;
        /// The flow label of routed packets.
        flow_label: u32;
        /// Every request of the send queue makes a completion.
        sq_sig_all: bool;
        /// Post by function calls where the device can.
        extended: bool;
    }

    /// Creates the channel's queues.
    ///
    /// # Errors
    /// As of [`QueuePairBuilder::build`]; [`Error::NotConnected`] of UD, which has no connections.
    #[doc(alias = "ibv_create_qp")]
    pub fn build(self) -> Result<PreparedChannel, Error> {
        let Self { qp, pd, qp_type, max_send_wr, max_recv_wr, limits } = self;
        if qp_type == QueuePairType::UD {
            return Err(Error::NotConnected);
        }
        let capacity = max_send_wr.saturating_add(max_recv_wr).max(1);
        let cq = CompletionQueue::create(pd.context(), capacity)?;
        let qp = qp.qp_type(qp_type).max_send_wr(max_send_wr).max_recv_wr(max_recv_wr);
        let qp = qp.send_cq(&cq).recv_cq(&cq).build()?;
        let asked = (max_send_wr, max_recv_wr);
        Ok(PreparedChannel { qp, cq, asked, limits, pd: pd.clone() })
    }
}
