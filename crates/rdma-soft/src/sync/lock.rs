//! The lock of the data path.
//!
//! The lock is held for tens of nanoseconds, mostly without contention, so the uncontended case must be cheap. Locking
//! is one atomic operation, and unlocking is a plain store. The price is that the unlocking thread does not know
//! whether others wait, and wakes none of them. A waiter checks again at growing intervals, because the holder may be
//! copying megabytes or may have lost its core.

#[cfg(loom)]
pub(crate) use model::{Guard, Lock};
#[cfg(not(loom))]
pub(crate) use spinning::{Guard, Lock};

#[cfg(all(test, loom))]
mod loom_tests;

/// The lock itself. Under the model checker, only the models that test the lock use it; all others use `model`.
#[cfg(any(test, not(loom)))]
mod spinning {
    #[cfg(not(loom))]
    use spin::mutex::{SpinMutex, SpinMutexGuard};

    #[cfg(loom)]
    use super::stand_in::{SpinMutex, SpinMutexGuard};
    use crate::sync::backoff::Backoff;
    use crate::sync::{AtomicU32, Held, Ordering};

    pub(crate) type Guard<'a, T> = Held<SpinMutexGuard<'a, T>>;

    /// A mutex without poisoning. Poisoning is not needed: no caller-supplied code runs while the lock is held, and the
    /// C functions abort on a panic.
    #[derive(Debug, Default)]
    pub(crate) struct Lock<T> {
        value: SpinMutex<T>,
        /// The number of threads that wait or are about to wait.
        pub(super) waiting: AtomicU32,
    }

    impl<T> Lock<T> {
        pub(crate) fn new(value: T) -> Self {
            Self { value: SpinMutex::new(value), waiting: AtomicU32::new(0) }
        }

        #[inline]
        pub(crate) fn lock(&self) -> Guard<'_, T> {
            Held::new(match self.value.try_lock() {
                Some(guard) => guard,
                None => self.wait(),
            })
        }

        /// Like [`lock`](Self::lock), but waits for another thread only if `may_wait` returns true.
        #[cfg_attr(loom, allow(dead_code))] // models of queues use the lock below
        #[inline]
        pub(crate) fn lock_if(&self, may_wait: impl FnOnce() -> bool) -> Option<Guard<'_, T>> {
            let guard = self.value.try_lock();
            guard.or_else(|| may_wait().then(|| self.wait())).map(Held::new)
        }

        #[cold]
        #[inline(never)]
        fn wait(&self) -> SpinMutexGuard<'_, T> {
            self.waiting.fetch_add(1, Ordering::Relaxed);
            let mut backoff = Backoff::default();
            loop {
                backoff.wait();
                // Only reads while the lock is taken: an attempt to lock would move the cache line away from the
                // holder.
                if self.value.is_locked() {
                    continue;
                }
                if let Some(guard) = self.value.try_lock() {
                    self.waiting.fetch_sub(1, Ordering::Relaxed);
                    return guard;
                }
            }
        }

        /// Waits until the current holder has released the lock, and synchronizes with it.
        #[cfg_attr(loom, allow(dead_code))]
        pub(crate) fn wait_for_holder(&self) {
            drop(self.lock());
        }

        /// Lets waiters take the lock before the caller takes it again. Otherwise, waiters that sleep could find the
        /// lock taken each time they check. The number of rounds is limited, since new waiters may keep arriving.
        #[cold]
        pub(crate) fn yield_to_waiters(&self) {
            let mut backoff = Backoff::default();
            for _ in 0..LONGEST {
                if self.waiting.load(Ordering::Relaxed) == 0 {
                    return;
                }
                backoff.wait();
            }
        }
    }

    /// The maximum number of rounds of [`Lock::yield_to_waiters`]. The last rounds sleep for as long as any waiter
    /// does; all rounds together take a few milliseconds.
    const LONGEST: u32 = if cfg!(loom) { 3 } else { 26 };
}

/// Replaces the lock of the crate `spin`, whose memory orderings loom cannot explore.
#[cfg(all(test, loom))]
mod stand_in {
    use std::ops::{Deref, DerefMut};

    use loom::sync::atomic::{AtomicBool, Ordering};
    use loom::sync::{Mutex, MutexGuard};

    #[derive(Debug, Default)]
    pub(super) struct SpinMutex<T> {
        value: Mutex<T>,
        taken: AtomicBool,
    }

    #[derive(Debug)]
    pub(super) struct SpinMutexGuard<'a, T> {
        value: MutexGuard<'a, T>,
        taken: &'a AtomicBool,
    }

    impl<T> SpinMutex<T> {
        pub(super) fn new(value: T) -> Self {
            Self { value: Mutex::new(value), taken: AtomicBool::new(false) }
        }

        pub(super) fn try_lock(&self) -> Option<SpinMutexGuard<'_, T>> {
            let value = self.value.try_lock().ok()?;
            self.taken.store(true, Ordering::Relaxed);
            Some(SpinMutexGuard { value, taken: &self.taken })
        }

        pub(super) fn is_locked(&self) -> bool {
            self.taken.load(Ordering::Relaxed)
        }
    }

    impl<T> Deref for SpinMutexGuard<'_, T> {
        type Target = T;
        fn deref(&self) -> &T {
            &self.value
        }
    }

    impl<T> DerefMut for SpinMutexGuard<'_, T> {
        fn deref_mut(&mut self) -> &mut T {
            &mut self.value
        }
    }

    impl<T> Drop for SpinMutexGuard<'_, T> {
        fn drop(&mut self) {
            self.taken.store(false, Ordering::Relaxed);
        }
    }
}

/// The lock in all models except those of the lock itself (`loom_tests`). A thread that waits for it is not scheduled,
/// which keeps the models small.
#[cfg(loom)]
mod model {
    use loom::sync::{Mutex, MutexGuard};

    use crate::sync::Held;

    pub(crate) type Guard<'a, T> = Held<MutexGuard<'a, T>>;

    #[derive(Debug, Default)]
    pub(crate) struct Lock<T>(Mutex<T>);

    impl<T> Lock<T> {
        pub(crate) fn new(value: T) -> Self {
            Self(Mutex::new(value))
        }

        pub(crate) fn lock(&self) -> Guard<'_, T> {
            Held::new(match self.0.lock() {
                Ok(guard) => guard,
                Err(poisoned) => poisoned.into_inner(),
            })
        }

        pub(crate) fn lock_if(&self, _: impl FnOnce() -> bool) -> Option<Guard<'_, T>> {
            Some(self.lock())
        }

        pub(crate) fn wait_for_holder(&self) {
            drop(self.lock());
        }

        /// Does nothing: loom schedules threads fairly.
        pub(crate) fn yield_to_waiters(&self) {}
    }
}

#[cfg(test)]
#[cfg(not(loom))]
pub(super) mod tests {
    use std::sync::atomic::{AtomicBool, Ordering};
    use std::sync::mpsc;
    use std::thread;
    use std::time::{Duration, Instant};

    use super::Lock;

    #[test]
    fn one_thread_at_a_time_is_inside() {
        const ROUNDS: u64 = 20_000;
        let lock = Lock::new((0_u64, 0_u64));
        thread::scope(|scope| {
            for _ in 0..4 {
                scope.spawn(|| {
                    for _ in 0..ROUNDS {
                        let mut pair = lock.lock();
                        assert_eq!(pair.0, pair.1);
                        pair.0 += 1;
                        std::hint::spin_loop();
                        pair.1 += 1;
                    }
                });
            }
        });
        assert_eq!(*lock.lock(), (4 * ROUNDS, 4 * ROUNDS));
    }

    #[test]
    fn a_waiter_sleeps_after_a_while_and_then_gets_the_lock() {
        let lock = Lock::new(0);
        let seen = while_one_waits(|| *lock.lock(), || lock.lock(), |guard| **guard = 5);
        assert_eq!(seen, 5);
    }

    #[test]
    fn passing_waits_for_the_holder() {
        let (lock, done) = (Lock::new(()), AtomicBool::new(false));
        let pass = || {
            lock.wait_for_holder();
            done.load(Ordering::Relaxed)
        };
        assert!(while_one_waits(pass, || lock.lock(), |_| done.store(true, Ordering::Relaxed)));
    }

    /// Takes the lock, and lets another thread wait for it until that thread sleeps. Calls `finish` before the lock is
    /// released. Returns the result of the other thread.
    pub(crate) fn while_one_waits<G, R: Send>(
        wait: impl FnOnce() -> R + Send,
        take: impl FnOnce() -> G,
        finish: impl FnOnce(&mut G),
    ) -> R {
        let (sender, receiver) = mpsc::channel();
        thread::scope(|scope| {
            let mut guard = take();
            let waiter = scope.spawn(move || {
                sender.send(rustix::thread::gettid()).unwrap();
                wait()
            });
            let number = receiver.recv().unwrap().as_raw_nonzero();
            let deadline = Instant::now() + Duration::from_secs(20);
            while !is_asleep(number) {
                assert!(Instant::now() < deadline && !waiter.is_finished(), "it has not slept");
                thread::yield_now();
            }
            finish(&mut guard);
            drop(guard);
            waiter.join().unwrap()
        })
    }

    /// Returns true if the given thread of this process is sleeping (state `S` in proc_pid_stat(5)).
    fn is_asleep(thread: impl std::fmt::Display) -> bool {
        let stat = std::fs::read_to_string(format!("/proc/self/task/{thread}/stat"));
        stat.is_ok_and(|stat| stat.rsplit(')').next().is_some_and(|rest| rest.starts_with(" S")))
    }
}
