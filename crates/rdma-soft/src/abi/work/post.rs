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
use crate::engine::requester::single::post_single;
use crate::engine::turn::Turn;
use crate::memory::sge::Sge;

/// Iterates over the requests of a program's list, and keeps the current one.
struct List {
    next: *mut ibv_send_wr,
    current: *mut ibv_send_wr,
}

impl List {
    /// # Safety
    ///
    /// The list is valid while the result is used, and is not written.
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

/// Posts the request if it is the last of its list, and can be executed at once.
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
    // One call per opcode, so that the compiler knows the opcode.
    match opcode(wr.opcode)? {
        Opcode::Write => post_single(queue_pair, &without_rest(wr, Opcode::Write), payload),
        Opcode::Send => post_single(queue_pair, &without_rest(wr, Opcode::Send), payload),
        _ => None,
    }
}

pub(crate) unsafe extern "C" fn post_send(
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

pub(crate) unsafe extern "C" fn post_recv(
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

/// Posts receive requests, each of at most `most` elements, until one is refused. All of them are one call, which
/// executes one turn of the work that has waited for them.
///
/// # Safety
///
/// The list and its elements are valid during the call, and the refused request may be written to
/// `bad_wr`.
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
