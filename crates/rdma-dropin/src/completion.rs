//! Completion queues and their channels.
#![allow(unsafe_code)]

use std::ffi::{c_int, c_uint, c_void};

use rdma_sys::{functions, ibv_comp_channel, ibv_context, ibv_cq};

use crate::provider::verbs;

const _: functions::ibv_create_comp_channel = ibv_create_comp_channel;
#[unsafe(no_mangle)]
unsafe extern "C" fn ibv_create_comp_channel(context: *mut ibv_context) -> *mut ibv_comp_channel {
    // SAFETY: forwards the call with the caller's promises (SAFETY.md F1, F2).
    unsafe { (verbs().create_comp_channel)(context) }
}

const _: functions::ibv_destroy_comp_channel = ibv_destroy_comp_channel;
#[unsafe(no_mangle)]
unsafe extern "C" fn ibv_destroy_comp_channel(channel: *mut ibv_comp_channel) -> c_int {
    // SAFETY: forwards the call with the caller's promises (SAFETY.md F1, F2).
    unsafe { (verbs().destroy_comp_channel)(channel) }
}

const _: functions::ibv_create_cq = ibv_create_cq;
#[unsafe(no_mangle)]
unsafe extern "C" fn ibv_create_cq(
    context: *mut ibv_context,
    cqe: c_int,
    cq_context: *mut c_void,
    channel: *mut ibv_comp_channel,
    comp_vector: c_int,
) -> *mut ibv_cq {
    // SAFETY: forwards the call with the caller's promises (SAFETY.md F1, F2).
    unsafe { (verbs().create_cq)(context, cqe, cq_context, channel, comp_vector) }
}

const _: functions::ibv_resize_cq = ibv_resize_cq;
#[unsafe(no_mangle)]
unsafe extern "C" fn ibv_resize_cq(cq: *mut ibv_cq, cqe: c_int) -> c_int {
    // SAFETY: forwards the call with the caller's promises (SAFETY.md F1, F2).
    unsafe { (verbs().resize_cq)(cq, cqe) }
}

const _: functions::ibv_destroy_cq = ibv_destroy_cq;
#[unsafe(no_mangle)]
unsafe extern "C" fn ibv_destroy_cq(cq: *mut ibv_cq) -> c_int {
    // SAFETY: forwards the call with the caller's promises (SAFETY.md F1, F2).
    unsafe { (verbs().destroy_cq)(cq) }
}

const _: functions::ibv_get_cq_event = ibv_get_cq_event;
#[unsafe(no_mangle)]
unsafe extern "C" fn ibv_get_cq_event(
    channel: *mut ibv_comp_channel,
    cq: *mut *mut ibv_cq,
    cq_context: *mut *mut c_void,
) -> c_int {
    // SAFETY: forwards the call with the caller's promises (SAFETY.md F1, F2).
    unsafe { (verbs().get_cq_event)(channel, cq, cq_context) }
}

const _: functions::ibv_ack_cq_events = ibv_ack_cq_events;
#[unsafe(no_mangle)]
unsafe extern "C" fn ibv_ack_cq_events(cq: *mut ibv_cq, nevents: c_uint) {
    // SAFETY: forwards the call with the caller's promises (SAFETY.md F1, F2).
    unsafe { (verbs().ack_cq_events)(cq, nevents) }
}
