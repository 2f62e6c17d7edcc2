//! Waiting for the lock, in every order of two threads. With a third thread, two could wait and let each other go first
//! forever, and the model checker would explore ever more orders.

use std::sync::Arc;

use loom::thread;

use super::spinning::Lock;
use crate::sync::Ordering;

fn spawn<R: 'static>(
    lock: &Arc<Lock<u32>>,
    act: impl FnOnce(&Lock<u32>) -> R + 'static,
) -> thread::JoinHandle<R> {
    let lock = Arc::clone(lock);
    thread::spawn(move || act(&lock))
}

fn until_one_waits(lock: &Lock<u32>) {
    while lock.waiting.load(Ordering::Relaxed) == 0 {
        thread::yield_now();
    }
}

/// A thread that arrives while the lock is held gets the lock and sees the changes made under it. It is then no longer
/// counted as waiting.
#[test]
fn loom_a_waiter_gets_the_lock() {
    loom::model(|| {
        let lock = Arc::new(Lock::new(0));
        let other = spawn(&lock, |lock| *lock.lock() += 1);
        *lock.lock() += 1;
        other.join().unwrap();
        assert_eq!(*lock.lock(), 2);
        assert_eq!(lock.waiting.load(Ordering::Relaxed), 0);
    });
}

/// If no thread waits any longer when `yield_to_waiters` returns, the thread that waited has had the lock.
#[test]
fn loom_let_others_returns_after_the_waiter() {
    loom::model(|| {
        let lock = Arc::new(Lock::new(0));
        let guard = lock.lock();
        let other = spawn(&lock, |lock| *lock.lock() = 1);
        until_one_waits(&lock);
        drop(guard);
        lock.yield_to_waiters();
        let nobody_waits = lock.waiting.load(Ordering::Relaxed) == 0;
        assert!(!nobody_waits || *lock.lock() == 1, "the waiter stopped waiting without the lock");
        other.join().unwrap();
    });
}

/// A thread that lets waiters go first stops doing so after a bounded time, even if they still wait. They get the lock
/// afterwards.
#[test]
fn loom_let_others_ends_though_others_wait() {
    loom::model(|| {
        let lock = Arc::new(Lock::new(0));
        let guard = lock.lock();
        let other = spawn(&lock, |lock| *lock.lock() = 1);
        until_one_waits(&lock);
        // The guard is still held, as if by a third thread.
        lock.yield_to_waiters();
        assert_eq!(*guard, 0);
        drop(guard);
        other.join().unwrap();
        assert_eq!(*lock.lock(), 1);
    });
}
