//! The primitives that the model checker replaces: under `cfg(loom)` the lock and the atomics of the
//! data path are loom's, so that its tests explore the production modules.
//!
//! The lock itself is explored apart, by two threads: with more, two that wait can hand the processor to
//! each other for ever, as the model checker has no fairness. Of what is built on it, it explores more,
//! and with a mutex that blocks and has the same contract.

#[cfg(loom)]
pub(crate) use loom::sync::atomic::{AtomicU32, AtomicU64, Ordering, fence};
#[cfg(not(loom))]
pub(crate) use std::sync::atomic::{AtomicU32, AtomicU64, Ordering, fence};

#[cfg(any(not(loom), test))]
mod cell;
#[cfg(any(not(loom), test))]
mod lock;
#[cfg(loom)]
mod modelled_lock;

#[cfg(not(loom))]
pub(crate) use lock::{Guard, Lock};
#[cfg(loom)]
pub(crate) use modelled_lock::{Guard, Lock};

/// Waits for a moment before another thread's work is looked at again, which was done in vain `looks`
/// times: the longer, the more often.
#[cfg(not(loom))]
fn pause(looks: u32) {
    const SPINS: u32 = 200;
    const YIELDS: u32 = 200;
    const SLEEP: std::time::Duration = std::time::Duration::from_micros(50);
    match looks % (SPINS + YIELDS + 1) {
        n if n < SPINS => std::hint::spin_loop(),
        n if n < SPINS + YIELDS => std::thread::yield_now(),
        // Then from the beginning: the more looks, the less easily does it miss that the lock is free.
        _ => std::thread::sleep(SLEEP),
    }
}

#[cfg(all(loom, test))]
fn pause(_looks: u32) {
    loom::thread::yield_now();
}

/// Locks a control-path mutex, which the model checker does not see, likewise without poisoning.
pub(crate) fn locked<T>(mutex: &std::sync::Mutex<T>) -> std::sync::MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(std::sync::PoisonError::into_inner)
}

/// Alone on its cache lines: two of them, since x86-64 fetches lines in pairs.
#[derive(Debug, Default)]
#[repr(align(128))]
pub(crate) struct Line<T>(pub(crate) T);

impl<T> std::ops::Deref for Line<T> {
    type Target = T;
    #[inline]
    fn deref(&self) -> &T {
        &self.0
    }
}
