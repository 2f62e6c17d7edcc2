//! A fork does not affect registered memory. The device accesses this memory through the page tables of the process,
//! like the process itself, and pins no pages.

use std::ffi::c_int;

use rdma_sys::ibv_fork_status;
pub(crate) use rdma_sys::{PerProcess, Process};

pub(super) extern "C" fn fork_init() -> c_int {
    0
}

pub(super) extern "C" fn is_fork_initialized() -> ibv_fork_status {
    ibv_fork_status::IBV_FORK_UNNEEDED
}
