// SPDX-License-Identifier: Linux-OpenIB
// Copyright (c) 2004, 2005 Topspin Communications.  All rights reserved.
// Copyright (c) 2004, 2011-2012 Intel Corporation.  All rights reserved.
// Copyright (c) 2005, 2006, 2007 Cisco Systems, Inc.  All rights reserved.
// Copyright (c) 2005 PathScale, Inc.  All rights reserved.
// Copyright (c) 2020 Intel Corporation.  All rights reserved.
//
// Ported from <infiniband/verbs.h> of rdma-core, under the second of its two licences: the
// conditions and the disclaimer are in LICENSE-OPENIB.

//! Shared receive queues on the data path.

#![allow(unsafe_code)]

use std::ffi::c_int;

use crate::generated::verbs::{ibv_recv_wr, ibv_srq};

/// Posts a list of receives to a shared receive queue; man `ibv_post_srq_recv`.
///
/// The results of [`ibv_post_send`](crate::ibv_post_send) apply.
///
/// # Safety
/// `srq` is live. Otherwise the contract of [`ibv_post_send`](crate::ibv_post_send) applies.
#[inline]
pub unsafe fn ibv_post_srq_recv(
    srq: *mut ibv_srq,
    wr: *mut ibv_recv_wr,
    bad_wr: *mut *mut ibv_recv_wr,
) -> c_int {
    // SAFETY: the SRQ is live by this function's contract (SAFETY.md F1).
    let context = unsafe { (*srq).context };
    // SAFETY: a live SRQ's context is live (SAFETY.md F1).
    let op = unsafe { (*context).ops.post_srq_recv };
    // SAFETY: a provider that supports SRQs sets the pointer when it opens the device (SAFETY.md
    // F3).
    let op = unsafe { op.unwrap_unchecked() };
    // SAFETY: the function and the SRQ belong to one provider (SAFETY.md F3), and the requests are
    // valid during the call (F12).
    unsafe { op(srq, wr, bad_wr) }
}
