//! A barrier with a light side, which threads execute often, and a heavy side, which they execute rarely. Where the
//! kernel supports `membarrier(2)`, the light side costs almost nothing.
//!
//! `membarrier(2)` makes every running thread of the process execute a full barrier. So the light side only has to keep
//! the compiler from moving its store after its load; the heavy side's system call provides the barrier for both. Where
//! the kernel does not have this call, or a seccomp filter forbids it, both sides are full barriers.
#![allow(unsafe_code)]

use crate::sync::{Ordering, fence};
use kernel::KERNEL;

#[cfg(not(any(loom, miri)))]
mod kernel {
    use std::sync::Once;
    use std::sync::atomic::{AtomicBool, Ordering, compiler_fence};

    use crate::sync::assert_nothing_held;

    /// `MEMBARRIER_CMD_PRIVATE_EXPEDITED` and its registration, from `linux/membarrier.h`.
    const EXPEDITED: libc::c_int = 1 << 3;
    const REGISTER: libc::c_int = 1 << 4;

    /// Whether the kernel supports `membarrier(2)`. Its answer is obtained before a thread first executes either side.
    /// If it arrived between the two sides of one barrier, each side could rely on the other to provide the barrier.
    pub(super) struct Kernel {
        asked: Once,
        available: AtomicBool,
    }

    pub(super) static KERNEL: Kernel = Kernel::new();

    fn membarrier(command: libc::c_int) -> bool {
        // SAFETY: the commands above do not access the caller's memory (membarrier(2), SAFETY.md F15).
        unsafe { libc::syscall(libc::SYS_membarrier, command, 0, 0) == 0 }
    }

    impl Kernel {
        const fn new() -> Self {
            Self { asked: Once::new(), available: AtomicBool::new(false) }
        }

        /// Registers with the kernel. In a process with several threads, the kernel waits for its own grace period
        /// before it answers the first time. If a lock were held meanwhile, other threads would spin on it.
        pub(super) fn register(&self) -> bool {
            assert_nothing_held();
            membarrier(REGISTER)
        }

        /// Decides whether both sides rely on the kernel. A seccomp filter may forbid the call although the process is
        /// registered, so the kernel is asked again.
        pub(super) fn prepare(&self) {
            self.asked.call_once(|| self.available.store(self.register(), Ordering::Relaxed));
        }

        #[inline(always)]
        pub(super) fn light(&self) -> bool {
            compiler_fence(Ordering::SeqCst);
            self.available.load(Ordering::Relaxed)
        }

        /// Returns true if `membarrier(2)` has provided the barrier. Aborts if the call fails although the registration
        /// succeeded: a seccomp filter that was installed later forbids it. If the process went on, visits that have
        /// begun would have no barrier, and memory that they use could be freed.
        pub(super) fn heavy(&self) -> bool {
            self.prepare();
            let available = self.available.load(Ordering::Relaxed);
            if available && !membarrier(EXPEDITED) {
                let error = std::io::Error::last_os_error();
                eprintln!(
                    "rdma-soft: membarrier failed ({error}) and worked before: allow it in the \
                     seccomp filter, or install the filter before the first queue pair is created \
                     and the first region deregistered"
                );
                std::process::abort();
            }
            available
        }
    }

    #[cfg(test)]
    mod tests {
        use super::*;

        /// A thread that executes the light side later finds the answer that the heavy side got from the kernel.
        #[test]
        fn the_first_heavy_side_asks_the_kernel_as_the_first_light_side_does() {
            let kernel = Kernel::new();
            assert_eq!(kernel.heavy(), membarrier(REGISTER));
            assert!(kernel.asked.is_completed());
            assert_eq!(kernel.light(), kernel.heavy());
        }

        #[test]
        #[cfg(debug_assertions)]
        #[should_panic(expected = "a system call under a lock of the engine")]
        fn the_kernel_is_asked_under_no_lock() {
            let lock = crate::sync::Lock::new(());
            let _held = lock.lock();
            Kernel::new().prepare();
        }
    }
}
/// The model checker and Miri do not support this system call.
#[cfg(any(loom, miri))]
mod kernel {
    pub(super) struct Kernel;

    pub(super) static KERNEL: Kernel = Kernel;

    impl Kernel {
        pub(super) fn register(&self) -> bool {
            false
        }

        pub(super) fn prepare(&self) {}

        pub(super) fn light(&self) -> bool {
            false
        }

        pub(super) fn heavy(&self) -> bool {
            false
        }
    }
}

/// Registers the process with the kernel, so that a later [`prepare`] is fast. The caller holds no lock.
pub(super) fn register() {
    KERNEL.register();
}

/// Asks the kernel whether it has the call. A thread calls this before its first light side, and holds no lock if it
/// may be the first thread to ask.
pub(super) fn prepare() {
    KERNEL.prepare();
}

/// The light side. For any thread that passes the [heavy] side, one of two things holds. Either that thread, after its
/// heavy side, sees the stores before this call. Or the loads after this call see what that thread stored before its
/// heavy side.
#[inline(always)]
pub(super) fn light() {
    if !KERNEL.light() {
        fence(Ordering::SeqCst);
    }
}

/// The other side of [`light`].
pub(super) fn heavy() {
    if !KERNEL.heavy() {
        fence(Ordering::SeqCst);
    }
}
