//! The lookup of memory by key and address, as seen by one queue pair.
#![allow(unsafe_code)]

use std::marker::PhantomData;

use crate::memory::copy::Segment;
use crate::memory::grace_period::Visit;
use crate::memory::region::RegionTable;
use crate::memory::sge::Sge;

/// The keys that are valid for a queue pair while a visit lasts: those of regions of a protection domain, and of its
/// own windows.
///
/// The domain is the queue pair's, or that of its shared receive queue. The holder of this value holds the queue pair's
/// send lock or its responder lock, and uses no segment after releasing it.
#[derive(Clone, Copy)]
pub(crate) struct Keys<'a> {
    pub(crate) regions: &'a RegionTable,
    pub(crate) visit: PhantomData<&'a Visit>,
    pub(crate) pd: u64,
    pub(crate) queue_pair: u64,
}

impl Keys<'_> {
    /// The memory that `key` names at `iova`, if the key gives all of `access`, and the whole range lies inside. A
    /// range of no bytes needs no key (IBTA volume 1, 10.6.3.2 and 9.7.4.1.4).
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
        // SAFETY: the region was found within a visit, so it stays registered while the visit lasts (SAFETY.md F14).
        // Until then its memory is exposed (F7), and valid for the accesses that its rights allow: always if that was
        // noted (F29), otherwise unless it is gone (F8). The range lies inside. Any range of no bytes is valid. A
        // window of one queue pair stays while the queue pair's responder is locked. A thread that finds one holds that
        // lock: a window gives only peers' rights, and under the send lock only local ones are requested.
        Some(unsafe { Segment::of_region(address, length, mapped) })
    }

    /// Turns elements into segments and returns their total length. The keys must be known, and give `access` to the
    /// whole range.
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

/// Returns true if a key belongs to a window of this queue pair. Out of line, so that regions do not pay for it.
#[cold]
fn is_scope(queue_pair: u64, scope: u64) -> bool {
    queue_pair == scope
}
