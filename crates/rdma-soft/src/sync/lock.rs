//! The lock of the data path.
//!
//! It is held for tens of nanoseconds, mostly by the only thread that wants it, so what counts is what
//! an uncontended use costs: taking it is one atomic operation, giving it back a plain store. The price
//! is that whoever gives it back does not know of those who wait, and wakes nobody: a waiter looks
//! again, ever more rarely, since the holder may be copying megabytes, or may have lost its core.

#[cfg(loom)]
pub(crate) use model::{Guard, Lock};
#[cfg(not(loom))]
pub(crate) use spinning::{Guard, Lock};

#[cfg(all(test, loom))]
mod loom_tests;

/// The lock itself; where the model checker runs, for models of the lock alone.
#[cfg(any(test, not(loom)))]
mod spinning {
    #[cfg(not(loom))]
    use spin::mutex::{SpinMutex, SpinMutexGuard};

    #[cfg(loom)]
    use super::stand_in::{SpinMutex, SpinMutexGuard};
    use crate::sync::backoff::Backoff;
    use crate::sync::{AtomicU32, Held, Ordering};

    pub(crate) type Guard<'a, T> = Held<SpinMutexGuard<'a, T>>;

    /// A mutex without poisoning: no code of a caller runs under it, and the shims abort on a panic.
    #[derive(Debug, Default)]
    pub(crate) struct Lock<T> {
        value: SpinMutex<T>,
        /// How many wait, or are about to.
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

        /// Same as [`lock`](Self::lock), but waits for another thread only if that returns true.
        #[cfg_attr(loom, allow(dead_code))] // models of queues have the lock below
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
                // Only looks while it is taken: an attempt would pull the line from its holder.
                if self.value.is_locked() {
                    continue;
                }
                if let Some(guard) = self.value.try_lock() {
                    self.waiting.fetch_sub(1, Ordering::Relaxed);
                    return guard;
                }
            }
        }

        /// Waits until whoever holds the lock has let go, and sees what they did.
        #[cfg_attr(loom, allow(dead_code))]
        pub(crate) fn pass(&self) {
            drop(self.lock());
        }

        /// Lets those have the lock who wait for it, before the caller takes it again: they may sleep, and
        /// would find it taken each time that they look. Not for long, since others may come.
        #[cold]
        pub(crate) fn let_others(&self) {
            let mut backoff = Backoff::default();
            for _ in 0..LONGEST {
                if self.waiting.load(Ordering::Relaxed) == 0 {
                    return;
                }
                backoff.wait();
            }
        }
    }

    /// Rounds, the last of which sleep as long as any waiter does: some milliseconds in all.
    const LONGEST: u32 = if cfg!(loom) { 3 } else { 26 };
}

/// Instead of the library's lock, whose orderings are not explored.
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

/// What models of all else have: a thread that waits for it does not run, so that they stay small.
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

        pub(crate) fn pass(&self) {
            drop(self.lock());
        }

        /// The model checker has no favourites.
        pub(crate) fn let_others(&self) {}
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
    fn who_waits_for_a_long_time_sleeps_and_gets_the_lock_then() {
        let lock = Lock::new(0);
        let seen = while_one_waits(|| *lock.lock(), || lock.lock(), |guard| **guard = 5);
        assert_eq!(seen, 5);
    }

    #[test]
    fn passing_waits_for_the_holder() {
        let (lock, done) = (Lock::new(()), AtomicBool::new(false));
        let pass = || {
            lock.pass();
            done.load(Ordering::Relaxed)
        };
        assert!(while_one_waits(pass, || lock.lock(), |_| done.store(true, Ordering::Relaxed)));
    }

    /// Takes the lock, has another thread wait for it until it sleeps, and does something before the lock
    /// is given back; what the other thread found.
    pub(crate) fn while_one_waits<G, R: Send>(
        wait: impl FnOnce() -> R + Send,
        take: impl FnOnce() -> G,
        finish: impl FnOnce(&mut G),
    ) -> R {
        let (say, hear) = mpsc::channel();
        thread::scope(|scope| {
            let mut guard = take();
            let waiter = scope.spawn(move || {
                say.send(rustix::thread::gettid()).unwrap();
                wait()
            });
            let number = hear.recv().unwrap().as_raw_nonzero();
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

    /// Whether a thread of this process is in the state S (proc_pid_stat(5)).
    fn is_asleep(thread: impl std::fmt::Display) -> bool {
        let stat = std::fs::read_to_string(format!("/proc/self/task/{thread}/stat"));
        stat.is_ok_and(|stat| stat.rsplit(')').next().is_some_and(|rest| rest.starts_with(" S")))
    }
}
