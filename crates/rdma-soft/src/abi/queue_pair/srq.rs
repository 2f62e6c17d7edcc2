//! Shared receive queues.

use std::ffi::c_int;
use std::sync::Arc;

use rdma_sys::{
    ibv_pd, ibv_recv_wr, ibv_srq, ibv_srq_attr, ibv_srq_attr_mask as Mask, ibv_srq_init_attr,
};

use crate::abi::block::{
    Children, SrqBlock, context_events, pd_children, pd_device, pd_of, shared_queue_async_events,
    shared_queue_children, shared_queue_of,
};
use crate::abi::errno::{number, pointer};
use crate::abi::work::post::post_list;
use crate::engine::Refusal;
use crate::engine::events::Acknowledgements;
use crate::engine::events::report::{Element, Handle, Reporter};
use crate::engine::receive_queue::shared::SharedReceiveQueue;
use crate::faults::Verb;
use crate::limits::Limits;

pub(crate) unsafe extern "C" fn create_srq(
    pd: *mut ibv_pd,
    init: *mut ibv_srq_init_attr,
) -> *mut ibv_srq {
    // SAFETY: the caller passes valid attributes (SAFETY.md F1). The queue has exactly the requested size, so the
    // attributes are not updated.
    let init = unsafe { init.read() };
    // SAFETY: the caller passes a live protection domain (SAFETY.md F1).
    let domain = unsafe { pd_of(pd) };
    // SAFETY: as above.
    let device = *unsafe { pd_device(pd) };
    let limits = &device.limits;
    let counted = device.count_call(Verb::CreateSrq);
    pointer(counted.and_then(|()| check(limits, &init.attr)).and_then(|()| {
        device.shared_receive_queues.take(limits.max_srq)?;
        // SAFETY: as above; nothing writes the C part of a protection domain after it was made.
        let context = unsafe { (*pd).context };
        // SAFETY: the protection domain holds its context (SAFETY.md F11).
        let events = Arc::clone(unsafe { context_events(context) });
        let reporter = Reporter::new(events, Element::SharedReceiveQueue);
        let (max_wr, max_sge) = (init.attr.max_wr, init.attr.max_sge);
        let queue = SharedReceiveQueue::new(device.fabric, domain, max_wr, max_sge, reporter)
            .inspect_err(|_| device.shared_receive_queues.give())?;
        // SAFETY: as above.
        unsafe { pd_children(pd) }.add();
        let mut verbs = ibv_srq::default();
        verbs.context = context;
        verbs.srq_context = init.srq_context;
        verbs.pd = pd;
        let block = Box::into_raw(Box::new(SrqBlock {
            verbs,
            queue: Arc::clone(&queue),
            children: Children::default(),
            async_events: Acknowledgements::default(),
        }));
        queue.reporter.name(Handle(block.cast()));
        Ok(block.cast())
    }))
}

fn check(limits: &Limits, attr: &ibv_srq_attr) -> Result<(), Refusal> {
    if limits.max_srq == 0 {
        return Err(Refusal::Unsupported);
    }
    let fits = (1..=limits.max_srq_wr).contains(&attr.max_wr) && attr.max_sge <= limits.max_srq_sge;
    if fits { Ok(()) } else { Err(Refusal::Invalid) }
}

pub(crate) unsafe extern "C" fn modify_srq(
    srq: *mut ibv_srq,
    attr: *mut ibv_srq_attr,
    mask: c_int,
) -> c_int {
    // SAFETY: the caller passes valid attributes (SAFETY.md F1).
    let attr = unsafe { attr.read() };
    // SAFETY: the caller passes a live queue (SAFETY.md F1).
    let queue = unsafe { shared_queue_of(srq) };
    let mask = mask.cast_unsigned();
    let known = Mask::IBV_SRQ_MAX_WR | Mask::IBV_SRQ_LIMIT;
    number(if mask & !known.0 != 0 {
        Err(Refusal::Invalid)
    } else if mask & Mask::IBV_SRQ_MAX_WR.0 != 0 {
        // The device does not report the capability `IBV_DEVICE_SRQ_RESIZE`.
        Err(Refusal::Unsupported)
    } else if mask & Mask::IBV_SRQ_LIMIT.0 != 0 {
        queue.set_limit(attr.srq_limit)
    } else {
        Ok(())
    })
}

pub(crate) unsafe extern "C" fn query_srq(srq: *mut ibv_srq, attr: *mut ibv_srq_attr) -> c_int {
    // SAFETY: the caller passes a live queue (SAFETY.md F1).
    let queue = unsafe { shared_queue_of(srq) };
    let found =
        ibv_srq_attr { max_wr: queue.max_wr, max_sge: queue.max_sge, srq_limit: queue.limit() };
    // SAFETY: the caller passes a valid pointer for the attributes (SAFETY.md F1).
    unsafe { attr.write(found) };
    0
}

pub(crate) unsafe extern "C" fn destroy_srq(srq: *mut ibv_srq) -> c_int {
    // SAFETY: the caller passes a live queue (SAFETY.md F1).
    let free = unsafe { shared_queue_children(srq) }.none();
    number(free.map(|()| {
        // SAFETY: the caller passes a live queue, which no other thread uses any more (SAFETY.md F1).
        unsafe { shared_queue_of(srq) }.reporter.withdraw();
        // SAFETY: as above. Other threads may still acknowledge delivered events.
        unsafe { shared_queue_async_events(srq) }.wait();
        // SAFETY: `create_srq` made the queue, and the caller gives it up (SAFETY.md F11).
        let block = unsafe { Box::from_raw(srq.cast::<SrqBlock>()) };
        // SAFETY: a protection domain outlives the objects created from it (SAFETY.md F11).
        unsafe { pd_device(block.verbs.pd) }.shared_receive_queues.give();
        // SAFETY: as above.
        unsafe { pd_children(block.verbs.pd) }.remove();
    }))
}

pub(crate) unsafe extern "C" fn post_srq_recv(
    srq: *mut ibv_srq,
    wr: *mut ibv_recv_wr,
    bad_wr: *mut *mut ibv_recv_wr,
) -> c_int {
    // SAFETY: the caller passes a live queue (SAFETY.md F1).
    let queue = unsafe { shared_queue_of(srq) };
    // SAFETY: the caller passes a valid list, and a valid pointer for a refused request (SAFETY.md F1, F12).
    unsafe {
        post_list(wr, bad_wr, queue.max_sge, |wr_id, sges, turn| queue.post(wr_id, sges, turn))
    }
}
