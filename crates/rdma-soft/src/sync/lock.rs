//! The lock of the data path: one word, taken by one exchange and given back by one plain store.
//!
//! Not the standard library's, which gives a lock back by an exchange, to learn whether a thread sleeps
//! on it. An exchange waits until all earlier stores are visible, and here these are stores to lines that
//! the peer's core has in its cache: the costliest instruction of a SEND. After a plain store they drain
//! while the thread goes on. But it cannot tell a sleeper, so that those who wait must look.
//!
//! What is done under a lock is a few instructions or one copy, and none of the program's code, so that a
//! wait is short unless the holder lost its core or waits for a page. Therefore who waits spins for about
//! as long as a small operation takes, then lends its core to others, the holder among them, and at last
//! sleeps for moments: that also lets a holder run whose real-time priority is below the waiter's.

#![allow(unsafe_code)]

use std::marker::PhantomData;
use std::ops::{Deref, DerefMut};

use crate::sync::cell::UnsafeCell;
use crate::sync::{AtomicU32, Ordering, pause};

const FREE: u32 = 0;
const HELD: u32 = 1;

/// A mutex without poisoning: no code of a caller runs under it, and the shims abort on a panic.
#[derive(Default)]
pub(crate) struct Lock<T> {
    state: AtomicU32,
    value: UnsafeCell<T>,
}

// SAFETY: SAFETY.md F17: one thread at a time reaches the value, so that it is as if it were sent from
// each to the next.
unsafe impl<T: Send> Sync for Lock<T> {}

impl<T> Lock<T> {
    pub(crate) fn new(value: T) -> Self {
        Self { state: AtomicU32::new(FREE), value: UnsafeCell::new(value) }
    }

    #[inline(always)]
    pub(crate) fn lock(&self) -> Guard<'_, T> {
        if !self.try_take() {
            self.wait();
        }
        Guard { lock: self, value: PhantomData }
    }

    #[inline(always)]
    fn try_take(&self) -> bool {
        self.state.compare_exchange(FREE, HELD, Ordering::Acquire, Ordering::Relaxed).is_ok()
    }

    /// Waits for the lock and takes it.
    #[cold]
    fn wait(&self) {
        let mut looks = 0;
        loop {
            // Exchanges would take the line away from the holder each time.
            while self.state.load(Ordering::Relaxed) == HELD {
                pause(looks);
                looks = looks.wrapping_add(1);
            }
            if self.try_take() {
                return;
            }
        }
    }

    /// Waits until whoever holds the lock has let go, and sees what they did.
    pub(crate) fn pass(&self) {
        drop(self.lock());
    }
}

impl<T> std::fmt::Debug for Lock<T> {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Lock").finish_non_exhaustive()
    }
}

/// The lock, held: there is one of these at a time.
#[derive(Debug)]
pub(crate) struct Guard<'a, T> {
    lock: &'a Lock<T>,
    /// Lends the value, so that it is shared between threads only if the value may be.
    value: PhantomData<&'a mut T>,
}

impl<T> Deref for Guard<'_, T> {
    type Target = T;

    #[inline(always)]
    fn deref(&self) -> &T {
        self.lock.value.with(|value| {
            // SAFETY: SAFETY.md F17: this guard holds the lock, and lends the value while it lives.
            unsafe { &*value }
        })
    }
}

impl<T> DerefMut for Guard<'_, T> {
    #[inline(always)]
    fn deref_mut(&mut self) -> &mut T {
        self.lock.value.with_mut(|value| {
            // SAFETY: SAFETY.md F17: as above, and the guard is borrowed for as long as the value.
            unsafe { &mut *value }
        })
    }
}

impl<T> Drop for Guard<'_, T> {
    #[inline(always)]
    fn drop(&mut self) {
        self.lock.state.store(FREE, Ordering::Release);
    }
}

#[cfg(test)]
#[cfg(not(loom))]
mod tests {
    use super::*;

    #[test]
    fn threads_exclude_each_other_and_see_what_the_others_did() {
        let lock = Lock::new((0_u64, 0_u64));
        let add = || {
            for _ in 0..20_000 {
                let mut both = lock.lock();
                assert_eq!(both.0, both.1);
                both.0 += 1;
                both.1 += 1;
            }
        };
        // More than there are cores, so that holders are preempted.
        std::thread::scope(|scope| {
            for _ in 0..8 {
                scope.spawn(add);
            }
        });
        assert_eq!(*lock.lock(), (160_000, 160_000));
    }

    #[test]
    fn waits_for_a_holder_that_takes_long() {
        let lock = Lock::new(0);
        let guard = lock.lock();
        std::thread::scope(|scope| {
            let waiter = scope.spawn(|| *lock.lock());
            // Long enough for every way to wait.
            for n in 0..10_000 {
                pause(n);
            }
            assert!(!waiter.is_finished());
            let mut guard = guard;
            *guard = 7;
            drop(guard);
            assert_eq!(waiter.join().unwrap(), 7);
        });
        lock.pass();
    }

    #[test]
    fn a_panic_gives_the_lock_back() {
        let lock = Lock::new(1);
        let panicked = std::panic::catch_unwind(std::panic::AssertUnwindSafe(|| {
            let _guard = lock.lock();
            std::panic::resume_unwind(Box::new(()));
        }));
        assert!(panicked.is_err());
        assert_eq!(*lock.lock(), 1);
    }
}

#[cfg(test)]
#[cfg(loom)]
mod loom_tests {
    use std::sync::Arc;

    use loom::thread;

    use super::*;

    /// The model checker sees each access to the value, and fails if two are not ordered.
    #[test]
    fn loom_holders_exclude_each_other() {
        loom::model(|| {
            let lock = Arc::new(Lock::new(0));
            let other = {
                let lock = Arc::clone(&lock);
                thread::spawn(move || {
                    for _ in 0..2 {
                        let mut sum = lock.lock();
                        let before = *sum;
                        *sum = before + 1;
                    }
                })
            };
            for _ in 0..2 {
                *lock.lock() += 10;
            }
            other.join().unwrap();
            assert_eq!(*lock.lock(), 22);
        });
    }

    /// Whoever passed through the lock sees what was done under it before, and what comes later sees
    /// what was done before the pass.
    #[test]
    fn loom_a_pass_comes_before_or_after() {
        loom::model(|| {
            let (lock, closed) = (Arc::new(Lock::new(0)), Arc::new(AtomicU32::new(0)));
            let user = {
                let (lock, closed) = (Arc::clone(&lock), Arc::clone(&closed));
                thread::spawn(move || {
                    let mut uses = lock.lock();
                    if closed.load(Ordering::Relaxed) == 0 {
                        *uses += 1;
                    }
                })
            };
            closed.store(1, Ordering::Relaxed);
            lock.pass();
            let seen = *lock.lock();
            user.join().unwrap();
            assert_eq!(*lock.lock(), seen, "used after it was closed");
        });
    }
}
