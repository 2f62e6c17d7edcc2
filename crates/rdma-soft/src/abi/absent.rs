//! Verbs that the device does not support. They fail in the way that libibverbs fails for a provider that lacks them.

use std::ffi::{c_int, c_void};

use rdma_sys::{Errno, ibv_mr, ibv_pd, ibv_rereg_mr_err_code};

pub(super) extern "C" fn rereg_mr(
    _mr: *mut ibv_mr,
    _flags: c_int,
    _pd: *mut ibv_pd,
    _addr: *mut c_void,
    _length: usize,
    _access: c_int,
) -> c_int {
    // This error means that the region is unchanged (man ibv_rereg_mr).
    Errno::EOPNOTSUPP.set();
    ibv_rereg_mr_err_code::IBV_REREG_MR_ERR_INPUT.0
}
