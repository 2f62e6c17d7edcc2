//! The options of a queue pair.

use rdma_mem::{AccessFlags, Mtu, ProtectionDomain};
use rdma_types::{AckTimeout, MaxAckRetries, MaxRnrRetries, MinRnrTimer, Psn, QpType};

use crate::ah::vector::AddressVector;
use crate::cq::queue::CompletionQueue;
use crate::gid_choice::GidChoice;
use crate::qp::capabilities::QueuePairCapabilities;
use crate::qp::capabilities::inline::Inline;
use crate::qp::queue_pair::QueuePair;
use crate::qp::settings::Settings;
use crate::srq::queue::SharedReceiveQueue;

/// A builder for queue pairs. The type is RC (a reliable connection) unless [`qp_type`](Self::qp_type) sets another
/// one.
///
/// Only `send_cq` and `recv_cq` have no default. The device may make the queues larger than requested;
/// [`QueuePair::capabilities`](crate::QueuePair::capabilities) returns their actual capacities.
///
/// # Examples
/// ```
/// use rdma_mem::AccessFlags;
/// use rdma_qp::{CompletionQueue, prelude::*};
///
/// rdma_soft::install();
/// let context = rdma_mem::open_device("soft0")?;
/// let cq = CompletionQueue::create(&context, 256)?;
/// let pd = context.allocate_pd()?;
/// let prepared = pd
///     .create_qp()
///     .send_cq(&cq)
///     .recv_cq(&cq)
///     .access(AccessFlags::new().with_remote_write())
///     .max_send_wr(128)
///     .build()?;
/// println!("for the peer: {:?}", prepared.endpoint());
/// # Ok::<(), rdma_qp::Error>(())
/// ```
#[doc(alias = "ibv_qp_init_attr")]
#[must_use]
#[derive(Clone, Debug)]
pub struct QueuePairBuilder<'a> {
    pub(crate) pd: ProtectionDomain,
    pub(crate) send_cq: Option<&'a CompletionQueue>,
    pub(crate) recv_cq: Option<&'a CompletionQueue>,
    pub(crate) srq: Option<&'a SharedReceiveQueue>,
    pub(crate) qp_type: QpType,
    /// The sizes, except for inline data.
    pub(crate) sizes: QueuePairCapabilities,
    pub(crate) inline: Inline,
    pub(crate) sq_sig_all: bool,
    pub(crate) extended: bool,
    pub(crate) strict_cq: bool,
    pub(crate) port: Option<u8>,
    pub(crate) gid_choice: GidChoice,
    pub(crate) service_level: Option<u8>,
    pub(crate) traffic_class: Option<u8>,
    pub(crate) mtu: Option<Mtu>,
    pub(crate) send_psn: Option<Psn>,
    pub(crate) recv_psn: Option<Psn>,
    pub(crate) max_rd_atomic: Option<u8>,
    pub(crate) max_dest_rd_atomic: Option<u8>,
    pub(crate) qkey: Option<u32>,
    pub(crate) settings: Settings,
}

macro_rules! knobs {
    ($($(#[$doc:meta])* $knob:ident: $type:ty => $($field:ident).+ $(, $wrap:ident)?;)+) => {$(
        $(#[$doc])*
        pub fn $knob(mut self, $knob: $type) -> Self {
            self.$($field).+ = knobs!(@ $knob $($wrap)?);
            self
        }
    )+};
    (@ $knob:ident) => { $knob };
    (@ $knob:ident $wrap:ident) => { $wrap($knob) };
}

impl<'a> QueuePairBuilder<'a> {
    fn new(pd: ProtectionDomain) -> Self {
        let settings = Settings {
            access: AccessFlags::new(),
            qkey: 0,
            ack_timeout: AckTimeout::default(),
            max_ack_retries: MaxAckRetries::default(),
            max_rnr_retries: MaxRnrRetries::default(),
            min_rnr_timer: MinRnrTimer::default(),
            pkey_index: 0,
            service_level: 0,
            traffic_class: None,
            hop_limit: AddressVector::HOP_LIMIT,
            flow_label: 0,
        };
        Self {
            pd,
            send_cq: None,
            recv_cq: None,
            srq: None,
            qp_type: QpType::RC,
            sizes: QueuePairCapabilities::ASKED_BY_DEFAULT,
            inline: Inline::default(),
            sq_sig_all: false,
            extended: false,
            strict_cq: false,
            port: None,
            gid_choice: GidChoice::ByPeer,
            service_level: None,
            traffic_class: None,
            mtu: None,
            send_psn: None,
            recv_psn: None,
            max_rd_atomic: None,
            max_dest_rd_atomic: None,
            qkey: None,
            settings,
        }
    }

    /// Returns true if the queue pair uses a shared receive queue.
    #[must_use]
    pub const fn has_srq(&self) -> bool {
        self.srq.is_some()
    }

    /// Returns the domain of the queue pair.
    #[must_use]
    pub const fn pd(&self) -> &ProtectionDomain {
        &self.pd
    }

    /// Returns the peer's access rights; see [`access`](Self::access).
    #[must_use]
    pub const fn granted(&self) -> AccessFlags {
        self.settings.access
    }

    /// Returns the requested sizes of the queues.
    #[must_use]
    pub const fn asked(&self) -> QueuePairCapabilities {
        QueuePairCapabilities { max_inline_data: self.inline.wish(), ..self.sizes }
    }

    /// Sets the maximum number of bytes in an inline request. Default: up to 64, if the device allows that many.
    ///
    /// A plain number means [`Inline::Exactly`].
    pub fn max_inline_data(mut self, max_inline_data: impl Into<Inline>) -> Self {
        self.inline = max_inline_data.into();
        self
    }

    knobs! {
        /// The completion queue for requests of the send queue. No default.
        send_cq: &'a CompletionQueue => send_cq, Some;
        /// The completion queue for receives, which may be the same queue as `send_cq`. No default.
        recv_cq: &'a CompletionQueue => recv_cq, Some;
        /// A shared receive queue, which replaces the queue pair's own receive queue. `max_recv_wr` and `max_recv_sge`
        /// are then ignored. Default: none.
        srq: &'a SharedReceiveQueue => srq, Some;
        /// The type: RC, UC or UD. The options below for acknowledgements, retries, RDMA reads and atomics apply only
        /// to RC. Options for a peer do not apply to UD, whose requests name their peer. Default: RC.
        qp_type: QpType => qp_type;
        /// The Q_Key that datagrams must carry, for UD. On hardware, keys with the high bit set require a privilege.
        /// Default: random, because the endpoint carries the Q_Key to the peer.
        qkey: u32 => qkey, Some;
        /// The peer's access rights through this queue pair, to memory that grants the same rights: remote read, write,
        /// atomic. Default: none, so the peer can only send messages.
        access: AccessFlags => settings.access;
        /// The maximum number of outstanding requests in the send queue. Default: 16.
        max_send_wr: u32 => sizes.max_send_wr;
        /// The maximum number of outstanding receives in the receive queue. Default: 16.
        max_recv_wr: u32 => sizes.max_recv_wr;
        /// The maximum number of elements in a request of the send queue. Default: 4.
        max_send_sge: u32 => sizes.max_send_sge;
        /// The maximum number of elements in a receive. Default: 4.
        max_recv_sge: u32 => sizes.max_recv_sge;
        /// Whether every request of the send queue creates a completion, signaled or not. Default:
        /// no.
        sq_sig_all: bool => sq_sig_all;
        /// Whether to post through the `ibv_wr_*` calls instead of `ibv_post_send`, if the device supports them.
        /// [`is_extended`](crate::QueuePair::is_extended) returns true if the queue pair does so. A batch is then
        /// posted completely or not at all.
        ///
        /// The `ibv_wr_*` calls cost more here, because requests are built as lists and then translated. On a device
        /// that does nothing, a write and the poll for it take 113 instructions instead of 45. With checks, they take
        /// 135 instead of 67. In C the same calls take 40. Therefore, use this option only if a device supports more
        /// through these calls, or if a batch must be posted completely or not at all. Default: no.
        extended: bool => extended;
        /// Whether building fails if the completion queue is too small for all completions that its queue pairs can
        /// have outstanding at the same time. Unsignaled requests count, because they create completions when they are
        /// flushed. The requested sizes count until the queue pair is destroyed. The size of a shared receive queue
        /// counts only once.
        ///
        /// Without this option, a smaller queue is allowed, but must be polled in time: if it overflows, it fails
        /// together with all its queue pairs. A `tracing` event reports when the completion queue becomes too small.
        /// Default: no.
        strict_cq: bool => strict_cq;
        /// The port, from 1. Default: the first active one.
        port: u8 => port, Some;
        /// The GIDs of the port that may be used. Default: the GIDs that match the peer's.
        gid_choice: GidChoice => gid_choice;
        /// The path MTU, which the peer must also support. For UD, it limits the length of a message. Default: the
        /// smaller of the two ports' MTUs; for UD, the MTU of this queue pair's port.
        mtu: Mtu => mtu, Some;
        /// The PSN of the first packet that this end sends. Default: random.
        send_psn: Psn => send_psn, Some;
        /// The PSN of the peer's first packet. Default: the one in the peer's endpoint.
        recv_psn: Psn => recv_psn, Some;
        /// The maximum number of RDMA reads and atomics in flight from this end. The peer's `max_dest_rd_atomic` can
        /// lower it. Default: the limit of the device, at most 16.
        max_rd_atomic: u8 => max_rd_atomic, Some;
        /// The maximum number of RDMA reads and atomics from the peer that this end serves at a time. Default: the
        /// limit of the device, at most 16.
        max_dest_rd_atomic: u8 => max_dest_rd_atomic, Some;
        /// The time to wait for an acknowledgement before a retransmission. Default: 67 ms.
        ack_timeout: AckTimeout => settings.ack_timeout;
        /// The maximum number of retries without an acknowledgement. Default: 7.
        max_ack_retries: MaxAckRetries => settings.max_ack_retries;
        /// The maximum number of retries when the peer has no receive posted. Default: no limit, as in most programs,
        /// so a peer that posts slowly causes no failure. The program itself has to limit how long it waits for the
        /// completion.
        max_rnr_retries: MaxRnrRetries => settings.max_rnr_retries;
        /// The minimum time that the peer waits before it resends a message that found no receive posted here. Default:
        /// 0.64 ms. If receives are always posted before messages arrive, the peer never waits.
        min_rnr_timer: MinRnrTimer => settings.min_rnr_timer;
        /// The index of the partition key in the port's table. Default: 0.
        pkey_index: u16 => settings.pkey_index;
        /// The service level: the priority in InfiniBand and RoCE, 0 to 15. Default: the environment variable
        /// `RDMA_SERVICE_LEVEL`, or 0.
        service_level: u8 => service_level, Some;
        /// The traffic class of routed packets. For RoCE v2 it is the byte with DSCP and ECN, which marks the packets
        /// that a lossless network must not drop. Default: the environment variable `RDMA_TRAFFIC_CLASS`, or 0.
        traffic_class: u8 => traffic_class, Some;
        /// The maximum number of routers that packets may pass. Default: 64.
        hop_limit: u8 => settings.hop_limit;
        /// The flow label of routed packets, 20 bits. Default: 0.
        flow_label: u32 => settings.flow_label;
    }
}

impl QueuePairBuilder<'_> {
    /// Uses only the GID at this index of the port's table: [`GidChoice::Index`].
    pub fn gid_index(self, index: u8) -> Self {
        self.gid_choice(GidChoice::Index(index))
    }

    /// Returns the port set by [`port`](Self::port). `None` if the first active port is to be used.
    #[must_use]
    pub const fn fixed_port(&self) -> Option<u8> {
        self.port
    }
}

impl QueuePair {
    /// Returns a builder for a queue pair, like `pd.create_qp()` of the [prelude](crate::prelude). The builder keeps a
    /// clone of the protection domain and borrows only the queues.
    pub fn builder<'a>(pd: &ProtectionDomain) -> QueuePairBuilder<'a> {
        QueuePairBuilder::new(pd.clone())
    }
}
