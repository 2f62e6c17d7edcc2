//! The world of a launcher's group and its subgroups, which threads may share.

use std::ops::{Deref, DerefMut};
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::thread::{self, ThreadId};

use rdma_mem::{BufferPool, ProtectionDomain};

use crate::bootstrap::table::Entry;
use crate::error::Error;
use crate::world::World;

pub(crate) struct SharedWorld {
    entries: Vec<Entry>,
    pd: ProtectionDomain,
    pool: BufferPool,
    inside: Inside,
    world: Mutex<World>,
}

impl SharedWorld {
    pub(crate) fn new(world: World) -> Self {
        let (entries, pd) = (world.ranks.entries.clone(), world.pd.clone());
        let pool = world.pool.clone();
        Self { entries, pd, pool, inside: Inside::default(), world: Mutex::new(world) }
    }

    /// Returns the name of the host of a rank, also while another thread is in a collective.
    pub(crate) fn host(&self, rank: usize) -> String {
        self.entries.get(rank).map(|entry| entry.host.clone()).unwrap_or_default()
    }

    pub(crate) const fn pool(&self) -> &BufferPool {
        &self.pool
    }

    /// Waits until no other thread is in a collective.
    ///
    /// # Errors
    /// [`Error::Argument`] if this thread is in one: a function of a reduction has called a subgroup.
    /// [`Error::Device`] in a forked child.
    pub(crate) fn enter(&self) -> Result<Entered<'_>, Error> {
        self.pd.check_process().map_err(rdma_mem::Error::from)?;
        self.inside.check()?;
        let world = lock(&self.world);
        Ok(Entered { _stay: self.inside.enter(), world })
    }
}

/// A thread in a collective.
pub(crate) struct Entered<'w> {
    _stay: Stay<'w>,
    world: MutexGuard<'w, World>,
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
pub(crate) struct Inside(Mutex<Option<ThreadId>>);

impl Inside {
    /// # Errors
    /// [`Error::Argument`] if this is the thread.
    pub(crate) fn check(&self) -> Result<(), Error> {
        if *lock(&self.0) == Some(thread::current().id()) {
            let text = "the function of a reduction has called a collective: call it afterwards";
            return Err(Error::Argument(text.to_owned()));
        }
        Ok(())
    }

    /// Sets this thread until the result is dropped. No other thread is inside.
    pub(crate) fn enter(&self) -> Stay<'_> {
        *lock(&self.0) = Some(thread::current().id());
        Stay(self)
    }
}

/// The time in which a thread is [`Inside`].
pub(crate) struct Stay<'i>(&'i Inside);

impl Drop for Stay<'_> {
    fn drop(&mut self) {
        *lock(&self.0.0) = None;
    }
}

fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}
