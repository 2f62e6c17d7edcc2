//! Changes to a queue pair's state and attributes.

use std::fmt;

use rdma_mem::{AccessFlags, Lid, Mtu};
use rdma_sys::{ibv_mtu, ibv_qp_attr, ibv_qp_attr_mask, ibv_qp_state};
use rdma_types::{
    AckTimeout, MaxAckRetries, MaxRnrRetries, MinRnrTimer, Psn, QpAttributes, QpState, Qpn,
};

use crate::ah::vector::{AddressVector, GlobalRoute};
use crate::qp::modify::transition::names;

/// A change to a queue pair's state, attributes, or both, for [`QueuePair::modify`](crate::QueuePair::modify).
///
/// Section 11.2.5.2 of the specification lists the attributes of each transition. If the attributes do not match, the
/// error names them. In short:
///
/// | to | RC | UC | UD |
/// |---|---|---|---|
/// | `INIT` | `port`, `pkey_index`, `access` | as RC | `port`, `pkey_index`, `qkey` |
/// | `RTR` | `path`, `mtu`, `peer_qpn`, `recv_psn`, `max_dest_rd_atomic`, `min_rnr_timer` | `path`, `mtu`, `peer_qpn`, `recv_psn` | nothing |
/// | `RTS` | `ack_timeout`, `max_ack_retries`, `max_rnr_retries`, `send_psn`, `max_rd_atomic` | `send_psn` | `send_psn` |
/// | within `RTS` | `access`, `min_rnr_timer` | `access` | `qkey` |
///
/// ```
/// use rdma_qp::{QpState, QueuePairModification};
///
/// let reset = QueuePairModification::new().state(QpState::RESET);
/// let calmer = QueuePairModification::new().min_rnr_timer(rdma_qp::MinRnrTimer::longest());
/// # assert_eq!(format!("{calmer:?}"), "QueuePairModification { attributes: [\"min_rnr_timer\"], .. }");
/// # let _ = reset;
/// ```
#[doc(alias = "ibv_qp_attr")]
#[derive(Clone, Copy)]
#[must_use]
pub struct QueuePairModification {
    pub(crate) attributes: ibv_qp_attr,
    pub(crate) mask: ibv_qp_attr_mask,
}

macro_rules! attributes {
    ($($(#[$doc:meta])+ $name:ident($value:ident: $type:ty) { $field:ident = $raw:expr } $bit:ident;)+) => {
        impl QueuePairModification {
            $(
                $(#[$doc])+
                pub fn $name(mut self, $value: $type) -> Self {
                    self.attributes.$field = $raw;
                    self.mask |= ibv_qp_attr_mask::$bit;
                    self
                }
            )+
        }
    };
}

attributes! {
    /// The new state. If it is not set, the state does not change.
    state(state: QpState) { qp_state = ibv_qp_state(state.raw()) } IBV_QP_STATE;
    /// The port, from 1.
    port(port: u8) { port_num = port } IBV_QP_PORT;
    /// The index of the partition key in the port's table.
    pkey_index(index: u16) { pkey_index = index } IBV_QP_PKEY_INDEX;
    /// The peer's access rights through the queue pair.
    access(access: AccessFlags) { qp_access_flags = access.bits() } IBV_QP_ACCESS_FLAGS;
    /// The key that datagrams must carry to be accepted; only for UD.
    qkey(qkey: u32) { qkey = qkey } IBV_QP_QKEY;
    /// The path MTU.
    mtu(mtu: Mtu) { path_mtu = ibv_mtu(mtu.code().into()) } IBV_QP_PATH_MTU;
    /// The peer's queue pair.
    peer_qpn(qpn: Qpn) { dest_qp_num = qpn.get() } IBV_QP_DEST_QPN;
    /// The PSN of the first packet from the peer.
    recv_psn(psn: Psn) { rq_psn = psn.get() } IBV_QP_RQ_PSN;
    /// The PSN of the first packet that this end sends.
    send_psn(psn: Psn) { sq_psn = psn.get() } IBV_QP_SQ_PSN;
    /// The maximum number of RDMA reads and atomics in flight from this end.
    max_rd_atomic(depth: u8) { max_rd_atomic = depth } IBV_QP_MAX_QP_RD_ATOMIC;
    /// The maximum number of RDMA reads and atomics from the peer that this end serves at a time.
    max_dest_rd_atomic(depth: u8) { max_dest_rd_atomic = depth } IBV_QP_MAX_DEST_RD_ATOMIC;
    /// The time that the peer waits before it retries when no receive is posted here.
    min_rnr_timer(timer: MinRnrTimer) { min_rnr_timer = timer.code() } IBV_QP_MIN_RNR_TIMER;
    /// The time to wait for an acknowledgement.
    ack_timeout(timeout: AckTimeout) { timeout = timeout.code() } IBV_QP_TIMEOUT;
    /// The maximum number of retries without an acknowledgement.
    max_ack_retries(retries: MaxAckRetries) { retry_cnt = retries.retries() } IBV_QP_RETRY_CNT;
    /// For the transition to `SQD`: whether to send the event [`SQ_DRAINED`](rdma_mem::AsyncEventKind::SQ_DRAINED) when
    /// the requests in progress have completed.
    notify_drained(on: bool) { en_sqd_async_notify = on.into() } IBV_QP_EN_SQD_ASYNC_NOTIFY;
    /// The maximum number of retries when the peer has no receive posted.
    max_rnr_retries(retries: MaxRnrRetries) { rnr_retry = retries.code() } IBV_QP_RNR_RETRY;
}

impl QueuePairModification {
    /// Creates an empty modification.
    pub fn new() -> Self {
        Self { attributes: ibv_qp_attr::default(), mask: ibv_qp_attr_mask(0) }
    }

    /// The route from `port` to the peer: the peer's LID, and the GIDs of both ends (`None` within an InfiniBand
    /// subnet). The hop limit is 64; service level, traffic class and flow label are 0.
    pub fn path(mut self, port: u8, lid: Lid, route: Option<GlobalRoute>) -> Self {
        self.attributes.ah_attr = AddressVector { route, ..AddressVector::new(port, lid) }.to_raw();
        self.mask |= ibv_qp_attr_mask::IBV_QP_AV;
        self
    }

    /// Returns the new state.
    pub(crate) fn to(&self) -> Option<QpState> {
        let given = self.mask.0 & ibv_qp_attr_mask::IBV_QP_STATE.0 != 0;
        given.then(|| QpState::from_raw(self.attributes.qp_state.0))
    }
}

impl Default for QueuePairModification {
    fn default() -> Self {
        Self::new()
    }
}

impl fmt::Debug for QueuePairModification {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let mut fields = f.debug_struct("QueuePairModification");
        if let Some(state) = self.to() {
            fields.field("state", &state);
        }
        let given = QpAttributes::from_bits_retain(self.mask.0);
        fields.field("attributes", &names(given)).finish_non_exhaustive()
    }
}
