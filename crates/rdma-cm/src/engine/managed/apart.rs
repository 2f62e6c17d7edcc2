//! Threads for calls that wait for the peer.
//!
//! The kernel makes iWARP connections over TCP. `siw` waits in `rdma_connect` for the TCP connection. On every iWARP
//! device, `rdma_destroy_id` waits for the answer to an unanswered request, as does the end of the request's queue
//! pair. A peer can delay both. So each of these calls has a thread of its own, which ends with the call.

use std::io;
use std::thread::Builder;

use rdma_sys::SignalsBlocked;

/// The stack size in bytes, for a call of librdmacm or libibverbs.
const STACK: usize = 128 << 10;

/// Calls a function in a new thread, which handles no signals: a signal would interrupt the call. If the thread cannot
/// be started, the function is dropped.
pub(super) fn spawn(call: impl FnOnce() + Send + 'static) -> io::Result<()> {
    let _blocked = SignalsBlocked::new();
    Builder::new().name("rdma-cm-wait".into()).stack_size(STACK).spawn(call).map(drop)
}
