//! Completion queues and their channels.

use std::ffi::{c_int, c_uint, c_void};

use rdma_sys::{ibv_comp_channel, ibv_context, ibv_cq};

use crate::forward::forward;

forward! {
    ibv_create_comp_channel(
        context: *mut ibv_context,
    ) -> *mut ibv_comp_channel => create_comp_channel;
    ibv_destroy_comp_channel(channel: *mut ibv_comp_channel) -> c_int => destroy_comp_channel;
    ibv_create_cq(
        context: *mut ibv_context,
        cqe: c_int,
        cq_context: *mut c_void,
        channel: *mut ibv_comp_channel,
        comp_vector: c_int,
    ) -> *mut ibv_cq => create_cq;
    ibv_resize_cq(cq: *mut ibv_cq, cqe: c_int) -> c_int => resize_cq;
    ibv_destroy_cq(cq: *mut ibv_cq) -> c_int => destroy_cq;
    ibv_get_cq_event(
        channel: *mut ibv_comp_channel,
        cq: *mut *mut ibv_cq,
        cq_context: *mut *mut c_void,
    ) -> c_int => get_cq_event;
    ibv_ack_cq_events(cq: *mut ibv_cq, nevents: c_uint) => ack_cq_events;
}
