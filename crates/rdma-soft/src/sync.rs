//! Synchronization primitives that the model checker replaces. Under `cfg(loom)`, the lock and the atomics of the data
//! path are loom's, so loom's tests explore the production modules.

pub(crate) mod backoff;
pub(crate) mod delegation;
mod held;
mod lock;

#[cfg(not(all(test, loom)))]
pub(crate) use held::assert_nothing_held;
pub(crate) use held::{ControlGuard, Held};
#[cfg(all(test, not(loom)))]
pub(crate) use lock::tests::while_one_waits;
pub(crate) use lock::{Guard, Lock};

#[cfg(loom)]
pub(crate) use loom::sync::{
    Condvar, Mutex, MutexGuard,
    atomic::{AtomicPtr, AtomicU32, AtomicU64, AtomicUsize, Ordering, fence},
};
use std::sync::TryLockError;
#[cfg(not(loom))]
pub(crate) use std::sync::{
    Condvar, Mutex, MutexGuard,
    atomic::{AtomicBool, AtomicPtr, AtomicU32, AtomicU64, AtomicUsize, Ordering, fence},
};

#[cfg(loom)]
loom::thread_local! {
    static PLACE: std::cell::Cell<u64> = std::cell::Cell::new(0);
}
#[cfg(not(loom))]
thread_local! {
    /// Only the address of this cell is used, as the number of the thread.
    static PLACE: std::cell::Cell<u64> = const { std::cell::Cell::new(0) };
}

/// Returns a number that no other running thread has. The number is even and not 0.
#[inline]
pub(crate) fn this_thread() -> u64 {
    PLACE.with(|place| std::ptr::from_ref(place).addr() as u64)
}

/// Locks a control-path mutex, which the model checker does not see. Poisoning is ignored.
pub(crate) fn locked<T>(mutex: &std::sync::Mutex<T>) -> ControlGuard<'_, T> {
    Held::new(locked_to_wait(mutex))
}

/// Locks a control-path mutex, like [`locked`], but does not count the guard as an engine lock. The thread may wait on
/// a condition variable or make system calls while it holds it.
pub(crate) fn locked_to_wait<T>(mutex: &std::sync::Mutex<T>) -> std::sync::MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(std::sync::PoisonError::into_inner)
}

/// Locks an engine mutex that the model checker explores. Poisoning is ignored.
pub(crate) fn locked_in_models<T>(mutex: &Mutex<T>) -> Held<MutexGuard<'_, T>> {
    Held::new(locked_for_calls(mutex))
}

/// Like [`locked_for_calls`], but returns `None` if another thread holds the mutex.
fn try_locked_for_calls<T>(mutex: &Mutex<T>) -> Option<MutexGuard<'_, T>> {
    match mutex.try_lock() {
        Ok(guard) => Some(guard),
        Err(TryLockError::Poisoned(poisoned)) => Some(poisoned.into_inner()),
        Err(TryLockError::WouldBlock) => None,
    }
}

/// Locks a mutex outside the engine. A thread may make system calls while it holds such a mutex.
pub(crate) fn locked_for_calls<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    match mutex.lock() {
        Ok(guard) => guard,
        Err(poisoned) => poisoned.into_inner(),
    }
}

/// A value that shares its cache lines with nothing else. It takes two lines, because x86-64 fetches lines in pairs.
#[derive(Debug, Default)]
#[repr(C, align(128))]
pub(crate) struct Line<T>(pub(crate) T);

impl<T> std::ops::Deref for Line<T> {
    type Target = T;
    #[inline]
    fn deref(&self) -> &T {
        &self.0
    }
}
