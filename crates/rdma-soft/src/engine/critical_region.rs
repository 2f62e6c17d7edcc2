//! A critical region that the program enters with one call and leaves with another. It admits one thread at a time,
//! which builds requests or reads completions inside.
#![allow(unsafe_code)]

use std::cell::UnsafeCell;
use std::sync::PoisonError;

use crate::sync::{AtomicU64, Condvar, Mutex, Ordering, this_thread};

/// The thread is already inside, so it would wait for itself.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Nested;

/// Set while a thread waits to enter. Thread numbers are even, so this bit is free.
const AWAITED: u64 = 1;

/// A value that belongs to the thread inside the region. Entering waits until no thread is inside.
///
/// There is no guard object, because a C program could not hold one between its calls. Instead, the region stores the
/// number of the thread inside. A call by any other thread is recognised by its number, and has no effect.
#[derive(Debug)]
pub(crate) struct CriticalRegion<T> {
    /// The number of the thread inside, or 0; plus [`AWAITED`] if a thread waits.
    inside: AtomicU64,
    gate: Mutex<()>,
    left: Condvar,
    value: UnsafeCell<T>,
}

// SAFETY: only the thread that is inside accesses the value (SAFETY.md F17), and `enter` synchronises with the previous
// thread's `leave`.
unsafe impl<T: Send> Sync for CriticalRegion<T> {}

impl<T> CriticalRegion<T> {
    pub(crate) fn new(value: T) -> Self {
        Self {
            inside: AtomicU64::new(0),
            gate: Mutex::new(()),
            left: Condvar::new(),
            value: UnsafeCell::new(value),
        }
    }

    /// Waits until no other thread is inside, and enters.
    #[inline]
    pub(crate) fn enter(&self) -> Result<(), Nested> {
        let this = this_thread();
        match self.inside.compare_exchange(0, this, Ordering::Acquire, Ordering::Relaxed) {
            Ok(_) => Ok(()),
            Err(inside) if inside & !AWAITED == this => Err(Nested),
            Err(_) => {
                self.wait_and_enter(this);
                Ok(())
            }
        }
    }

    #[cold]
    fn wait_and_enter(&self, this: u64) {
        // Held from the check of `inside` until the wait begins, so that no wake-up in between is lost.
        let mut gate = self.gate.lock().unwrap_or_else(PoisonError::into_inner);
        loop {
            let Err(inside) =
                self.inside.compare_exchange(0, this, Ordering::Acquire, Ordering::Relaxed)
            else {
                return;
            };
            let awaited = inside | AWAITED;
            let marked =
                self.inside.compare_exchange(inside, awaited, Ordering::Relaxed, Ordering::Relaxed);
            if marked.is_ok() {
                gate = self.left.wait(gate).unwrap_or_else(PoisonError::into_inner);
            }
        }
    }

    #[inline]
    fn is_inside(&self) -> bool {
        self.inside.load(Ordering::Relaxed) & !AWAITED == this_thread()
    }

    /// Passes the value to `use_it` if this thread is inside, and returns `None` otherwise.
    ///
    /// # Safety
    ///
    /// `use_it` must not call this function on the same region.
    #[inline]
    pub(crate) unsafe fn with<R>(&self, use_it: impl FnOnce(&mut T) -> R) -> Option<R> {
        if !self.is_inside() {
            return None;
        }
        // SAFETY: this thread is inside, so no other thread accesses the value (SAFETY.md F17), and this thread is in
        // no other call of this function.
        Some(use_it(unsafe { &mut *self.value.get() }))
    }

    /// Leaves if this thread is inside, and wakes waiting threads.
    #[inline]
    pub(crate) fn leave(&self) {
        if self.is_inside() && self.inside.swap(0, Ordering::Release) & AWAITED != 0 {
            self.wake();
        }
    }

    #[cold]
    fn wake(&self) {
        drop(self.gate.lock().unwrap_or_else(PoisonError::into_inner));
        self.left.notify_all();
    }
}

#[cfg(test)]
#[cfg(not(loom))]
mod tests {
    use super::*;

    #[test]
    fn a_call_out_of_turn_reaches_nothing() {
        let region = CriticalRegion::new(5);
        // SAFETY: the closures call nothing, here and below.
        assert_eq!(unsafe { region.with(|value| *value) }, None);
        region.leave();
        assert_eq!(region.enter(), Ok(()));
        std::thread::scope(|scope| {
            scope.spawn(|| {
                // SAFETY: as above.
                assert_eq!(unsafe { region.with(|value| *value) }, None);
                region.leave();
            });
        });
        // SAFETY: as above.
        assert_eq!(unsafe { region.with(|value| *value) }, Some(5));
    }

    #[test]
    fn a_waiting_thread_is_woken_and_enters() {
        let region = CriticalRegion::new(1);
        region.enter().unwrap();
        std::thread::scope(|scope| {
            let other = scope.spawn(|| {
                region.enter().unwrap();
                // SAFETY: as above.
                let seen = unsafe { region.with(|value| *value) };
                region.leave();
                seen
            });
            while region.inside.load(Ordering::Relaxed) & AWAITED == 0 && !other.is_finished() {
                std::thread::yield_now();
            }
            // SAFETY: as above.
            assert_eq!(unsafe { region.with(|value| *value = 2) }, Some(()));
            region.leave();
            assert_eq!(other.join().unwrap(), Some(2));
        });
    }

    #[test]
    fn entering_twice_is_refused_and_leaving_once_is_enough() {
        let region = CriticalRegion::new(());
        assert_eq!((region.enter(), region.enter()), (Ok(()), Err(Nested)));
        region.leave();
        assert_eq!(region.enter(), Ok(()));
    }
}

#[cfg(test)]
#[cfg(loom)]
mod loom_tests {
    use std::sync::Arc;

    use loom::thread;

    use super::*;

    /// Each of three threads sees the value that the previous one left in the region, and no thread waits forever.
    #[test]
    fn loom_one_thread_at_a_time_is_inside() {
        let mut model = loom::model::Builder::new();
        model.preemption_bound = Some(3);
        model.check(|| {
            let region = Arc::new(CriticalRegion::new(0));
            let visit = |region: &CriticalRegion<u32>| {
                assert_eq!(region.enter(), Ok(()));
                // SAFETY: the closures call nothing.
                let before = unsafe { region.with(|value| *value) };
                thread::yield_now();
                // SAFETY: as above.
                unsafe { region.with(|value| *value = before.unwrap() + 1) };
                region.leave();
                before.unwrap()
            };
            let others: Vec<_> = (0..2)
                .map(|_| {
                    let region = Arc::clone(&region);
                    thread::spawn(move || visit(&region))
                })
                .collect();
            let mut seen = vec![visit(&region)];
            seen.extend(others.into_iter().map(|other| other.join().unwrap()));
            seen.sort_unstable();
            assert_eq!(seen, [0, 1, 2]);
        });
    }
}
