//! The signals of threads that a library starts.
#![allow(unsafe_code)]

use std::marker::PhantomData;
use std::ptr;

/// Blocks all signals in the calling thread until it is dropped. Threads that are started meanwhile
/// block them too, so the program's own threads handle the signals.
///
/// ```
/// use rdma_sys::SignalsBlocked;
///
/// let blocked = SignalsBlocked::new();
/// let helper = std::thread::spawn(|| "runs no handler of a signal");
/// drop(blocked);
/// assert_eq!(helper.join().unwrap(), "runs no handler of a signal");
/// ```
#[must_use = "the signals are blocked until this is dropped"]
#[derive(Debug)]
pub struct SignalsBlocked {
    before: libc::sigset_t,
    /// The mask is that of one thread.
    of_thread: PhantomData<*const ()>,
}

impl SignalsBlocked {
    /// Blocks all signals.
    // There is no default: the call has an effect.
    #[allow(clippy::new_without_default)]
    pub fn new() -> Self {
        // SAFETY: a set consists of integers, so all-zero bytes are valid (SAFETY.md F4).
        let mut all: libc::sigset_t = unsafe { std::mem::zeroed() };
        let mut before = all;
        // SAFETY: the call writes the set (sigfillset(3), SAFETY.md F15).
        unsafe { libc::sigfillset(&raw mut all) };
        // SAFETY: the call reads one set and writes the other (pthread_sigmask(3), SAFETY.md F15).
        unsafe { libc::pthread_sigmask(libc::SIG_SETMASK, &raw const all, &raw mut before) };
        Self { before, of_thread: PhantomData }
    }
}

impl Drop for SignalsBlocked {
    fn drop(&mut self) {
        // SAFETY: the call reads the set, which the kernel returned (pthread_sigmask(3), SAFETY.md F15).
        unsafe {
            libc::pthread_sigmask(libc::SIG_SETMASK, &raw const self.before, ptr::null_mut())
        };
    }
}

#[cfg(test)]
mod tests {
    use std::mem::zeroed;

    use super::*;

    /// Returns whether this thread blocks a signal.
    fn blocks(signal: i32) -> bool {
        // SAFETY: a set consists of integers, so all-zero bytes are valid (SAFETY.md F4).
        let mut mask: libc::sigset_t = unsafe { zeroed() };
        // SAFETY: the call writes the set (pthread_sigmask(3), SAFETY.md F15).
        unsafe { libc::pthread_sigmask(libc::SIG_SETMASK, ptr::null(), &raw mut mask) };
        // SAFETY: the call reads the set (sigismember(3), SAFETY.md F15).
        unsafe { libc::sigismember(&raw const mask, signal) == 1 }
    }

    #[test]
    fn a_thread_inherits_the_blocked_signals_and_its_starter_gets_its_own_back() {
        let of_new_thread = || std::thread::spawn(|| blocks(libc::SIGUSR1)).join().unwrap();
        let blocked = SignalsBlocked::new();
        assert!(blocks(libc::SIGUSR1) && of_new_thread());
        drop(blocked);
        assert!(!blocks(libc::SIGUSR1) && !of_new_thread());
    }
}
