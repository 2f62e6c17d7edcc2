//! A lock whose holder also does the work of the threads that find it held, so that these need not wait.

use std::ops::{Deref, DerefMut};

use super::{
    AtomicU32, Mutex, MutexGuard, Ordering, fence, locked_for_calls, try_locked_for_calls,
};

/// A lock to which a thread can leave its work if another thread holds it. Each thread that locks it passes a function,
/// `take_over`. It is called after the lock is released, if another thread has left its work. If it queues a turn, the
/// holder then runs the queue.
#[derive(Debug, Default)]
pub(crate) struct DelegationLock<T> {
    value: Mutex<T>,
    /// 1 if a thread has left its work, otherwise 0.
    left: AtomicU32,
}

impl<T> DelegationLock<T> {
    /// Waits until no other thread holds the lock.
    pub(crate) fn lock<F: Fn()>(&self, take_over: F) -> DelegationGuard<'_, T, F> {
        self.guard(locked_for_calls(&self.value), take_over)
    }

    /// Returns `None` if another thread holds the lock.
    pub(crate) fn try_lock<F: Fn()>(&self, take_over: F) -> Option<DelegationGuard<'_, T, F>> {
        let value = try_locked_for_calls(&self.value)?;
        Some(self.guard(value, take_over))
    }

    /// Returns `None` if another thread holds the lock. That thread then calls its `take_over`.
    pub(crate) fn lock_or_leave<F: Fn()>(&self, take_over: F) -> Option<DelegationGuard<'_, T, F>> {
        if let Some(value) = try_locked_for_calls(&self.value) {
            return Some(self.guard(value, take_over));
        }
        // If the holder has changed this before, it has released the lock before. This thread then sees that.
        self.left.swap(1, Ordering::AcqRel);
        self.try_lock(take_over)
    }

    fn guard<'a, F: Fn()>(
        &'a self,
        value: MutexGuard<'a, T>,
        take_over: F,
    ) -> DelegationGuard<'a, T, F> {
        DelegationGuard { value, _handover: Handover { left: &self.left, take_over } }
    }

    /// Returns true if a thread has left its work, and the holder has not taken it over yet. The holder will then find all
    /// work that this thread has seen.
    #[cfg(not(loom))]
    pub(crate) fn has_left_work(&self) -> bool {
        self.left.load(Ordering::Relaxed) != 0 && {
            // With the fence of the holder: either this thread sees that the work was taken over, or the holder sees what
            // this thread has seen.
            fence(Ordering::SeqCst);
            self.left.load(Ordering::Relaxed) != 0
        }
    }
}

/// A held [`DelegationLock`].
pub(crate) struct DelegationGuard<'a, T, F: Fn()> {
    value: MutexGuard<'a, T>,
    /// Dropped after `value`, when the lock has been released.
    _handover: Handover<'a, F>,
}

impl<T, F: Fn()> Deref for DelegationGuard<'_, T, F> {
    type Target = T;
    #[inline]
    fn deref(&self) -> &T {
        &self.value
    }
}

impl<T, F: Fn()> DerefMut for DelegationGuard<'_, T, F> {
    #[inline]
    fn deref_mut(&mut self) -> &mut T {
        &mut self.value
    }
}

struct Handover<'a, F: Fn()> {
    left: &'a AtomicU32,
    take_over: F,
}

impl<F: Fn()> Drop for Handover<'_, F> {
    #[inline]
    fn drop(&mut self) {
        if self.left.swap(0, Ordering::AcqRel) == 1 {
            fence(Ordering::SeqCst);
            (self.take_over)();
        }
    }
}

#[cfg(all(test, not(loom)))]
mod tests {
    use super::*;

    /// Returns how often the work was taken over.
    fn taken_over(lock: &DelegationLock<()>, meanwhile: impl FnOnce()) -> u32 {
        let count = AtomicU32::new(0);
        let held = lock.lock(|| _ = count.fetch_add(1, Ordering::Relaxed));
        meanwhile();
        drop(held);
        count.into_inner()
    }

    #[test]
    fn the_holder_takes_over_what_others_leave() {
        let lock = DelegationLock::<()>::default();
        assert_eq!(taken_over(&lock, || {}), 0);
        let leave = || assert!(lock.lock_or_leave(|| {}).is_none());
        let count = taken_over(&lock, || {
            assert!(lock.try_lock(|| {}).is_none() && !lock.has_left_work());
            leave();
            leave();
            assert!(lock.has_left_work());
        });
        assert_eq!((count, lock.has_left_work()), (1, false));
        assert_eq!(taken_over(&lock, || {}), 0);
        assert!(lock.lock_or_leave(|| {}).is_some());
    }

    #[test]
    fn a_holder_that_panics_takes_over_what_others_leave() {
        let lock = DelegationLock::<()>::default();
        let count = AtomicU32::new(0);
        let panics = || {
            let _held = lock.lock(|| _ = count.fetch_add(1, Ordering::Relaxed));
            assert!(lock.lock_or_leave(|| {}).is_none());
            panic!("while the lock is held");
        };
        let result = std::panic::catch_unwind(std::panic::AssertUnwindSafe(panics));
        assert!(result.is_err() && lock.try_lock(|| {}).is_some());
        assert_eq!(count.into_inner(), 1);
    }
}

#[cfg(all(test, loom))]
mod loom_tests {
    use std::cell::Cell;

    use loom::sync::Arc;
    use loom::thread;

    use super::*;

    #[derive(Default)]
    struct Shared {
        lock: DelegationLock<()>,
        waiting: AtomicU32,
        done: AtomicU32,
    }

    impl Shared {
        /// Adds work. Then does all work that waits, also what others leave, or leaves it.
        fn work(&self) {
            self.waiting.fetch_add(1, Ordering::Relaxed);
            let again = Cell::new(true);
            while again.take() {
                let Some(_held) = self.lock.lock_or_leave(|| again.set(true)) else { return };
                let found = self.waiting.swap(0, Ordering::Relaxed);
                self.done.fetch_add(found, Ordering::Relaxed);
            }
        }
    }

    #[test]
    fn loom_no_work_is_lost_when_it_is_left_to_a_holder() {
        let mut builder = loom::model::Builder::new();
        builder.preemption_bound = Some(3);
        builder.check(|| {
            let shared = Arc::new(Shared::default());
            let others = [(); 2].map(|()| {
                let shared = Arc::clone(&shared);
                thread::spawn(move || shared.work())
            });
            shared.work();
            others.into_iter().for_each(|other| other.join().unwrap());
            assert_eq!(shared.done.load(Ordering::Relaxed), 3);
        });
    }
}
