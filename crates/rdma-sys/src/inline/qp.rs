// SPDX-License-Identifier: Linux-OpenIB
// Copyright (c) 2004, 2005 Topspin Communications.  All rights reserved.
// Copyright (c) 2004, 2011-2012 Intel Corporation.  All rights reserved.
// Copyright (c) 2005, 2006, 2007 Cisco Systems, Inc.  All rights reserved.
// Copyright (c) 2005 PathScale, Inc.  All rights reserved.
// Copyright (c) 2020 Intel Corporation.  All rights reserved.
//
// Ported from <infiniband/verbs.h> of rdma-core, under the second of its two licences: the
// conditions and the disclaimer are in LICENSE-OPENIB.

//! Queue pairs on the data path.

#![allow(unsafe_code)]

use std::ffi::c_int;

use crate::{ibv_qp, ibv_recv_wr, ibv_send_wr};

/// Posts a list of requests to the send queue; man `ibv_post_send`.
///
/// Returns 0 or an error number ([`Errno::check`](crate::Errno::check)); after a failure `*bad_wr`
/// is the request that was refused, and those before it are posted. A provider that fails without
/// setting `*bad_wr` must be taken to have posted all: set it to NULL before the call.
///
/// # Safety
/// `qp` is live; the list and its SGEs are valid during the call, `bad_wr` may be written. The
/// memory that the SGEs name is the device's until the request has completed.
#[inline]
pub unsafe fn ibv_post_send(
    qp: *mut ibv_qp,
    wr: *mut ibv_send_wr,
    bad_wr: *mut *mut ibv_send_wr,
) -> c_int {
    // SAFETY: the QP is live by this function's contract (SAFETY.md F1).
    let context = unsafe { (*qp).context };
    // SAFETY: a live QP's context is live (SAFETY.md F1).
    let op = unsafe { (*context).ops.post_send };
    // SAFETY: every provider sets it when it opens the device (SAFETY.md F3).
    let op = unsafe { op.unwrap_unchecked() };
    // SAFETY: the provider's own function and QP (SAFETY.md F3), requests that are valid during the
    // call (F12).
    unsafe { op(qp, wr, bad_wr) }
}

/// Posts a list of requests to the receive queue; man `ibv_post_recv`.
///
/// Returns as [`ibv_post_send`] does.
///
/// # Safety
/// As for [`ibv_post_send`].
#[inline]
pub unsafe fn ibv_post_recv(
    qp: *mut ibv_qp,
    wr: *mut ibv_recv_wr,
    bad_wr: *mut *mut ibv_recv_wr,
) -> c_int {
    // SAFETY: the QP is live by this function's contract (SAFETY.md F1).
    let context = unsafe { (*qp).context };
    // SAFETY: a live QP's context is live (SAFETY.md F1).
    let op = unsafe { (*context).ops.post_recv };
    // SAFETY: every provider sets it when it opens the device (SAFETY.md F3).
    let op = unsafe { op.unwrap_unchecked() };
    // SAFETY: the provider's own function and QP (SAFETY.md F3), requests that are valid during the
    // call (F12).
    unsafe { op(qp, wr, bad_wr) }
}
