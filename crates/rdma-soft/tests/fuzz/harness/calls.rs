//! The calls that post lists, as C makes them.
#![allow(unsafe_code)]
#![allow(clippy::undocumented_unsafe_blocks)] // As in the rig: the objects are live, and the lists are the caller's.

use std::ptr;

use rdma_sys::*;
use test_support::rig::Qp;
use test_support::rig::srq::Srq;

/// The index of the request from which on a list was refused, and the error number.
pub(crate) type Refused = (usize, i32);

macro_rules! list {
    ($name:ident, $object:ty, $request:ty, $call:ident) => {
        /// Posts the requests as one list. Everything they point to is live, or the device has no reason to look at it.
        pub(crate) fn $name(object: &$object, requests: &mut [$request]) -> Result<(), Refused> {
            let first = requests.as_mut_ptr();
            for n in 1..requests.len() {
                requests[n - 1].next = first.wrapping_add(n);
            }
            let mut bad = ptr::null_mut();
            let errno = unsafe { $call(object.0, first, &raw mut bad) };
            if errno == 0 {
                assert!(bad.is_null(), "nothing was refused");
                return Ok(());
            }
            let refused = (0..requests.len()).find(|&n| ptr::eq(first.wrapping_add(n), bad));
            Err((refused.expect("the refused request is in the list"), errno))
        }
    };
}

list!(post_send, Qp, ibv_send_wr, ibv_post_send);
list!(post_receive, Qp, ibv_recv_wr, ibv_post_recv);
list!(post_shared_receive, Srq, ibv_recv_wr, ibv_post_srq_recv);

/// Begins a request that the device does not support.
pub(crate) fn begin_unknown(qp: &Qp, which: u8) {
    let qp = qp.as_ex();
    match which % 3 {
        0 => {
            let begin = unsafe { (*qp).wr_send_tso }.expect("every function is set");
            unsafe { begin(qp, ptr::null_mut(), 0, 0) };
        }
        1 => {
            let begin = unsafe { (*qp).wr_atomic_write }.expect("every function is set");
            unsafe { begin(qp, 0, 0, ptr::null()) };
        }
        _ => {
            let begin = unsafe { (*qp).wr_flush }.expect("every function is set");
            unsafe { begin(qp, 0, 0, 0, 0, 0) };
        }
    }
}

/// Gives the begun request a list that is too long, and points to no elements.
pub(crate) fn set_endless_list(qp: &Qp, count: usize) {
    unsafe { ibv_wr_set_sge_list(qp.as_ex(), count, ptr::dangling()) }
}

/// Gives the begun request data that is too long, and points to no memory.
pub(crate) fn set_endless_data(qp: &Qp, length: usize) {
    unsafe { ibv_wr_set_inline_data(qp.as_ex(), ptr::dangling_mut::<u8>().cast(), length) }
}

/// Gives the begun request data at these addresses, which are valid.
pub(crate) fn set_data(qp: &Qp, parts: &[(u64, u32)]) {
    let buffer = |&(address, length): &(u64, u32)| ibv_data_buf {
        addr: ptr::with_exposed_provenance_mut(address as usize),
        length: length as usize,
    };
    let list: Vec<_> = parts.iter().map(buffer).collect();
    unsafe { ibv_wr_set_inline_data_list(qp.as_ex(), list.len(), list.as_ptr()) }
}

/// The key and the address of a peer's memory.
pub(crate) fn remote(wr: &ibv_send_wr) -> (u32, u64) {
    match wr.opcode {
        ibv_wr_opcode::IBV_WR_ATOMIC_CMP_AND_SWP | ibv_wr_opcode::IBV_WR_ATOMIC_FETCH_AND_ADD => {
            let atomic = unsafe { wr.wr.atomic };
            (atomic.rkey, atomic.remote_addr)
        }
        _ => {
            let remote = unsafe { wr.wr.rdma };
            (remote.rkey, remote.remote_addr)
        }
    }
}

/// The destination of a datagram.
pub(crate) fn destination(wr: &ibv_send_wr) -> ibv_send_wr__bindgen_ty_2__bindgen_ty_3 {
    unsafe { wr.wr.ud }
}
