//! Functions that this library lacks: rsockets, and those of newer versions. All fail with `ENOSYS`.

use std::ffi::c_int;
use std::sync::atomic::AtomicBool;

use crate::errors::{fail, lacking};

/// Defines functions that print one line and fail. C passes their arguments in registers or on the caller's stack, so a
/// function that reads none needs no declaration of them.
macro_rules! lacking {
    ($reason:literal: $($name:ident -> $type:ty;)+) => {$(
        #[allow(unsafe_code)]
        #[unsafe(no_mangle)]
        extern "C" fn $name() -> $type {
            static PRINTED: AtomicBool = AtomicBool::new(false);
            <$type>::from(fail(lacking(&PRINTED, stringify!($name), $reason)))
        }
    )+};
}

/// An `off_t` or `ssize_t`: the value -1 after a failure.
#[repr(transparent)]
struct Signed(isize);

impl From<c_int> for Signed {
    fn from(failure: c_int) -> Self {
        Self(failure as isize)
    }
}

lacking! {
    "rsockets need the kernel's rdma_cm; use TCP, or libfabric's tcp provider, for sockets":
    rsocket -> c_int;
    rbind -> c_int;
    rlisten -> c_int;
    raccept -> c_int;
    rconnect -> c_int;
    rshutdown -> c_int;
    rclose -> c_int;
    rrecv -> Signed;
    rrecvfrom -> Signed;
    rrecvmsg -> Signed;
    rsend -> Signed;
    rsendto -> Signed;
    rsendmsg -> Signed;
    rread -> Signed;
    rreadv -> Signed;
    rwrite -> Signed;
    rwritev -> Signed;
    rpoll -> c_int;
    rselect -> c_int;
    rgetpeername -> c_int;
    rgetsockname -> c_int;
    rsetsockopt -> c_int;
    rgetsockopt -> c_int;
    rfcntl -> c_int;
    riomap -> Signed;
    riounmap -> c_int;
    riowrite -> Signed;
    repoll_create -> c_int;
    repoll_ctl -> c_int;
    repoll_wait -> c_int;
}

lacking! {
    "it queries a subnet's administration, which software devices lack; use rdma_getaddrinfo":
    rdma_resolve_addrinfo -> c_int;
    rdma_query_addrinfo -> c_int;
}

lacking! {
    "only this library writes events; end an ID with rdma_disconnect":
    rdma_write_cm_event -> c_int;
}
