//! Errors of addresses at which the kernel does not listen.

use std::net::SocketAddr;

use rdma_sys::Errno;

use super::library::system_error;
use crate::error::Error;

/// Returns the error of an address at which the kernel does not listen.
pub(super) fn not_listening(errno: Errno, address: SocketAddr, device: String) -> Error {
    match errno {
        Errno::EADDRINUSE => Error::PortInUse { port: address.port(), device },
        Errno::EACCES => Error::PortReserved { port: address.port() },
        Errno::EADDRNOTAVAIL | Errno::ENODEV => Error::NoRoute { address: address.ip(), device },
        errno => Error::System { tried: "listen", source: system_error(errno) },
    }
}

/// Returns the error of an address to which the kernel binds no ID. `is_own` returns true if it binds one to another
/// port.
pub(super) fn not_bound(
    errno: Errno,
    address: SocketAddr,
    device: String,
    is_own: impl FnOnce() -> bool,
) -> Error {
    // If one of two IDs has all addresses, the kernel reports a port in use like an address that the host lacks.
    let is_in_use = errno == Errno::EADDRNOTAVAIL && address.port() != 0 && is_own();
    let errno = if is_in_use { Errno::EADDRINUSE } else { errno };
    not_listening(errno, address, device)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn errors_of_a_listener_name_their_cause() {
        let address = ([192, 0, 2, 1], 80).into();
        let text = |errno| not_listening(errno, address, "rxe0".into()).to_string();
        for (errno, expected) in [
            (Errno::EADDRINUSE, "port 80 of `rxe0` is in use: "),
            (Errno::EACCES, "port 80 is reserved: use a port from 1024 on "),
            (Errno::EADDRNOTAVAIL, "`rxe0` has no route to 192.0.2.1: "),
            (Errno::EMFILE, "the connection manager cannot listen: Too many open files"),
        ] {
            assert!(text(errno).starts_with(expected), "{}", text(errno));
        }
        assert!(text(Errno::EMFILE).contains("`ulimit -n`"));
        assert!(text(Errno::ENOMEM).contains("Cannot allocate memory (os error 12); free memory"));
    }

    #[test]
    fn a_port_in_use_at_all_addresses_is_named() {
        let text = |port, is_own| {
            let address = ([0, 0, 0, 0], port).into();
            not_bound(Errno::EADDRNOTAVAIL, address, "rxe0".into(), || is_own).to_string()
        };
        assert!(text(80, true).starts_with("port 80 of `rxe0` is in use: "));
        assert!(text(80, false).starts_with("`rxe0` has no route to 0.0.0.0: "));
        assert!(text(0, true).starts_with("`rxe0` has no route to 0.0.0.0: "));
    }
}
