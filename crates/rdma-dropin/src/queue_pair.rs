//! Queue pairs, shared receive queues, address handles and multicast groups.
#![allow(unsafe_code)]

use std::ffi::c_int;
use std::ptr;

use rdma_sys::{
    Errno, functions, ibv_ah, ibv_ah_attr, ibv_context, ibv_ece, ibv_gid, ibv_grh, ibv_pd, ibv_qp,
    ibv_qp_attr, ibv_qp_ex, ibv_qp_init_attr, ibv_srq, ibv_srq_attr, ibv_srq_init_attr, ibv_wc,
    ibv_wr_opcode,
};

use crate::provider::verbs;
use crate::stats;

const _: functions::ibv_create_qp = ibv_create_qp;
#[unsafe(no_mangle)]
unsafe extern "C" fn ibv_create_qp(
    pd: *mut ibv_pd,
    qp_init_attr: *mut ibv_qp_init_attr,
) -> *mut ibv_qp {
    // SAFETY: forwards the call with the caller's promises (SAFETY.md F1, F2).
    unsafe { (verbs().create_qp)(pd, qp_init_attr) }
}

const _: functions::ibv_qp_to_qp_ex = ibv_qp_to_qp_ex;
#[unsafe(no_mangle)]
unsafe extern "C" fn ibv_qp_to_qp_ex(qp: *mut ibv_qp) -> *mut ibv_qp_ex {
    match verbs().qp_to_qp_ex {
        // SAFETY: forwards the call with the caller's promises (SAFETY.md F1, F2).
        Some(qp_to_qp_ex) => unsafe { qp_to_qp_ex(qp) },
        None => ptr::null_mut(),
    }
}

const _: functions::ibv_modify_qp = ibv_modify_qp;
#[unsafe(no_mangle)]
unsafe extern "C" fn ibv_modify_qp(
    qp: *mut ibv_qp,
    attr: *mut ibv_qp_attr,
    attr_mask: c_int,
) -> c_int {
    // SAFETY: forwards the call with the caller's promises (SAFETY.md F1, F2).
    unsafe { (verbs().modify_qp)(qp, attr, attr_mask) }
}

const _: functions::ibv_query_qp = ibv_query_qp;
#[unsafe(no_mangle)]
unsafe extern "C" fn ibv_query_qp(
    qp: *mut ibv_qp,
    attr: *mut ibv_qp_attr,
    attr_mask: c_int,
    init_attr: *mut ibv_qp_init_attr,
) -> c_int {
    // SAFETY: forwards the call with the caller's promises (SAFETY.md F1, F2).
    unsafe { (verbs().query_qp)(qp, attr, attr_mask, init_attr) }
}

const _: functions::ibv_query_qp_data_in_order = ibv_query_qp_data_in_order;
#[unsafe(no_mangle)]
unsafe extern "C" fn ibv_query_qp_data_in_order(
    qp: *mut ibv_qp,
    op: ibv_wr_opcode,
    flags: u32,
) -> c_int {
    match verbs().query_qp_data_in_order {
        // SAFETY: forwards the call with the caller's promises (SAFETY.md F1, F2).
        Some(query_qp_data_in_order) => unsafe { query_qp_data_in_order(qp, op, flags) },
        None => 0,
    }
}

const _: functions::ibv_query_ece = ibv_query_ece;
#[unsafe(no_mangle)]
unsafe extern "C" fn ibv_query_ece(qp: *mut ibv_qp, ece: *mut ibv_ece) -> c_int {
    match verbs().query_ece {
        // SAFETY: forwards the call with the caller's promises (SAFETY.md F1, F2).
        Some(query_ece) => unsafe { query_ece(qp, ece) },
        None => Errno::EOPNOTSUPP.raw(),
    }
}

const _: functions::ibv_set_ece = ibv_set_ece;
#[unsafe(no_mangle)]
unsafe extern "C" fn ibv_set_ece(qp: *mut ibv_qp, ece: *mut ibv_ece) -> c_int {
    match verbs().set_ece {
        // SAFETY: forwards the call with the caller's promises (SAFETY.md F1, F2).
        Some(set_ece) => unsafe { set_ece(qp, ece) },
        None => Errno::EOPNOTSUPP.raw(),
    }
}

const _: functions::ibv_destroy_qp = ibv_destroy_qp;
#[unsafe(no_mangle)]
unsafe extern "C" fn ibv_destroy_qp(qp: *mut ibv_qp) -> c_int {
    // SAFETY: forwards the call with the caller's promises (SAFETY.md F1, F2).
    let returned = unsafe { (verbs().destroy_qp)(qp) };
    stats::update();
    returned
}

const _: functions::ibv_create_srq = ibv_create_srq;
#[unsafe(no_mangle)]
unsafe extern "C" fn ibv_create_srq(
    pd: *mut ibv_pd,
    srq_init_attr: *mut ibv_srq_init_attr,
) -> *mut ibv_srq {
    // SAFETY: forwards the call with the caller's promises (SAFETY.md F1, F2).
    unsafe { (verbs().create_srq)(pd, srq_init_attr) }
}

const _: functions::ibv_modify_srq = ibv_modify_srq;
#[unsafe(no_mangle)]
unsafe extern "C" fn ibv_modify_srq(
    srq: *mut ibv_srq,
    srq_attr: *mut ibv_srq_attr,
    srq_attr_mask: c_int,
) -> c_int {
    // SAFETY: forwards the call with the caller's promises (SAFETY.md F1, F2).
    unsafe { (verbs().modify_srq)(srq, srq_attr, srq_attr_mask) }
}

const _: functions::ibv_query_srq = ibv_query_srq;
#[unsafe(no_mangle)]
unsafe extern "C" fn ibv_query_srq(srq: *mut ibv_srq, srq_attr: *mut ibv_srq_attr) -> c_int {
    // SAFETY: forwards the call with the caller's promises (SAFETY.md F1, F2).
    unsafe { (verbs().query_srq)(srq, srq_attr) }
}

const _: functions::ibv_destroy_srq = ibv_destroy_srq;
#[unsafe(no_mangle)]
unsafe extern "C" fn ibv_destroy_srq(srq: *mut ibv_srq) -> c_int {
    // SAFETY: forwards the call with the caller's promises (SAFETY.md F1, F2).
    unsafe { (verbs().destroy_srq)(srq) }
}

const _: functions::ibv_create_ah = ibv_create_ah;
#[unsafe(no_mangle)]
unsafe extern "C" fn ibv_create_ah(pd: *mut ibv_pd, attr: *mut ibv_ah_attr) -> *mut ibv_ah {
    // SAFETY: forwards the call with the caller's promises (SAFETY.md F1, F2).
    unsafe { (verbs().create_ah)(pd, attr) }
}

const _: functions::ibv_create_ah_from_wc = ibv_create_ah_from_wc;
#[unsafe(no_mangle)]
unsafe extern "C" fn ibv_create_ah_from_wc(
    pd: *mut ibv_pd,
    wc: *mut ibv_wc,
    grh: *mut ibv_grh,
    port_num: u8,
) -> *mut ibv_ah {
    // SAFETY: forwards the call with the caller's promises (SAFETY.md F1, F2).
    unsafe { (verbs().create_ah_from_wc)(pd, wc, grh, port_num) }
}

const _: functions::ibv_init_ah_from_wc = ibv_init_ah_from_wc;
#[unsafe(no_mangle)]
unsafe extern "C" fn ibv_init_ah_from_wc(
    context: *mut ibv_context,
    port_num: u8,
    wc: *mut ibv_wc,
    grh: *mut ibv_grh,
    ah_attr: *mut ibv_ah_attr,
) -> c_int {
    // SAFETY: forwards the call with the caller's promises (SAFETY.md F1, F2).
    unsafe { (verbs().init_ah_from_wc)(context, port_num, wc, grh, ah_attr) }
}

const _: functions::ibv_destroy_ah = ibv_destroy_ah;
#[unsafe(no_mangle)]
unsafe extern "C" fn ibv_destroy_ah(ah: *mut ibv_ah) -> c_int {
    // SAFETY: forwards the call with the caller's promises (SAFETY.md F1, F2).
    unsafe { (verbs().destroy_ah)(ah) }
}

const _: functions::ibv_attach_mcast = ibv_attach_mcast;
#[unsafe(no_mangle)]
unsafe extern "C" fn ibv_attach_mcast(qp: *mut ibv_qp, gid: *const ibv_gid, lid: u16) -> c_int {
    // SAFETY: forwards the call with the caller's promises (SAFETY.md F1, F2).
    unsafe { (verbs().attach_mcast)(qp, gid, lid) }
}

const _: functions::ibv_detach_mcast = ibv_detach_mcast;
#[unsafe(no_mangle)]
unsafe extern "C" fn ibv_detach_mcast(qp: *mut ibv_qp, gid: *const ibv_gid, lid: u16) -> c_int {
    // SAFETY: forwards the call with the caller's promises (SAFETY.md F1, F2).
    unsafe { (verbs().detach_mcast)(qp, gid, lid) }
}
