//! The results of functions that no device supports. libibverbs returns the same results if a provider lacks a function.

use std::ffi::c_int;
use std::ptr;

use rdma_sys::Errno;

/// The result of functions that return an error number.
pub(crate) const UNSUPPORTED: c_int = Errno::EOPNOTSUPP.raw();

/// The result of functions that return NULL and set `errno`.
pub(crate) fn unsupported_null<T>() -> *mut T {
    Errno::EOPNOTSUPP.set();
    ptr::null_mut()
}

/// The result of functions that return -1 and set `errno`.
pub(crate) fn unsupported_minus_one() -> c_int {
    Errno::EOPNOTSUPP.set();
    -1
}
