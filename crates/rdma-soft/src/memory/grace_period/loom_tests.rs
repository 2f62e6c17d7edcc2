//! A visitor and a thread that frees memory, in every order of threads and of the values that they see.
#![allow(unsafe_code)]

use std::sync::Arc;

use loom::cell::UnsafeCell;
use loom::thread;

use super::*;

/// A key, and the memory that it names.
struct Region {
    key: AtomicU64,
    memory: UnsafeCell<u64>,
}

/// A thread that finds the key uses the memory, and is done with it when the wait returns. The model's cell reports an
/// access that is not ordered before the waiting thread's access.
fn no_use_after_a_grace_period(visits: u32) {
    loom::model(move || {
        let region = Arc::new(Region { key: AtomicU64::new(1), memory: UnsafeCell::new(1) });
        let visitor = {
            let region = Arc::clone(&region);
            thread::spawn(move || {
                for _ in 0..visits {
                    let _visit = Visit::begin();
                    if region.key.load(Ordering::Acquire) == 1 {
                        // SAFETY: the region is registered (SAFETY.md F14), and no thread writes it meanwhile.
                        assert_eq!(region.memory.with(|memory| unsafe { *memory }), 1);
                    }
                }
            })
        };
        region.key.store(0, Ordering::Relaxed);
        wait();
        // SAFETY: no thread finds the memory any more (SAFETY.md F14).
        region.memory.with_mut(|memory| unsafe { *memory = 2 });
        visitor.join().unwrap();
    });
}

#[test]
fn loom_no_use_after_a_grace_period() {
    no_use_after_a_grace_period(1);
}

/// The waiting thread may see the start of the second visit without having seen the end of the first.
#[test]
fn loom_no_use_after_a_grace_period_that_overlaps_two_visits() {
    no_use_after_a_grace_period(2);
}
