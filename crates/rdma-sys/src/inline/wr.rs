// SPDX-License-Identifier: Linux-OpenIB
// Copyright (c) 2004, 2005 Topspin Communications.  All rights reserved.
// Copyright (c) 2004, 2011-2012 Intel Corporation.  All rights reserved.
// Copyright (c) 2005, 2006, 2007 Cisco Systems, Inc.  All rights reserved.
// Copyright (c) 2005 PathScale, Inc.  All rights reserved.
// Copyright (c) 2020 Intel Corporation.  All rights reserved.
//
// Ported from <infiniband/verbs.h> of rdma-core, under the second of its two licences: the
// conditions and the disclaimer are in LICENSE-OPENIB.

//! Posting with function calls instead of structs; man `ibv_wr_post`.
//!
//! Requests are built between [`ibv_wr_start`] and [`ibv_wr_complete`]. The first call for a
//! request begins it, with the current `wr_id` and `wr_flags` in the QP's struct. The calls that
//! follow set its address and its data.

#![allow(unsafe_code)]

use std::ffi::{c_int, c_void};

use crate::generated::verbs::{ibv_ah, ibv_data_buf, ibv_mw, ibv_mw_bind_info, ibv_qp_ex, ibv_sge};

/// Defines functions that call the QP's function pointers with the same names.
macro_rules! wr {
    (
        $safety:literal;
        $($(#[$documentation:meta])*
        $name:ident: $op:ident($($argument:ident: $type:ty),*) $(-> $returned:ty)?;)+
    ) => {$(
        $(#[$documentation])*
        ///
        /// # Safety
        #[doc = $safety]
        #[inline]
        pub unsafe fn $name(qp: *mut ibv_qp_ex $(, $argument: $type)*) $(-> $returned)? {
            // SAFETY: the QP is live by this function's contract (SAFETY.md F1).
            let op = unsafe { (*qp).$op };
            // SAFETY: the provider sets every pointer that the attributes of the QP select
            // (SAFETY.md F3).
            let op = unsafe { op.unwrap_unchecked() };
            // SAFETY: the function and the QP belong to one provider (SAFETY.md F3), and the
            // contract covers the arguments (F1).
            unsafe { op(qp $(, $argument)*) }
        }
    )+};
}

wr! {
    "`qp` is live and was created with the operations that it is to post, and the calling thread is \
     not posting to it. It must complete or abort what it starts: the provider may hold a lock.";
    /// Starts posting. Other threads that call this wait until this thread completes or aborts.
    ibv_wr_start: wr_start();
}

wr! {
    "`qp` is live, and the calling thread has started to post to it.";
    /// Posts all requests built since [`ibv_wr_start`].
    ///
    /// Returns 0 or an error number ([`Errno::check`](crate::Errno::check)). After an error,
    /// nothing is posted. The error also covers invalid arguments of the calls in between.
    ///
    /// The memory that the requests' elements name belongs to the device until the requests
    /// complete.
    ibv_wr_complete: wr_complete() -> c_int;
    /// Drops all requests built since [`ibv_wr_start`].
    ibv_wr_abort: wr_abort();
}

wr! {
    "`qp` is live and was created with this operation, and the calling thread has started to post \
     to it. Pointers are valid during the call.";
    /// Begins a compare-and-swap. The elements name the memory that receives the old value.
    ibv_wr_atomic_cmp_swp: wr_atomic_cmp_swp(rkey: u32, remote_addr: u64, compare: u64, swap: u64);
    /// Begins a fetch-and-add. The elements name the memory that receives the old value.
    ibv_wr_atomic_fetch_add: wr_atomic_fetch_add(rkey: u32, remote_addr: u64, add: u64);
    /// Begins to bind a type 2 memory window with the key `rkey`.
    ibv_wr_bind_mw: wr_bind_mw(mw: *mut ibv_mw, rkey: u32, bind_info: *const ibv_mw_bind_info);
    /// Begins to invalidate a local key.
    ibv_wr_local_inv: wr_local_inv(invalidate_rkey: u32);
    /// Begins an RDMA READ.
    ibv_wr_rdma_read: wr_rdma_read(rkey: u32, remote_addr: u64);
    /// Begins an RDMA WRITE.
    ibv_wr_rdma_write: wr_rdma_write(rkey: u32, remote_addr: u64);
    /// Begins a flush of `len` bytes that were written to the peer's memory.
    ibv_wr_flush: wr_flush(rkey: u32, remote_addr: u64, len: usize, kind: u8, level: u8);
    /// Begins an RDMA WRITE with immediate data, given in network order.
    ibv_wr_rdma_write_imm: wr_rdma_write_imm(rkey: u32, remote_addr: u64, imm_data: u32);
    /// Begins a SEND.
    ibv_wr_send: wr_send();
    /// Begins a SEND with immediate data, given in network order.
    ibv_wr_send_imm: wr_send_imm(imm_data: u32);
    /// Begins a SEND that invalidates a key of the peer.
    ibv_wr_send_inv: wr_send_inv(invalidate_rkey: u32);
    /// Begins a SEND that is split into segments of `mss` bytes, each preceded by a copy of the
    /// header.
    ibv_wr_send_tso: wr_send_tso(hdr: *mut c_void, hdr_sz: u16, mss: u16);
    /// Begins an atomic write of the eight bytes at `atomic_wr`.
    ibv_wr_atomic_write: wr_atomic_write(rkey: u32, remote_addr: u64, atomic_wr: *const c_void);
}

wr! {
    "`qp` is live, and the calling thread has begun a request on it that takes this. Pointers, and \
     what they point to, are valid during the call. The memory that elements name is the device's \
     until the request has completed.";
    /// Sets the destination of the request, on a datagram QP.
    ibv_wr_set_ud_addr: wr_set_ud_addr(ah: *mut ibv_ah, remote_qpn: u32, remote_qkey: u32);
    /// Sets the peer's shared receive queue, on an XRC QP.
    ibv_wr_set_xrc_srqn: wr_set_xrc_srqn(remote_srqn: u32);
    /// Copies the data of a SEND or WRITE during this call.
    ibv_wr_set_inline_data: wr_set_inline_data(addr: *mut c_void, length: usize);
    /// Copies the data of the request from several buffers during this call.
    ibv_wr_set_inline_data_list: wr_set_inline_data_list(
        num_buf: usize,
        buf_list: *const ibv_data_buf
    );
    /// Sets the request's only element.
    ibv_wr_set_sge: wr_set_sge(lkey: u32, addr: u64, length: u32);
    /// Sets the request's elements; the list itself is not used after this call.
    ibv_wr_set_sge_list: wr_set_sge_list(num_sge: usize, sg_list: *const ibv_sge);
}
