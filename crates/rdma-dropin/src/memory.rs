//! Protection domains, memory regions, and forks.
#![allow(unsafe_code)]

use std::ffi::{c_int, c_uint, c_void};

use rdma_sys::{functions, ibv_context, ibv_dm, ibv_fork_status, ibv_mr, ibv_pd};

use crate::forward::forward;
use crate::provider::{load_system, soft, system};
use crate::refusal::unsupported_null;

forward! {
    ibv_alloc_pd(context: *mut ibv_context) -> *mut ibv_pd => alloc_pd;
    ibv_dealloc_pd(pd: *mut ibv_pd) -> c_int => dealloc_pd;
    ibv_import_pd(
        context: *mut ibv_context,
        pd_handle: u32,
    ) -> *mut ibv_pd => import_pd, or unsupported_null();
    ibv_unimport_pd(pd: *mut ibv_pd) => unimport_pd, or ();
    ibv_reg_mr(
        pd: *mut ibv_pd,
        addr: *mut c_void,
        length: usize,
        access: c_int,
    ) -> *mut ibv_mr => reg_mr;
    ibv_reg_mr_iova(
        pd: *mut ibv_pd,
        addr: *mut c_void,
        length: usize,
        iova: u64,
        access: c_int,
    ) -> *mut ibv_mr => reg_mr_iova, or unsupported_null();
    ibv_reg_mr_iova2(
        pd: *mut ibv_pd,
        addr: *mut c_void,
        length: usize,
        iova: u64,
        access: c_uint,
    ) -> *mut ibv_mr => reg_mr_iova2, or unsupported_null();
    ibv_reg_dmabuf_mr(
        pd: *mut ibv_pd,
        offset: u64,
        length: usize,
        iova: u64,
        fd: c_int,
        access: c_int,
    ) -> *mut ibv_mr => reg_dmabuf_mr, or unsupported_null();
    ibv_rereg_mr(
        mr: *mut ibv_mr,
        flags: c_int,
        pd: *mut ibv_pd,
        addr: *mut c_void,
        length: usize,
        access: c_int,
    ) -> c_int => rereg_mr;
    ibv_dereg_mr(mr: *mut ibv_mr) -> c_int => dereg_mr;
    ibv_import_mr(
        pd: *mut ibv_pd,
        mr_handle: u32,
    ) -> *mut ibv_mr => import_mr, or unsupported_null();
    ibv_unimport_mr(mr: *mut ibv_mr) => unimport_mr, or ();
    ibv_import_dm(
        context: *mut ibv_context,
        dm_handle: u32,
    ) -> *mut ibv_dm => import_dm, or unsupported_null();
    ibv_unimport_dm(dm: *mut ibv_dm) => unimport_dm, or ();
}

const _: functions::ibv_fork_init = ibv_fork_init;
#[unsafe(no_mangle)]
unsafe extern "C" fn ibv_fork_init() -> c_int {
    for provider in [Some(soft()), load_system()].into_iter().flatten() {
        // SAFETY: forwards the call with the caller's promises (SAFETY.md F1, F2).
        let returned = unsafe { (provider.fork_init)() };
        if returned != 0 {
            return returned;
        }
    }
    0
}

const _: functions::ibv_is_fork_initialized = ibv_is_fork_initialized;
#[unsafe(no_mangle)]
unsafe extern "C" fn ibv_is_fork_initialized() -> ibv_fork_status {
    match system().unwrap_or_else(soft).is_fork_initialized {
        // SAFETY: forwards the call with the caller's promises (SAFETY.md F1, F2).
        Some(verb) => unsafe { verb() },
        None => ibv_fork_status::IBV_FORK_UNNEEDED,
    }
}
