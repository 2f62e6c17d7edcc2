//! Posts lists of work requests.

use std::ffi::c_int;
use std::sync::Arc;

use rdma_sys::{ibv_qp, ibv_recv_wr, ibv_send_wr};

use super::opcode::opcode;
use super::request::{datagram, elements, payload, send_request, without_rest};
use crate::abi::block::queue_pair_of;
use crate::abi::errno::number;
use crate::engine::Refusal;
use crate::engine::operation::Opcode;
use crate::engine::queue_pair::QueuePair;
use crate::engine::queue_pair::service::Service;
use crate::engine::requester::post::{post_datagrams, post_each};
use crate::engine::requester::request::Payload;
use crate::engine::requester::single::{post_mapped, post_single};
use crate::engine::turn::Turn;
use crate::memory::sge::Sge;
use crate::sync::Ordering;

/// Iterates over a program's list of requests, and remembers the current one.
struct List {
    next: *mut ibv_send_wr,
    current: *mut ibv_send_wr,
}

impl List {
    /// # Safety
    ///
    /// The list is valid and is not written while the result is used.
    #[inline(always)]
    unsafe fn next<'a>(&mut self) -> Option<&'a ibv_send_wr> {
        if self.next.is_null() {
            return None;
        }
        self.current = self.next;
        // SAFETY: by this function's contract, this is a request in the list (SAFETY.md F12).
        let request = unsafe { &*self.current };
        self.next = request.next;
        Some(request)
    }
}

/// Returns the data of a request with one element, if it is the last request in its list.
///
/// # Safety
///
/// The request and everything it points to are valid while the result is used.
#[inline(always)]
unsafe fn only_payload(wr: &ibv_send_wr) -> Option<Payload<'_>> {
    if !wr.next.is_null() || wr.num_sge != 1 {
        return None;
    }
    // SAFETY: by this function's contract.
    unsafe { payload(wr, 1) }.ok()
}

/// Posts a WRITE or SEND with one element, if it is the last request in its list and can be executed completely now.
/// Otherwise, posts nothing and returns `None`.
///
/// # Safety
///
/// The request and everything it points to are valid during the call.
#[inline(always)]
unsafe fn post_plain(queue_pair: &Arc<QueuePair>, wr: &ibv_send_wr) -> Option<()> {
    // SAFETY: by this function's contract.
    let payload = unsafe { only_payload(wr) }?;
    // One call per opcode, so that the compiler knows the opcode in each call.
    match opcode(wr.opcode)? {
        Opcode::Write => post_single(queue_pair, &without_rest(wr, Opcode::Write), payload),
        Opcode::Send => post_single(queue_pair, &without_rest(wr, Opcode::Send), payload),
        _ => None,
    }
}

/// Like [`post_plain`], for a WRITE or READ of a queue pair that uses packets.
///
/// # Safety
///
/// The request and everything it points to are valid during the call.
#[inline(never)]
unsafe fn post_far(queue_pair: &Arc<QueuePair>, wr: &ibv_send_wr) -> Option<()> {
    // SAFETY: by this function's contract.
    let payload = unsafe { only_payload(wr) }?;
    match opcode(wr.opcode)? {
        Opcode::Write => post_mapped(queue_pair, &without_rest(wr, Opcode::Write), payload),
        Opcode::Read => post_mapped(queue_pair, &without_rest(wr, Opcode::Read), payload),
        _ => None,
    }
}

pub(crate) unsafe extern "C" fn post_send(
    qp: *mut ibv_qp,
    wr: *mut ibv_send_wr,
    bad_wr: *mut *mut ibv_send_wr,
) -> c_int {
    // SAFETY: the caller passes a live queue pair (SAFETY.md F1).
    let queue_pair = unsafe { queue_pair_of(qp) };
    let mut list = List { next: wr, current: wr };
    // SAFETY: the caller passes a valid list (SAFETY.md F12).
    if let Some(first) = unsafe { list.next() } {
        let posted = match queue_pair.uses_packets.load(Ordering::Relaxed) {
            // SAFETY: as above.
            false => unsafe { post_plain(queue_pair, first) },
            // SAFETY: as above.
            true => unsafe { post_far(queue_pair, first) },
        };
        if posted.is_some() {
            return 0;
        }
    }
    // SAFETY: the caller passes a valid list, and a valid pointer for a refused request (SAFETY.md F1, F12).
    unsafe { post_any(queue_pair, wr, bad_wr) }
}

/// Posts send requests until one is refused.
///
/// # Safety
///
/// The list and everything it points to are valid during the call, and `bad_wr` is writable.
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
            // SAFETY: the caller passes a valid list (SAFETY.md F12).
            let request = unsafe { list.next()? };
            // SAFETY: as above, and the queue pair is a datagram queue pair.
            Some(unsafe { datagram(request, most) })
        })
    } else {
        post_each(queue_pair, || {
            // SAFETY: the caller passes a valid list (SAFETY.md F12).
            let request = unsafe { list.next()? };
            // SAFETY: as above.
            Some(unsafe { send_request(request, most) })
        })
    };
    if result.is_err() {
        // SAFETY: the caller passes a valid pointer for the refused request (SAFETY.md F1).
        unsafe { bad_wr.write(list.current) };
    }
    number(result)
}

pub(crate) unsafe extern "C" fn post_recv(
    qp: *mut ibv_qp,
    wr: *mut ibv_recv_wr,
    bad_wr: *mut *mut ibv_recv_wr,
) -> c_int {
    // SAFETY: the caller passes a live queue pair (SAFETY.md F1).
    let queue_pair = unsafe { queue_pair_of(qp) };
    // SAFETY: the caller passes a valid list, and a valid pointer for a refused request (SAFETY.md F1, F12).
    unsafe {
        post_list(wr, bad_wr, queue_pair.capacity.receive_sge, |wr_id, sges, turn| {
            queue_pair.post_receive(wr_id, sges, turn)
        })
    }
}

/// Posts receive requests, each with at most `most` elements, until one is refused. Together they count as one call,
/// which executes one turn of the work that was waiting for receives.
///
/// # Safety
///
/// The list and its elements are valid during the call, and `bad_wr` is writable.
#[inline(always)]
pub(crate) unsafe fn post_list(
    wr: *mut ibv_recv_wr,
    bad_wr: *mut *mut ibv_recv_wr,
    most: u32,
    post: impl Fn(u64, &[Sge], &mut Turn) -> Result<(), Refusal>,
) -> c_int {
    let mut current = wr;
    let mut turn = Turn::new();
    while !current.is_null() {
        // SAFETY: `current` is a request in the caller's list (SAFETY.md F12).
        let request = unsafe { &*current };
        // SAFETY: as above.
        let sges = unsafe { elements(request.sg_list, request.num_sge, most) };
        let result = sges.and_then(|sges| post(request.wr_id, sges, &mut turn));
        if result.is_err() {
            // SAFETY: the caller passes a valid pointer for the refused request (SAFETY.md F1).
            unsafe { bad_wr.write(current) };
            return number(result);
        }
        current = request.next;
    }
    0
}
