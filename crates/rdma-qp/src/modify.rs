//! The attributes that each transition of a reliable connection needs (IBTA vol 1, section 11.2.5.2;
//! `man ibv_modify_qp`).

use rdma_sys::{
    ibv_ah_attr, ibv_gid, ibv_global_route, ibv_mtu, ibv_qp_attr, ibv_qp_attr_mask, ibv_qp_state,
};

use crate::ConnectAttributes;
use crate::builder::Settings;

type Modification = (ibv_qp_attr, ibv_qp_attr_mask);

pub(crate) fn to_init(port: u8, settings: &Settings) -> Modification {
    let attributes = ibv_qp_attr {
        qp_state: ibv_qp_state::IBV_QPS_INIT,
        pkey_index: settings.pkey_index,
        port_num: port,
        qp_access_flags: settings.access.bits(),
        ..Default::default()
    };
    let mask = ibv_qp_attr_mask::IBV_QP_STATE
        | ibv_qp_attr_mask::IBV_QP_PKEY_INDEX
        | ibv_qp_attr_mask::IBV_QP_PORT
        | ibv_qp_attr_mask::IBV_QP_ACCESS_FLAGS;
    (attributes, mask)
}

pub(crate) fn to_rtr(port: u8, settings: &Settings, connect: &ConnectAttributes) -> Modification {
    let attributes = ibv_qp_attr {
        qp_state: ibv_qp_state::IBV_QPS_RTR,
        path_mtu: ibv_mtu(connect.mtu.code().into()),
        dest_qp_num: connect.peer_qpn.get(),
        rq_psn: connect.recv_psn.get(),
        max_dest_rd_atomic: connect.max_dest_rd_atomic,
        min_rnr_timer: settings.min_rnr_timer.code(),
        ah_attr: address(port, settings, connect),
        ..Default::default()
    };
    let mask = ibv_qp_attr_mask::IBV_QP_STATE
        | ibv_qp_attr_mask::IBV_QP_AV
        | ibv_qp_attr_mask::IBV_QP_PATH_MTU
        | ibv_qp_attr_mask::IBV_QP_DEST_QPN
        | ibv_qp_attr_mask::IBV_QP_RQ_PSN
        | ibv_qp_attr_mask::IBV_QP_MAX_DEST_RD_ATOMIC
        | ibv_qp_attr_mask::IBV_QP_MIN_RNR_TIMER;
    (attributes, mask)
}

fn address(port: u8, settings: &Settings, connect: &ConnectAttributes) -> ibv_ah_attr {
    let mut address = ibv_ah_attr {
        dlid: connect.peer_lid.get(),
        sl: settings.service_level,
        port_num: port,
        ..Default::default()
    };
    if let Some(route) = connect.route {
        address.is_global = 1;
        address.grh = ibv_global_route {
            dgid: ibv_gid { raw: route.destination.to_bytes() },
            sgid_index: route.source_index,
            flow_label: settings.flow_label,
            hop_limit: settings.hop_limit,
            traffic_class: settings.traffic_class,
        };
    }
    address
}

pub(crate) fn to_rts(settings: &Settings, connect: &ConnectAttributes) -> Modification {
    let attributes = ibv_qp_attr {
        qp_state: ibv_qp_state::IBV_QPS_RTS,
        timeout: settings.ack_timeout.code(),
        retry_cnt: settings.max_ack_retries.retries(),
        rnr_retry: settings.max_rnr_retries.code(),
        sq_psn: connect.send_psn.get(),
        max_rd_atomic: connect.max_rd_atomic,
        ..Default::default()
    };
    let mask = ibv_qp_attr_mask::IBV_QP_STATE
        | ibv_qp_attr_mask::IBV_QP_TIMEOUT
        | ibv_qp_attr_mask::IBV_QP_RETRY_CNT
        | ibv_qp_attr_mask::IBV_QP_RNR_RETRY
        | ibv_qp_attr_mask::IBV_QP_SQ_PSN
        | ibv_qp_attr_mask::IBV_QP_MAX_QP_RD_ATOMIC;
    (attributes, mask)
}

pub(crate) fn to_error() -> Modification {
    let qp_state = ibv_qp_state::IBV_QPS_ERR;
    (ibv_qp_attr { qp_state, ..Default::default() }, ibv_qp_attr_mask::IBV_QP_STATE)
}
