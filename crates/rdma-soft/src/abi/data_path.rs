//! The data path: what a context's `ops` point to.

use std::ffi::c_int;
use std::mem::offset_of;
use std::slice;
use std::sync::Arc;

use rdma_sys::{
    Errno, ibv_cq, ibv_qp, ibv_recv_wr, ibv_send_flags, ibv_send_wr, ibv_sge, ibv_wc,
    ibv_wc__bindgen_ty_1, ibv_wc_opcode, ibv_wc_status,
};

use super::ah::destination;
use super::block::{queue_of, queue_pair_of};
use super::opcode::opcode;
use super::{mw, number};
use crate::engine::Refusal;
use crate::engine::completion::work_completion::{Completion, JUNK};
use crate::engine::operation::{Opcode, Operation};
use crate::engine::queue_pair::QueuePair;
use crate::engine::queue_pair::service::Service;
use crate::engine::requester::post::{post_datagrams, post_each};
use crate::engine::requester::request::{Payload, Request};
use crate::engine::requester::single::post_single;
use crate::engine::turn::Turn;
use crate::memory::sge::Sge;
use crate::memory::window::Kind;

/// The flags that a request may have.
const SEND_FLAGS: u32 = ibv_send_flags::IBV_SEND_FENCE.0
    | ibv_send_flags::IBV_SEND_SIGNALED.0
    | ibv_send_flags::IBV_SEND_SOLICITED.0
    | ibv_send_flags::IBV_SEND_INLINE.0;

// The engine reads a program's elements where they are.
const _: () = {
    assert!(size_of::<Sge>() == size_of::<ibv_sge>() && align_of::<Sge>() == align_of::<ibv_sge>());
    assert!(offset_of!(Sge, addr) == offset_of!(ibv_sge, addr));
    assert!(offset_of!(Sge, length) == offset_of!(ibv_sge, length));
    assert!(offset_of!(Sge, lkey) == offset_of!(ibv_sge, lkey));
};

/// The elements of a request, if there are no more than its queue takes: a longer list is refused as providers of
/// hardware do it, before it is looked at.
///
/// # Safety
///
/// `list` points to `count` elements that are not written while the result is used, unless `count` is 0,
/// negative, or more than `most`.
#[inline]
unsafe fn elements<'a>(
    list: *const ibv_sge,
    count: c_int,
    most: u32,
) -> Result<&'a [Sge], Refusal> {
    match u32::try_from(count) {
        Ok(0) => Ok(&[]),
        Ok(count) if count <= most => {
            // SAFETY: this function's contract (SAFETY.md F12); an `Sge` has the layout of an `ibv_sge`, as is
            // asserted above (F5), and its fields are the same integers.
            Ok(unsafe { slice::from_raw_parts(list.cast::<Sge>(), count as usize) })
        }
        _ => Err(Refusal::Invalid),
    }
}

/// Reads a program's request, which may have so many elements.
///
/// # Safety
///
/// The request and what it points to are valid while the result is used.
#[inline]
pub(super) unsafe fn send_request<'a>(
    wr: &ibv_send_wr,
    most: u32,
) -> Result<(Request, Payload<'a>), Refusal> {
    let opcode = opcode(wr.opcode).ok_or(Refusal::Invalid)?;
    // SAFETY: this function's contract.
    let payload = unsafe { payload(wr, most)? };
    let mut request = without_rest(wr, opcode);
    if opcode.is_special() {
        // SAFETY: this function's contract.
        let special = unsafe { special(wr, opcode)? };
        request.operation = Operation { solicited: request.operation.solicited, ..special };
    }
    Ok((request, payload))
}

/// The data of a program's request, whose flags are such as there may be.
///
/// # Safety
///
/// As for [`send_request`].
#[inline(always)]
unsafe fn payload<'a>(wr: &ibv_send_wr, most: u32) -> Result<Payload<'a>, Refusal> {
    if wr.send_flags & !SEND_FLAGS != 0 {
        return Err(Refusal::Invalid);
    }
    // SAFETY: this function's contract.
    let sges = unsafe { elements(wr.sg_list, wr.num_sge, most)? };
    Ok(if wr.send_flags & ibv_send_flags::IBV_SEND_INLINE.0 != 0 {
        // SAFETY: readable: it is there, and initialised, until the post returns (man ibv_post_send, SAFETY.md F12), and
        // the payload is not used later: what waits in a queue has a copy of its bytes, and a payload of that copy.
        // Exposed: when its element was made, by the pointer that is the element's address (F7).
        unsafe { Payload::inline(sges) }
    } else {
        Payload::keyed(sges)
    })
}

/// What a request that is not special says besides its data.
#[inline(always)]
fn without_rest(wr: &ibv_send_wr, opcode: Opcode) -> Request {
    // SAFETY: initialised in each request, whether its opcode uses it or not (SAFETY.md F12), and any such bytes are a
    // value of this field (F4).
    let imm = unsafe { wr.__bindgen_anon_1.imm_data };
    // SAFETY: as above (SAFETY.md F4, F12); a send does not use it.
    let remote = unsafe { wr.wr.rdma };
    Request {
        wr_id: wr.wr_id,
        signaled: wr.send_flags & ibv_send_flags::IBV_SEND_SIGNALED.0 != 0,
        fence: wr.send_flags & ibv_send_flags::IBV_SEND_FENCE.0 != 0,
        operation: Operation {
            opcode,
            solicited: wr.send_flags & ibv_send_flags::IBV_SEND_SOLICITED.0 != 0,
            imm,
            remote_address: remote.remote_addr,
            rkey: remote.rkey,
            ..Operation::EMPTY
        },
        ..Request::EMPTY
    }
}

/// Of a special request: an atomic, or one about windows, whose elements mean nothing.
///
/// # Safety
///
/// The request, its window and its region are valid during the call.
#[cold]
unsafe fn special(wr: &ibv_send_wr, opcode: Opcode) -> Result<Operation, Refusal> {
    if opcode.is_atomic() {
        // SAFETY: initialised in an atomic (SAFETY.md F12), and any such bytes are a value of this field (F4).
        let atomic = unsafe { wr.wr.atomic };
        let remote_address = atomic.remote_addr;
        let (rkey, operand, swap) = (atomic.rkey, atomic.compare_add, atomic.swap);
        return Ok(Operation { opcode, remote_address, rkey, operand, swap, ..Operation::EMPTY });
    }
    if opcode == Opcode::BindWindow {
        // SAFETY: likewise in a bind (SAFETY.md F4, F12).
        let bind = unsafe { wr.__bindgen_anon_2.bind_mw };
        // SAFETY: this function's contract.
        let bind = unsafe { mw::bind(bind.mw, Kind::Two, bind.rkey, &bind.bind_info)? };
        return Ok(bind.into_operation());
    }
    // SAFETY: as above; the key is kept in host order.
    let imm = unsafe { wr.__bindgen_anon_1.invalidate_rkey };
    Ok(Operation { opcode, imm, ..Operation::EMPTY })
}

/// Reads a program's request for a datagram.
///
/// # Safety
///
/// As for [`send_request`], and the request is for a queue pair of datagrams.
#[inline]
pub(super) unsafe fn datagram<'a>(
    wr: &ibv_send_wr,
    most: u32,
) -> Result<(Request, Payload<'a>), Refusal> {
    // SAFETY: this function's contract.
    let (request, payload) = unsafe { send_request(wr, most)? };
    // SAFETY: initialised in a request for a queue pair of datagrams (SAFETY.md F12), and any such bytes are a value of
    // this field (F4).
    let ud = unsafe { wr.wr.ud };
    // SAFETY: this function's contract: on such a queue pair the union has the address handle (SAFETY.md F1).
    let vector = unsafe { destination(ud.ah) };
    let (destination_qpn, qkey) = (ud.remote_qpn & 0x00ff_ffff, ud.remote_qkey);
    Ok((Request { destination_qpn, qkey, ..request }, payload.to(vector)))
}

/// The requests of a program's list, one at a time, and which was the last.
struct List {
    next: *mut ibv_send_wr,
    current: *mut ibv_send_wr,
}

impl List {
    /// # Safety
    ///
    /// The list is valid while the result is used, and not written.
    #[inline(always)]
    unsafe fn next<'a>(&mut self) -> Option<&'a ibv_send_wr> {
        if self.next.is_null() {
            return None;
        }
        self.current = self.next;
        // SAFETY: a request of the list by this function's contract (SAFETY.md F12).
        let request = unsafe { &*self.current };
        self.next = request.next;
        Some(request)
    }
}

/// Posts the request if it is the last of its list, and such that it can be executed at once.
///
/// # Safety
///
/// The request and what it points to are valid during the call.
#[inline(always)]
unsafe fn post_plain(queue_pair: &Arc<QueuePair>, wr: &ibv_send_wr) -> Option<()> {
    if !wr.next.is_null() || wr.num_sge != 1 {
        return None;
    }
    // SAFETY: this function's contract.
    let payload = unsafe { payload(wr, 1) }.ok()?;
    // One call for each, so that the compiler knows the opcode.
    match opcode(wr.opcode)? {
        Opcode::Write => post_single(queue_pair, &without_rest(wr, Opcode::Write), payload),
        Opcode::Send => post_single(queue_pair, &without_rest(wr, Opcode::Send), payload),
        _ => None,
    }
}

pub(super) unsafe extern "C" fn post_send(
    qp: *mut ibv_qp,
    wr: *mut ibv_send_wr,
    bad_wr: *mut *mut ibv_send_wr,
) -> c_int {
    // SAFETY: the caller's queue pair (SAFETY.md F1).
    let queue_pair = unsafe { queue_pair_of(qp) };
    let mut list = List { next: wr, current: wr };
    // SAFETY: the caller's list (SAFETY.md F12).
    if let Some(first) = unsafe { list.next() } {
        // SAFETY: as above.
        if unsafe { post_plain(queue_pair, first) }.is_some() {
            return 0;
        }
    }
    // SAFETY: the caller's list, and place for the request that is refused (SAFETY.md F1, F12).
    unsafe { post_any(queue_pair, wr, bad_wr) }
}

/// Posts send requests until one is refused.
///
/// # Safety
///
/// The list and what it points to are valid during the call, and the refused request may be written to
/// `bad_wr`.
#[inline(never)]
unsafe fn post_any(
    queue_pair: &Arc<QueuePair>,
    wr: *mut ibv_send_wr,
    bad_wr: *mut *mut ibv_send_wr,
) -> c_int {
    let mut list = List { next: wr, current: wr };
    let most = queue_pair.capacity.send_sge;
    let result = if queue_pair.service == Service::UnreliableDatagram {
        post_datagrams(queue_pair, &mut || {
            // SAFETY: the caller's list (SAFETY.md F12).
            let request = unsafe { list.next()? };
            // SAFETY: as above, and the queue pair is one of datagrams.
            Some(unsafe { datagram(request, most) })
        })
    } else {
        post_each(queue_pair, || {
            // SAFETY: the caller's list (SAFETY.md F12).
            let request = unsafe { list.next()? };
            // SAFETY: as above.
            Some(unsafe { send_request(request, most) })
        })
    };
    if result.is_err() {
        // SAFETY: the caller's place for the request that was refused (SAFETY.md F1).
        unsafe { bad_wr.write(list.current) };
    }
    number(result)
}

pub(super) unsafe extern "C" fn post_recv(
    qp: *mut ibv_qp,
    wr: *mut ibv_recv_wr,
    bad_wr: *mut *mut ibv_recv_wr,
) -> c_int {
    // SAFETY: the caller's queue pair (SAFETY.md F1).
    let queue_pair = unsafe { queue_pair_of(qp) };
    // SAFETY: the caller's list, and place for the request that is refused (SAFETY.md F1, F12).
    unsafe {
        post_list(wr, bad_wr, queue_pair.capacity.receive_sge, |wr_id, sges, turn| {
            queue_pair.post_receive(wr_id, sges, turn)
        })
    }
}

/// Posts receive requests, each of so many elements at most, until one is refused. All of them are one call, which executes one turn of what has
/// waited for them.
///
/// # Safety
///
/// The list and its elements are valid during the call, and the refused request may be written to
/// `bad_wr`.
#[inline(always)]
pub(super) unsafe fn post_list(
    wr: *mut ibv_recv_wr,
    bad_wr: *mut *mut ibv_recv_wr,
    most: u32,
    post: impl Fn(u64, &[Sge], &mut Turn) -> Result<(), Refusal>,
) -> c_int {
    let mut current = wr;
    let mut turn = Turn::new();
    while !current.is_null() {
        // SAFETY: a request of the caller's list (SAFETY.md F12).
        let request = unsafe { &*current };
        // SAFETY: as above.
        let sges = unsafe { elements(request.sg_list, request.num_sge, most) };
        let result = sges.and_then(|sges| post(request.wr_id, sges, &mut turn));
        if result.is_err() {
            // SAFETY: the caller's place for the request that was refused (SAFETY.md F1).
            unsafe { bad_wr.write(current) };
            return number(result);
        }
        current = request.next;
    }
    0
}

pub(super) unsafe extern "C" fn poll_cq(cq: *mut ibv_cq, entries: c_int, wc: *mut ibv_wc) -> c_int {
    // SAFETY: the caller's completion queue (SAFETY.md F1).
    let queue = unsafe { queue_of(cq) };
    let most = u32::try_from(entries).unwrap_or(0);
    queue.step_deferred();
    let polled = queue.poll(most, |n, completion, _| {
        // SAFETY: the caller's array has `entries` places, and `n` is less (SAFETY.md F12).
        let place = unsafe { wc.add(n as usize) };
        // SAFETY: as above.
        unsafe { place.write(work_completion(completion)) };
    });
    match polled {
        Ok(count) => count.cast_signed(),
        Err(_) => -Errno::EOVERFLOW.raw(),
    }
}

pub(super) unsafe extern "C" fn req_notify_cq(cq: *mut ibv_cq, solicited_only: c_int) -> c_int {
    // SAFETY: the caller's completion queue (SAFETY.md F1).
    unsafe { queue_of(cq) }.request_event(solicited_only != 0);
    0
}

/// A completion as the program sees it.
#[inline]
pub(super) fn work_completion(completion: &Completion) -> ibv_wc {
    let success = completion.status.is_success();
    let source = completion.source;
    ibv_wc {
        wr_id: completion.wr_id,
        status: ibv_wc_status(completion.status.raw()),
        opcode: ibv_wc_opcode(if success { completion.opcode.raw() } else { JUNK }),
        vendor_err: completion.vendor_err,
        byte_len: completion.byte_len,
        __bindgen_anon_1: ibv_wc__bindgen_ty_1 { imm_data: completion.imm },
        qp_num: completion.qpn,
        src_qp: source.qpn,
        wc_flags: if success { completion.flags } else { JUNK },
        pkey_index: (JUNK & 0xffff) as u16,
        slid: source.lid,
        sl: source.service_level,
        dlid_path_bits: source.path_bits,
    }
}
