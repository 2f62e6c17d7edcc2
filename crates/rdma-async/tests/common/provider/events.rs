//! Events that are changed or refused.

use std::ffi::{c_int, c_void};

use rdma_mem::Errno;
use rdma_sys::{ibv_async_event, ibv_comp_channel, ibv_context, ibv_cq, ibv_event_type};

use super::{Call, Provider, of};

impl Provider {
    /// From now on, port events are reported as events of the whole device.
    pub(crate) fn fail_with_the_port(&self) {
        self.state().is_fatal = true;
    }
}

pub(super) unsafe extern "C" fn get_async_event(
    context: *mut ibv_context,
    out: *mut ibv_async_event,
) -> c_int {
    // SAFETY: SAFETY.md F1: the caller's own contract.
    let returned = unsafe { (rdma_soft::verbs().get_async_event)(context, out) };
    if returned != 0 {
        return returned;
    }
    // SAFETY: SAFETY.md F1: the caller's event, which no one else has during the call, and which was filled, because 0
    // was returned.
    let event = unsafe { &mut *out };
    let is_port = event.event_type == ibv_event_type::IBV_EVENT_PORT_ERR;
    if is_port && of(context).state().is_fatal {
        // No object acknowledges either of these events.
        event.event_type = ibv_event_type::IBV_EVENT_DEVICE_FATAL;
    }
    0
}

pub(super) unsafe extern "C" fn get_cq_event(
    channel: *mut ibv_comp_channel,
    cq: *mut *mut ibv_cq,
    cq_context: *mut *mut c_void,
) -> c_int {
    // SAFETY: SAFETY.md F1: a live channel.
    if of(unsafe { (*channel).context }).refuses(Call::ReceiveEvent) {
        Errno::EIO.set();
        return -1;
    }
    // SAFETY: SAFETY.md F1: the caller's own contract.
    unsafe { (rdma_soft::verbs().get_cq_event)(channel, cq, cq_context) }
}
