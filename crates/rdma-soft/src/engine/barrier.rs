//! A barrier with two sides, of which the one that is passed often costs nothing.
//!
//! `membarrier(2)` has every running thread of the process execute a full barrier. So the light side needs
//! to keep only the compiler from moving its store behind its load, and the heavy side does the rest,
//! for both. Where the kernel has no such call, or a filter forbids it, both sides are full barriers.
#![allow(unsafe_code)]

use crate::sync::{Ordering, fence};

#[cfg(not(any(loom, miri)))]
mod kernel {
    use std::sync::atomic::{AtomicBool, Ordering, compiler_fence};

    /// `MEMBARRIER_CMD_PRIVATE_EXPEDITED` and its registration, of `linux/membarrier.h`.
    const EXPEDITED: libc::c_int = 1 << 3;
    const REGISTER: libc::c_int = 1 << 4;

    /// Set before the first visit, and never again.
    static AVAILABLE: AtomicBool = AtomicBool::new(false);

    fn membarrier(command: libc::c_int) -> bool {
        // SAFETY: the commands above take no memory of the caller's (membarrier(2), SAFETY.md F15).
        unsafe { libc::syscall(libc::SYS_membarrier, command, 0, 0) == 0 }
    }

    pub(super) fn prepare() {
        static ONCE: std::sync::Once = std::sync::Once::new();
        ONCE.call_once(|| AVAILABLE.store(membarrier(REGISTER), Ordering::Relaxed));
    }

    #[inline(always)]
    pub(super) fn light() -> bool {
        compiler_fence(Ordering::SeqCst);
        AVAILABLE.load(Ordering::Relaxed)
    }

    /// A call that fails after it was registered was forbidden by a filter that came later. Visits that
    /// have begun have no barrier then, and memory would be freed that they use.
    pub(super) fn heavy() -> bool {
        let available = AVAILABLE.load(Ordering::Relaxed);
        if available && !membarrier(EXPEDITED) {
            let error = std::io::Error::last_os_error();
            eprintln!(
                "rdma-soft: membarrier failed ({error}) and worked before: allow it in the seccomp \
                 filter, or install the filter before the first request is posted"
            );
            std::process::abort();
        }
        available
    }
}
/// The model checker and the interpreter know no system calls.
#[cfg(any(loom, miri))]
mod kernel {
    pub(super) fn prepare() {}

    pub(super) fn light() -> bool {
        false
    }

    pub(super) fn heavy() -> bool {
        false
    }
}

/// Asks the kernel whether it has the call. Before the first light side of the thread.
pub(super) fn prepare() {
    kernel::prepare();
}

/// What stands before it is seen by whoever passes the [heavy](heavy) side later, or what that one wrote
/// before is seen by what follows.
#[inline(always)]
pub(super) fn light() {
    if !kernel::light() {
        fence(Ordering::SeqCst);
    }
}

/// The other side of [`light`].
pub(super) fn heavy() {
    if !kernel::heavy() {
        fence(Ordering::SeqCst);
    }
}
