//! Queue pairs.

use std::ffi::c_int;
use std::ptr;
use std::sync::Arc;
use std::sync::atomic::{AtomicU32, Ordering};

use rdma_sys::{
    ibv_gid, ibv_pd, ibv_qp, ibv_qp_attr, ibv_qp_ex, ibv_qp_init_attr, ibv_qp_state, ibv_qp_type,
};
use rdma_types::QpAttributes;

use super::attributes::{gid_bytes, qp_attr, settings};
use crate::abi::block::{
    QpBlock, context_events, pd_children, pd_device, pd_of, queue_children, queue_of,
    queue_pair_async_events, queue_pair_init, queue_pair_of, shared_queue_children,
    shared_queue_of,
};
use crate::abi::errno::{number, pointer};
use crate::abi::work::batch::Batch;
use crate::abi::work::wr;
use crate::engine::Refusal;
use crate::engine::events::Acknowledgements;
use crate::engine::events::report::{Element, Handle, Reporter};
use crate::engine::queue_pair::QueuePair;
use crate::engine::queue_pair::capacity::{Capacity, Init};
use crate::engine::queue_pair::membership;
use crate::engine::queue_pair::service::Service;
use crate::faults::Verb;
use crate::limits::Limits;

pub(crate) unsafe extern "C" fn create_qp(
    pd: *mut ibv_pd,
    init: *mut ibv_qp_init_attr,
) -> *mut ibv_qp {
    // SAFETY: the caller passes valid attributes, a live protection domain, and live queues in the attributes (F1).
    pointer(unsafe { create(pd, init, None) })
}

/// Creates a queue pair with these attributes, and stores its actual sizes in them. If `operations` is given, the queue
/// pair can also post those operations with function calls.
///
/// # Safety
///
/// The protection domain is live and belongs to this provider. Each queue in the attributes is NULL, or it is live and
/// belongs to this provider. The attributes are readable and writable.
pub(super) unsafe fn create(
    pd: *mut ibv_pd,
    init: *mut ibv_qp_init_attr,
    operations: Option<u64>,
) -> Result<*mut ibv_qp, Refusal> {
    // SAFETY: by this function's contract.
    let mut asked = unsafe { init.read() };
    if !asked.srq.is_null() {
        // The receive sizes are ignored, because a queue pair with a shared receive queue has none of its own (man
        // ibv_create_qp).
        (asked.cap.max_recv_wr, asked.cap.max_recv_sge) = (0, 0);
    }
    // SAFETY: by this function's contract.
    let created = unsafe { make(pd, &asked, operations)? };
    // SAFETY: by this function's contract.
    unsafe { (*init).cap = asked.cap };
    Ok(created)
}

/// # Safety
///
/// The protection domain is live and belongs to this provider. Each queue in the attributes is NULL, or it is live and
/// belongs to this provider.
unsafe fn make(
    pd: *mut ibv_pd,
    init: &ibv_qp_init_attr,
    operations: Option<u64>,
) -> Result<*mut ibv_qp, Refusal> {
    // SAFETY: by this function's contract.
    let domain = unsafe { pd_of(pd) };
    // SAFETY: by this function's contract.
    let device = *unsafe { pd_device(pd) };
    device.count_call(Verb::CreateQp)?;
    let service = service(&device.limits, init.qp_type).ok_or(Refusal::Unsupported)?;
    if init.send_cq.is_null() || init.recv_cq.is_null() {
        return Err(Refusal::Invalid);
    }
    let capacity = check_capacity(&device.limits, init)?;
    // SAFETY: by this function's contract.
    let send_cq = unsafe { queue_of(init.send_cq) };
    // SAFETY: by this function's contract.
    let receive_cq = unsafe { queue_of(init.recv_cq) };
    let shared = match init.srq.is_null() {
        true => None,
        // SAFETY: by this function's contract.
        false => Some(unsafe { shared_queue_of(init.srq) }),
    };
    if shared.is_some_and(|shared| !ptr::eq(shared.pd.memory, domain.memory)) {
        return Err(Refusal::Invalid);
    }
    let made = Init { service, capacity, signal_all: init.sq_sig_all != 0 };
    // SAFETY: by this function's contract; nothing writes the C part of a protection domain after it was made
    // (SAFETY.md F11).
    let context = unsafe { (*pd).context };
    // SAFETY: the protection domain holds its context (SAFETY.md F11).
    let events = Arc::clone(unsafe { context_events(context) });
    let reporter = Reporter::new(events, Element::QueuePair);
    let posting = operations.map(|operations| Batch::region(operations, &made)).transpose()?;
    let queue_pair =
        QueuePair::create(device, domain, send_cq, receive_cq, shared, made, reporter)?;
    for children in [
        // SAFETY: by this function's contract.
        unsafe { pd_children(pd) },
        // SAFETY: by this function's contract.
        unsafe { queue_children(init.send_cq) },
        // SAFETY: by this function's contract.
        unsafe { queue_children(init.recv_cq) },
    ] {
        children.add();
    }
    if !init.srq.is_null() {
        // SAFETY: by this function's contract.
        unsafe { shared_queue_children(init.srq) }.add();
    }
    let mut verbs = ibv_qp_ex::default();
    wr::set_functions(&mut verbs);
    let base = &mut verbs.qp_base;
    base.context = context;
    base.qp_context = init.qp_context;
    base.pd = pd;
    base.send_cq = init.send_cq;
    base.recv_cq = init.recv_cq;
    base.srq = init.srq;
    base.handle = queue_pair.qpn;
    base.qp_num = queue_pair.qpn;
    base.qp_type = init.qp_type;
    let block = Box::into_raw(Box::new(QpBlock {
        verbs,
        queue_pair: Arc::clone(&queue_pair),
        init: *init,
        posting,
        async_events: Acknowledgements::default(),
    }));
    queue_pair.reporter.name(Handle(block.cast()));
    Ok(block.cast())
}

/// Returns the service for a queue pair type, if the device supports it.
fn service(limits: &Limits, qp_type: ibv_qp_type) -> Option<Service> {
    match qp_type {
        ibv_qp_type::IBV_QPT_RC => Some(Service::ReliableConnection),
        ibv_qp_type::IBV_QPT_UC if limits.features.uc => Some(Service::UnreliableConnection),
        ibv_qp_type::IBV_QPT_UD if limits.features.ud => Some(Service::UnreliableDatagram),
        _ => None,
    }
}

fn check_capacity(limits: &Limits, init: &ibv_qp_init_attr) -> Result<Capacity, Refusal> {
    let cap = &init.cap;
    let fits = cap.max_send_wr <= limits.max_qp_wr
        && cap.max_recv_wr <= limits.max_qp_wr
        && cap.max_send_sge <= limits.max_sge
        && cap.max_recv_sge <= limits.max_sge
        && cap.max_inline_data <= limits.max_inline_data;
    let capacity = Capacity {
        send_wr: cap.max_send_wr,
        receive_wr: cap.max_recv_wr,
        send_sge: cap.max_send_sge,
        receive_sge: cap.max_recv_sge,
        inline: cap.max_inline_data,
    };
    if fits { Ok(capacity) } else { Err(Refusal::Invalid) }
}

pub(crate) unsafe extern "C" fn modify_qp(
    qp: *mut ibv_qp,
    attr: *mut ibv_qp_attr,
    mask: c_int,
) -> c_int {
    // SAFETY: the caller passes valid attributes (SAFETY.md F1).
    let attr = unsafe { attr.read() };
    // SAFETY: the caller passes a live queue pair (SAFETY.md F1).
    let queue_pair = unsafe { queue_pair_of(qp) };
    let mask = QpAttributes::from_bits_retain(mask.cast_unsigned());
    let result = queue_pair.modify(&settings(&attr), mask);
    if result.is_ok() && mask.intersects(QpAttributes::STATE) {
        // SAFETY: the caller passes a live queue pair (SAFETY.md F1).
        unsafe { note_state(qp, attr.qp_state) };
    }
    number(result)
}

/// Stores the last known state in the field where libibverbs also keeps it.
///
/// # Safety
///
/// This provider created the queue pair, and it is not destroyed during the call.
unsafe fn note_state(qp: *mut ibv_qp, state: ibv_qp_state) {
    // SAFETY: by this function's contract, the field is in a live block (SAFETY.md F11).
    let place = unsafe { &raw mut (*qp).state };
    // SAFETY: as above; the field is aligned and has the layout of the integer that it wraps (SAFETY.md F5). Other
    // threads that modify or query the same queue pair may write it at the same time. No thread reads it non-atomically
    // during that time (F9).
    let place = unsafe { AtomicU32::from_ptr(place.cast()) };
    place.store(state.0, Ordering::Relaxed);
}

pub(crate) unsafe extern "C" fn query_qp(
    qp: *mut ibv_qp,
    attr: *mut ibv_qp_attr,
    _mask: c_int,
    init: *mut ibv_qp_init_attr,
) -> c_int {
    // SAFETY: the caller passes a live queue pair (SAFETY.md F1).
    let queue_pair = unsafe { queue_pair_of(qp) };
    let found = qp_attr(&queue_pair.query(), queue_pair.capacity);
    // SAFETY: the caller passes a live queue pair (SAFETY.md F1).
    unsafe { note_state(qp, found.qp_state) };
    // SAFETY: the caller passes a live queue pair (SAFETY.md F1).
    let created = unsafe { *queue_pair_init(qp) };
    // SAFETY: the caller passes a valid pointer for the attributes (SAFETY.md F1).
    unsafe { attr.write(found) };
    // SAFETY: the caller passes a valid pointer for the initial attributes (SAFETY.md F1).
    unsafe { init.write(created) };
    0
}

pub(crate) unsafe extern "C" fn attach_mcast(
    qp: *mut ibv_qp,
    gid: *const ibv_gid,
    lid: u16,
) -> c_int {
    // SAFETY: the caller passes a readable address (SAFETY.md F1).
    let gid = gid_bytes(unsafe { &*gid });
    // SAFETY: the caller passes a live queue pair (SAFETY.md F1).
    number(membership::join(unsafe { queue_pair_of(qp) }, gid.into(), lid))
}

pub(crate) unsafe extern "C" fn detach_mcast(
    qp: *mut ibv_qp,
    gid: *const ibv_gid,
    lid: u16,
) -> c_int {
    // SAFETY: the caller passes a readable address (SAFETY.md F1).
    let gid = gid_bytes(unsafe { &*gid });
    // SAFETY: the caller passes a live queue pair (SAFETY.md F1).
    number(membership::leave(unsafe { queue_pair_of(qp) }, gid.into(), lid))
}

pub(crate) unsafe extern "C" fn destroy_qp(qp: *mut ibv_qp) -> c_int {
    // SAFETY: the caller passes a live queue pair, which no other thread uses any more (SAFETY.md F1).
    let queue_pair = Arc::clone(unsafe { queue_pair_of(qp) });
    if let refused @ Err(_) = membership::is_in_none(&queue_pair) {
        return number(refused);
    }
    queue_pair.destroy();
    // SAFETY: as above. Other threads may still acknowledge delivered events.
    unsafe { queue_pair_async_events(qp) }.wait();
    // SAFETY: `create_qp` made the queue pair, and the caller gives it up (SAFETY.md F11).
    let block = unsafe { Box::from_raw(qp.cast::<QpBlock>()) };
    let base = &block.verbs.qp_base;
    for children in [
        // SAFETY: parents outlive their children (SAFETY.md F11).
        unsafe { pd_children(base.pd) },
        // SAFETY: as above.
        unsafe { queue_children(base.send_cq) },
        // SAFETY: as above.
        unsafe { queue_children(base.recv_cq) },
    ] {
        children.remove();
    }
    if !base.srq.is_null() {
        // SAFETY: as above.
        unsafe { shared_queue_children(base.srq) }.remove();
    }
    0
}
