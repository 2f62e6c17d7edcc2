//! Protection domains: which queue pairs may use which regions.

use std::sync::{Arc, Mutex, Weak};

use crate::device::Device;
use crate::engine::Refusal;
use crate::engine::probe::{self, Access};
use crate::engine::queue_pair::QueuePair;
use crate::engine::region::Region;
use crate::sync::locked;

#[derive(Debug)]
pub(crate) struct ProtectionDomain {
    pub(crate) number: u32,
    pub(crate) device: &'static Device,
    /// Those that may hold a region of this domain in their hands: its own, and those that take from a
    /// shared receive queue of it.
    queue_pairs: Mutex<Vec<Weak<QueuePair>>>,
}

/// What a registration needs to be undone.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Registration {
    pub(crate) key: u32,
    locked_bytes: u64,
}

impl ProtectionDomain {
    pub(crate) fn new(device: &'static Device) -> Arc<Self> {
        let number = (crate::device::unique_id() & 0xffff_ffff) as u32;
        Arc::new(Self { number, device, queue_pairs: Mutex::default() })
    }

    pub(crate) fn add_queue_pair(&self, queue_pair: Weak<QueuePair>) {
        locked(&self.queue_pairs).push(queue_pair);
    }

    pub(crate) fn remove_queue_pair(&self, queue_pair: &Weak<QueuePair>) {
        let mut list = locked(&self.queue_pairs);
        if let Some(n) = list.iter().position(|other| other.ptr_eq(queue_pair)) {
            list.swap_remove(n);
        }
    }

    /// Registers `length` bytes at `address`, which requests name from `iova` on.
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
        self.device.lock_memory(locked_bytes)?;
        let region = Region { address, iova, length, access, pd: self.number };
        let entered = probe::populate(pages, access_checked.is_writable())
            .and_then(|()| self.device.regions.insert(&region).ok_or(Refusal::NoRoom));
        match entered {
            Ok(key) => Ok(Registration { key, locked_bytes }),
            Err(refusal) => {
                self.device.unlock_memory(locked_bytes);
                Err(refusal)
            }
        }
    }

    /// Ends a registration: when this returns no request touches its memory, and those that come
    /// find the key unknown.
    ///
    /// Whoever found the region did so under the send lock of a queue pair of this list, or under
    /// the responder lock of one, and keeps that lock while it uses what it found. So it is enough to
    /// unpublish the key and pass through these locks.
    pub(crate) fn deregister(&self, registration: Registration) {
        self.device.regions.unpublish(registration.key);
        for queue_pair in locked(&self.queue_pairs).iter().filter_map(Weak::upgrade) {
            queue_pair.send.pass();
            queue_pair.responder.pass();
        }
        self.device.regions.release(registration.key);
        self.device.unlock_memory(registration.locked_bytes);
    }
}
