//! The attributes that each transition requires (IBTA vol 1, section 11.2.5.2; `man ibv_modify_qp`).

pub(crate) mod modification;
pub(crate) mod transition;

use rdma_sys::{ibv_ah_attr, ibv_mtu, ibv_qp_attr, ibv_qp_attr_mask, ibv_qp_state};
use rdma_types::{Psn, QpType};

use crate::endpoint::connect::ConnectAttributes;
use crate::qp::settings::Settings;

type Modification = (ibv_qp_attr, ibv_qp_attr_mask);

pub(crate) fn to_init(qp_type: QpType, port: u8, settings: &Settings) -> Modification {
    let attributes = ibv_qp_attr {
        qp_state: ibv_qp_state::IBV_QPS_INIT,
        pkey_index: settings.pkey_index,
        port_num: port,
        qp_access_flags: settings.access.bits(),
        qkey: settings.qkey,
        ..Default::default()
    };
    let mask = ibv_qp_attr_mask::IBV_QP_STATE
        | ibv_qp_attr_mask::IBV_QP_PKEY_INDEX
        | ibv_qp_attr_mask::IBV_QP_PORT;
    match qp_type {
        QpType::UD => (attributes, mask | ibv_qp_attr_mask::IBV_QP_QKEY),
        _ => (attributes, mask | ibv_qp_attr_mask::IBV_QP_ACCESS_FLAGS),
    }
}

pub(crate) fn to_rtr(
    qp_type: QpType,
    settings: &Settings,
    ah_attr: ibv_ah_attr,
    connect: &ConnectAttributes,
) -> Modification {
    let attributes = ibv_qp_attr {
        qp_state: ibv_qp_state::IBV_QPS_RTR,
        path_mtu: ibv_mtu(connect.mtu.code().into()),
        dest_qp_num: connect.peer_qpn.get(),
        rq_psn: connect.recv_psn.get(),
        max_dest_rd_atomic: connect.max_dest_rd_atomic,
        min_rnr_timer: settings.min_rnr_timer.code(),
        ah_attr,
        ..Default::default()
    };
    let mask = ibv_qp_attr_mask::IBV_QP_STATE
        | ibv_qp_attr_mask::IBV_QP_AV
        | ibv_qp_attr_mask::IBV_QP_PATH_MTU
        | ibv_qp_attr_mask::IBV_QP_DEST_QPN
        | ibv_qp_attr_mask::IBV_QP_RQ_PSN;
    let reliable =
        ibv_qp_attr_mask::IBV_QP_MAX_DEST_RD_ATOMIC | ibv_qp_attr_mask::IBV_QP_MIN_RNR_TIMER;
    (attributes, if qp_type == QpType::RC { mask | reliable } else { mask })
}

pub(crate) fn to_rts(
    qp_type: QpType,
    settings: &Settings,
    connect: &ConnectAttributes,
) -> Modification {
    let (unreliable, mask) = to_rts_unreliable(connect.send_psn);
    if qp_type != QpType::RC {
        return (unreliable, mask);
    }
    let attributes = ibv_qp_attr {
        timeout: settings.ack_timeout.code(),
        retry_cnt: settings.max_ack_retries.retries(),
        rnr_retry: settings.max_rnr_retries.code(),
        max_rd_atomic: connect.max_rd_atomic,
        ..unreliable
    };
    let mask = mask
        | ibv_qp_attr_mask::IBV_QP_TIMEOUT
        | ibv_qp_attr_mask::IBV_QP_RETRY_CNT
        | ibv_qp_attr_mask::IBV_QP_RNR_RETRY
        | ibv_qp_attr_mask::IBV_QP_MAX_QP_RD_ATOMIC;
    (attributes, mask)
}

/// Returns the transition to `RTS` for UC and UD.
pub(crate) fn to_rts_unreliable(send_psn: Psn) -> Modification {
    let (attributes, mask) = to_state(ibv_qp_state::IBV_QPS_RTS);
    let attributes = ibv_qp_attr { sq_psn: send_psn.get(), ..attributes };
    (attributes, mask | ibv_qp_attr_mask::IBV_QP_SQ_PSN)
}

/// Returns the transition to a state that needs no attributes: `RTR` of UD, or the error state.
pub(crate) fn to_state(qp_state: ibv_qp_state) -> Modification {
    (ibv_qp_attr { qp_state, ..Default::default() }, ibv_qp_attr_mask::IBV_QP_STATE)
}
