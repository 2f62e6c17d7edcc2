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

/// A builder of queue pairs: for a reliable connection (RC), unless [`qp_type`](Self::qp_type) sets another type.
///
/// Only `send_cq` and `recv_cq` have no default. Sizes are requests;
/// [`QueuePair::capabilities`](crate::QueuePair::capabilities) returns the capacities that the device has set.
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
            traffic_class: 0,
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

    /// Returns the rights of the peer; see [`access`](Self::access).
    #[must_use]
    pub const fn granted(&self) -> AccessFlags {
        self.settings.access
    }

    /// Returns the requested sizes of the queues.
    #[must_use]
    pub const fn asked(&self) -> QueuePairCapabilities {
        QueuePairCapabilities { max_inline_data: self.inline.wish(), ..self.sizes }
    }

    /// Sets the number of bytes that an inline request can have. Default: up to 64, as far as the device allows.
    ///
    /// A number is [`Inline::Exactly`] that many.
    pub fn max_inline_data(mut self, max_inline_data: impl Into<Inline>) -> Self {
        self.inline = max_inline_data.into();
        self
    }

    knobs! {
        /// The completion queue for requests of the send queue. No default.
        send_cq: &'a CompletionQueue => send_cq, Some;
        /// The completion queue for receives; may be the same. No default.
        recv_cq: &'a CompletionQueue => recv_cq, Some;
        /// A shared receive queue, instead of a receive queue of its own: `max_recv_wr` and `max_recv_sge` are
        /// ignored then. Default: none.
        srq: &'a SharedReceiveQueue => srq, Some;
        /// The type: RC, UC or UD. The options below about acknowledgements, retries, RDMA reads
        /// and atomics are for RC only. Those about a peer are not for UD, whose requests name
        /// their peer. Default: RC.
        qp_type: QpType => qp_type;
        /// The Q_Key that datagrams need, for UD. Keys whose high bit is set need a privilege on
        /// hardware. Default: random, since the endpoint carries the Q_Key.
        qkey: u32 => qkey, Some;
        /// The rights of the peer through this queue pair, for memory with the same rights: remote read, write,
        /// atomic. Default: none, so that only sends arrive.
        access: AccessFlags => settings.access;
        /// The number of requests that the send queue holds. Default: 16.
        max_send_wr: u32 => sizes.max_send_wr;
        /// The number of receives that the receive queue holds. Default: 16.
        max_recv_wr: u32 => sizes.max_recv_wr;
        /// The greatest number of elements of a request of the send queue. Default: 4.
        max_send_sge: u32 => sizes.max_send_sge;
        /// The greatest number of elements of a receive. Default: 4.
        max_recv_sge: u32 => sizes.max_recv_sge;
        /// Whether every request of the send queue creates a completion, signaled or not. Default:
        /// no.
        sq_sig_all: bool => sq_sig_all;
        /// Whether to post by function calls (`ibv_wr_send` and its kin) if the device supports it, instead of lists
        /// (`ibv_post_send`); [`is_extended`](crate::QueuePair::is_extended) returns the result. A batch is then
        /// posted as a whole or not at all.
        ///
        /// Posting by calls costs more: requests are built as lists, and translated. On a device
        /// that does nothing, a write and its poll take 116 instructions instead of 48, and 138
        /// instead of 70 with checks; in C the same calls take 40. Therefore use it if a device
        /// supports more by calls than by lists, or if a batch has to be posted as a whole.
        /// Default: no.
        extended: bool => extended;
        /// Whether building fails if the completion queue holds fewer completions than all its queue pairs can have
        /// outstanding at the same time. Unsignaled requests count, since they complete when they are flushed. The
        /// requested sizes count until the queue pair is destroyed, and those of a shared receive queue count once.
        ///
        /// Without this option such a queue is allowed. It must be polled in time, since a queue that overflows fails
        /// with all its queue pairs. A `tracing` event reports when the completion queue becomes too small for them.
        /// Default: no.
        strict_cq: bool => strict_cq;
        /// The port, from 1. Default: the first active one.
        port: u8 => port, Some;
        /// The GIDs of the port that may be used. Default: those that match the peer's.
        gid_choice: GidChoice => gid_choice;
        /// The path MTU, which the peer must support too; for UD the longest message. Default: the smaller one of the
        /// two ports, and for UD that of this queue pair's port.
        mtu: Mtu => mtu, Some;
        /// The PSN of the first packet that this end sends. Default: random.
        send_psn: Psn => send_psn, Some;
        /// The PSN of the peer's first packet. Default: that of its endpoint.
        recv_psn: Psn => recv_psn, Some;
        /// The number of RDMA reads and atomics that this end may have in flight; the peer's `max_dest_rd_atomic` can
        /// lower it. Default: the limit of the device, at most 16.
        max_rd_atomic: u8 => max_rd_atomic, Some;
        /// The number of RDMA reads and atomics of the peer that this end serves at a time. Default: the limit of the
        /// device, at most 16.
        max_dest_rd_atomic: u8 => max_dest_rd_atomic, Some;
        /// The time to wait for an acknowledgement before a retransmission.
        ack_timeout: AckTimeout => settings.ack_timeout;
        /// The number of retries without an acknowledgement.
        max_ack_retries: MaxAckRetries => settings.max_ack_retries;
        /// The number of retries when the peer has no receive posted. Default: no limit, as in most programs, so a peer
        /// that is slow to post causes no failure. The program limits its wait for the completion.
        max_rnr_retries: MaxRnrRetries => settings.max_rnr_retries;
        /// The minimum time that the peer waits before it resends a message that found no receive posted here. Default:
        /// 0.64 ms. If receives are posted before messages arrive, no peer waits.
        min_rnr_timer: MinRnrTimer => settings.min_rnr_timer;
        /// The index of the partition key in the port's table. Default: 0.
        pkey_index: u16 => settings.pkey_index;
        /// The service level, InfiniBand's and RoCE's priority, 0 to 15. Default: `RDMA_SERVICE_LEVEL` of the
        /// environment, or 0.
        service_level: u8 => service_level, Some;
        /// The traffic class of routed packets; for RoCE v2 the byte with DSCP and ECN, which marks the packets that a
        /// lossless network must not drop. Default: `RDMA_TRAFFIC_CLASS` of the environment, or 0.
        traffic_class: u8 => traffic_class, Some;
        /// The number of routers that packets may pass. Default: 64.
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

    /// Returns the port set by [`port`](Self::port); `None` if building chooses the first active
    /// one.
    #[must_use]
    pub const fn fixed_port(&self) -> Option<u8> {
        self.port
    }
}

impl QueuePair {
    /// Returns the options of a new queue pair, like `pd.create_qp()` of the [prelude](crate::prelude). They keep a
    /// clone of the domain, and borrow only the queues.
    pub fn builder<'a>(pd: &ProtectionDomain) -> QueuePairBuilder<'a> {
        QueuePairBuilder::new(pd.clone())
    }
}
