// SPDX-License-Identifier: Linux-OpenIB
// Copyright (c) 2004, 2005 Topspin Communications.  All rights reserved.
// Copyright (c) 2004, 2011-2012 Intel Corporation.  All rights reserved.
// Copyright (c) 2005, 2006, 2007 Cisco Systems, Inc.  All rights reserved.
// Copyright (c) 2005 PathScale, Inc.  All rights reserved.
// Copyright (c) 2020 Intel Corporation.  All rights reserved.
//
// Ported from <infiniband/verbs.h> of rdma-core, under the second of its two licences: the
// conditions and the disclaimer are in LICENSE-OPENIB.

//! The data path of completion queues, and event moderation.

#![allow(unsafe_code)]

use std::ffi::c_int;

use super::context::verbs_get_ctx_op;
use crate::generated::verbs::{ibv_cq, ibv_modify_cq_attr, ibv_wc};

/// Polls up to `num_entries` completions; man `ibv_poll_cq`.
///
/// Returns the number of completions, or a negative value that is not an error number
/// ([`Errno::check_poll`](crate::Errno::check_poll)). If a completion's status is an error, only
/// `wr_id`, `status`, `qp_num` and `vendor_err` are set.
///
/// # Safety
/// `cq` is live; `num_entries` is not negative, and `wc` is valid for writing that many
/// completions.
#[inline]
pub unsafe fn ibv_poll_cq(cq: *mut ibv_cq, num_entries: c_int, wc: *mut ibv_wc) -> c_int {
    // SAFETY: the CQ is live by this function's contract (SAFETY.md F1).
    let context = unsafe { (*cq).context };
    // SAFETY: a live CQ's context is live (SAFETY.md F1).
    let op = unsafe { (*context).ops.poll_cq };
    // SAFETY: every provider sets the pointer when it opens the device (SAFETY.md F3).
    let op = unsafe { op.unwrap_unchecked() };
    // SAFETY: the function and the CQ belong to one provider (SAFETY.md F3), and `num_entries`
    // entries may be written (F12).
    unsafe { op(cq, num_entries, wc) }
}

/// Requests one event on the CQ's channel for the next completion; man `ibv_req_notify_cq`. If
/// `solicited_only` is not 0, only a solicited or failed completion causes the event.
///
/// Returns 0 or an error number ([`Errno::check`](crate::Errno::check)). Completions that arrived
/// before the call cause no event, so poll again afterwards.
///
/// # Safety
/// `cq` is live.
#[inline]
pub unsafe fn ibv_req_notify_cq(cq: *mut ibv_cq, solicited_only: c_int) -> c_int {
    // SAFETY: the CQ is live by this function's contract (SAFETY.md F1).
    let context = unsafe { (*cq).context };
    // SAFETY: a live CQ's context is live (SAFETY.md F1).
    let op = unsafe { (*context).ops.req_notify_cq };
    // SAFETY: every provider sets the pointer when it opens the device (SAFETY.md F3).
    let op = unsafe { op.unwrap_unchecked() };
    // SAFETY: the function and the CQ belong to one provider (SAFETY.md F3).
    unsafe { op(cq, solicited_only) }
}

/// Changes the event moderation of the CQ; man `ibv_modify_cq`.
///
/// Returns 0 or an error number ([`Errno::check`](crate::Errno::check)); `EOPNOTSUPP` if the
/// provider lacks this function.
///
/// # Safety
/// `cq` is live; `attr` is valid.
#[inline]
pub unsafe fn ibv_modify_cq(cq: *mut ibv_cq, attr: *mut ibv_modify_cq_attr) -> c_int {
    // SAFETY: the CQ is live by this function's contract (SAFETY.md F1).
    let context = unsafe { (*cq).context };
    // SAFETY: a live CQ's context is live (SAFETY.md F1), and the macro matches the field's offset
    // and type (F5).
    let modify = unsafe { verbs_get_ctx_op!(context, modify_cq) };
    let Some(modify) = modify else { return libc::EOPNOTSUPP };
    // SAFETY: the function and the CQ belong to one provider (SAFETY.md F3), and the attributes are
    // valid (F1).
    unsafe { modify(cq, attr) }
}
