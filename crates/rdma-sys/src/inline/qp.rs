// SPDX-License-Identifier: Linux-OpenIB
// Copyright (c) 2004, 2005 Topspin Communications.  All rights reserved.
// Copyright (c) 2004, 2011-2012 Intel Corporation.  All rights reserved.
// Copyright (c) 2005, 2006, 2007 Cisco Systems, Inc.  All rights reserved.
// Copyright (c) 2005 PathScale, Inc.  All rights reserved.
// Copyright (c) 2020 Intel Corporation.  All rights reserved.
//
// Ported from <infiniband/verbs.h> of rdma-core, under the second of its two licences: the
// conditions and the disclaimer are in LICENSE-OPENIB.

//! Extended creation of queue pairs, and their data path.

#![allow(unsafe_code)]

use std::{ffi::c_int, ptr::null_mut};

use super::context::verbs_get_ctx_op;
use crate::errno::Errno;
use crate::generated::verbs::{
    ibv_context, ibv_qp, ibv_qp_init_attr_ex, ibv_qp_init_attr_mask, ibv_recv_wr, ibv_send_wr,
};
use crate::table::Verbs;

/// Creates a QP with attributes that `ibv_create_qp` does not have; man `ibv_create_qp_ex`.
///
/// As in C, attributes that contain only a PD are passed to `ibv_create_qp`. Returns NULL on
/// failure ([`Errno::check_null`]); `EOPNOTSUPP` if the provider lacks the extended function.
///
/// # Safety
/// `context` is live and from `verbs`; the attributes are valid, and their objects belong to that
/// context.
#[inline]
pub unsafe fn ibv_create_qp_ex(
    verbs: &Verbs,
    context: *mut ibv_context,
    qp_init_attr_ex: *mut ibv_qp_init_attr_ex,
) -> *mut ibv_qp {
    // SAFETY: the attributes are valid by this function's contract (SAFETY.md F1).
    let comp_mask = unsafe { (*qp_init_attr_ex).comp_mask };
    if comp_mask == ibv_qp_init_attr_mask::IBV_QP_INIT_ATTR_PD.0 {
        // SAFETY: same argument as above.
        let pd = unsafe { (*qp_init_attr_ex).pd };
        // SAFETY: the PD belongs to this table (SAFETY.md F2); as in C, the extended attributes
        // begin with the classic ones (F5).
        return unsafe { (verbs.create_qp)(pd, qp_init_attr_ex.cast()) };
    }
    // SAFETY: the context is live (SAFETY.md F1), and the macro matches the field's offset and type
    // (F5).
    let create = unsafe { verbs_get_ctx_op!(context, create_qp_ex) };
    let Some(create) = create else {
        Errno::EOPNOTSUPP.set();
        return null_mut();
    };
    // SAFETY: the function and the context belong to one provider (SAFETY.md F3), and the contract
    // covers the attributes (F1).
    unsafe { create(context, qp_init_attr_ex) }
}

/// Posts a list of requests to the send queue; man `ibv_post_send`.
///
/// Returns 0 or an error number ([`Errno::check`](crate::Errno::check)). After a failure, `*bad_wr`
/// is the refused request, and the requests before it are posted. Set it to NULL before the call:
/// if a provider fails without setting it, assume that all requests were posted.
///
/// # Safety
/// `qp` is live; the list and its SGEs are valid during the call, and `bad_wr` may be written. The
/// memory that the SGEs name belongs to the device until the request has completed.
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
    // SAFETY: every provider sets the pointer when it opens the device (SAFETY.md F3).
    let op = unsafe { op.unwrap_unchecked() };
    // SAFETY: the function and the QP belong to one provider (SAFETY.md F3), and the requests are
    // valid during the call (F12).
    unsafe { op(qp, wr, bad_wr) }
}

/// Posts a list of requests to the receive queue; man `ibv_post_recv`.
///
/// The results of [`ibv_post_send`] apply.
///
/// # Safety
/// The contract of [`ibv_post_send`] applies.
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
    // SAFETY: every provider sets the pointer when it opens the device (SAFETY.md F3).
    let op = unsafe { op.unwrap_unchecked() };
    // SAFETY: the function and the QP belong to one provider (SAFETY.md F3), and the requests are
    // valid during the call (F12).
    unsafe { op(qp, wr, bad_wr) }
}
