//! Converts the attributes of queue pairs and addresses between the program's form and the engine's.

use rdma_sys::{
    ibv_ah_attr, ibv_gid, ibv_global_route, ibv_mtu, ibv_qp_attr, ibv_qp_cap, ibv_qp_state,
};
use rdma_types::QpState;

use crate::address::AddressAttributes;
use crate::engine::queue_pair::capacity::Capacity;
use crate::engine::queue_pair::settings::{Found, Settings};

/// Converts the attributes for a modification. Attributes that the device does not support are refused elsewhere,
/// because of their mask bits.
pub(super) fn settings(attr: &ibv_qp_attr) -> Settings {
    Settings {
        state: QpState::from_raw(attr.qp_state.0),
        current_state: QpState::from_raw(attr.cur_qp_state.0),
        notify_drained: attr.en_sqd_async_notify,
        access: attr.qp_access_flags,
        pkey_index: attr.pkey_index,
        port: attr.port_num,
        qkey: attr.qkey,
        address: address(&attr.ah_attr),
        path_mtu: attr.path_mtu.0,
        timeout: attr.timeout,
        retries: attr.retry_cnt,
        rnr_retries: attr.rnr_retry,
        rq_psn: attr.rq_psn,
        sq_psn: attr.sq_psn,
        max_rd_atomic: attr.max_rd_atomic,
        max_dest_rd_atomic: attr.max_dest_rd_atomic,
        min_rnr_timer: attr.min_rnr_timer,
        peer_qpn: attr.dest_qp_num,
    }
}

/// Converts the attributes for a query. Attributes that the device does not support are zero.
pub(super) fn qp_attr(found: &Found, capacity: Capacity) -> ibv_qp_attr {
    let settings = &found.settings;
    ibv_qp_attr {
        qp_state: ibv_qp_state(settings.state.raw()),
        cur_qp_state: ibv_qp_state(settings.current_state.raw()),
        path_mtu: ibv_mtu(settings.path_mtu),
        qkey: settings.qkey,
        rq_psn: settings.rq_psn,
        sq_psn: settings.sq_psn,
        dest_qp_num: settings.peer_qpn,
        qp_access_flags: settings.access,
        cap: ibv_qp_cap {
            max_send_wr: capacity.send_wr,
            max_recv_wr: capacity.receive_wr,
            max_send_sge: capacity.send_sge,
            max_recv_sge: capacity.receive_sge,
            max_inline_data: capacity.inline,
        },
        ah_attr: ah_attr(&settings.address),
        pkey_index: settings.pkey_index,
        en_sqd_async_notify: settings.notify_drained,
        sq_draining: found.draining.into(),
        max_rd_atomic: settings.max_rd_atomic,
        max_dest_rd_atomic: settings.max_dest_rd_atomic,
        min_rnr_timer: settings.min_rnr_timer,
        port_num: settings.port,
        timeout: settings.timeout,
        retry_cnt: settings.retries,
        rnr_retry: settings.rnr_retries,
        ..ibv_qp_attr::default()
    }
}

pub(super) fn address(attr: &ibv_ah_attr) -> AddressAttributes {
    AddressAttributes {
        destination: gid_bytes(&attr.grh.dgid),
        flow_label: attr.grh.flow_label,
        source_index: attr.grh.sgid_index,
        hop_limit: attr.grh.hop_limit,
        traffic_class: attr.grh.traffic_class,
        destination_lid: attr.dlid,
        service_level: attr.sl,
        source_path_bits: attr.src_path_bits,
        static_rate: attr.static_rate,
        is_global: attr.is_global,
        port: attr.port_num,
    }
}

fn ah_attr(address: &AddressAttributes) -> ibv_ah_attr {
    ibv_ah_attr {
        grh: ibv_global_route {
            dgid: ibv_gid { raw: address.destination },
            flow_label: address.flow_label,
            sgid_index: address.source_index,
            hop_limit: address.hop_limit,
            traffic_class: address.traffic_class,
        },
        dlid: address.destination_lid,
        sl: address.service_level,
        src_path_bits: address.source_path_bits,
        static_rate: address.static_rate,
        is_global: address.is_global,
        port_num: address.port,
    }
}

pub(super) fn gid_bytes(gid: &ibv_gid) -> [u8; 16] {
    // SAFETY: the `raw` field covers all bytes of the union, and any bytes are a valid value (F4).
    unsafe { gid.raw }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Attributes in which every field that the device keeps has a different value.
    fn given() -> ibv_qp_attr {
        ibv_qp_attr {
            qp_state: ibv_qp_state(1),
            cur_qp_state: ibv_qp_state(2),
            path_mtu: ibv_mtu(3),
            qkey: 4,
            rq_psn: 5,
            sq_psn: 6,
            dest_qp_num: 7,
            qp_access_flags: 8,
            ah_attr: ibv_ah_attr {
                grh: ibv_global_route {
                    dgid: ibv_gid { raw: [9; 16] },
                    flow_label: 10,
                    sgid_index: 11,
                    hop_limit: 12,
                    traffic_class: 13,
                },
                dlid: 14,
                sl: 15,
                src_path_bits: 16,
                static_rate: 17,
                is_global: 18,
                port_num: 19,
            },
            pkey_index: 20,
            en_sqd_async_notify: 21,
            max_rd_atomic: 22,
            max_dest_rd_atomic: 23,
            min_rnr_timer: 24,
            port_num: 25,
            timeout: 26,
            retry_cnt: 27,
            rnr_retry: 28,
            ..ibv_qp_attr::default()
        }
    }

    #[test]
    fn a_query_returns_each_attribute_in_its_field() {
        let capacity =
            Capacity { send_wr: 31, receive_wr: 32, send_sge: 33, receive_sge: 34, inline: 35 };
        let given = given();
        let found = qp_attr(&Found { settings: settings(&given), draining: true }, capacity);
        macro_rules! same {
            ($($($field:ident).+),+ $(,)?) => {
                $(assert_eq!(found.$($field).+, given.$($field).+, stringify!($($field).+));)+
            };
        }
        same! {
            qp_state, cur_qp_state, path_mtu, qkey, rq_psn, sq_psn, dest_qp_num, qp_access_flags,
            ah_attr.grh.flow_label, ah_attr.grh.sgid_index, ah_attr.grh.hop_limit,
            ah_attr.grh.traffic_class, ah_attr.dlid, ah_attr.sl, ah_attr.src_path_bits,
            ah_attr.static_rate, ah_attr.is_global, ah_attr.port_num, pkey_index,
            en_sqd_async_notify, max_rd_atomic, max_dest_rd_atomic, min_rnr_timer, port_num, timeout,
            retry_cnt, rnr_retry,
        }
        assert_eq!(gid_bytes(&found.ah_attr.grh.dgid), [9; 16]);
        assert_eq!(found.sq_draining, 1);
        assert_eq!((found.cap.max_send_wr, found.cap.max_recv_wr), (31, 32));
        assert_eq!((found.cap.max_send_sge, found.cap.max_recv_sge), (33, 34));
        assert_eq!(found.cap.max_inline_data, 35);
    }
}
