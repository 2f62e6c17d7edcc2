//! Protection domains: which queue pairs may use which regions.

use std::sync::{Arc, Mutex, Weak};

use crate::device::Device;
use crate::engine::Refusal;
use crate::engine::probe::{self, Access};
use crate::engine::queue_pair::QueuePair;
use crate::engine::region::{LOCAL_READ, Region};
use crate::engine::window::Windows;
use crate::sync::{Lock, locked};

#[derive(Debug)]
pub(crate) struct ProtectionDomain {
    /// Unique in the process, also among those of queue pairs.
    pub(crate) number: u64,
    pub(crate) device: &'static Device,
    /// Those that may hold a region of this domain in their hands: its own, and those that take from a
    /// shared receive queue of it.
    queue_pairs: Mutex<Vec<Weak<QueuePair>>>,
    pub(crate) windows: Lock<Windows>,
}

/// What a registration needs to be undone.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Registration {
    pub(crate) key: u32,
    locked_bytes: u64,
}

impl ProtectionDomain {
    pub(crate) fn new(device: &'static Device) -> Arc<Self> {
        let number = crate::device::unique_id();
        Arc::new(Self { number, device, queue_pairs: Mutex::default(), windows: Lock::default() })
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
        let access = access | LOCAL_READ;
        let region = Region { address, iova, length, access, scope: self.number };
        let device = self.device;
        device.lock_memory(locked_bytes)?;
        let entered = device.memory_regions.take(device.limits.max_mr).and_then(|()| {
            probe::populate(pages, access_checked.is_writable())
                .and_then(|()| device.regions.insert(&region).ok_or(Refusal::NoRoom))
                .inspect_err(|_| device.memory_regions.give())
        });
        match entered {
            Ok(key) => Ok(Registration { key, locked_bytes }),
            Err(refusal) => {
                device.unlock_memory(locked_bytes);
                Err(refusal)
            }
        }
    }

    /// Ends a registration: when this returns no request touches its memory, and those that come
    /// find the key unknown. Refused while a window is bound to the region.
    ///
    /// Whoever found the region did so under the send lock of a queue pair of this list, or under
    /// the responder lock of one, and keeps that lock while it uses what it found. So it is enough to
    /// unpublish the key and pass through these locks.
    pub(crate) fn deregister(&self, registration: Registration) -> Result<(), Refusal> {
        self.unpublish_unbound(registration.key)?;
        self.for_each_queue_pair(|queue_pair| {
            queue_pair.send.pass();
            queue_pair.responder.pass();
        });
        self.device.regions.release(registration.key);
        self.device.memory_regions.give();
        self.device.unlock_memory(registration.locked_bytes);
        Ok(())
    }

    /// Waits until no queue pair of this domain uses what its peer found by a key before.
    pub(crate) fn pass_responders(&self) {
        self.for_each_queue_pair(|queue_pair| queue_pair.responder.pass());
    }

    /// Those that are there now. The list is not locked meanwhile, since the caller may hold a send lock
    /// and others take one in `act`. It is gone through from its end: what is removed is replaced by the
    /// last, which was seen.
    fn for_each_queue_pair(&self, act: impl Fn(&QueuePair)) {
        let mut left = locked(&self.queue_pairs).len();
        while let Some(n) = left.checked_sub(1) {
            let queue_pair = locked(&self.queue_pairs).get(n).and_then(Weak::upgrade);
            if let Some(queue_pair) = queue_pair {
                act(&queue_pair);
            }
            left = n;
        }
    }
}
