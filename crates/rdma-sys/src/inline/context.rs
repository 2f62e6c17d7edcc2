// SPDX-License-Identifier: Linux-OpenIB
// Copyright (c) 2004, 2005 Topspin Communications.  All rights reserved.
// Copyright (c) 2004, 2011-2012 Intel Corporation.  All rights reserved.
// Copyright (c) 2005, 2006, 2007 Cisco Systems, Inc.  All rights reserved.
// Copyright (c) 2005 PathScale, Inc.  All rights reserved.
// Copyright (c) 2020 Intel Corporation.  All rights reserved.
//
// Ported from <infiniband/verbs.h> of rdma-core, under the second of its two licences: the
// conditions and the disclaimer are in LICENSE-OPENIB.

//! The extended context, and queries about a whole device.

#![allow(unsafe_code)]

use std::{
    ffi::c_int,
    mem::{offset_of, size_of},
    ptr::null_mut,
};

use crate::generated::verbs::{
    ibv_context, ibv_device_attr_ex, ibv_query_device_ex_input, ibv_values_ex, verbs_context,
};
use crate::table::Verbs;

/// Returns the extended context whose last field is `context`, or NULL if the provider is too old
/// to have one.
///
/// The provider's `verbs_context` may be smaller than ours, because the struct grows at its
/// beginning. Therefore the returned pointer may point before the provider's struct. Only `sz`, and
/// the fields within `sz` bytes of the end, may be read.
///
/// # Safety
/// `context` was returned by `ibv_open_device` and is not closed.
#[inline]
pub unsafe fn verbs_get_ctx(context: *mut ibv_context) -> *mut verbs_context {
    // SAFETY: the context is live by this function's contract (SAFETY.md F1).
    let abi_compat = unsafe { (*context).abi_compat };
    if abi_compat.addr() != usize::MAX {
        return null_mut();
    }
    context.wrapping_byte_sub(offset_of!(verbs_context, context)).cast()
}

/// Reads the function `$op` from the extended context. The result is `None` if the provider's
/// struct does not reach that far or holds NULL there. C's version is `verbs_get_ctx_op`.
macro_rules! verbs_get_ctx_op {
    ($context:expr, $op:ident) => {
        $crate::inline::context::read_op(
            $context,
            ::std::mem::offset_of!($crate::generated::verbs::verbs_context, $op),
            |context: &$crate::generated::verbs::verbs_context| context.$op,
        )
    };
}
pub(super) use verbs_get_ctx_op;

/// Reads the function pointer at `offset` in the extended context.
///
/// # Safety
/// The contract of [`verbs_get_ctx`] applies. The field at `offset` has the type that `_field`
/// returns.
#[inline]
pub(super) unsafe fn read_op<F: Copy>(
    context: *mut ibv_context,
    offset: usize,
    _field: fn(&verbs_context) -> Option<F>,
) -> Option<F> {
    // SAFETY: the caller upholds the same contract (SAFETY.md F1).
    let extended = unsafe { verbs_get_ctx(context) };
    if extended.is_null() {
        return None;
    }
    let size = extended.wrapping_byte_add(offset_of!(verbs_context, sz)).cast::<usize>();
    // SAFETY: an extended context stores its size right before the context (SAFETY.md F5).
    let size = unsafe { size.read() };
    if size < size_of::<verbs_context>() - offset {
        return None;
    }
    let op = extended.wrapping_byte_add(offset).cast::<Option<F>>();
    // SAFETY: the field lies within the provider's struct, which is at least that large, and is set
    // while the context is open (SAFETY.md F3, F5).
    unsafe { op.read() }
}

/// Queries a device's attributes, including those newer than `ibv_query_device`; man
/// `ibv_query_device_ex`.
///
/// If the provider lacks this function, or its function returns `EOPNOTSUPP` or `ENOSYS`, the
/// classic attributes are queried and the others are zero. Returns 0 or an error number
/// ([`Errno::check`](crate::Errno::check)). If `input` has a `comp_mask`, returns `EINVAL`, because
/// no bit of it is defined.
///
/// # Safety
/// `context` is live and from `verbs`; `input` is NULL or valid; `attr` may be written.
#[inline]
pub unsafe fn ibv_query_device_ex(
    verbs: &Verbs,
    context: *mut ibv_context,
    input: *const ibv_query_device_ex_input,
    attr: *mut ibv_device_attr_ex,
) -> c_int {
    if !input.is_null() {
        // SAFETY: `input` is not NULL, so it is valid by this function's contract (SAFETY.md F1).
        let comp_mask = unsafe { (*input).comp_mask };
        if comp_mask != 0 {
            return libc::EINVAL;
        }
    }
    // SAFETY: the context is live (SAFETY.md F1), and the macro matches the field's offset and type
    // (F5).
    let query = unsafe { verbs_get_ctx_op!(context, query_device_ex) };
    if let Some(query) = query {
        // SAFETY: the function and the context belong to one provider (SAFETY.md F3), and `attr`
        // has the size that is passed (F1).
        let returned = unsafe { query(context, input, attr, size_of::<ibv_device_attr_ex>()) };
        if returned != libc::EOPNOTSUPP && returned != libc::ENOSYS {
            return returned;
        }
    }
    // SAFETY: `attr` may be written (SAFETY.md F1), and zero is a valid value (F4).
    unsafe { attr.write_bytes(0, 1) };
    // SAFETY: `attr` is valid (SAFETY.md F1); no reference is formed.
    let classic = unsafe { &raw mut (*attr).orig_attr };
    // SAFETY: the context belongs to this table (SAFETY.md F2), and the attributes may be written
    // (F1).
    unsafe { (verbs.query_device)(context, classic) }
}

/// Reads the device's clock; man `ibv_query_rt_values_ex`.
///
/// The `comp_mask` in `values` selects the fields to fill in; afterwards it has the bits of those
/// that were filled in. Providers store all ticks of the clock in `raw_clock.tv_nsec`. Returns 0 or
/// an error number ([`Errno::check`](crate::Errno::check)); `EOPNOTSUPP` if the provider lacks this
/// function.
///
/// # Safety
/// `context` is live; `values` is valid and may be written.
#[inline]
pub unsafe fn ibv_query_rt_values_ex(
    context: *mut ibv_context,
    values: *mut ibv_values_ex,
) -> c_int {
    // SAFETY: the context is live (SAFETY.md F1), and the macro matches the field's offset and type
    // (F5).
    let query = unsafe { verbs_get_ctx_op!(context, query_rt_values) };
    let Some(query) = query else { return libc::EOPNOTSUPP };
    // SAFETY: the function and the context belong to one provider (SAFETY.md F3), and the memory
    // may be written (F1).
    unsafe { query(context, values) }
}
