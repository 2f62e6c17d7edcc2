//! Polls an extended completion queue one completion at a time. The program then reads the fields of that completion.
//!
//! From `start_poll` to `end_poll`, one thread is in the queue's critical region, and other threads that start a poll
//! wait. A completion is removed from the queue when the poll reaches it.

use std::ffi::{c_int, c_uint};

use rdma_sys::{
    Errno, ibv_cq_ex, ibv_create_cq_wc_flags as Fields, ibv_poll_cq_attr, ibv_wc, ibv_wc_opcode,
    ibv_wc_tm_info,
};

use super::poll::work_completion;
use crate::abi::block::{queue_of, queue_polling};
use crate::engine::completion::work_completion::JUNK;
use crate::engine::critical_region::Nested;
use crate::fabric::clock::Time;

unsafe extern "C" fn start_poll(cq: *mut ibv_cq_ex, attr: *mut ibv_poll_cq_attr) -> c_int {
    // SAFETY: the caller passes valid attributes (SAFETY.md F1).
    if unsafe { (*attr).comp_mask } != 0 {
        return Errno::EINVAL.raw();
    }
    // SAFETY: the caller passes a live completion queue (SAFETY.md F1).
    let polling = unsafe { queue_polling(cq) };
    if polling.enter() == Err(Nested) {
        return Errno::EDEADLK.raw();
    }
    // SAFETY: as above.
    unsafe { queue_of(cq.cast()) }.step_deferred();
    // SAFETY: as above.
    let polled = unsafe { next_poll(cq) };
    if polled != 0 {
        polling.leave();
    }
    polled
}

unsafe extern "C" fn next_poll(cq: *mut ibv_cq_ex) -> c_int {
    // SAFETY: the caller passes a live completion queue (SAFETY.md F1).
    let queue = unsafe { queue_of(cq.cast()) };
    // SAFETY: as above.
    let polling = unsafe { queue_polling(cq) };
    // SAFETY: the calls in the closure never call `with` of this region again. Only functions in this file call it, and
    // only programs call those. A poll may expire a timer and execute requests of any queue pair. But that is code of
    // the engine, which calls neither `abi` nor the program (SAFETY.md F17).
    let taken = unsafe {
        polling.with(|polled| {
            let taken = queue.poll(1, |_, completion, timestamp| {
                polled.wc = work_completion(completion);
                polled.timestamp = timestamp.time();
            });
            taken.map(|count| (count, polled.wc.wr_id, polled.wc.status))
        })
    };
    match taken {
        Some(Ok((1, wr_id, status))) => {
            // SAFETY: these fields of the program's part belong to the thread in the critical region (F17).
            unsafe { (*cq).wr_id = wr_id };
            // SAFETY: as above.
            unsafe { (*cq).status = status };
            0
        }
        Some(Ok(_)) => Errno::ENOENT.raw(),
        Some(Err(_)) => Errno::EOVERFLOW.raw(),
        None => Errno::EINVAL.raw(),
    }
}

unsafe extern "C" fn end_poll(cq: *mut ibv_cq_ex) {
    // SAFETY: the caller passes a live completion queue (SAFETY.md F1).
    unsafe { queue_polling(cq) }.leave();
}

/// Defines the functions that read a completion, and the function that fills a new queue. Fields that the queue was not
/// created with are junk, and so are all fields outside the critical region.
macro_rules! read {
    ($($name:ident -> $type:ty { $junk:expr, |$polled:ident| $field:expr })+) => {
        $(
            unsafe extern "C" fn $name(cq: *mut ibv_cq_ex) -> $type {
                // SAFETY: the caller passes a live completion queue (SAFETY.md F1).
                let polling = unsafe { queue_polling(cq) };
                // SAFETY: reading a field calls nothing that could lead back to this function (SAFETY.md F17).
                let field = unsafe { polling.with(|$polled| $field) };
                field.flatten().unwrap_or($junk)
            }
        )+

        /// Returns the program's part of a new queue. It contains every function, since programs call them unchecked.
        pub(super) fn functions() -> ibv_cq_ex {
            ibv_cq_ex {
                start_poll: Some(start_poll),
                next_poll: Some(next_poll),
                end_poll: Some(end_poll),
                read_tm_info: Some(read_tm_info),
                $($name: Some($name),)+
                ..ibv_cq_ex::default()
            }
        }
    };
}

read! {
    read_opcode -> ibv_wc_opcode { ibv_wc_opcode(JUNK), |polled| Some(polled.wc.opcode) }
    read_vendor_err -> u32 { JUNK, |polled| Some(polled.wc.vendor_err) }
    read_wc_flags -> c_uint { JUNK, |polled| Some(polled.wc.wc_flags) }
    read_byte_len -> u32 {
        JUNK, |polled| polled.field(Fields::IBV_WC_EX_WITH_BYTE_LEN, polled.wc.byte_len)
    }
    read_imm_data -> u32 {
        JUNK, |polled| polled.field(Fields::IBV_WC_EX_WITH_IMM, immediate(&polled.wc))
    }
    read_qp_num -> u32 {
        JUNK, |polled| polled.field(Fields::IBV_WC_EX_WITH_QP_NUM, polled.wc.qp_num)
    }
    read_src_qp -> u32 {
        JUNK, |polled| polled.field(Fields::IBV_WC_EX_WITH_SRC_QP, polled.wc.src_qp)
    }
    read_slid -> u32 {
        JUNK, |polled| polled.field(Fields::IBV_WC_EX_WITH_SLID, polled.wc.slid.into())
    }
    read_sl -> u8 { JUNK_BYTE, |polled| polled.field(Fields::IBV_WC_EX_WITH_SL, polled.wc.sl) }
    read_dlid_path_bits -> u8 {
        JUNK_BYTE,
        |polled| polled.field(Fields::IBV_WC_EX_WITH_DLID_PATH_BITS, polled.wc.dlid_path_bits)
    }
    read_completion_ts -> u64 {
        JUNK.into(),
        |polled| {
            let flag = Fields::IBV_WC_EX_WITH_COMPLETION_TIMESTAMP;
            polled.field(flag, polled.timestamp).map(Time::nanoseconds)
        }
    }
    read_completion_wallclock_ns -> u64 {
        JUNK.into(),
        |polled| {
            let flag = Fields::IBV_WC_EX_WITH_COMPLETION_TIMESTAMP_WALLCLOCK;
            polled.field(flag, polled.timestamp).map(|time| polled.clock.wallclock(time))
        }
    }
    read_cvlan -> u16 { JUNK_WORD, |_polled| None }
    read_flow_tag -> u32 { JUNK, |_polled| None }
}

unsafe extern "C" fn read_tm_info(_cq: *mut ibv_cq_ex, info: *mut ibv_wc_tm_info) {
    // SAFETY: the caller passes a valid pointer for the result (SAFETY.md F1).
    unsafe { info.write(ibv_wc_tm_info { tag: JUNK.into(), priv_: JUNK }) };
}

/// Returns the immediate data or the invalidated key, which are in the same place.
fn immediate(wc: &ibv_wc) -> u32 {
    // SAFETY: this field covers all bytes of the union, and any bytes are a valid value (SAFETY.md F4).
    unsafe { wc.__bindgen_anon_1.imm_data }
}

const JUNK_WORD: u16 = (JUNK & 0xffff) as u16;
const JUNK_BYTE: u8 = (JUNK & 0xff) as u8;
