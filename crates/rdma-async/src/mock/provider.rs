//! The mock device as a provider, with C functions on objects that also refer to the device.
#![allow(unsafe_code)]

use std::ffi::{c_char, c_int, c_uint, c_void};
use std::io::{PipeReader, PipeWriter, pipe};
use std::os::fd::AsRawFd;
use std::ptr::{self, NonNull, null_mut};
use std::slice;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, OnceLock, PoisonError};

use rdma_mem::{Context, ObjectId, Ownership, ProtectionDomain};
use rdma_qp::{CompletionQueue, QueuePair};
use rdma_sys::{
    Errno, Verbs, ibv_comp_channel, ibv_context, ibv_cq, ibv_device, ibv_mr, ibv_pd, ibv_qp,
    ibv_qp_attr, ibv_qp_init_attr, ibv_qp_state, ibv_recv_wr, ibv_send_wr, ibv_sge, ibv_wc,
    ibv_wc_opcode, ibv_wr_opcode,
};

use super::{Nic, PostFault, PostedRequest};

/// An object and its device. C sees only the first field, which is the object.
#[repr(C)]
struct Object<T> {
    part: T,
    nic: Arc<Nic>,
}

/// The only device of the provider. It is never written.
struct Listed(ibv_device);

// SAFETY: SAFETY.md F4: the device is all zeros and is only read.
unsafe impl Sync for Listed {}

// SAFETY: SAFETY.md F4: all-zero bytes are a valid device, with InfiniBand transport.
static DEVICE: Listed = Listed(unsafe { std::mem::zeroed() });

static VERBS: Verbs = {
    let mut verbs = Verbs::unsupported();
    verbs.name = "mock";
    verbs.get_device_list = get_device_list;
    verbs.free_device_list = free_device_list;
    verbs.get_device_name = get_device_name;
    verbs.close_device = destroy::<ibv_context>;
    verbs.alloc_pd = alloc_pd;
    verbs.dealloc_pd = destroy::<ibv_pd>;
    verbs.reg_mr = reg_mr;
    verbs.dereg_mr = dereg_mr;
    verbs.create_comp_channel = create_comp_channel;
    verbs.destroy_comp_channel = destroy::<ibv_comp_channel>;
    verbs.create_cq = create_cq;
    verbs.destroy_cq = destroy::<ibv_cq>;
    verbs.get_cq_event = get_cq_event;
    verbs.ack_cq_events = ack_cq_events;
    verbs.modify_qp = modify_qp;
    verbs.query_qp = query_qp;
    verbs.destroy_qp = destroy_qp;
    verbs
};

/// Opens a context of the device.
pub(super) fn open(nic: &Arc<Nic>) -> Context {
    let mut context = ibv_context::default();
    context.device = (&raw const DEVICE.0).cast_mut();
    context.num_comp_vectors = 1;
    context.async_fd = -1;
    context.ops.poll_cq = Some(poll_cq);
    context.ops.req_notify_cq = Some(req_notify_cq);
    context.ops.post_send = Some(post_send);
    context.ops.post_recv = Some(post_recv);
    let raw = NonNull::new(make(nic, context)).unwrap();
    // SAFETY: SAFETY.md F2, F11: the context was just created, by this table, and no one else has it.
    unsafe { Context::from_raw(raw, &VERBS, Ownership::Owned) }.unwrap()
}

/// Creates a connected queue pair.
pub(super) fn queue_pair(nic: &Arc<Nic>, pd: &ProtectionDomain, cq: &CompletionQueue) -> QueuePair {
    let mut qp = ibv_qp::default();
    (qp.context, qp.pd) = (pd.context().as_raw(), pd.as_raw());
    (qp.send_cq, qp.recv_cq) = (cq.as_raw(), cq.as_raw());
    qp.qp_num = nic.new_qp();
    qp.qp_type.0 = rdma_qp::QueuePairType::RC.raw();
    let raw = NonNull::new(make(nic, qp)).unwrap();
    let parents = QueuePair::builder(pd).send_cq(cq).recv_cq(cq);
    // SAFETY: SAFETY.md F2, F11: the queue pair was just created from these parents, and no one else has it.
    unsafe { QueuePair::from_raw(raw, parents, Ownership::Owned) }.unwrap()
}

fn make<T>(nic: &Arc<Nic>, part: T) -> *mut T {
    nic.objects.fetch_add(1, Ordering::Relaxed);
    Box::into_raw(Box::new(Object { part, nic: Arc::clone(nic) })).cast()
}

/// # Safety
/// The object was created by [`make`], and is live.
unsafe fn nic_of<T>(object: *mut T) -> &'static Arc<Nic> {
    // SAFETY: SAFETY.md F5, F11: `make` created the object, which is live, by this function's contract. The reference
    // is used within one call, while the object is live.
    unsafe { &(*object.cast::<Object<T>>()).nic }
}

unsafe extern "C" fn destroy<T>(object: *mut T) -> c_int {
    // SAFETY: SAFETY.md F2, F11: the object was created by `make`, and is destroyed once.
    let object = unsafe { Box::from_raw(object.cast::<Object<T>>()) };
    object.nic.objects.fetch_sub(1, Ordering::Relaxed);
    0
}

unsafe extern "C" fn get_device_list(count: *mut c_int) -> *mut *mut ibv_device {
    // SAFETY: SAFETY.md F1: `count` is valid for writes.
    unsafe { count.write(1) };
    Box::into_raw(Box::new((&raw const DEVICE.0).cast_mut()))
}

unsafe extern "C" fn free_device_list(list: *mut *mut ibv_device) {
    // SAFETY: SAFETY.md F2: the list was returned by the function above.
    drop(unsafe { Box::from_raw(list) });
}

unsafe extern "C" fn get_device_name(_device: *mut ibv_device) -> *const c_char {
    c"mock0".as_ptr()
}

unsafe extern "C" fn alloc_pd(context: *mut ibv_context) -> *mut ibv_pd {
    // SAFETY: SAFETY.md F2: the context is live and belongs to this table.
    make(unsafe { nic_of(context) }, ibv_pd { context, handle: 0 })
}

unsafe extern "C" fn create_comp_channel(context: *mut ibv_context) -> *mut ibv_comp_channel {
    // All channels share one file. No thread waits for it, because the device itself reports events.
    static FILE: OnceLock<(PipeReader, PipeWriter)> = OnceLock::new();
    let fd = FILE.get_or_init(|| pipe().unwrap()).0.as_raw_fd();
    // SAFETY: SAFETY.md F2: the context is live and belongs to this table.
    make(unsafe { nic_of(context) }, ibv_comp_channel { context, fd, refcnt: 0 })
}

unsafe extern "C" fn create_cq(
    context: *mut ibv_context,
    cqe: c_int,
    cq_context: *mut c_void,
    channel: *mut ibv_comp_channel,
    _vector: c_int,
) -> *mut ibv_cq {
    let cq = ibv_cq { context, channel, cq_context, cqe, ..ibv_cq::default() };
    // SAFETY: SAFETY.md F2: the context is live and belongs to this table.
    make(unsafe { nic_of(context) }, cq)
}

unsafe extern "C" fn get_cq_event(
    channel: *mut ibv_comp_channel,
    cq: *mut *mut ibv_cq,
    context: *mut *mut c_void,
) -> c_int {
    // SAFETY: SAFETY.md F2: the channel is live and belongs to this table.
    let Some(asked_by) = unsafe { nic_of(channel) }.take_event() else {
        Errno::EAGAIN.set();
        return -1;
    };
    // SAFETY: SAFETY.md F1: `cq` is valid for writes. The caller does not use the queue.
    unsafe { cq.write(null_mut()) };
    // SAFETY: SAFETY.md F1: as above.
    unsafe { context.write(asked_by.to_context()) };
    0
}

unsafe extern "C" fn ack_cq_events(_cq: *mut ibv_cq, _count: c_uint) {}

unsafe extern "C" fn modify_qp(_qp: *mut ibv_qp, _to: *mut ibv_qp_attr, _mask: c_int) -> c_int {
    0
}

unsafe extern "C" fn query_qp(
    _qp: *mut ibv_qp,
    attributes: *mut ibv_qp_attr,
    _mask: c_int,
    init: *mut ibv_qp_init_attr,
) -> c_int {
    let (mut ready, mut made) = (ibv_qp_attr::default(), ibv_qp_init_attr::default());
    (ready.qp_state, ready.port_num) = (ibv_qp_state::IBV_QPS_RTS, 1);
    (made.cap.max_send_wr, made.cap.max_recv_wr) = (16, 16);
    (made.cap.max_send_sge, made.cap.max_recv_sge) = (1, 1);
    // SAFETY: SAFETY.md F1: `attributes` is valid for writes.
    unsafe { attributes.write(ready) };
    // SAFETY: SAFETY.md F1: as above.
    unsafe { init.write(made) };
    0
}

unsafe extern "C" fn destroy_qp(qp: *mut ibv_qp) -> c_int {
    // SAFETY: SAFETY.md F2: the queue pair is live and belongs to this table.
    let number = unsafe { (*qp).qp_num };
    // SAFETY: SAFETY.md F2: as above.
    match unsafe { nic_of(qp) }.destroy_qp(number) {
        // SAFETY: SAFETY.md F2: as above; the queue pair is not used afterwards.
        true => unsafe { destroy(qp) },
        false => Errno::EBUSY.raw(),
    }
}

unsafe extern "C" fn poll_cq(cq: *mut ibv_cq, most: c_int, out: *mut ibv_wc) -> c_int {
    // SAFETY: SAFETY.md F2: the queue is live and belongs to this table.
    let Some(found) = unsafe { nic_of(cq) }.poll(usize::try_from(most).unwrap()) else { return -1 };
    for (n, completion) in found.iter().enumerate() {
        // SAFETY: SAFETY.md F12: `out` has room for all the completions found.
        let entry = unsafe { out.add(n) };
        // SAFETY: SAFETY.md F12: as above.
        unsafe { entry.write(*completion) };
    }
    c_int::try_from(found.len()).unwrap()
}

unsafe extern "C" fn req_notify_cq(cq: *mut ibv_cq, solicited: c_int) -> c_int {
    // SAFETY: SAFETY.md F2: the queue is live.
    let id = ObjectId::from_context(unsafe { (*cq).cq_context });
    // SAFETY: SAFETY.md F2: the queue is live and belongs to this table.
    if unsafe { nic_of(cq) }.ask(id, solicited != 0) { 0 } else { Errno::EIO.raw() }
}

unsafe extern "C" fn post_send(
    qp: *mut ibv_qp,
    request: *mut ibv_send_wr,
    bad: *mut *mut ibv_send_wr,
) -> c_int {
    // SAFETY: SAFETY.md F12: `request` is one live request.
    let asked = unsafe { &*request };
    let opcode = match asked.opcode {
        ibv_wr_opcode::IBV_WR_SEND | ibv_wr_opcode::IBV_WR_SEND_WITH_IMM => {
            ibv_wc_opcode::IBV_WC_SEND
        }
        ibv_wr_opcode::IBV_WR_RDMA_READ => ibv_wc_opcode::IBV_WC_RDMA_READ,
        ibv_wr_opcode::IBV_WR_ATOMIC_CMP_AND_SWP => ibv_wc_opcode::IBV_WC_COMP_SWAP,
        ibv_wr_opcode::IBV_WR_ATOMIC_FETCH_AND_ADD => ibv_wc_opcode::IBV_WC_FETCH_ADD,
        _ => ibv_wc_opcode::IBV_WC_RDMA_WRITE,
    };
    // SAFETY: SAFETY.md F12: `sg_list` has `num_sge` elements.
    let memory = unsafe { memory(asked.sg_list, asked.num_sge) };
    // SAFETY: SAFETY.md F2: the queue pair is live and belongs to this table.
    let returned = unsafe { post(qp, asked.wr_id, opcode, memory) };
    if returned == Err(PostFault::Clear) {
        // SAFETY: SAFETY.md F1: `bad` is valid for writes.
        unsafe { bad.write(request) };
    }
    returned.map_or(Errno::ENOMEM.raw(), |()| 0)
}

unsafe extern "C" fn post_recv(
    qp: *mut ibv_qp,
    request: *mut ibv_recv_wr,
    bad: *mut *mut ibv_recv_wr,
) -> c_int {
    // SAFETY: SAFETY.md F12: `request` is one live request.
    let asked = unsafe { &*request };
    // SAFETY: SAFETY.md F12: `sg_list` has `num_sge` elements.
    let memory = unsafe { memory(asked.sg_list, asked.num_sge) };
    // SAFETY: SAFETY.md F2: the queue pair is live and belongs to this table.
    let returned = unsafe { post(qp, asked.wr_id, ibv_wc_opcode::IBV_WC_RECV, memory) };
    if returned == Err(PostFault::Clear) {
        // SAFETY: SAFETY.md F1: `bad` is valid for writes.
        unsafe { bad.write(request) };
    }
    returned.map_or(Errno::ENOMEM.raw(), |()| 0)
}

/// # Safety
/// `qp` is a live queue pair of this table.
unsafe fn post(
    qp: *mut ibv_qp,
    wr_id: u64,
    opcode: ibv_wc_opcode,
    memory: Option<(u64, u32)>,
) -> Result<(), PostFault> {
    // SAFETY: SAFETY.md F2: `qp` is live by this function's contract.
    let qpn = unsafe { (*qp).qp_num };
    // SAFETY: SAFETY.md F2: as above.
    unsafe { nic_of(qp) }.post(PostedRequest { qpn, wr_id, opcode, memory })
}

/// # Safety
/// `list` has `count` elements.
unsafe fn memory(list: *const ibv_sge, count: c_int) -> Option<(u64, u32)> {
    // SAFETY: SAFETY.md F12: `list` has `count` elements by this function's contract; no request has more than one.
    let element = (count > 0).then(|| unsafe { list.read() })?;
    Some((element.addr, element.length))
}

/// The registered regions, each with the pointer passed at registration.
#[derive(Debug, Default)]
pub(crate) struct Regions(Mutex<Vec<Region>>);

#[derive(Debug)]
struct Region {
    key: u32,
    base: *mut u8,
    length: usize,
}

// SAFETY: SAFETY.md F8, F16: the pointer refers to memory that a device may use from any thread.
unsafe impl Send for Region {}

unsafe extern "C" fn reg_mr(
    pd: *mut ibv_pd,
    address: *mut c_void,
    length: usize,
    _access: c_int,
) -> *mut ibv_mr {
    static NEWEST: AtomicU64 = AtomicU64::new(1);
    let key = u32::try_from(NEWEST.fetch_add(1, Ordering::Relaxed)).unwrap();
    // SAFETY: SAFETY.md F2: the domain is live and belongs to this table.
    let nic = unsafe { nic_of(pd) };
    nic.regions.with(|all| all.push(Region { key, base: address.cast(), length }));
    let (mut mr, addr) = (ibv_mr::default(), address);
    (mr.pd, mr.addr, mr.length, mr.lkey, mr.rkey) = (pd, addr, length, key, key);
    make(nic, mr)
}

unsafe extern "C" fn dereg_mr(mr: *mut ibv_mr) -> c_int {
    // SAFETY: SAFETY.md F2: the region is live and belongs to this table.
    let key = unsafe { (*mr).lkey };
    // SAFETY: SAFETY.md F2: as above.
    unsafe { nic_of(mr) }.regions.with(|all| all.retain(|region| region.key != key));
    // SAFETY: SAFETY.md F2: as above; the region is not used afterwards.
    unsafe { destroy(mr) }
}

impl Regions {
    fn with<R>(&self, act: impl FnOnce(&mut Vec<Region>) -> R) -> R {
        act(&mut self.0.lock().unwrap_or_else(PoisonError::into_inner))
    }

    /// Executes a request: reads the request's memory, or writes the incoming bytes to it. An atomic operation writes
    /// only their number. Returns the bytes read or written.
    pub(super) fn execute(&self, request: &PostedRequest, message: &[u8]) -> Vec<u8> {
        let Some((address, length)) = request.memory else { return Vec::new() };
        let (address, length) = (usize::try_from(address).unwrap(), length as usize);
        self.with(|all| {
            let within = |region: &&Region| {
                let start = region.base.addr();
                start <= address && address + length <= start + region.length
            };
            let region = all.iter().find(within).expect("the memory of a request is registered");
            // SAFETY: SAFETY.md F8: the address is within the region, which is valid until it is deregistered.
            let at = unsafe { region.base.add(address - region.base.addr()) };
            if request.is_source() {
                // SAFETY: SAFETY.md F8, F28: the bytes are registered, and no one writes them while the request is
                // outstanding.
                return unsafe { slice::from_raw_parts(at, length) }.to_vec();
            }
            if request.is_atomic() {
                // SAFETY: SAFETY.md F16, F28: this is a word of a shared region, which everyone accesses as an atomic.
                let word = unsafe { AtomicU64::from_ptr(at.cast()) };
                word.store(message.len() as u64, Ordering::Release);
                return message.to_vec();
            }
            let count = message.len().min(length);
            // SAFETY: SAFETY.md F8, F28: at least `count` bytes are registered, and no one else uses them while the
            // request is outstanding.
            unsafe { ptr::copy_nonoverlapping(message.as_ptr(), at, count) };
            message[..count].to_vec()
        })
    }
}
