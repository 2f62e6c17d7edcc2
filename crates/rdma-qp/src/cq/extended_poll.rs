//! Polling of queues with timestamps, which are extended queues.
#![allow(unsafe_code)]

use std::ffi::c_int;
use std::ptr::NonNull;

use rdma_mem::Errno;
use rdma_sys::{
    ibv_context_ops, ibv_cq, ibv_cq_ex, ibv_end_poll, ibv_poll_cq_attr, ibv_start_poll, ibv_wc,
    ibv_wc__bindgen_ty_1, ibv_wc_flags, ibv_wc_read_byte_len, ibv_wc_read_completion_ts,
    ibv_wc_read_dlid_path_bits, ibv_wc_read_imm_data, ibv_wc_read_opcode, ibv_wc_read_qp_num,
    ibv_wc_read_sl, ibv_wc_read_slid, ibv_wc_read_src_qp, ibv_wc_read_vendor_err,
    ibv_wc_read_wc_flags, ibv_wc_status,
};

use crate::cq::timestamp;
use crate::post::stand_in::{Called, real};

/// The completion fields of a queue with timestamps: all fields of a classic completion, and the timestamp.
pub(crate) const FIELDS: u64 = {
    use rdma_sys::ibv_create_cq_wc_flags as Fields;
    (Fields::IBV_WC_EX_WITH_BYTE_LEN.0
        | Fields::IBV_WC_EX_WITH_IMM.0
        | Fields::IBV_WC_EX_WITH_QP_NUM.0
        | Fields::IBV_WC_EX_WITH_SRC_QP.0
        | Fields::IBV_WC_EX_WITH_SLID.0
        | Fields::IBV_WC_EX_WITH_SL.0
        | Fields::IBV_WC_EX_WITH_DLID_PATH_BITS.0
        | Fields::IBV_WC_EX_WITH_COMPLETION_TIMESTAMP.0) as u64
};

/// Returns the stand-in through which a queue with timestamps is polled.
pub(crate) fn polled(queue: NonNull<ibv_cq>) -> Called<ibv_cq> {
    Called::through(queue, 0, ibv_context_ops { poll_cq: Some(poll), ..Default::default() })
}

/// Polls completions, with the signature of the provider's `poll_cq`.
unsafe extern "C" fn poll(cq: *mut ibv_cq, entries: c_int, wc: *mut ibv_wc) -> c_int {
    // SAFETY: SAFETY.md F20: `cq` is a stand-in for a queue.
    let (queue, _) = unsafe { real(cq) };
    for count in 0..entries {
        // SAFETY: SAFETY.md F5, F20: the queue is live and was created with `FIELDS`. An extended queue begins with a
        // classic one.
        match unsafe { take(queue.cast()) } {
            Ok(Some(completion)) => {
                let place = wc.wrapping_add(usize::try_from(count).unwrap_or(0));
                // SAFETY: SAFETY.md F12: the caller's array has `entries` entries.
                unsafe { place.write(completion) };
            }
            // Completions that were taken before an error are not lost: this poll returns them, and the next one fails
            // again.
            Err(_) if count == 0 => return -1,
            Ok(None) | Err(_) => return count,
        }
    }
    entries.max(0)
}

/// Takes the next completion, including its timestamp; `None` if the queue is empty.
///
/// Starts and ends a poll for each completion. `ibv_next_poll` would be faster, but SoftRoCE's provider in rdma-core
/// before version 55 reads past the end of the queue and returns an invalid completion.
///
/// # Safety
/// The queue is live, and was created with [`FIELDS`].
pub(crate) unsafe fn take(cq: *mut ibv_cq_ex) -> Result<Option<ibv_wc>, Errno> {
    let mut attributes = ibv_poll_cq_attr { comp_mask: 0 };
    // SAFETY: SAFETY.md F1: the queue is live, and this thread ends every poll that it starts below.
    match Errno::check(unsafe { ibv_start_poll(cq, &raw mut attributes) }) {
        Ok(()) => {}
        Err(Errno::ENOENT) => return Ok(None),
        Err(errno) => return Err(errno),
    }
    // SAFETY: by this function's contract, and the poll has a current completion.
    let taken = unsafe { read(cq) };
    // SAFETY: SAFETY.md F1: the poll was started above.
    unsafe { ibv_end_poll(cq) };
    Ok(Some(taken))
}

/// Reads the current completion of the poll. Does not read undefined fields.
///
/// # Safety
/// The contract of [`take`] applies, and this thread's poll has a current completion.
unsafe fn read(cq: *mut ibv_cq_ex) -> ibv_wc {
    macro_rules! read {
        ($field:ident) => {
            // SAFETY: SAFETY.md F1, F3: by this function's contract.
            unsafe { $field(cq) }
        };
    }
    // SAFETY: SAFETY.md F1: the queue is live, and its fields belong to this thread during the poll.
    let wr_id = unsafe { (*cq).wr_id };
    // SAFETY: SAFETY.md F1: same argument as above.
    let status = unsafe { (*cq).status };
    let mut wc = ibv_wc { wr_id, status, ..ibv_wc::default() };
    wc.qp_num = read!(ibv_wc_read_qp_num);
    if status == ibv_wc_status::IBV_WC_SUCCESS {
        wc.opcode = read!(ibv_wc_read_opcode);
        wc.wc_flags = read!(ibv_wc_read_wc_flags);
        wc.byte_len = read!(ibv_wc_read_byte_len);
        if wc.wc_flags & (ibv_wc_flags::IBV_WC_WITH_IMM | ibv_wc_flags::IBV_WC_WITH_INV).0 != 0 {
            // Immediate data and the key share one field.
            wc.__bindgen_anon_1 = ibv_wc__bindgen_ty_1 { imm_data: read!(ibv_wc_read_imm_data) };
        }
        wc.src_qp = read!(ibv_wc_read_src_qp);
        // A LID has 16 bits.
        wc.slid = (read!(ibv_wc_read_slid) & 0xffff) as u16;
        wc.sl = read!(ibv_wc_read_sl);
        wc.dlid_path_bits = read!(ibv_wc_read_dlid_path_bits);
    } else {
        wc.vendor_err = read!(ibv_wc_read_vendor_err);
    }
    timestamp::stamp(&mut wc, read!(ibv_wc_read_completion_ts));
    wc
}
