//! Queue pairs, shared receive queues, address handles and multicast groups.
#![allow(unsafe_code)]

use std::ffi::c_int;
use std::ptr;

use rdma_sys::{
    functions, ibv_ah, ibv_ah_attr, ibv_context, ibv_ece, ibv_gid, ibv_grh, ibv_pd, ibv_qp,
    ibv_qp_attr, ibv_qp_ex, ibv_qp_init_attr, ibv_srq, ibv_srq_attr, ibv_srq_init_attr, ibv_wc,
    ibv_wr_opcode,
};

use crate::forward::forward;
use crate::provider::verbs_of;
use crate::refusal::UNSUPPORTED;
use crate::stats;

forward! {
    ibv_create_qp(pd: *mut ibv_pd, qp_init_attr: *mut ibv_qp_init_attr) -> *mut ibv_qp => create_qp;
    ibv_qp_to_qp_ex(qp: *mut ibv_qp) -> *mut ibv_qp_ex => qp_to_qp_ex, or ptr::null_mut();
    ibv_modify_qp(qp: *mut ibv_qp, attr: *mut ibv_qp_attr, attr_mask: c_int) -> c_int => modify_qp;
    ibv_query_qp(
        qp: *mut ibv_qp,
        attr: *mut ibv_qp_attr,
        attr_mask: c_int,
        init_attr: *mut ibv_qp_init_attr,
    ) -> c_int => query_qp;
    ibv_query_qp_data_in_order(
        qp: *mut ibv_qp,
        op: ibv_wr_opcode,
        flags: u32,
    ) -> c_int => query_qp_data_in_order, or 0;
    ibv_query_ece(
        qp: *mut ibv_qp,
        ece: *mut ibv_ece,
    ) -> c_int => query_ece, or UNSUPPORTED;
    ibv_set_ece(qp: *mut ibv_qp, ece: *mut ibv_ece) -> c_int => set_ece, or UNSUPPORTED;
    ibv_create_srq(
        pd: *mut ibv_pd,
        srq_init_attr: *mut ibv_srq_init_attr,
    ) -> *mut ibv_srq => create_srq;
    ibv_modify_srq(
        srq: *mut ibv_srq,
        srq_attr: *mut ibv_srq_attr,
        srq_attr_mask: c_int,
    ) -> c_int => modify_srq;
    ibv_query_srq(srq: *mut ibv_srq, srq_attr: *mut ibv_srq_attr) -> c_int => query_srq;
    ibv_destroy_srq(srq: *mut ibv_srq) -> c_int => destroy_srq;
    ibv_create_ah(pd: *mut ibv_pd, attr: *mut ibv_ah_attr) -> *mut ibv_ah => create_ah;
    ibv_create_ah_from_wc(
        pd: *mut ibv_pd,
        wc: *mut ibv_wc,
        grh: *mut ibv_grh,
        port_num: u8,
    ) -> *mut ibv_ah => create_ah_from_wc;
    ibv_init_ah_from_wc(
        context: *mut ibv_context,
        port_num: u8,
        wc: *mut ibv_wc,
        grh: *mut ibv_grh,
        ah_attr: *mut ibv_ah_attr,
    ) -> c_int => init_ah_from_wc;
    ibv_destroy_ah(ah: *mut ibv_ah) -> c_int => destroy_ah;
    ibv_attach_mcast(qp: *mut ibv_qp, gid: *const ibv_gid, lid: u16) -> c_int => attach_mcast;
    ibv_detach_mcast(qp: *mut ibv_qp, gid: *const ibv_gid, lid: u16) -> c_int => detach_mcast;
}

const _: functions::ibv_destroy_qp = ibv_destroy_qp;
#[unsafe(no_mangle)]
unsafe extern "C" fn ibv_destroy_qp(qp: *mut ibv_qp) -> c_int {
    // SAFETY: the caller passes a live queue pair (SAFETY.md F1).
    let verbs = unsafe { verbs_of(qp) };
    // SAFETY: forwards the call with the caller's promises (SAFETY.md F1, F2).
    let returned = unsafe { (verbs.destroy_qp)(qp) };
    stats::update();
    returned
}
