//! How the lock is waited for, in every order of two threads. Of three two could wait, who would let each
//! other go first without end, which the model checker takes for a third order each time.

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

/// Who comes while it is taken gets the lock, sees what was done under it, and is not counted any more.
#[test]
fn loom_who_waits_gets_the_lock() {
    loom::model(|| {
        let lock = Arc::new(Lock::new(0));
        let other = spawn(&lock, |lock| *lock.lock() += 1);
        *lock.lock() += 1;
        other.join().unwrap();
        assert_eq!(*lock.lock(), 2);
        assert_eq!(lock.waiting.load(Ordering::Relaxed), 0);
    });
}

/// Who finds that nobody waits any more comes after those who did.
#[test]
fn loom_who_lets_others_comes_after_who_waited() {
    loom::model(|| {
        let lock = Arc::new(Lock::new(0));
        let guard = lock.lock();
        let other = spawn(&lock, |lock| *lock.lock() = 1);
        until_one_waits(&lock);
        drop(guard);
        lock.let_others();
        let nobody_waits = lock.waiting.load(Ordering::Relaxed) == 0;
        assert!(!nobody_waits || *lock.lock() == 1, "it was said to wait no more, and had nothing");
        other.join().unwrap();
    });
}

/// Who waits may wait for long: who lets others does not wait without a limit, nor does it keep
/// them waiting.
#[test]
fn loom_who_lets_others_goes_on_though_they_wait() {
    loom::model(|| {
        let lock = Arc::new(Lock::new(0));
        let guard = lock.lock();
        let other = spawn(&lock, |lock| *lock.lock() = 1);
        until_one_waits(&lock);
        // As if a third thread held it.
        lock.let_others();
        assert_eq!(*guard, 0);
        drop(guard);
        other.join().unwrap();
        assert_eq!(*lock.lock(), 1);
    });
}
