//! Protection domains, memory regions, and forks. A fork does not affect registered memory, because a software device
//! pins no pages.
#![allow(unsafe_code)]

use std::ffi::{c_int, c_uint, c_void};

use rdma_sys::{functions, ibv_context, ibv_dm, ibv_fork_status, ibv_mr, ibv_pd};

use crate::provider::verbs;
use crate::refusal::unsupported_null;

const _: functions::ibv_alloc_pd = ibv_alloc_pd;
#[unsafe(no_mangle)]
unsafe extern "C" fn ibv_alloc_pd(context: *mut ibv_context) -> *mut ibv_pd {
    // SAFETY: forwards the call with the caller's promises (SAFETY.md F1, F2).
    unsafe { (verbs().alloc_pd)(context) }
}

const _: functions::ibv_dealloc_pd = ibv_dealloc_pd;
#[unsafe(no_mangle)]
unsafe extern "C" fn ibv_dealloc_pd(pd: *mut ibv_pd) -> c_int {
    // SAFETY: forwards the call with the caller's promises (SAFETY.md F1, F2).
    unsafe { (verbs().dealloc_pd)(pd) }
}

const _: functions::ibv_import_pd = ibv_import_pd;
#[unsafe(no_mangle)]
unsafe extern "C" fn ibv_import_pd(context: *mut ibv_context, pd_handle: u32) -> *mut ibv_pd {
    match verbs().import_pd {
        // SAFETY: forwards the call with the caller's promises (SAFETY.md F1, F2).
        Some(import_pd) => unsafe { import_pd(context, pd_handle) },
        None => unsupported_null(),
    }
}

const _: functions::ibv_unimport_pd = ibv_unimport_pd;
#[unsafe(no_mangle)]
unsafe extern "C" fn ibv_unimport_pd(pd: *mut ibv_pd) {
    if let Some(unimport_pd) = verbs().unimport_pd {
        // SAFETY: forwards the call with the caller's promises (SAFETY.md F1, F2).
        unsafe { unimport_pd(pd) };
    }
}

const _: functions::ibv_reg_mr = ibv_reg_mr;
#[unsafe(no_mangle)]
unsafe extern "C" fn ibv_reg_mr(
    pd: *mut ibv_pd,
    addr: *mut c_void,
    length: usize,
    access: c_int,
) -> *mut ibv_mr {
    // SAFETY: forwards the call with the caller's promises (SAFETY.md F1, F2).
    unsafe { (verbs().reg_mr)(pd, addr, length, access) }
}

const _: functions::ibv_reg_mr_iova = ibv_reg_mr_iova;
#[unsafe(no_mangle)]
unsafe extern "C" fn ibv_reg_mr_iova(
    pd: *mut ibv_pd,
    addr: *mut c_void,
    length: usize,
    iova: u64,
    access: c_int,
) -> *mut ibv_mr {
    match verbs().reg_mr_iova {
        // SAFETY: forwards the call with the caller's promises (SAFETY.md F1, F2).
        Some(reg_mr_iova) => unsafe { reg_mr_iova(pd, addr, length, iova, access) },
        None => unsupported_null(),
    }
}

const _: functions::ibv_reg_mr_iova2 = ibv_reg_mr_iova2;
#[unsafe(no_mangle)]
unsafe extern "C" fn ibv_reg_mr_iova2(
    pd: *mut ibv_pd,
    addr: *mut c_void,
    length: usize,
    iova: u64,
    access: c_uint,
) -> *mut ibv_mr {
    match verbs().reg_mr_iova2 {
        // SAFETY: forwards the call with the caller's promises (SAFETY.md F1, F2).
        Some(reg_mr_iova2) => unsafe { reg_mr_iova2(pd, addr, length, iova, access) },
        None => unsupported_null(),
    }
}

const _: functions::ibv_reg_dmabuf_mr = ibv_reg_dmabuf_mr;
#[unsafe(no_mangle)]
unsafe extern "C" fn ibv_reg_dmabuf_mr(
    pd: *mut ibv_pd,
    offset: u64,
    length: usize,
    iova: u64,
    fd: c_int,
    access: c_int,
) -> *mut ibv_mr {
    match verbs().reg_dmabuf_mr {
        // SAFETY: forwards the call with the caller's promises (SAFETY.md F1, F2).
        Some(reg_dmabuf_mr) => unsafe { reg_dmabuf_mr(pd, offset, length, iova, fd, access) },
        None => unsupported_null(),
    }
}

const _: functions::ibv_rereg_mr = ibv_rereg_mr;
#[unsafe(no_mangle)]
unsafe extern "C" fn ibv_rereg_mr(
    mr: *mut ibv_mr,
    flags: c_int,
    pd: *mut ibv_pd,
    addr: *mut c_void,
    length: usize,
    access: c_int,
) -> c_int {
    // SAFETY: forwards the call with the caller's promises (SAFETY.md F1, F2).
    unsafe { (verbs().rereg_mr)(mr, flags, pd, addr, length, access) }
}

const _: functions::ibv_dereg_mr = ibv_dereg_mr;
#[unsafe(no_mangle)]
unsafe extern "C" fn ibv_dereg_mr(mr: *mut ibv_mr) -> c_int {
    // SAFETY: forwards the call with the caller's promises (SAFETY.md F1, F2).
    unsafe { (verbs().dereg_mr)(mr) }
}

const _: functions::ibv_import_mr = ibv_import_mr;
#[unsafe(no_mangle)]
unsafe extern "C" fn ibv_import_mr(pd: *mut ibv_pd, mr_handle: u32) -> *mut ibv_mr {
    match verbs().import_mr {
        // SAFETY: forwards the call with the caller's promises (SAFETY.md F1, F2).
        Some(import_mr) => unsafe { import_mr(pd, mr_handle) },
        None => unsupported_null(),
    }
}

const _: functions::ibv_unimport_mr = ibv_unimport_mr;
#[unsafe(no_mangle)]
unsafe extern "C" fn ibv_unimport_mr(mr: *mut ibv_mr) {
    if let Some(unimport_mr) = verbs().unimport_mr {
        // SAFETY: forwards the call with the caller's promises (SAFETY.md F1, F2).
        unsafe { unimport_mr(mr) };
    }
}

const _: functions::ibv_import_dm = ibv_import_dm;
#[unsafe(no_mangle)]
unsafe extern "C" fn ibv_import_dm(context: *mut ibv_context, dm_handle: u32) -> *mut ibv_dm {
    match verbs().import_dm {
        // SAFETY: forwards the call with the caller's promises (SAFETY.md F1, F2).
        Some(import_dm) => unsafe { import_dm(context, dm_handle) },
        None => unsupported_null(),
    }
}

const _: functions::ibv_unimport_dm = ibv_unimport_dm;
#[unsafe(no_mangle)]
unsafe extern "C" fn ibv_unimport_dm(dm: *mut ibv_dm) {
    if let Some(unimport_dm) = verbs().unimport_dm {
        // SAFETY: forwards the call with the caller's promises (SAFETY.md F1, F2).
        unsafe { unimport_dm(dm) };
    }
}

const _: functions::ibv_fork_init = ibv_fork_init;
#[unsafe(no_mangle)]
unsafe extern "C" fn ibv_fork_init() -> c_int {
    // SAFETY: forwards the call with the caller's promises (SAFETY.md F1, F2).
    unsafe { (verbs().fork_init)() }
}

const _: functions::ibv_is_fork_initialized = ibv_is_fork_initialized;
#[unsafe(no_mangle)]
unsafe extern "C" fn ibv_is_fork_initialized() -> ibv_fork_status {
    match verbs().is_fork_initialized {
        // SAFETY: forwards the call with the caller's promises (SAFETY.md F1, F2).
        Some(is_fork_initialized) => unsafe { is_fork_initialized() },
        None => ibv_fork_status::IBV_FORK_UNNEEDED,
    }
}

#[unsafe(no_mangle)]
extern "C" fn ibv_dontfork_range(_base: *mut c_void, _size: usize) -> c_int {
    0
}

#[unsafe(no_mangle)]
extern "C" fn ibv_dofork_range(_base: *mut c_void, _size: usize) -> c_int {
    0
}
