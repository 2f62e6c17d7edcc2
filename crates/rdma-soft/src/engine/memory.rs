//! From a key and an address to memory, as seen by one queue pair.
#![allow(unsafe_code)]

use crate::engine::copy::Segment;
use crate::engine::grace_period::Visit;
use crate::engine::queue_pair::QueuePair;

impl QueuePair {
    /// The memory that `key` names at `iova`, if the key is a region of the protection domain `pd`, or a
    /// window that this queue pair may use, gives all of `access`, and the whole range lies inside. A
    /// range of no bytes needs no key (IBTA volume 1, 10.6.3.2 and 9.7.4.1.4).
    ///
    /// The domain is this queue pair's, or that of its shared receive queue. The caller holds this queue
    /// pair's send lock or its responder lock, and drops the segment before the lock and the visit.
    #[inline(always)]
    pub(crate) fn find_memory(
        &self,
        _visit: &Visit,
        pd: u64,
        key: u32,
        iova: u64,
        length: u64,
        access: u32,
    ) -> Option<Segment> {
        let address = match length {
            0 => 0,
            _ => {
                let region = self.device.regions.find(key)?;
                if region.scope != pd && !self.is_scope(region.scope)
                    || region.access & access != access
                {
                    return None;
                }
                region.locate(iova, length)?
            }
        };
        // SAFETY: the region was found within a visit, so that it stays registered, and its memory
        // allocated and exposed, while the visit lasts (SAFETY.md F14, F8, F7). A window that is of one
        // queue pair stays while the queue pair's responder is locked.
        Some(unsafe { Segment::new(address, length) })
    }

    /// Whether a key is that of a window of this queue pair. Apart, so that regions do not pay for it.
    #[cold]
    fn is_scope(&self, scope: u64) -> bool {
        self.id == scope
    }
}
