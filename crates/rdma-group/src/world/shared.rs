//! The world of a launcher's group and its subgroups, which threads may share.

use std::ops::{Deref, DerefMut};
use std::ptr;
use std::sync::{Condvar, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use rdma_mem::{BufferPool, ProtectionDomain};

use crate::bootstrap::link::after;
use crate::bootstrap::table::Entry;
use crate::error::Error;
use crate::world::World;

/// The ranks of a launcher's group and its subgroups. Only the connections, `W`, need a lock.
pub(crate) struct SharedWorld<W> {
    entries: Vec<Entry>,
    pd: ProtectionDomain,
    pub(crate) pool: BufferPool,
    /// The limit of a collective.
    pub(crate) limit: Duration,
    pub(crate) inside: Inside,
    pub(crate) world: W,
}

impl<W> SharedWorld<W> {
    pub(crate) fn new(
        entries: Vec<Entry>,
        limit: Duration,
        pd: ProtectionDomain,
        pool: BufferPool,
        world: W,
    ) -> Self {
        Self { entries, pd, pool, limit, inside: Inside::default(), world }
    }

    /// Returns the name of the host of a rank, also while a collective is in progress.
    pub(crate) fn host(&self, rank: usize) -> String {
        self.entries.get(rank).map(|entry| entry.host.clone()).unwrap_or_default()
    }

    /// Returns an error, [`Error::Device`], in a forked child.
    pub(crate) fn check_process(&self) -> Result<(), Error> {
        Ok(self.pd.check_process().map_err(rdma_mem::Error::from)?)
    }
}

impl SharedWorld<Mutex<World>> {
    /// Waits until no other thread is in a collective, within the limit of a collective.
    ///
    /// # Errors
    /// [`Error::Argument`] if this thread is in one: a function of a reduction has called a subgroup. This error is also
    /// returned if another thread is still in one at the limit, for example because its function waits for this thread.
    /// [`Error::Device`] in a forked child.
    pub(crate) fn enter(&self) -> Result<Entered<'_>, Error> {
        self.check_process()?;
        let stay = self.inside.wait(self.limit)?;
        Ok(Entered { world: lock(&self.world), _stay: stay })
    }
}

/// A thread in a collective.
pub(crate) struct Entered<'w> {
    world: MutexGuard<'w, World>,
    _stay: Stay<'w>,
}

impl Deref for Entered<'_> {
    type Target = World;

    fn deref(&self) -> &World {
        &self.world
    }
}

impl DerefMut for Entered<'_> {
    fn deref_mut(&mut self) -> &mut World {
        &mut self.world
    }
}

/// The thread that must not call a collective, because it is in one.
#[derive(Default)]
pub(crate) struct Inside {
    threads: Mutex<Threads>,
    left: Condvar,
}

#[derive(Default)]
struct Threads {
    inside: Option<Thread>,
    /// The number of threads that wait until it has left.
    waiting: usize,
}

/// A number that no other running thread has. It is cheaper to get than a `ThreadId`.
#[derive(Clone, Copy, PartialEq, Eq)]
struct Thread(usize);

impl Thread {
    fn current() -> Self {
        thread_local!(static PLACE: u8 = const { 0 });
        Self(PLACE.with(|place| ptr::from_ref(place).addr()))
    }
}

impl Threads {
    fn check(&self, thread: Thread) -> Result<(), Error> {
        if self.inside == Some(thread) {
            let text = "the function of a reduction has called a collective: call it afterwards";
            return Err(Error::Argument(text.to_owned()));
        }
        Ok(())
    }
}

impl Inside {
    /// Returns an error, [`Error::Argument`], if this is the thread.
    #[cfg(feature = "async")]
    pub(crate) fn check(&self) -> Result<(), Error> {
        lock(&self.threads).check(Thread::current())
    }

    /// Sets this thread until the result is dropped. No other thread is inside.
    #[cfg(feature = "async")]
    pub(crate) fn enter(&self) -> Stay<'_> {
        lock(&self.threads).inside = Some(Thread::current());
        Stay(self)
    }

    /// Waits until no other thread is inside, and then sets this thread until the result is dropped.
    ///
    /// # Errors
    /// [`Error::Argument`] if this thread is inside, or another one is inside at the limit.
    fn wait(&self, limit: Duration) -> Result<Stay<'_>, Error> {
        let thread = Thread::current();
        let mut threads = lock(&self.threads);
        threads.check(thread)?;
        if threads.inside.is_some() {
            let until = after(limit);
            threads.waiting += 1;
            while threads.inside.is_some() && Instant::now() < until {
                let left = until.saturating_duration_since(Instant::now());
                let waited = self.left.wait_timeout(threads, left);
                threads = waited.unwrap_or_else(PoisonError::into_inner).0;
            }
            threads.waiting -= 1;
            if threads.inside.is_some() {
                return Err(busy(limit));
            }
        }
        threads.inside = Some(thread);
        Ok(Stay(self))
    }
}

/// Returns the error of a call that has waited that long for another one on the same rank.
pub(crate) fn busy(limit: Duration) -> Error {
    Error::Argument(format!(
        "another call of this rank has not ended within {limit:?}: complete or drop it before this one"
    ))
}

/// The time in which a thread is [`Inside`].
pub(crate) struct Stay<'i>(&'i Inside);

impl Drop for Stay<'_> {
    fn drop(&mut self) {
        let mut threads = lock(&self.0.threads);
        threads.inside = None;
        // A notice costs a system call.
        if threads.waiting > 0 {
            self.0.left.notify_one();
        }
    }
}

fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

#[cfg(test)]
mod tests {
    use std::thread;

    use super::*;

    #[test]
    fn a_call_waits_for_another_thread_within_the_limit() {
        let (inside, short) = (Inside::default(), Duration::from_millis(1));
        let stay = inside.wait(short).unwrap();
        thread::scope(|threads| {
            let wait = |limit| inside.wait(limit).map(drop);
            let text = |result: Result<(), Error>| result.unwrap_err().to_string();
            assert!(
                text(wait(Duration::MAX)).starts_with("the function of a reduction has called")
            );
            let late = threads.spawn(move || text(wait(short))).join().unwrap();
            assert!(
                late.starts_with("another call of this rank has not ended within 1ms"),
                "{late}"
            );
            let waits = threads.spawn(move || wait(Duration::MAX));
            while lock(&inside.threads).waiting == 0 {
                thread::yield_now();
            }
            drop(stay);
            waits.join().unwrap().unwrap();
        });
        assert!(inside.wait(short).is_ok());
    }
}
