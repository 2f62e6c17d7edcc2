//! From a key and an address to memory, as seen by one queue pair.
#![allow(unsafe_code)]

use crate::engine::copy::Segment;
use crate::engine::grace_period::Visit;
use crate::engine::queue_pair::QueuePair;
use crate::engine::sge::Sge;

/// The memory that `key` names at `iova`, if the key is a region of the protection domain `pd`, or a
/// window that the queue pair `own` may use, gives all of `access`, and the whole range lies inside. A
/// range of no bytes needs no key (IBTA volume 1, 10.6.3.2 and 9.7.4.1.4).
///
/// The domain is the queue pair's, or that of its shared receive queue. The caller holds the queue pair's
/// send lock or its responder lock, and drops the segment before the lock and the visit.
#[inline(always)]
pub(crate) fn find(
    own: &QueuePair,
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
            let region = own.device.regions.find(key)?;
            if region.scope != pd && !is_scope(own, region.scope)
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
fn is_scope(own: &QueuePair, scope: u64) -> bool {
    own.id == scope
}

/// Turns elements into segments and says how long they are together: the keys must be known, of the
/// protection domain `pd`, and give `access` to all of the range.
#[inline(always)]
pub(crate) fn find_all(
    own: &QueuePair,
    visit: &Visit,
    pd: u64,
    sges: &[Sge],
    access: u32,
    out: &mut Vec<Segment>,
) -> Option<u64> {
    let mut total = 0;
    for sge in sges {
        let length = u64::from(sge.length);
        out.push(find(own, visit, pd, sge.lkey, sge.addr, length, access)?);
        total += length;
    }
    Some(total)
}
