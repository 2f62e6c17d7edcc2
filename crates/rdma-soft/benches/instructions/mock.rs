//! A minimal engine: it does everything that a correct engine must do for a WRITE and its poll, and nothing else. It
//! does this in the same order as the device, with as many locks of the same kind. The device is compared with it, so
//! that a ratio shows the cost of the device's own code.
//!
//! It performs the checks of the specification at both ends, keeps order, releases places in queues when their
//! completions are polled, and reports failures. It has no other requests, peers, states, waits, events, windows,
//! counters or schedules, and its objects are never destroyed. Each of these would add to its cost.

use std::ffi::c_int;
use std::ptr;
use std::sync::atomic::{AtomicU32, Ordering};

use rdma_sys::*;
use spin::mutex::SpinMutex;

use crate::prepared::{Prepared, poll};

const SEND_FLAGS: u32 = ibv_send_flags::IBV_SEND_FENCE.0
    | ibv_send_flags::IBV_SEND_SIGNALED.0
    | ibv_send_flags::IBV_SEND_SOLICITED.0;
const REMOTE_WRITE: u32 = ibv_access_flags::IBV_ACCESS_REMOTE_WRITE.0;
const ACCESS: u32 = ibv_access_flags::IBV_ACCESS_LOCAL_WRITE.0 | REMOTE_WRITE;
const CAPACITY: u32 = 64;
const MTU_LOG2: u32 = 10;
/// The protection domain of all objects.
const DOMAIN: u32 = 1;
/// The path by which both ends identify their connection.
const PATH: u64 = 7;

#[derive(Clone, Copy, PartialEq)]
enum State {
    Ready,
    Error,
}

struct SendSide {
    state: State,
    posted: u32,
    psn: u32,
    path: u64,
}

struct Responder {
    state: State,
    psn: u32,
    path: u64,
    access: u32,
}

struct Region {
    key: u32,
    domain: u32,
    access: u32,
    start: u64,
    length: u64,
}

/// The first field is the part that C has pointers to.
#[repr(C)]
struct QueuePair {
    qp: ibv_qp,
    domain: u32,
    send: SpinMutex<SendSide>,
    responder: SpinMutex<Responder>,
    /// The number of requests that are known to be complete, because their completion or a later
    /// one was polled.
    polled: AtomicU32,
    peer: *const QueuePair,
    queue: *const Queue,
    regions: *const [Region],
}

/// The first field is the part that C has pointers to.
#[repr(C)]
struct Queue {
    cq: ibv_cq,
    ring: SpinMutex<Ring>,
}

struct Ring {
    entries: Box<[Entry]>,
    head: u32,
    tail: u32,
    overflowed: bool,
}

#[derive(Clone, Copy)]
struct Entry {
    wr_id: u64,
    status: ibv_wc_status,
    qpn: u32,
    /// The queue pair, and the number of its requests that are complete with this entry.
    of: *const QueuePair,
    upto: u32,
}

/// Returns the memory of `length` bytes at `address`, if the key, the domain, the bounds and the rights are correct.
fn find(
    regions: &[Region],
    (key, domain, wanted): (u32, u32, u32),
    address: u64,
    length: u64,
) -> Option<*mut u8> {
    let region = regions.get(key as usize >> 8)?;
    let offset = address.checked_sub(region.start)?;
    let ok = region.key == key
        && region.domain == domain
        && region.access & wanted == wanted
        && length <= region.length
        && offset <= region.length - length;
    ok.then(|| ptr::with_exposed_provenance_mut(address as usize))
}

unsafe extern "C" fn post_send(
    qp: *mut ibv_qp,
    mut wr: *mut ibv_send_wr,
    bad: *mut *mut ibv_send_wr,
) -> c_int {
    let own = unsafe { &*qp.cast::<QueuePair>() };
    let mut send = own.send.lock();
    while !wr.is_null() {
        let request = unsafe { &*wr };
        if let Err(errno) = unsafe { post(own, &mut send, request) } {
            unsafe { *bad = wr };
            return errno.raw();
        }
        wr = request.next;
    }
    0
}

unsafe fn post(own: &QueuePair, send: &mut SendSide, wr: &ibv_send_wr) -> Result<(), Errno> {
    let plain = wr.opcode == ibv_wr_opcode::IBV_WR_RDMA_WRITE && wr.send_flags & !SEND_FLAGS == 0;
    if send.state != State::Ready || !plain || wr.num_sge != 1 {
        return Err(Errno::EINVAL);
    }
    if send.posted.wrapping_sub(own.polled.load(Ordering::Acquire)) >= CAPACITY {
        return Err(Errno::ENOMEM);
    }
    let status = unsafe { execute(own, send, wr) };
    send.posted = send.posted.wrapping_add(1);
    let success = status == ibv_wc_status::IBV_WC_SUCCESS;
    if !success {
        send.state = State::Error;
    }
    if !success || wr.send_flags & ibv_send_flags::IBV_SEND_SIGNALED.0 != 0 {
        let qpn = own.qp.qp_num;
        let entry = Entry { wr_id: wr.wr_id, status, qpn, of: own, upto: send.posted };
        unsafe { &*own.queue }.ring.lock().push(entry);
    }
    Ok(())
}

unsafe fn execute(own: &QueuePair, send: &mut SendSide, wr: &ibv_send_wr) -> ibv_wc_status {
    let sge = unsafe { &*wr.sg_list };
    let length = u64::from(sge.length);
    let local = (sge.lkey, own.domain, 0);
    let Some(source) = find(unsafe { &*own.regions }, local, sge.addr, length) else {
        return ibv_wc_status::IBV_WC_LOC_PROT_ERR;
    };
    let peer = unsafe { &*own.peer };
    let mut responder = peer.responder.lock();
    if responder.state != State::Ready || responder.path != send.path || responder.psn != send.psn {
        return ibv_wc_status::IBV_WC_RETRY_EXC_ERR;
    }
    if responder.access & REMOTE_WRITE == 0 {
        responder.state = State::Error;
        return ibv_wc_status::IBV_WC_REM_INV_REQ_ERR;
    }
    let rdma = unsafe { wr.wr.rdma };
    let remote = (rdma.rkey, peer.domain, REMOTE_WRITE);
    let Some(sink) = find(unsafe { &*peer.regions }, remote, rdma.remote_addr, length) else {
        responder.state = State::Error;
        return ibv_wc_status::IBV_WC_REM_ACCESS_ERR;
    };
    unsafe { ptr::copy(source, sink, length as usize) };
    let packets = length.saturating_sub(1) >> MTU_LOG2;
    send.psn = (send.psn + packets as u32 + 1) & 0x00ff_ffff;
    responder.psn = send.psn;
    ibv_wc_status::IBV_WC_SUCCESS
}

impl Ring {
    fn push(&mut self, entry: Entry) {
        if self.tail.wrapping_sub(self.head) as usize == self.entries.len() {
            self.overflowed = true;
            return;
        }
        let place = self.tail as usize & (self.entries.len() - 1);
        self.entries[place] = entry;
        self.tail = self.tail.wrapping_add(1);
    }

    fn pop(&mut self) -> Option<Entry> {
        if self.head == self.tail {
            return None;
        }
        let entry = self.entries[self.head as usize & (self.entries.len() - 1)];
        self.head = self.head.wrapping_add(1);
        Some(entry)
    }
}

unsafe extern "C" fn poll_cq(cq: *mut ibv_cq, count: c_int, mut list: *mut ibv_wc) -> c_int {
    let mut ring = unsafe { &*cq.cast::<Queue>() }.ring.lock();
    let mut found = 0;
    while found < count {
        let Some(entry) = ring.pop() else { break };
        unsafe { &*entry.of }.polled.store(entry.upto, Ordering::Release);
        let wc = unsafe { &mut *list };
        wc.wr_id = entry.wr_id;
        wc.status = entry.status;
        wc.opcode = ibv_wc_opcode::IBV_WC_RDMA_WRITE;
        wc.vendor_err = 0;
        wc.qp_num = entry.qpn;
        wc.wc_flags = 0;
        (found, list) = (found + 1, unsafe { list.add(1) });
    }
    if found == 0 && ring.overflowed { -Errno::EOVERFLOW.raw() } else { found }
}

/// Two connected queue pairs of this engine, and a write of 8 B from one to the other.
pub(crate) struct Mock {
    write: Prepared,
    wc: ibv_wc,
    own: *mut ibv_qp,
    cq: *mut ibv_cq,
}

impl Mock {
    /// Creates objects that live until the process ends.
    pub(crate) fn new() -> Self {
        let mut context = ibv_context::default();
        context.ops.post_send = Some(post_send);
        context.ops.poll_cq = Some(poll_cq);
        let context = ptr::from_mut(Box::leak(Box::new(context)));
        let empty = Entry {
            wr_id: 0,
            status: ibv_wc_status::IBV_WC_SUCCESS,
            qpn: 0,
            of: ptr::null(),
            upto: 0,
        };
        let entries = vec![empty; 256].into_boxed_slice();
        let ring = SpinMutex::new(Ring { entries, head: 0, tail: 0, overflowed: false });
        let cq = ibv_cq { context, ..Default::default() };
        let queue = ptr::from_mut(Box::leak(Box::new(Queue { cq, ring })));
        // The source and the sink are two of these words, among other regions.
        let memory = vec![1_u64; 64].leak();
        let regions: &[Region] = (0..64_u32)
            .zip(memory)
            .map(|(n, word)| Region {
                key: n << 8 | 0x5a,
                domain: DOMAIN,
                access: ACCESS,
                start: ptr::from_mut(word).expose_provenance() as u64,
                length: 8,
            })
            .collect::<Vec<_>>()
            .leak();
        let queue_pair = |qp_num, peer| {
            ptr::from_mut(Box::leak(Box::new(QueuePair {
                qp: ibv_qp { context, qp_num, ..Default::default() },
                domain: DOMAIN,
                send: SpinMutex::new(SendSide {
                    state: State::Ready,
                    posted: 0,
                    psn: 0,
                    path: PATH,
                }),
                responder: SpinMutex::new(Responder {
                    state: State::Ready,
                    psn: 0,
                    path: PATH,
                    access: ACCESS,
                }),
                polled: AtomicU32::new(0),
                peer,
                queue,
                regions,
            })))
        };
        let own = queue_pair(17, queue_pair(18, ptr::null()));
        let element =
            |n: usize| ibv_sge { addr: regions[n].start, length: 8, lkey: regions[n].key };
        Self {
            write: Prepared::write(element(20), element(40)),
            wc: ibv_wc::default(),
            own: own.cast(),
            cq: queue.cast(),
        }
    }

    /// Posts the write, and polls its completion.
    #[inline]
    pub(crate) fn write(&mut self) {
        self.write.post(self.own);
        poll(self.cq, &mut self.wc);
    }
}
