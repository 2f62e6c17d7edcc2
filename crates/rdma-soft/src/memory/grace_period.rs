//! Grace periods. A thread that is about to free memory waits until every thread that has found it by its key is done
//! with it.
//!
//! A thread looks keys up within a [`Visit`], and marks the visit in its own word with two plain stores. A thread that
//! makes a key unknown then checks the words of all threads, and waits for those that are within a visit. So the cost
//! of the wait depends on the number of threads, not of queue pairs, and the thread that deregisters memory pays it.
//!
//! This is Dekker's algorithm: each side writes, then reads what the other wrote. A barrier on each side keeps the
//! write before the read. Where the kernel has `membarrier`, the waiting side's call provides the visitor's barrier
//! too.

use crate::memory::barrier;
use crate::sync::backoff::Backoff;
use crate::sync::{AtomicU64, Line, Lock, Ordering};

#[cfg(test)]
#[cfg(loom)]
mod loom_tests;
#[cfg(test)]
#[cfg(not(loom))]
mod tests;

/// One thread's word: odd during a visit, and different for each visit.
#[derive(Debug, Default)]
struct Visitor {
    visits: Line<AtomicU64>,
}

/// The visitors of running threads, and those of threads that have ended, which are reused. They belong to the process,
/// not to a fabric, because a thread may use devices of any fabric.
#[derive(Debug, Default)]
struct Visitors {
    active: Vec<&'static Visitor>,
    free: Vec<&'static Visitor>,
}

#[cfg(not(loom))]
static VISITORS: std::sync::LazyLock<Lock<Visitors>> = std::sync::LazyLock::new(Lock::default);
#[cfg(loom)]
loom::lazy_static! {
    static ref VISITORS: Lock<Visitors> = Lock::default();
}

impl Visitors {
    fn join() -> &'static Visitor {
        barrier::prepare();
        let mut visitors = VISITORS.lock();
        let visitor = visitors.free.pop().unwrap_or_else(|| Box::leak(Box::default()));
        visitors.active.push(visitor);
        // Reserved now, so that leaving never allocates.
        let threads = visitors.active.len();
        visitors.free.reserve(threads);
        visitor
    }

    fn leave(visitor: &'static Visitor) {
        let mut visitors = VISITORS.lock();
        if let Some(n) = visitors.active.iter().position(|&other| std::ptr::eq(other, visitor)) {
            visitors.active.swap_remove(n);
            visitors.free.push(visitor);
        }
    }
}

/// Removes its thread from the list when the thread ends.
struct Membership(&'static Visitor);

impl Drop for Membership {
    fn drop(&mut self) {
        // In a loom model, the statics are gone when the locals of its first thread are dropped.
        if cfg!(not(loom)) {
            let _ = WORD.try_with(|word| word.set(None));
            Visitors::leave(self.0);
        }
    }
}

#[cfg(not(loom))]
thread_local! {
    /// Has no destructor, so that it can be read until the very end of a thread.
    static WORD: std::cell::Cell<Option<&'static Visitor>> = const { std::cell::Cell::new(None) };
    static MEMBERSHIP: Membership = Membership(Visitors::join());
}
#[cfg(loom)]
loom::thread_local! {
    static WORD: std::cell::Cell<Option<&'static Visitor>> = std::cell::Cell::new(None);
    static MEMBERSHIP: Membership = Membership(Visitors::join());
}

/// A visit. While it lasts, memory that this thread finds by a key stays registered. A thread has at most one visit at
/// a time.
#[derive(Debug)]
pub(crate) struct Visit {
    visitor: &'static Visitor,
    number: u64,
    /// Whether the thread is ending and has already left the list. The visitor then belongs to this visit alone.
    thread_ends: bool,
}

impl Visit {
    #[inline(always)]
    pub(crate) fn begin() -> Self {
        let word = WORD.with(std::cell::Cell::get);
        let (visitor, thread_ends) = match word {
            Some(visitor) => (visitor, false),
            None => Self::join(),
        };
        // Only this thread writes the word.
        let number = visitor.visits.load(Ordering::Relaxed) + 1;
        debug_assert!(number % 2 == 1, "a visit within a visit");
        // Release, because a thread that waits for the previous visit may see this store instead of the end of that
        // visit.
        visitor.visits.store(number, Ordering::Release);
        barrier::light();
        Self { visitor, number, thread_ends }
    }

    /// Returns a visitor for a thread that has none, and whether the visitor belongs to this visit alone.
    #[cold]
    fn join() -> (&'static Visitor, bool) {
        match MEMBERSHIP.try_with(|membership| membership.0) {
            Ok(visitor) => {
                WORD.with(|word| word.set(Some(visitor)));
                (visitor, false)
            }
            Err(_) => (Visitors::join(), true),
        }
    }
}

impl Drop for Visit {
    #[inline(always)]
    fn drop(&mut self) {
        // Release, so that a thread that sees this store sees everything that this visit did.
        self.visitor.visits.store(self.number + 1, Ordering::Release);
        if self.thread_ends {
            Visitors::leave(self.visitor);
        }
    }
}

/// Registers the process for the barrier, so that a later [`prepare`] is fast. This call is fast if the process has no
/// other threads, and many programs open their device before they start threads. The caller holds no lock.
pub(crate) fn register() {
    barrier::register();
}

/// Asks the kernel in advance whether it supports the barrier. The answer may take long, and this way, no visit has to
/// wait for it. The caller holds no lock.
pub(crate) fn prepare() {
    barrier::prepare();
}

/// Waits for the end of every visit that began before this call. The caller has made the key unknown, and is not in a
/// visit itself.
pub(crate) fn wait() {
    barrier::heavy();
    // The list is not locked while this thread waits. It is traversed from its end: an entry that leaves is replaced by
    // the last entry, which was checked already. A thread that joins after the length was read finds the key unknown.
    let mut left = VISITORS.lock().active.len();
    while let Some(n) = left.checked_sub(1) {
        let visitor = VISITORS.lock().active.get(n).copied();
        if let Some(visitor) = visitor {
            let visit = visitor.visits.load(Ordering::Acquire);
            let mut backoff = Backoff::default();
            while visit % 2 == 1 && visitor.visits.load(Ordering::Acquire) == visit {
                backoff.wait();
            }
        }
        left = n;
    }
}
