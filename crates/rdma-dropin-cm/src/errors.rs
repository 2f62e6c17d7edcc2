//! Error numbers of the functions, and the lines that explain failures without a number of their own.

use std::ffi::c_int;
use std::io::{self, Write};
use std::sync::atomic::{AtomicBool, Ordering};

use rdma_cm::Error;
use rdma_sys::Errno;

/// Sets `errno` and returns -1.
pub(crate) fn fail(number: c_int) -> c_int {
    Errno::from_raw(number).set();
    -1
}

/// Returns 0, or sets `errno` and returns -1.
pub(crate) fn returned(result: Result<(), c_int>) -> c_int {
    result.map_or_else(fail, |()| 0)
}

/// Returns the error number of a failure of `rdma-cm`.
pub(crate) fn number(error: &Error) -> c_int {
    match error {
        Error::NotThisHost { .. } => libc::ENODEV,
        Error::NoRoute { .. } => libc::ENETUNREACH,
        Error::NotOwn { .. } => libc::EADDRNOTAVAIL,
        Error::PortInUse { .. } => libc::EADDRINUSE,
        Error::Resolve(_) => libc::EADDRNOTAVAIL,
        Error::System { source, .. } => source.raw_os_error().unwrap_or(libc::EIO),
        Error::Ended(_) => libc::ENOTCONN,
        Error::Memory(_) => libc::ENODEV,
        _ => libc::EINVAL,
    }
}

/// Prints why a function fails that this library lacks, once for each function, and returns `ENOSYS`.
pub(crate) fn lacking(printed: &AtomicBool, function: &str, reason: &str) -> c_int {
    if !printed.swap(true, Ordering::Relaxed) {
        report(&format!("{function} is not implemented: {reason}"));
    }
    libc::ENOSYS
}

/// Prints that a program passes an address or hint of InfiniBand (`AF_IB`), once. The function then fails as for other
/// unknown families.
pub(crate) fn lacking_family(family: c_int) {
    static PRINTED: AtomicBool = AtomicBool::new(false);
    if family == libc::AF_IB && !PRINTED.swap(true, Ordering::Relaxed) {
        report(
            "addresses of the family AF_IB are not implemented: use AF_INET or AF_INET6, with which softib0 connects, too",
        );
    }
}

/// Prints an error. Standard error is the only way to report it to a C program.
pub(crate) fn report(error: &str) {
    // A write error is ignored.
    let _ = writeln!(io::stderr(), "librdmacm: {error}");
}
