// SPDX-License-Identifier: Linux-OpenIB
// Copyright (c) 2004, 2005 Topspin Communications.  All rights reserved.
// Copyright (c) 2004, 2011-2012 Intel Corporation.  All rights reserved.
// Copyright (c) 2005, 2006, 2007 Cisco Systems, Inc.  All rights reserved.
// Copyright (c) 2005 PathScale, Inc.  All rights reserved.
// Copyright (c) 2020 Intel Corporation.  All rights reserved.
//
// Ported from <infiniband/verbs.h> of rdma-core, under the second of its two licences: the
// conditions and the disclaimer are in LICENSE-OPENIB.

//! Extended completion queues.

#![allow(unsafe_code)]

use std::{ffi::c_int, ptr::null_mut};

use super::context::verbs_get_ctx_op;
use crate::errno::Errno;
use crate::generated::verbs::{
    ibv_context, ibv_cq, ibv_cq_ex, ibv_cq_init_attr_ex, ibv_poll_cq_attr, ibv_wc_opcode,
    ibv_wc_tm_info,
};

/// Creates a CQ whose completions have the fields that `cq_attr` selects; man `ibv_create_cq_ex`.
///
/// Returns NULL on failure ([`Errno::check_null`]); `EOPNOTSUPP` if the provider has no extended
/// CQs. `ibv_destroy_cq` destroys the CQ.
///
/// # Safety
/// `context` is live; `cq_attr` is valid. Its channel and domain belong to the same context or are
/// NULL.
#[inline]
pub unsafe fn ibv_create_cq_ex(
    context: *mut ibv_context,
    cq_attr: *mut ibv_cq_init_attr_ex,
) -> *mut ibv_cq_ex {
    // SAFETY: the context is live (SAFETY.md F1), and the macro matches the field's offset and type
    // (F5).
    let create = unsafe { verbs_get_ctx_op!(context, create_cq_ex) };
    let Some(create) = create else {
        Errno::EOPNOTSUPP.set();
        return null_mut();
    };
    // SAFETY: the function and the context belong to one provider (SAFETY.md F3), and the contract
    // covers the attributes (F1).
    unsafe { create(context, cq_attr) }
}

/// Returns the CQ at the beginning of an extended one.
#[inline]
#[must_use]
pub fn ibv_cq_ex_to_cq(cq: *mut ibv_cq_ex) -> *mut ibv_cq {
    cq.cast()
}

/// Defines functions that read a field of the current completion.
macro_rules! read {
    ($($(#[$documentation:meta])* $name:ident: $op:ident -> $returned:ty;)+) => {$(
        $(#[$documentation])*
        /// # Safety
        /// `cq` is live and was created with the flag for this field, if the field needs one. The
        /// calling thread is polling the CQ, and is at a completion.
        #[inline]
        #[must_use]
        pub unsafe fn $name(cq: *mut ibv_cq_ex) -> $returned {
            // SAFETY: the CQ is live by this function's contract (SAFETY.md F1).
            let op = unsafe { (*cq).$op };
            // SAFETY: the provider sets every pointer that the attributes of the CQ select
            // (SAFETY.md F3).
            let op = unsafe { op.unwrap_unchecked() };
            // SAFETY: the function and the CQ belong to one provider (SAFETY.md F3).
            unsafe { op(cq) }
        }
    )+};
}

/// Starts polling, and moves to the first completion; man `ibv_create_cq_ex`.
///
/// Returns 0, or an error number ([`Errno::check`]) if polling has not started: `ENOENT` if there
/// is no completion. The completion's `wr_id` and `status` are fields of `cq`. The provider may
/// hold one of the CQ's locks until [`ibv_end_poll`].
///
/// # Safety
/// `cq` is live, extended and not being polled by this thread; `attr` is valid.
#[inline]
pub unsafe fn ibv_start_poll(cq: *mut ibv_cq_ex, attr: *mut ibv_poll_cq_attr) -> c_int {
    // SAFETY: the CQ is live by this function's contract (SAFETY.md F1).
    let op = unsafe { (*cq).start_poll };
    // SAFETY: the provider sets the pointer when it creates an extended CQ (SAFETY.md F3).
    let op = unsafe { op.unwrap_unchecked() };
    // SAFETY: the function and the CQ belong to one provider (SAFETY.md F3), and the attributes are
    // valid (F1).
    unsafe { op(cq, attr) }
}

/// Moves to the next completion; man `ibv_create_cq_ex`.
///
/// Returns 0 or an error number ([`Errno::check`]): `ENOENT` if there is none. In either case,
/// [`ibv_end_poll`] must follow.
///
/// # Safety
/// `cq` is live, and the calling thread has started to poll it.
#[inline]
pub unsafe fn ibv_next_poll(cq: *mut ibv_cq_ex) -> c_int {
    // SAFETY: the CQ is live by this function's contract (SAFETY.md F1).
    let op = unsafe { (*cq).next_poll };
    // SAFETY: the provider sets the pointer when it creates an extended CQ (SAFETY.md F3).
    let op = unsafe { op.unwrap_unchecked() };
    // SAFETY: the function and the CQ belong to one provider (SAFETY.md F3).
    unsafe { op(cq) }
}

/// Ends the poll that [`ibv_start_poll`] started; man `ibv_create_cq_ex`.
///
/// # Safety
/// The contract of [`ibv_next_poll`] applies.
#[inline]
pub unsafe fn ibv_end_poll(cq: *mut ibv_cq_ex) {
    // SAFETY: the CQ is live by this function's contract (SAFETY.md F1).
    let op = unsafe { (*cq).end_poll };
    // SAFETY: the provider sets the pointer when it creates an extended CQ (SAFETY.md F3).
    let op = unsafe { op.unwrap_unchecked() };
    // SAFETY: the function and the CQ belong to one provider (SAFETY.md F3).
    unsafe { op(cq) }
}

read! {
    /// The completed operation; undefined for a failed request.
    ibv_wc_read_opcode: read_opcode -> ibv_wc_opcode;
    /// The provider's own error code.
    ibv_wc_read_vendor_err: read_vendor_err -> u32;
    /// The number of bytes transferred (`IBV_WC_EX_WITH_BYTE_LEN`).
    ibv_wc_read_byte_len: read_byte_len -> u32;
    /// Immediate data in network order (`IBV_WC_EX_WITH_IMM`); valid only if the flags indicate it.
    ibv_wc_read_imm_data: read_imm_data -> u32;
    /// The number of the local QP (`IBV_WC_EX_WITH_QP_NUM`).
    ibv_wc_read_qp_num: read_qp_num -> u32;
    /// The number of the sender's QP (`IBV_WC_EX_WITH_SRC_QP`); only for datagrams.
    ibv_wc_read_src_qp: read_src_qp -> u32;
    /// The flags, as in `ibv_wc`.
    ibv_wc_read_wc_flags: read_wc_flags -> u32;
    /// The sender's LID (`IBV_WC_EX_WITH_SLID`); only for datagrams.
    ibv_wc_read_slid: read_slid -> u32;
    /// The service level (`IBV_WC_EX_WITH_SL`); only for datagrams.
    ibv_wc_read_sl: read_sl -> u8;
    /// The path bits of the local LID (`IBV_WC_EX_WITH_DLID_PATH_BITS`); only for datagrams.
    ibv_wc_read_dlid_path_bits: read_dlid_path_bits -> u8;
    /// The completion time, in ticks of the device's clock (`IBV_WC_EX_WITH_COMPLETION_TIMESTAMP`).
    ibv_wc_read_completion_ts: read_completion_ts -> u64;
    /// The completion time, in nanoseconds since 1970
    /// (`IBV_WC_EX_WITH_COMPLETION_TIMESTAMP_WALLCLOCK`).
    ibv_wc_read_completion_wallclock_ns: read_completion_wallclock_ns -> u64;
    /// The VLAN tag (`IBV_WC_EX_WITH_CVLAN`).
    ibv_wc_read_cvlan: read_cvlan -> u16;
    /// The tag of the flow that matched (`IBV_WC_EX_WITH_FLOW_TAG`).
    ibv_wc_read_flow_tag: read_flow_tag -> u32;
}

/// Returns the key that a send with invalidate has invalidated (`IBV_WC_EX_WITH_IMM`, because it
/// replaces the immediate data). It is valid only if the flags indicate it.
///
/// # Safety
/// The contract of [`ibv_wc_read_imm_data`] applies.
#[inline]
#[must_use]
pub unsafe fn ibv_wc_read_invalidated_rkey(cq: *mut ibv_cq_ex) -> u32 {
    // SAFETY: the caller upholds the contract of this function. As in C, one provider function
    // returns either value, in the byte order that its field in `ibv_wc` has.
    unsafe { ibv_wc_read_imm_data(cq) }
}

/// Stores the result of tag matching (`IBV_WC_EX_WITH_TM_INFO`).
///
/// # Safety
/// The contract of the other functions that read a completion applies. `tm_info` may be written.
#[inline]
pub unsafe fn ibv_wc_read_tm_info(cq: *mut ibv_cq_ex, tm_info: *mut ibv_wc_tm_info) {
    // SAFETY: the CQ is live by this function's contract (SAFETY.md F1).
    let op = unsafe { (*cq).read_tm_info };
    // SAFETY: the provider sets every pointer that the attributes of the CQ select (SAFETY.md F3).
    let op = unsafe { op.unwrap_unchecked() };
    // SAFETY: the function and the CQ belong to one provider (SAFETY.md F3), and the memory may be
    // written (F1).
    unsafe { op(cq, tm_info) }
}
