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
    /// The thread that is in a collective.
    thread: Mutex<Option<ThreadId>>,
    world: Mutex<World>,
}

impl SharedWorld {
    pub(crate) fn new(world: World) -> Self {
        let (entries, pd) = (world.ranks.entries.clone(), world.pd.clone());
        let pool = world.pool.clone();
        Self { entries, pd, pool, thread: Mutex::default(), world: Mutex::new(world) }
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
        let own = Some(thread::current().id());
        if *lock(&self.thread) == own {
            let text = "the function of a reduction has called a collective: call it afterwards";
            return Err(Error::Argument(text.to_owned()));
        }
        let world = lock(&self.world);
        *lock(&self.thread) = own;
        Ok(Entered { thread: &self.thread, world })
    }
}

/// A thread in a collective.
pub(crate) struct Entered<'w> {
    thread: &'w Mutex<Option<ThreadId>>,
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

impl Drop for Entered<'_> {
    fn drop(&mut self) {
        *lock(self.thread) = None;
    }
}

fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}
