//! The lookup of memory by key and address, as seen by one queue pair.
#![allow(unsafe_code)]

use std::marker::PhantomData;

use crate::memory::copy::Segment;
use crate::memory::grace_period::Visit;
use crate::memory::region::RegionTable;
use crate::memory::sge::Sge;

/// The keys that are valid for a queue pair during a visit. They are the keys of a protection domain's regions and type
/// 1 windows, and of the queue pair's own type 2 windows.
///
/// The domain is that of the queue pair or of its shared receive queue. The holder of this value holds the queue pair's
/// send lock or its responder lock, and uses no segment after it releases that lock.
#[derive(Clone, Copy)]
pub(crate) struct Keys<'a> {
    pub(crate) regions: &'a RegionTable,
    pub(crate) visit: PhantomData<&'a Visit>,
    pub(crate) pd: u64,
    pub(crate) queue_pair: u64,
}

impl Keys<'_> {
    /// Returns the memory that `key` names at `iova`, if the key grants all of `access` and the whole range lies
    /// inside. An empty range needs no key (IBTA volume 1, 10.6.3.2 and 9.7.4.1.4).
    #[inline(always)]
    pub(crate) fn find(&self, key: u32, iova: u64, length: u64, access: u32) -> Option<Segment> {
        let (address, mapped) = match length {
            0 => (0, true),
            _ => {
                let region = self.regions.find(key)?;
                if region.scope != self.pd && !is_scope(self.queue_pair, region.scope)
                    || region.access & access != access
                {
                    return None;
                }
                (region.locate(iova, length)?, region.is_mapped())
            }
        };
        // SAFETY: the region was found within a visit, so it stays registered during the visit (SAFETY.md F14). While
        // it is registered, its memory is exposed (F7), and valid for the accesses that its rights allow. If it was
        // noted as mapped, it is always valid (F29); otherwise, it is valid unless it is gone (F8). The range lies
        // inside the region. An empty range is always valid. A type 2 window stays bound while its queue pair's
        // responder is locked. A thread that finds the window holds that lock: a window grants only peers' rights, and
        // under the send lock only local rights are requested.
        Some(unsafe { Segment::of_region(address, length, mapped) })
    }

    /// Converts elements to segments and returns their total length. Returns `None` unless all keys are known and grant
    /// `access` to the whole of their ranges.
    #[inline(always)]
    pub(crate) fn find_all(
        &self,
        sges: &[Sge],
        access: u32,
        out: &mut Vec<Segment>,
    ) -> Option<u64> {
        let mut total = 0;
        for sge in sges {
            let length = u64::from(sge.length);
            out.push(self.find(sge.lkey, sge.addr, length, access)?);
            total += length;
        }
        Some(total)
    }
}

/// Returns true if a key belongs to a window of this queue pair. Not inlined, so that lookups of regions do not pay for
/// it.
#[cold]
fn is_scope(queue_pair: u64, scope: u64) -> bool {
    queue_pair == scope
}
