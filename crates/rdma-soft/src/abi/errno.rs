//! Reports refusals in the two ways that verbs use: an error number, or NULL and `errno`.

use std::ffi::c_int;
use std::ptr;

use rdma_sys::Errno;

use crate::engine::Refusal;

impl From<Refusal> for Errno {
    fn from(refusal: Refusal) -> Self {
        match refusal {
            Refusal::Invalid => Self::EINVAL,
            Refusal::Unsupported => Self::EOPNOTSUPP,
            Refusal::NoRoom => Self::ENOMEM,
            Refusal::Fault => Self::EFAULT,
            Refusal::Busy => Self::EBUSY,
            Refusal::NoFile => Self::EBADF,
            Refusal::TooManyFiles => Self::EMFILE,
            Refusal::FileTooLong => Self::EFBIG,
            Refusal::Gone => Self::ENODEV,
            Refusal::Unreachable => Self::EHOSTUNREACH,
            Refusal::NotAllowed => Self::EACCES,
            // `ENOENT` or `EACCES` would suggest that the device itself is missing or not accessible.
            Refusal::Unusable => Self::EIO,
        }
    }
}

/// Converts a result for verbs that return an error number.
pub(super) fn number(result: Result<(), Refusal>) -> c_int {
    result.map_or_else(|refusal| Errno::from(refusal).raw(), |()| 0)
}

/// Converts a result for verbs that return NULL and set `errno`.
pub(super) fn pointer<T>(result: Result<*mut T, Refusal>) -> *mut T {
    result.unwrap_or_else(|refusal| {
        Errno::from(refusal).set();
        ptr::null_mut()
    })
}
