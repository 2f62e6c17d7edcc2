// SPDX-License-Identifier: Linux-OpenIB
// Copyright (c) 2004, 2005 Topspin Communications.  All rights reserved.
// Copyright (c) 2004, 2011-2012 Intel Corporation.  All rights reserved.
// Copyright (c) 2005, 2006, 2007 Cisco Systems, Inc.  All rights reserved.
// Copyright (c) 2005 PathScale, Inc.  All rights reserved.
// Copyright (c) 2020 Intel Corporation.  All rights reserved.
//
// Ported from <infiniband/verbs.h> of rdma-core, under the second of its two licences: the
// conditions and the disclaimer are in LICENSE-OPENIB.

//! The inline functions of `verbs.h`. No library exports them. A C program compiles its own copy,
//! so a Rust program needs one too.
//!
//! They have C's names, make the same checks, and call the provider through the same pointers. A
//! function that calls an exported function in C takes a [table](crate::Verbs) here. Of the 95
//! functions, only those that the layers above need are here; the others are added when needed.

mod context;
mod cq;
mod cq_ex;
mod mr;
mod mw;
mod port;
mod qp;
mod srq;
mod wr;

pub use context::{ibv_query_device_ex, ibv_query_rt_values_ex, verbs_get_ctx};
pub use cq::{ibv_modify_cq, ibv_poll_cq, ibv_req_notify_cq};
pub use cq_ex::*;
pub use mr::{IBV_ADVISE_MR_FLAG_FLUSH, ibv_advise_mr, ibv_reg_mr};
pub use mw::{ibv_alloc_mw, ibv_bind_mw, ibv_dealloc_mw, ibv_inc_rkey};
pub use port::{ibv_query_gid_ex, ibv_query_gid_table, ibv_query_port};
pub use qp::{ibv_create_qp_ex, ibv_post_recv, ibv_post_send};
pub use srq::ibv_post_srq_recv;
pub use wr::*;
