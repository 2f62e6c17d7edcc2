//! Completion channels and asynchronous events.

use std::ffi::{c_int, c_uint, c_void};

use rdma_sys::{
    Errno, ibv_async_event, ibv_async_event__bindgen_ty_1, ibv_comp_channel, ibv_context, ibv_cq,
    ibv_event_type, ibv_qp, ibv_srq,
};

use crate::abi::block::{
    ChannelBlock, Children, channel_children, channel_events, context_events, device_of,
    hold_context, queue_async_events, queue_completion_events, queue_pair_async_events,
    release_context, shared_queue_async_events,
};
use crate::abi::errno::{number, pointer};
use crate::engine::Refusal;
use crate::engine::events::EventQueue;
use crate::engine::events::report::Element;
use crate::faults::Verb;

pub(crate) unsafe extern "C" fn create_comp_channel(
    context: *mut ibv_context,
) -> *mut ibv_comp_channel {
    // SAFETY: the caller passes a live context (SAFETY.md F1).
    let device = unsafe { device_of(context) };
    let made = device
        .count_call(Verb::CreateCompChannel)
        .and_then(|()| EventQueue::new(device.fabric).map_err(Refusal::without_files));
    pointer(made.map(|events| {
        // SAFETY: the caller passes a live context (SAFETY.md F1).
        unsafe { hold_context(context) };
        let verbs = ibv_comp_channel { context, fd: events.fd(), refcnt: 0 };
        let children = Children::default();
        Box::into_raw(Box::new(ChannelBlock { verbs, events, children })).cast()
    }))
}

/// Not a verb of libibverbs; see [`Verbs::wake_early`](rdma_sys::Verbs::wake_early).
pub(crate) unsafe extern "C" fn wake_early(channel: *mut ibv_comp_channel) {
    // SAFETY: the caller passes a live channel (SAFETY.md F1).
    let events = unsafe { channel_events(channel) };
    // In virtual time, nothing arrives while a thread sleeps. Without another file, the channel stays as it is.
    if events.is_in_real_time()
        && let Ok(file) = events.wake_early()
    {
        // SAFETY: the caller has not read the file yet, and no other thread uses the new channel (SAFETY.md F1).
        unsafe { (*channel).fd = file };
    }
}

pub(crate) unsafe extern "C" fn destroy_comp_channel(channel: *mut ibv_comp_channel) -> c_int {
    // SAFETY: the caller passes a live channel (SAFETY.md F1).
    let free = unsafe { channel_children(channel) }.none();
    number(free.map(|()| {
        // SAFETY: `create_comp_channel` made the channel, and the caller gives it up (SAFETY.md F11).
        let block = unsafe { Box::from_raw(channel.cast::<ChannelBlock>()) };
        block.events.end_early();
        // SAFETY: the channel holds its context, and does not use it after this (SAFETY.md F11).
        unsafe { release_context(block.verbs.context) };
    }))
}

pub(crate) unsafe extern "C" fn get_cq_event(
    channel: *mut ibv_comp_channel,
    cq: *mut *mut ibv_cq,
    cq_context: *mut *mut c_void,
) -> c_int {
    // SAFETY: the caller passes a live channel (SAFETY.md F1).
    let events = unsafe { channel_events(channel) };
    let taken = events.take(|handle| {
        let object = handle.0.cast::<ibv_cq>();
        // SAFETY: the queue still exists: its events are discarded before it is destroyed, under the lock that is held
        // here (SAFETY.md F11).
        unsafe { queue_completion_events(object) }.delivered();
        object
    });
    finish(taken, |object| {
        // SAFETY: the queue still exists, because its event has not been acknowledged (SAFETY.md F11).
        let context = unsafe { (*object).cq_context };
        // SAFETY: the caller passes a valid pointer for the queue (SAFETY.md F1).
        unsafe { cq.write(object) };
        // SAFETY: the caller passes a valid pointer for the queue's context (SAFETY.md F1).
        unsafe { cq_context.write(context) };
    })
}

/// Delivers an event that was taken. If taking it failed, returns -1 and sets `errno`.
fn finish<T>(taken: rustix::io::Result<T>, deliver: impl FnOnce(T)) -> c_int {
    match taken {
        Ok(event) => {
            deliver(event);
            0
        }
        Err(errno) => {
            Errno::from_raw(errno.raw_os_error()).set();
            -1
        }
    }
}

pub(crate) unsafe extern "C" fn ack_cq_events(cq: *mut ibv_cq, count: c_uint) {
    // SAFETY: the caller passes a live completion queue (SAFETY.md F1).
    unsafe { queue_completion_events(cq) }.acknowledge(count);
}

pub(crate) unsafe extern "C" fn get_async_event(
    context: *mut ibv_context,
    out: *mut ibv_async_event,
) -> c_int {
    // SAFETY: the caller passes a live context (SAFETY.md F1).
    let events = unsafe { context_events(context) };
    let taken = events.take(|event| {
        let element = match event.element {
            Element::CompletionQueue(handle) => {
                let cq = handle.0.cast::<ibv_cq>();
                // SAFETY: the object still exists: its events are discarded before it is destroyed, under the lock that
                // is held here (SAFETY.md F11).
                unsafe { queue_async_events(cq) }.delivered();
                ibv_async_event__bindgen_ty_1 { cq }
            }
            Element::QueuePair(handle) => {
                let qp = handle.0.cast::<ibv_qp>();
                // SAFETY: as above.
                unsafe { queue_pair_async_events(qp) }.delivered();
                ibv_async_event__bindgen_ty_1 { qp }
            }
            Element::SharedReceiveQueue(handle) => {
                let srq = handle.0.cast::<ibv_srq>();
                // SAFETY: as above.
                unsafe { shared_queue_async_events(srq) }.delivered();
                ibv_async_event__bindgen_ty_1 { srq }
            }
            Element::Port(port) => ibv_async_event__bindgen_ty_1 { port_num: port.into() },
        };
        ibv_async_event { element, event_type: ibv_event_type(event.kind.raw()) }
    });
    // SAFETY: the caller passes a valid pointer for the event (SAFETY.md F1).
    finish(taken, |event| unsafe { out.write(event) })
}

pub(crate) unsafe extern "C" fn ack_async_event(event: *mut ibv_async_event) {
    use ibv_event_type as Type;
    // SAFETY: the caller passes an event that `get_async_event` filled (SAFETY.md F1).
    let event = unsafe { event.read() };
    match event.event_type {
        Type::IBV_EVENT_CQ_ERR => {
            // SAFETY: an event of this type concerns a completion queue, which the union contains (SAFETY.md F1).
            let cq = unsafe { event.element.cq };
            // SAFETY: the queue exists until its events are acknowledged (SAFETY.md F11).
            unsafe { queue_async_events(cq) }.acknowledge(1);
        }
        Type::IBV_EVENT_QP_FATAL
        | Type::IBV_EVENT_QP_REQ_ERR
        | Type::IBV_EVENT_QP_ACCESS_ERR
        | Type::IBV_EVENT_COMM_EST
        | Type::IBV_EVENT_SQ_DRAINED
        | Type::IBV_EVENT_QP_LAST_WQE_REACHED => {
            // SAFETY: an event of this type concerns a queue pair, which the union contains (SAFETY.md F1).
            let qp = unsafe { event.element.qp };
            // SAFETY: the queue pair exists until its events are acknowledged (SAFETY.md F11).
            unsafe { queue_pair_async_events(qp) }.acknowledge(1);
        }
        Type::IBV_EVENT_SRQ_ERR | Type::IBV_EVENT_SRQ_LIMIT_REACHED => {
            // SAFETY: an event of this type concerns a shared queue, which the union contains (SAFETY.md F1).
            let srq = unsafe { event.element.srq };
            // SAFETY: the queue exists until its events are acknowledged (SAFETY.md F11).
            unsafe { shared_queue_async_events(srq) }.acknowledge(1);
        }
        _ => {}
    }
}
