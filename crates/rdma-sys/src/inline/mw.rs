// SPDX-License-Identifier: Linux-OpenIB
// Copyright (c) 2004, 2005 Topspin Communications.  All rights reserved.
// Copyright (c) 2004, 2011-2012 Intel Corporation.  All rights reserved.
// Copyright (c) 2005, 2006, 2007 Cisco Systems, Inc.  All rights reserved.
// Copyright (c) 2005 PathScale, Inc.  All rights reserved.
// Copyright (c) 2020 Intel Corporation.  All rights reserved.
//
// Ported from <infiniband/verbs.h> of rdma-core, under the second of its two licences: the
// conditions and the disclaimer are in LICENSE-OPENIB.

//! Memory windows.

#![allow(unsafe_code)]

use std::ffi::c_int;
use std::ptr;

use crate::errno::Errno;
use crate::generated::verbs::{ibv_mw, ibv_mw_bind, ibv_mw_type, ibv_pd, ibv_qp};

/// Allocates an unbound memory window; man `ibv_alloc_mw`.
///
/// Returns NULL on failure ([`Errno::check_null`]), with `EOPNOTSUPP` on a device without windows.
///
/// # Safety
/// `pd` is live.
#[inline]
pub unsafe fn ibv_alloc_mw(pd: *mut ibv_pd, kind: ibv_mw_type) -> *mut ibv_mw {
    // SAFETY: the PD is live by this function's contract (SAFETY.md F1).
    let context = unsafe { (*pd).context };
    // SAFETY: a live PD's context is live (SAFETY.md F1).
    let Some(op) = (unsafe { (*context).ops.alloc_mw }) else {
        Errno::EOPNOTSUPP.set();
        return ptr::null_mut();
    };
    // SAFETY: the function and the PD belong to one provider (SAFETY.md F3).
    unsafe { op(pd, kind) }
}

/// Deallocates a memory window, which also unbinds it; man `ibv_dealloc_mw`.
///
/// Returns 0 or an error number ([`Errno::check`]).
///
/// # Safety
/// `mw` is live, and is not used after the call.
#[inline]
pub unsafe fn ibv_dealloc_mw(mw: *mut ibv_mw) -> c_int {
    // SAFETY: the window is live by this function's contract (SAFETY.md F1).
    let context = unsafe { (*mw).context };
    // SAFETY: a live window's context is live (SAFETY.md F1).
    let Some(op) = (unsafe { (*context).ops.dealloc_mw }) else {
        return Errno::EOPNOTSUPP.raw();
    };
    // SAFETY: the function and the window belong to one provider (SAFETY.md F3).
    unsafe { op(mw) }
}

/// Returns the key with its low eight bits incremented. Programs may choose these bits.
///
/// ```
/// assert_eq!(rdma_sys::ibv_inc_rkey(0x0102_03ff), 0x0102_0300);
/// ```
#[inline]
#[must_use]
pub const fn ibv_inc_rkey(rkey: u32) -> u32 {
    rkey & !0xff | (rkey.wrapping_add(1) & 0xff)
}

/// Posts a request to the send queue of `qp` that binds a type 1 window, or unbinds it if the
/// length is 0; man `ibv_bind_mw`.
///
/// Returns 0 or an error number ([`Errno::check`]). It is `EINVAL` for a type 2 window, because
/// only `IBV_WR_BIND_MW` can bind it, and for an address or length without a region. It is `EPERM`
/// for a region in another PD, and `EOPNOTSUPP` on a device without windows. After success,
/// `mw->rkey` is the key that the window will have. If the request fails later, the caller has to
/// restore the old key.
///
/// # Safety
/// `qp`, `mw` and the region in `bind`, if there is one, are live. `bind` may be read and written,
/// and `mw` is not used elsewhere during the call. Code and peers that have the key may use the
/// memory as `bind` allows.
#[inline]
pub unsafe fn ibv_bind_mw(qp: *mut ibv_qp, mw: *mut ibv_mw, bind: *mut ibv_mw_bind) -> c_int {
    // SAFETY: `bind` may be read, by this function's contract (SAFETY.md F1).
    let info = unsafe { (*bind).bind_info };
    // SAFETY: the window is live by this function's contract (SAFETY.md F1).
    let window = unsafe { mw.read() };
    if window.type_ != ibv_mw_type::IBV_MW_TYPE_1 {
        return Errno::EINVAL.raw();
    }
    if info.mr.is_null() {
        if info.addr != 0 || info.length != 0 {
            return Errno::EINVAL.raw();
        }
    } else {
        // SAFETY: the region is live by this function's contract (SAFETY.md F1).
        let pd = unsafe { (*info.mr).pd };
        if !ptr::eq(window.pd, pd) {
            return Errno::EPERM.raw();
        }
    }
    // SAFETY: a live window's context is live (SAFETY.md F1).
    let Some(op) = (unsafe { (*window.context).ops.bind_mw }) else {
        return Errno::EOPNOTSUPP.raw();
    };
    // SAFETY: the function and the objects belong to one provider (SAFETY.md F3), and the contract
    // covers `bind` (F1).
    unsafe { op(qp, mw, bind) }
}
