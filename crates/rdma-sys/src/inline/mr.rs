// SPDX-License-Identifier: Linux-OpenIB
// Copyright (c) 2004, 2005 Topspin Communications.  All rights reserved.
// Copyright (c) 2004, 2011-2012 Intel Corporation.  All rights reserved.
// Copyright (c) 2005, 2006, 2007 Cisco Systems, Inc.  All rights reserved.
// Copyright (c) 2005 PathScale, Inc.  All rights reserved.
// Copyright (c) 2020 Intel Corporation.  All rights reserved.
//
// Ported from <infiniband/verbs.h> of rdma-core, under the second of its two licences: the
// conditions and the disclaimer are in LICENSE-OPENIB.

//! Registration of memory.

#![allow(unsafe_code)]

use std::ffi::c_void;

use crate::generated::verbs::{ib_uverbs_access_flags, ibv_mr, ibv_pd};
use crate::table::Verbs;

/// The access flags that a kernel may ignore, such as relaxed ordering.
const OPTIONAL: u32 = ib_uverbs_access_flags::IB_UVERBS_ACCESS_OPTIONAL_RANGE.0;

/// Registers `length` bytes at `addr`; man `ibv_reg_mr`.
///
/// As in C, optional flags go through `ibv_reg_mr_iova2`, which drops those that the kernel does not
/// know. Before rdma-core 28 that function does not exist, and all of them are dropped here: that is
/// what optional means. Returns NULL on failure ([`Errno::check_null`](crate::Errno::check_null)).
///
/// # Safety
/// `pd` is live and from `verbs`. The memory stays mapped as it is until `ibv_dereg_mr` returned 0,
/// and whoever has the region's keys may access it as `access` says.
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
        // SAFETY: the table's own PD (SAFETY.md F2), and memory as the contract says (F8).
        return unsafe { reg_mr_iova2(pd, addr, length, addr.addr() as u64, access) };
    }
    let access = (access & !OPTIONAL).cast_signed();
    // SAFETY: as above.
    unsafe { (verbs.reg_mr)(pd, addr, length, access) }
}
