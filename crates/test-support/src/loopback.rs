//! Addresses of the loopback interface.

use std::net::SocketAddr;
use std::process;
use std::sync::atomic::{AtomicU16, Ordering};

/// Returns an address that nothing else uses. Its IP address depends on this process, and the kernel
/// chooses no port in this range.
pub fn free_address() -> SocketAddr {
    static PORT: AtomicU16 = AtomicU16::new(7471);
    let [_, high, middle, low] = process::id().to_be_bytes();
    ([127, high | 128, middle, low], PORT.fetch_add(1, Ordering::Relaxed)).into()
}
