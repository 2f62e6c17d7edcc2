//! Protection domains, which determine the regions that queue pairs may use.

use std::sync::Arc;

use crate::engine::Refusal;
use crate::memory::budget::Budget;
use crate::memory::grace_period;
use crate::memory::probe::{self, Access};
use crate::memory::region::{LOCAL_READ, Region};
use crate::memory::window::Windows;
use crate::sync::Lock;

#[derive(Debug)]
pub(crate) struct ProtectionDomain {
    /// Unique in the fabric: no other protection domain and no queue pair has this number.
    pub(crate) number: u64,
    /// The memory budget of the domain's device.
    pub(crate) memory: &'static Budget,
    pub(crate) windows: Lock<Windows>,
}

/// The data needed to undo a registration.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Registration {
    pub(crate) key: u32,
    locked_bytes: u64,
}

impl ProtectionDomain {
    pub(crate) fn new(memory: &'static Budget) -> Arc<Self> {
        Arc::new(Self { number: memory.ids.unique(), memory, windows: Lock::default() })
    }

    /// Registers `length` bytes at `address`. In requests, they begin at `iova`.
    pub(crate) fn register(
        &self,
        address: u64,
        length: u64,
        iova: u64,
        access: u32,
    ) -> Result<Registration, Refusal> {
        let access_checked = Access::check(access)?;
        let pages = probe::pages(address, length).ok_or(Refusal::Invalid)?;
        iova.checked_add(length).ok_or(Refusal::Invalid)?;
        let locked_bytes = pages.length();
        let access = access | LOCAL_READ;
        let region = Region { address, iova, length, access, scope: self.number };
        let memory = self.memory;
        memory.lock_memory(locked_bytes)?;
        let entered = memory.memory_regions.take(memory.limits.max_mr).and_then(|()| {
            probe::populate(pages, access_checked.is_writable())
                .and_then(|()| memory.regions.insert(&region).ok_or(Refusal::NoRoom))
                .inspect_err(|_| memory.memory_regions.give())
        });
        match entered {
            Ok(key) => Ok(Registration { key, locked_bytes }),
            Err(refusal) => {
                memory.unlock_memory(locked_bytes);
                Err(refusal)
            }
        }
    }

    /// Notes that the memory of a registration is mapped whenever a request can use it.
    pub(crate) fn note_mapped(&self, registration: Registration) {
        self.memory.regions.note_mapped(registration.key);
    }

    /// Ends a registration. When this returns, no request accesses its memory, and later requests find the key unknown.
    /// Refused while a window is bound to the region.
    ///
    /// A thread finds the region within a visit, and the visit lasts while the thread uses the memory. So it is enough
    /// to make the key unknown and wait for a [grace period](grace_period).
    pub(crate) fn deregister(&self, registration: Registration) -> Result<(), Refusal> {
        self.unpublish_unbound(registration.key)?;
        grace_period::wait();
        self.memory.regions.release(registration.key);
        self.memory.memory_regions.give();
        self.memory.unlock_memory(registration.locked_bytes);
        Ok(())
    }
}
