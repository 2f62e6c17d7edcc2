// SPDX-License-Identifier: Linux-OpenIB
// Copyright (c) 2004, 2005 Topspin Communications.  All rights reserved.
// Copyright (c) 2004, 2011-2012 Intel Corporation.  All rights reserved.
// Copyright (c) 2005, 2006, 2007 Cisco Systems, Inc.  All rights reserved.
// Copyright (c) 2005 PathScale, Inc.  All rights reserved.
// Copyright (c) 2020 Intel Corporation.  All rights reserved.
//
// Ported from <infiniband/verbs.h> of rdma-core, under the second of its two licences: the
// conditions and the disclaimer are in LICENSE-OPENIB.

//! Memory registration.

#![allow(unsafe_code)]

use std::ffi::{c_int, c_void};

use super::context::verbs_get_ctx_op;
use crate::generated::verbs::{
    ib_uverbs_access_flags, ib_uverbs_advise_mr_advice, ibv_mr, ibv_pd, ibv_sge,
};
use crate::table::Verbs;

/// Access flags that a kernel may ignore, such as relaxed ordering.
const OPTIONAL: u32 = ib_uverbs_access_flags::IB_UVERBS_ACCESS_OPTIONAL_RANGE.0;

/// Registers `length` bytes at `addr`; man `ibv_reg_mr`.
///
/// Like the macro in C, this passes a registration with optional flags to `ibv_reg_mr_iova2`, which
/// drops the flags that the kernel does not know. That function does not exist before rdma-core 28.
/// All optional flags are then dropped here, which their definition allows. Returns NULL on failure
/// ([`Errno::check_null`](crate::Errno::check_null)).
///
/// # Safety
/// `pd` is live and from `verbs`. The memory stays mapped unchanged until `ibv_dereg_mr` returns 0.
/// Code and peers that have the region's keys may access it as `access` allows.
#[inline]
pub unsafe fn ibv_reg_mr(
    verbs: &Verbs,
    pd: *mut ibv_pd,
    addr: *mut c_void,
    length: usize,
    access: u32,
) -> *mut ibv_mr {
    if access & OPTIONAL != 0
        && let Some(reg_mr_iova2) = verbs.reg_mr_iova2
    {
        // SAFETY: the PD belongs to this table (SAFETY.md F2), and the contract covers the memory
        // (F8).
        return unsafe { reg_mr_iova2(pd, addr, length, addr.addr() as u64, access) };
    }
    let access = (access & !OPTIONAL).cast_signed();
    // SAFETY: same argument as above.
    unsafe { (verbs.reg_mr)(pd, addr, length, access) }
}

/// Makes [`ibv_advise_mr`] return only after the device has followed the advice;
/// `IBV_ADVISE_MR_FLAG_FLUSH` in `enum ibv_advise_mr_flag`.
pub const IBV_ADVISE_MR_FLAG_FLUSH: u32 = 1;

/// Advises the device about ranges of registered memory; man `ibv_advise_mr`.
///
/// Returns 0 or an error number ([`Errno::check`](crate::Errno::check)); `EOPNOTSUPP` if the
/// provider lacks this function.
///
/// # Safety
/// `pd` is live; `sg_list` points to `num_sges` elements.
#[inline]
pub unsafe fn ibv_advise_mr(
    pd: *mut ibv_pd,
    advice: ib_uverbs_advise_mr_advice,
    flags: u32,
    sg_list: *mut ibv_sge,
    num_sges: u32,
) -> c_int {
    // SAFETY: the PD is live by this function's contract (SAFETY.md F1).
    let context = unsafe { (*pd).context };
    // SAFETY: a live PD's context is live (SAFETY.md F1), and the macro matches the field's offset
    // and type (F5).
    let advise = unsafe { verbs_get_ctx_op!(context, advise_mr) };
    let Some(advise) = advise else { return libc::EOPNOTSUPP };
    // SAFETY: the function and the PD belong to one provider (SAFETY.md F3), and the elements are
    // valid (F1).
    unsafe { advise(pd, advice, flags, sg_list, num_sges) }
}
