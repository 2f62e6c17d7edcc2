//! Memory windows: keys that let peers use a part of a region until the keys are invalidated (IBTA volume 1, 10.6.7).
//!
//! A bound window is a region of the [table](crate::memory::region), so requests find it like any other. Its binding
//! and the program's rights to it are kept here, per protection domain. A key is invalidated like a region's: it is
//! made unknown, and then a [grace period](grace_period) passes. Peers use a type 2 window only while its queue pair's
//! responder is locked. So for a type 2 window it is enough to acquire and release that lock.

use std::collections::BTreeMap;

use rdma_types::AccessFlags;

use crate::engine::Refusal;
use crate::limits::Limits;
use crate::memory::grace_period;
use crate::memory::probe::FROM_PEERS;
use crate::memory::protection::ProtectionDomain;
use crate::memory::region::{LOCAL_READ, MAPPED, Region};

/// The rights that a bind may request. Local write has no effect because a window only has remote rights. It is
/// accepted nevertheless, as other providers do, because programs pass the flags of the region.
const OF_BINDS: u32 = FROM_PEERS | AccessFlags::ZERO_BASED.bits() | AccessFlags::LOCAL_WRITE.bits();

// A bound window grants only peers' rights, so no local element matches it (SAFETY.md F14).
const _: () = assert!(FROM_PEERS & (LOCAL_READ | AccessFlags::LOCAL_WRITE.bits()) == 0);

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum WindowKind {
    /// Type 1: its key is valid for all queue pairs of the protection domain.
    One,
    /// Type 2B: while the window is bound, its key is valid only for the queue pair that bound it.
    Two,
}

impl Limits {
    /// Returns true if the device supports windows of this kind.
    pub(crate) fn has_windows(&self, kind: WindowKind) -> bool {
        let there = match kind {
            WindowKind::One => self.features.window_type_1,
            WindowKind::Two => self.features.window_type_2,
        };
        there && self.max_mw > 0
    }
}

/// The windows of a protection domain, indexed by the part of their keys that the device chooses.
#[derive(Debug, Default)]
pub(crate) struct Windows(BTreeMap<u32, Window>);

#[derive(Debug)]
struct Window {
    /// Unique: no other window has this number, not even one that gets the same slot later.
    number: u32,
    kind: WindowKind,
    key: u32,
    bound: Option<Bound>,
}

#[derive(Debug)]
struct Bound {
    /// The key of the region that the window is a part of.
    region: u32,
    /// The queue pair that a type 2 window belongs to.
    queue_pair: Option<u64>,
}

/// The identity of a new window.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Name {
    pub(crate) number: u32,
    /// Names no memory until the window is bound.
    pub(crate) key: u32,
}

/// A request to bind a window.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Bind {
    /// The window's number.
    pub(crate) window: u32,
    /// The window's new key.
    pub(crate) key: u32,
    /// The key of the region.
    pub(crate) region: u32,
    /// `IBV_ACCESS_*`.
    pub(crate) access: u32,
    pub(crate) address: u64,
    pub(crate) length: u64,
}

impl ProtectionDomain {
    pub(crate) fn allocate_window(&self, kind: WindowKind) -> Result<Name, Refusal> {
        let memory = self.memory;
        if !memory.limits.has_windows(kind) {
            return Err(Refusal::Unsupported);
        }
        memory.memory_windows.take(memory.limits.max_mw)?;
        let Some(key) = memory.regions.reserve() else {
            memory.memory_windows.give();
            return Err(Refusal::NoRoom);
        };
        let number = (memory.ids.unique() & 0xffff_ffff) as u32;
        self.windows.lock().0.insert(key >> 8, Window { number, kind, key, bound: None });
        Ok(Name { number, key })
    }

    /// Deallocates a window. When this returns, no peer uses memory through the window, whether or not it was bound.
    pub(crate) fn deallocate_window(&self, name: Name) {
        let window = {
            let mut windows = self.windows.lock();
            let Some(window) = windows.0.remove(&(name.key >> 8)) else { return };
            // Done under the lock: after this, the region that the window was bound to can be deregistered.
            self.memory.regions.unpublish(window.key);
            window
        };
        // Needed even if the window was unbound: the request that unbound it may still be waiting for its own grace
        // period.
        grace_period::wait();
        self.memory.regions.release(window.key);
        self.memory.memory_windows.give();
    }

    /// Binds a window for the queue pair with this ID, and returns the window's kind. Returns `None` and changes
    /// nothing if the request is invalid. Peers that have found the window's previous memory may still use it.
    pub(crate) fn bind(&self, bind: &Bind, queue_pair: u64) -> Option<WindowKind> {
        let mut windows = self.windows.lock();
        let window = windows.0.get_mut(&(bind.key >> 8))?;
        // The window may have been deallocated since the request was posted.
        if window.number != bind.window {
            return None;
        }
        let region = match (window.kind, bind.length) {
            (WindowKind::One, 0) => None,
            (WindowKind::One, _) => Some(self.part(bind, window.kind, self.number)?),
            // A length of 0 does not unbind a type 2 window (o10-37.2.40), nor does another bind (o10-37.2.30).
            (WindowKind::Two, 0) => return None,
            (WindowKind::Two, _) if window.bound.is_some() => return None,
            (WindowKind::Two, _) => Some(self.part(bind, window.kind, queue_pair)?),
        };
        self.memory.regions.unpublish(window.key);
        if let Some(region) = &region {
            self.memory.regions.publish(bind.key, region);
        }
        window.key = bind.key;
        window.bound = region.map(|_| Bound {
            region: bind.region,
            queue_pair: (window.kind == WindowKind::Two).then_some(queue_pair),
        });
        Some(window.kind)
    }

    /// Returns the part of a region that a window covers, or `None` if the bind is invalid. The region must be in this
    /// domain and bindable (C10-73), and not zero-based. It must have local write if peers are to change it (C10-74),
    /// and contain the whole part (C10-75). Only a type 2 window may be zero-based.
    fn part(&self, bind: &Bind, kind: WindowKind, scope: u64) -> Option<Region> {
        let region = self.memory.regions.find(bind.region)?;
        let zero_based = bind.access & AccessFlags::ZERO_BASED.bits() != 0;
        let changes = AccessFlags::REMOTE_WRITE.bits() | AccessFlags::REMOTE_ATOMIC.bits();
        let lacking = if bind.access & changes != 0 { AccessFlags::LOCAL_WRITE.bits() } else { 0 }
            | AccessFlags::MW_BIND.bits();
        let wrong = region.scope != self.number
            || region.access & lacking != lacking
            || region.access & AccessFlags::ZERO_BASED.bits() != 0
            || bind.access & !OF_BINDS != 0
            || zero_based && kind == WindowKind::One;
        if wrong {
            return None;
        }
        Some(Region {
            address: region.locate(bind.address, bind.length)?,
            iova: if zero_based { 0 } else { bind.address },
            length: bind.length,
            access: bind.access & FROM_PEERS | region.access & MAPPED,
            scope,
        })
    }

    /// Invalidates this key if it belongs to a type 2 window that this queue pair has bound. No other key can be
    /// invalidated (o10-37.2.26). Whether peers may still use the key depends on the locks that the caller holds or
    /// acquires afterwards.
    pub(crate) fn invalidate(&self, key: u32, queue_pair: u64) -> bool {
        let mut windows = self.windows.lock();
        let window = windows.0.get_mut(&(key >> 8)).filter(|window| {
            let owner = window.bound.as_ref().and_then(|bound| bound.queue_pair);
            window.key == key && owner == Some(queue_pair)
        });
        let Some(window) = window else { return false };
        window.bound = None;
        self.memory.regions.unpublish(key)
    }

    /// Unbinds the windows of a queue pair that is reset.
    pub(crate) fn unbind_windows_of(&self, queue_pair: u64) {
        for window in self.windows.lock().0.values_mut() {
            if window.bound.as_ref().is_some_and(|bound| bound.queue_pair == Some(queue_pair)) {
                window.bound = None;
                self.memory.regions.unpublish(window.key);
            }
        }
    }

    /// Makes a region's key unknown, unless a window is bound to it.
    #[inline]
    pub(crate) fn unpublish_unbound(&self, region: u32) -> Result<(), Refusal> {
        let windows = self.windows.lock();
        let is_bound_to = |bound: &Bound| bound.region == region;
        if windows.0.values().any(|window| window.bound.as_ref().is_some_and(is_bound_to)) {
            return Err(Refusal::Busy);
        }
        self.memory.regions.unpublish(region);
        Ok(())
    }
}
