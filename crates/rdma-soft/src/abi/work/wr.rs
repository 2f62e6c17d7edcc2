//! Posts requests with function calls: they are built between `wr_start` and `wr_complete`, and either all or none are
//! posted.
//!
//! One thread at a time is in the queue pair's critical region, and other threads that call `wr_start` wait. Requests
//! are stored in the form that `post_send` takes, so that both ways of posting have the same effect.

use std::ffi::{c_int, c_void};
use std::sync::Arc;

use rdma_sys::{
    Errno, ibv_ah, ibv_data_buf, ibv_mw, ibv_mw_bind_info,
    ibv_qp_create_send_ops_flags as Operation, ibv_qp_ex, ibv_send_wr,
    ibv_send_wr__bindgen_ty_2__bindgen_ty_1 as Remote,
    ibv_send_wr__bindgen_ty_2__bindgen_ty_2 as Atomic,
    ibv_send_wr__bindgen_ty_4__bindgen_ty_1 as Bind, ibv_sge, ibv_wr_opcode,
};

use super::batch::{Batch, INLINE};
use super::request::{datagram, send_request};
use crate::abi::block::{queue_pair_of, queue_pair_posting};
use crate::abi::errno::number;
use crate::engine::Refusal;
use crate::engine::queue_pair::QueuePair;
use crate::engine::requester::post::post_all;

/// Applies `work` to the batch of the thread in the critical region. Does nothing outside the region.
///
/// # Safety
///
/// The queue pair is live and belongs to this provider.
unsafe fn batch(qp: *mut ibv_qp_ex, work: impl FnOnce(&mut Batch)) {
    // SAFETY: by this function's contract.
    if let Some(posting) = unsafe { queue_pair_posting(qp) } {
        // SAFETY: `work` is code in this file that calls a method of `Batch` to build a request. None of these methods
        // leads back to this file, where `with` of this region is called (SAFETY.md F17).
        let _ = unsafe { posting.with(work) };
    }
}

unsafe extern "C" fn wr_start(qp: *mut ibv_qp_ex) {
    // SAFETY: the caller passes a live queue pair (SAFETY.md F1).
    let entered = unsafe { queue_pair_posting(qp) }.as_ref().map(|posting| posting.enter());
    if let Some(Err(_)) = entered {
        // SAFETY: as above.
        unsafe { batch(qp, |batch| batch.refuse(Refusal::Invalid)) };
    }
}

unsafe extern "C" fn wr_complete(qp: *mut ibv_qp_ex) -> c_int {
    // SAFETY: the caller passes a live queue pair (SAFETY.md F1).
    let Some(posting) = (unsafe { queue_pair_posting(qp) }) else {
        return Errno::EOPNOTSUPP.raw();
    };
    // SAFETY: as above.
    let queue_pair = unsafe { queue_pair_of(qp.cast()) };
    // SAFETY: the calls in the closure never call `with` of this region again. Only functions in this file and in
    // `poll_ex` call it, and only programs call those. A post executes requests of any queue pair, and settles work
    // that was left. But that is engine code. It does not call the program, and in `abi` it only calls code that reads
    // this batch (SAFETY.md F17).
    let posted = unsafe {
        posting.with(|batch| {
            let posted = post(batch, queue_pair);
            batch.clear();
            posted
        })
    };
    posting.leave();
    number(posted.unwrap_or(Err(Refusal::Invalid)))
}

/// Posts all requests or none of them.
fn post(batch: &mut Batch, queue_pair: &Arc<QueuePair>) -> Result<(), Refusal> {
    let (datagrams, most) = (batch.datagrams, batch.capacity.send_sge);
    let requests = batch.requests()?;
    post_all(
        queue_pair,
        requests.iter().map(|wr| match datagrams {
            // SAFETY: the batch is borrowed until the post returns. `Batch::requests` has set `sg_list` to the
            // request's own elements: `attach` has put `num_sge` of them into `sges`, in request order. Inline elements
            // refer to bytes of `inline`: `attach_inline` wrote them, `requests` exposed them, and nothing writes them
            // until the next batch (SAFETY.md F7, F12). The queue pair is a datagram queue pair, and the caller keeps
            // its address handles live (F1).
            true => unsafe { datagram(wr, most) },
            // SAFETY: as above, and the caller keeps the windows and regions of binds live (SAFETY.md F1).
            false => unsafe { send_request(wr, most) },
        }),
    )
}

unsafe extern "C" fn wr_abort(qp: *mut ibv_qp_ex) {
    // SAFETY: the caller passes a live queue pair (SAFETY.md F1).
    unsafe { batch(qp, Batch::clear) };
    // SAFETY: as above.
    if let Some(posting) = unsafe { queue_pair_posting(qp) } {
        posting.leave();
    }
}

/// Begins a request, using the current values in the program's part of the queue pair. The flag for inline data is
/// cleared here, and set together with the data.
///
/// # Safety
///
/// The queue pair is live and belongs to this provider.
unsafe fn begin(qp: *mut ibv_qp_ex, operation: Operation, wr: ibv_send_wr) {
    // SAFETY: these fields of the program's part belong to the thread in the critical region (SAFETY.md F17).
    let wr_id = unsafe { (*qp).wr_id };
    // SAFETY: as above.
    let send_flags = unsafe { (*qp).wr_flags } & !INLINE;
    let wr = ibv_send_wr { wr_id, send_flags, ..wr };
    // SAFETY: by this function's contract.
    unsafe { batch(qp, |batch| batch.begin(operation, wr)) };
}

/// Defines the functions that begin requests, and `set_functions`, which stores all `wr_*` functions in a queue pair's
/// C part. It also stores those for operations that the queue pair was not created with, since programs call them
/// unchecked.
macro_rules! requests {
    ($($name:ident($($argument:ident: $type:ty),*): $operation:ident, $opcode:ident, $wr:expr;)+) => {
        $(
            unsafe extern "C" fn $name(qp: *mut ibv_qp_ex $(, $argument: $type)*) {
                let (operation, opcode) = (Operation::$operation, ibv_wr_opcode::$opcode);
                let wr = $wr;
                // SAFETY: the caller passes a live queue pair (SAFETY.md F1).
                unsafe { begin(qp, operation, ibv_send_wr { opcode, ..wr }) };
            }
        )+

        pub(crate) fn set_functions(verbs: &mut ibv_qp_ex) {
            $(verbs.$name = Some($name);)+
            verbs.wr_start = Some(wr_start);
            verbs.wr_complete = Some(wr_complete);
            verbs.wr_abort = Some(wr_abort);
            verbs.wr_set_ud_addr = Some(wr_set_ud_addr);
            verbs.wr_set_xrc_srqn = Some(wr_set_xrc_srqn);
            verbs.wr_set_inline_data = Some(wr_set_inline_data);
            verbs.wr_set_inline_data_list = Some(wr_set_inline_data_list);
            verbs.wr_set_sge = Some(wr_set_sge);
            verbs.wr_set_sge_list = Some(wr_set_sge_list);
        }
    };
}

requests! {
    wr_send(): IBV_QP_EX_WITH_SEND, IBV_WR_SEND, ibv_send_wr::default();
    wr_send_imm(imm: u32): IBV_QP_EX_WITH_SEND_WITH_IMM, IBV_WR_SEND_WITH_IMM, immediate(imm);
    wr_send_inv(rkey: u32): IBV_QP_EX_WITH_SEND_WITH_INV, IBV_WR_SEND_WITH_INV, invalidate(rkey);
    wr_local_inv(rkey: u32): IBV_QP_EX_WITH_LOCAL_INV, IBV_WR_LOCAL_INV, invalidate(rkey);
    wr_rdma_write(rkey: u32, remote_addr: u64):
        IBV_QP_EX_WITH_RDMA_WRITE, IBV_WR_RDMA_WRITE, remote(Remote { remote_addr, rkey });
    wr_rdma_write_imm(rkey: u32, remote_addr: u64, imm: u32):
        IBV_QP_EX_WITH_RDMA_WRITE_WITH_IMM, IBV_WR_RDMA_WRITE_WITH_IMM,
        ibv_send_wr { wr: remote(Remote { remote_addr, rkey }).wr, ..immediate(imm) };
    wr_rdma_read(rkey: u32, remote_addr: u64):
        IBV_QP_EX_WITH_RDMA_READ, IBV_WR_RDMA_READ, remote(Remote { remote_addr, rkey });
    wr_atomic_cmp_swp(rkey: u32, remote_addr: u64, compare_add: u64, swap: u64):
        IBV_QP_EX_WITH_ATOMIC_CMP_AND_SWP, IBV_WR_ATOMIC_CMP_AND_SWP,
        atomic(Atomic { remote_addr, compare_add, swap, rkey });
    wr_atomic_fetch_add(rkey: u32, remote_addr: u64, compare_add: u64):
        IBV_QP_EX_WITH_ATOMIC_FETCH_AND_ADD, IBV_WR_ATOMIC_FETCH_AND_ADD,
        atomic(Atomic { remote_addr, compare_add, swap: 0, rkey });
    wr_bind_mw(mw: *mut ibv_mw, rkey: u32, info: *const ibv_mw_bind_info):
        IBV_QP_EX_WITH_BIND_MW, IBV_WR_BIND_MW,
        {
            // SAFETY: the caller passes a readable description of the window (SAFETY.md F1).
            let bind_info = unsafe { info.read() };
            bind(Bind { mw, rkey, bind_info })
        };
    wr_send_tso(_header: *mut c_void, _size: u16, _mss: u16):
        IBV_QP_EX_WITH_TSO, IBV_WR_TSO, ibv_send_wr::default();
    wr_atomic_write(_rkey: u32, _address: u64, _value: *const c_void):
        IBV_QP_EX_WITH_ATOMIC_WRITE, IBV_WR_ATOMIC_WRITE, ibv_send_wr::default();
    wr_flush(_rkey: u32, _address: u64, _length: usize, _kind: u8, _level: u8):
        IBV_QP_EX_WITH_FLUSH, IBV_WR_FLUSH, ibv_send_wr::default();
}

fn immediate(imm_data: u32) -> ibv_send_wr {
    let mut wr = ibv_send_wr::default();
    wr.__bindgen_anon_1.imm_data = imm_data;
    wr
}

fn invalidate(rkey: u32) -> ibv_send_wr {
    let mut wr = ibv_send_wr::default();
    wr.__bindgen_anon_1.invalidate_rkey = rkey;
    wr
}

fn remote(rdma: Remote) -> ibv_send_wr {
    let mut wr = ibv_send_wr::default();
    wr.wr.rdma = rdma;
    wr
}

fn atomic(atomic: Atomic) -> ibv_send_wr {
    let mut wr = ibv_send_wr::default();
    wr.wr.atomic = atomic;
    wr
}

fn bind(bind_mw: Bind) -> ibv_send_wr {
    let mut wr = ibv_send_wr::default();
    wr.__bindgen_anon_2.bind_mw = bind_mw;
    wr
}

unsafe extern "C" fn wr_set_ud_addr(qp: *mut ibv_qp_ex, ah: *mut ibv_ah, qpn: u32, qkey: u32) {
    // SAFETY: the caller passes a live queue pair (SAFETY.md F1).
    unsafe { batch(qp, |batch| batch.address(ah, qpn, qkey)) };
}

unsafe extern "C" fn wr_set_xrc_srqn(qp: *mut ibv_qp_ex, _srqn: u32) {
    // SAFETY: the caller passes a live queue pair (SAFETY.md F1), which is not an XRC queue pair.
    unsafe { batch(qp, |batch| batch.refuse(Refusal::Invalid)) };
}

unsafe extern "C" fn wr_set_sge(qp: *mut ibv_qp_ex, lkey: u32, addr: u64, length: u32) {
    // SAFETY: the caller passes a live queue pair (SAFETY.md F1).
    unsafe { batch(qp, |batch| batch.attach(&[ibv_sge { addr, length, lkey }], 0)) };
}

unsafe extern "C" fn wr_set_sge_list(qp: *mut ibv_qp_ex, count: usize, list: *const ibv_sge) {
    let attach = |batch: &mut Batch| {
        if !batch.takes(count) {
            // A list that is too long is refused before it is read, as for `ibv_post_send`.
            return batch.refuse(Refusal::Invalid);
        }
        // SAFETY: the caller passes a valid list (SAFETY.md F12).
        batch.attach(unsafe { slice(list, count) }, 0);
    };
    // SAFETY: the caller passes a live queue pair (SAFETY.md F1).
    unsafe { batch(qp, attach) };
}

unsafe extern "C" fn wr_set_inline_data(qp: *mut ibv_qp_ex, addr: *mut c_void, length: usize) {
    let buffer = [ibv_data_buf { addr, length }];
    // SAFETY: the caller passes a live queue pair and a readable buffer (SAFETY.md F1, F12).
    unsafe { wr_set_inline_data_list(qp, 1, buffer.as_ptr()) };
}

unsafe extern "C" fn wr_set_inline_data_list(
    qp: *mut ibv_qp_ex,
    count: usize,
    list: *const ibv_data_buf,
) {
    // SAFETY: the caller passes a valid list (SAFETY.md F12).
    let buffers = unsafe { slice(list, count) };
    let attach = |batch: &mut Batch| {
        // SAFETY: the caller passes readable buffers (SAFETY.md F12).
        unsafe { batch.attach_inline(buffers) };
    };
    // SAFETY: the caller passes a live queue pair (SAFETY.md F1).
    unsafe { batch(qp, attach) };
}

/// # Safety
///
/// `list` points to `count` values, which are not written while the result is used. This is not required if `count` is
/// 0.
unsafe fn slice<'a, T>(list: *const T, count: usize) -> &'a [T] {
    if count == 0 {
        return &[];
    }
    // SAFETY: by this function's contract (SAFETY.md F12).
    unsafe { std::slice::from_raw_parts(list, count) }
}
