// SPDX-License-Identifier: Linux-OpenIB
// Copyright (c) 2004, 2005 Topspin Communications.  All rights reserved.
// Copyright (c) 2004, 2011-2012 Intel Corporation.  All rights reserved.
// Copyright (c) 2005, 2006, 2007 Cisco Systems, Inc.  All rights reserved.
// Copyright (c) 2005 PathScale, Inc.  All rights reserved.
// Copyright (c) 2020 Intel Corporation.  All rights reserved.
//
// Ported from <infiniband/verbs.h> of rdma-core, under the second of its two licences: the
// conditions and the disclaimer are in LICENSE-OPENIB.

//! Ports and their GID tables.

#![allow(unsafe_code)]

use std::{ffi::c_int, mem::size_of};

use super::context::verbs_get_ctx_op;
use crate::generated::verbs::{ibv_context, ibv_gid_entry, ibv_port_attr};
use crate::table::{Unsupported, Verbs};

/// Queries the state and attributes of a port; man `ibv_query_port`.
///
/// Programs must not call the exported function with this name directly, because it fills only the
/// first 48 bytes. It is the fallback if the provider lacks the extended function; the other bytes
/// are then zero. Returns 0 or an error number ([`Errno::check`](crate::Errno::check)).
///
/// # Safety
/// `context` is live and from `verbs`; `attr` may be written.
#[inline]
pub unsafe fn ibv_query_port(
    verbs: &Verbs,
    context: *mut ibv_context,
    port_num: u8,
    attr: *mut ibv_port_attr,
) -> c_int {
    // SAFETY: the context is live (SAFETY.md F1), and the macro matches the field's offset and type
    // (F5).
    let query = unsafe { verbs_get_ctx_op!(context, query_port) };
    if let Some(query) = query {
        // SAFETY: the function and the context belong to one provider (SAFETY.md F3), and `attr`
        // has the size that is passed (F1).
        return unsafe { query(context, port_num, attr, size_of::<ibv_port_attr>()) };
    }
    // SAFETY: `attr` may be written (SAFETY.md F1), and zero is a valid value (F4).
    unsafe { attr.write_bytes(0, 1) };
    // SAFETY: the context belongs to this table (SAFETY.md F2). As in C, the function writes the
    // beginning of `attr` (F5).
    unsafe { (verbs.query_port)(context, port_num, attr.cast()) }
}

/// Queries one GID of a port, with its type and network device; man `ibv_query_gid_ex`.
///
/// Returns 0 or an error number ([`Errno::check`](crate::Errno::check)): `ENODATA` for an empty
/// entry of the table. No flags are defined.
///
/// # Errors
/// [`Unsupported`] before rdma-core 32. Read the types from `/sys/class/infiniband` instead.
///
/// # Safety
/// `context` is live and from `verbs`; `entry` may be written.
#[inline]
pub unsafe fn ibv_query_gid_ex(
    verbs: &Verbs,
    context: *mut ibv_context,
    port_num: u32,
    gid_index: u32,
    entry: *mut ibv_gid_entry,
    flags: u32,
) -> Result<c_int, Unsupported> {
    let query = verbs.query_gid_ex()?;
    // SAFETY: the context belongs to this table (SAFETY.md F2), and the entry has the size that is
    // passed (F1).
    Ok(unsafe { query(context, port_num, gid_index, entry, flags, size_of::<ibv_gid_entry>()) })
}

/// Queries all GIDs of all ports; man `ibv_query_gid_table`.
///
/// Returns the number of filled `entries`, or a negated error number
/// ([`Errno::check_count`](crate::Errno::check_count)). No flags are defined.
///
/// # Errors
/// [`Unsupported`] before rdma-core 32. Read the table from `/sys/class/infiniband` instead.
///
/// # Safety
/// `context` is live and from `verbs`; `entries` is valid for writing `max_entries` entries.
#[inline]
pub unsafe fn ibv_query_gid_table(
    verbs: &Verbs,
    context: *mut ibv_context,
    entries: *mut ibv_gid_entry,
    max_entries: usize,
    flags: u32,
) -> Result<isize, Unsupported> {
    let query = verbs.query_gid_table()?;
    // SAFETY: the context belongs to this table (SAFETY.md F2), and there are `max_entries` entries
    // of the size that is passed (F12).
    Ok(unsafe { query(context, entries, max_entries, flags, size_of::<ibv_gid_entry>()) })
}
