//! The attributes of a queue pair.

use rdma_mem::{AccessFlags, Mtu};
use rdma_sys::{ibv_qp_attr, ibv_qp_attr_mask, ibv_qp_init_attr};
use rdma_types::{
    AckTimeout, MaxAckRetries, MaxRnrRetries, MinRnrTimer, Psn, QpState, QpType, Qpn,
};

use crate::qp::capabilities::QueuePairCapabilities;

/// The attributes of a queue pair, from [`QueuePair::query`](crate::QueuePair::query).
///
/// Attributes that do not apply to the queue pair's type are 0 or the default. The peer's access rights and QPN, the
/// path MTU and `recv_psn` apply to RC and UC. The attributes for acknowledgements, retries, reads and atomics apply
/// only to RC, and the Q_Key only to UD.
#[doc(alias = "ibv_qp_attr")]
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct QueuePairAttributes {
    /// The current state.
    pub state: QpState,
    /// The sizes of the queues.
    pub capabilities: QueuePairCapabilities,
    /// The peer's access rights.
    pub access: AccessFlags,
    /// The port.
    pub port: u8,
    /// The index of the partition key in the port's table.
    pub pkey_index: u16,
    /// The key that datagrams must carry to be accepted.
    pub qkey: u32,
    /// The peer's queue pair.
    pub peer_qpn: Qpn,
    /// The path MTU; `None` for a code that the specification does not define.
    pub mtu: Option<Mtu>,
    /// The PSN of the next packet that this end sends.
    pub send_psn: Psn,
    /// The PSN of the next packet that this end expects.
    pub recv_psn: Psn,
    /// The maximum number of RDMA reads and atomics in flight from this end.
    pub max_rd_atomic: u8,
    /// The maximum number of RDMA reads and atomics from the peer that this end serves at a time.
    pub max_dest_rd_atomic: u8,
    /// The time to wait for an acknowledgement.
    pub ack_timeout: AckTimeout,
    /// The maximum number of retries without an acknowledgement.
    pub max_ack_retries: MaxAckRetries,
    /// The maximum number of retries while the peer has no receive posted.
    pub max_rnr_retries: MaxRnrRetries,
    /// The time that the peer waits before it retries when no receive is posted here.
    pub min_rnr_timer: MinRnrTimer,
}

impl QueuePairAttributes {
    /// Returns the mask of all attributes that queue pairs of this type have.
    pub(crate) fn mask(qp_type: QpType) -> ibv_qp_attr_mask {
        match qp_type {
            QpType::UD => Self::UD,
            QpType::UC => Self::UC,
            _ => Self::RC,
        }
    }

    const UD: ibv_qp_attr_mask = ibv_qp_attr_mask(
        ibv_qp_attr_mask::IBV_QP_STATE.0
            | ibv_qp_attr_mask::IBV_QP_CAP.0
            | ibv_qp_attr_mask::IBV_QP_PORT.0
            | ibv_qp_attr_mask::IBV_QP_PKEY_INDEX.0
            | ibv_qp_attr_mask::IBV_QP_QKEY.0
            | ibv_qp_attr_mask::IBV_QP_SQ_PSN.0,
    );

    const UC: ibv_qp_attr_mask = ibv_qp_attr_mask(
        ibv_qp_attr_mask::IBV_QP_STATE.0
            | ibv_qp_attr_mask::IBV_QP_CAP.0
            | ibv_qp_attr_mask::IBV_QP_ACCESS_FLAGS.0
            | ibv_qp_attr_mask::IBV_QP_PORT.0
            | ibv_qp_attr_mask::IBV_QP_PKEY_INDEX.0
            | ibv_qp_attr_mask::IBV_QP_DEST_QPN.0
            | ibv_qp_attr_mask::IBV_QP_PATH_MTU.0
            | ibv_qp_attr_mask::IBV_QP_SQ_PSN.0
            | ibv_qp_attr_mask::IBV_QP_RQ_PSN.0,
    );

    const RC: ibv_qp_attr_mask = ibv_qp_attr_mask(
        Self::UC.0
            | ibv_qp_attr_mask::IBV_QP_MAX_QP_RD_ATOMIC.0
            | ibv_qp_attr_mask::IBV_QP_MAX_DEST_RD_ATOMIC.0
            | ibv_qp_attr_mask::IBV_QP_TIMEOUT.0
            | ibv_qp_attr_mask::IBV_QP_RETRY_CNT.0
            | ibv_qp_attr_mask::IBV_QP_RNR_RETRY.0
            | ibv_qp_attr_mask::IBV_QP_MIN_RNR_TIMER.0,
    );

    pub(crate) fn from_raw(raw: &ibv_qp_attr, init: &ibv_qp_init_attr) -> Self {
        // The codes have 5 or 3 bits, and all values of these widths are valid.
        Self {
            state: QpState::from_raw(raw.qp_state.0),
            capabilities: QueuePairCapabilities::from_raw(&init.cap),
            access: AccessFlags::from_bits_retain(raw.qp_access_flags),
            port: raw.port_num,
            pkey_index: raw.pkey_index,
            qkey: raw.qkey,
            peer_qpn: Qpn::masked(raw.dest_qp_num),
            mtu: u8::try_from(raw.path_mtu.0).ok().and_then(Mtu::from_code),
            send_psn: Psn::masked(raw.sq_psn),
            recv_psn: Psn::masked(raw.rq_psn),
            max_rd_atomic: raw.max_rd_atomic,
            max_dest_rd_atomic: raw.max_dest_rd_atomic,
            ack_timeout: AckTimeout::from_code(raw.timeout & 31).unwrap_or_default(),
            max_ack_retries: MaxAckRetries::from_code(raw.retry_cnt & 7).unwrap_or_default(),
            max_rnr_retries: MaxRnrRetries::from_code(raw.rnr_retry & 7).unwrap_or_default(),
            min_rnr_timer: MinRnrTimer::from_code(raw.min_rnr_timer & 31).unwrap_or_default(),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_what_a_type_has_is_asked_for() {
        let asks =
            |qp_type, one: ibv_qp_attr_mask| QueuePairAttributes::mask(qp_type).0 & one.0 != 0;
        let types = |one| [QpType::RC, QpType::UC, QpType::UD].map(|qp_type| asks(qp_type, one));
        assert_eq!(types(ibv_qp_attr_mask::IBV_QP_PORT), [true, true, true]);
        assert_eq!(types(ibv_qp_attr_mask::IBV_QP_DEST_QPN), [true, true, false]);
        assert_eq!(types(ibv_qp_attr_mask::IBV_QP_TIMEOUT), [true, false, false]);
        assert_eq!(types(ibv_qp_attr_mask::IBV_QP_QKEY), [false, false, true]);
    }
}
