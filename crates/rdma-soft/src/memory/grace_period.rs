//! Grace periods: whoever takes memory back waits until no thread uses what it found by a key before.
//!
//! A thread that looks a key up does so within a [`Visit`], and says so in a word of its own: two plain
//! stores. Whoever makes a key unknown then looks at the words of all threads, and waits for those that
//! are within a visit. So the wait costs by the number of threads, not by that of queue pairs, and is
//! paid by the side that deregisters.
//!
//! The two sides are Dekker's: each writes, then reads what the other wrote. What keeps the write before
//! the read is a barrier on each side, of which the one of the visitor is left to `membarrier` of the
//! waiting side where the kernel has it.

use crate::memory::barrier;
use crate::sync::backoff::Backoff;
use crate::sync::{AtomicU64, Line, Lock, Ordering};

#[cfg(test)]
#[cfg(loom)]
mod loom_tests;
#[cfg(test)]
#[cfg(not(loom))]
mod tests;

/// One thread's word: odd within a visit, and another number in each.
#[derive(Debug, Default)]
struct Visitor {
    visits: Line<AtomicU64>,
}

/// The visitors of living threads. Those of threads that ended are used again. They are the process's and not
/// a fabric's, since they are of threads, which come to the devices of any.
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
        // Leaving then never allocates.
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

/// Leaves the list when its thread ends.
struct Membership(&'static Visitor);

impl Drop for Membership {
    fn drop(&mut self) {
        // A model's statics are gone when the locals of its first thread are dropped.
        if cfg!(not(loom)) {
            let _ = WORD.try_with(|word| word.set(None));
            Visitors::leave(self.0);
        }
    }
}

#[cfg(not(loom))]
thread_local! {
    /// Without a destructor, so that it can be read until the very end of a thread.
    static WORD: std::cell::Cell<Option<&'static Visitor>> = const { std::cell::Cell::new(None) };
    static MEMBERSHIP: Membership = Membership(Visitors::join());
}
#[cfg(loom)]
loom::thread_local! {
    static WORD: std::cell::Cell<Option<&'static Visitor>> = std::cell::Cell::new(None);
    static MEMBERSHIP: Membership = Membership(Visitors::join());
}

/// While it lives, what this thread finds by a key stays registered. There is one at a time in a thread.
#[derive(Debug)]
pub(crate) struct Visit {
    visitor: &'static Visitor,
    number: u64,
    /// Its destructors have run: the visitor is of this visit alone.
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
        // Only this thread writes it.
        let number = visitor.visits.load(Ordering::Relaxed) + 1;
        debug_assert!(number % 2 == 1, "a visit within a visit");
        // Released, since who waits for the visit before this one may see this store in place of that one's end.
        visitor.visits.store(number, Ordering::Release);
        barrier::light();
        Self { visitor, number, thread_ends }
    }

    /// The first visit of a thread.
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
        // Released, so that who sees it sees all that this visit did.
        self.visitor.visits.store(self.number + 1, Ordering::Release);
        if self.thread_ends {
            Visitors::leave(self.visitor);
        }
    }
}

/// Asks the kernel what a visit has to know, so that no visit does: the answer may take long. The caller holds no lock.
pub(crate) fn prepare() {
    barrier::prepare();
}

/// Waits until each visit that was there when this was called is over. The caller has made the key
/// unknown, and is in no visit itself.
pub(crate) fn wait() {
    barrier::heavy();
    // The list is not locked while this waits. It is gone through from its end: what leaves is replaced
    // by the last, which was seen. Who joins after the look at its length finds the key unknown.
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
