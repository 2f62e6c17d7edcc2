//! Polls a completion queue, and requests its events.

use std::ffi::c_int;

use rdma_sys::{Errno, ibv_cq, ibv_wc, ibv_wc__bindgen_ty_1, ibv_wc_opcode, ibv_wc_status};

use crate::abi::block::queue_of;
use crate::engine::completion::work_completion::{Completion, JUNK};

pub(crate) unsafe extern "C" fn poll_cq(cq: *mut ibv_cq, entries: c_int, wc: *mut ibv_wc) -> c_int {
    // SAFETY: the caller passes a live completion queue (SAFETY.md F1).
    let queue = unsafe { queue_of(cq) };
    let most = u32::try_from(entries).unwrap_or(0);
    queue.step_deferred();
    let polled = queue.poll(most, |n, completion, _| {
        // SAFETY: the caller's array has `entries` places, and `n` is less than that (SAFETY.md F12).
        let place = unsafe { wc.add(n as usize) };
        // SAFETY: as above.
        unsafe { place.write(work_completion(completion)) };
    });
    match polled {
        Ok(count) => count.cast_signed(),
        Err(_) => -Errno::EOVERFLOW.raw(),
    }
}

pub(crate) unsafe extern "C" fn req_notify_cq(cq: *mut ibv_cq, solicited_only: c_int) -> c_int {
    // SAFETY: the caller passes a live completion queue (SAFETY.md F1).
    unsafe { queue_of(cq) }.request_event(solicited_only != 0);
    0
}

/// Converts a completion to the form that the program sees.
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
