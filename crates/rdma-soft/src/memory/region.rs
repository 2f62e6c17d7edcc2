//! The region table: the lock-free lookup of memory by key. It also contains memory windows, because a lookup treats a
//! window as a region.
//!
//! Slots are written while `Places` is locked. Any thread reads a slot with a sequence check: the version (key and
//! incarnation) is read before and after the fields. A torn read counts as a miss. This table does not ensure that a
//! region found here *stays* registered. `ProtectionDomain::deregister` ensures it: it unpublishes the key first and
//! then waits for a [grace period](crate::memory::grace_period).

use std::sync::{Arc, OnceLock};

use crate::fabric::random::Random;
use crate::memory::region::places::{Places, REST};
use crate::memory::room::Room;
use crate::sync::{AtomicU32, AtomicU64, Lock, Ordering, fence, locked};

mod places;

/// The memory that a key names.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Region {
    /// The start of the memory in this process.
    pub(crate) address: u64,
    /// The start of the memory, as an address in requests.
    pub(crate) iova: u64,
    pub(crate) length: u64,
    /// `IBV_ACCESS_*`, [`LOCAL_READ`], and [`MAPPED`].
    pub(crate) access: u32,
    /// The number of the protection domain whose queue pairs may use the memory, or of the only queue pair that may.
    pub(crate) scope: u64,
}

/// The right to read memory through local elements of requests. Every region grants it, and no window does.
/// `IBV_ACCESS_*` does not use this bit.
pub(crate) const LOCAL_READ: u32 = 1 << 31;

/// Marks memory that is mapped, with the permissions that `access` needs, whenever a request can use it. This is not a
/// right: no request requires it. `IBV_ACCESS_*` does not use this bit.
pub(crate) const MAPPED: u32 = 1 << 30;

impl Region {
    /// Returns true if the memory is certainly mapped.
    #[inline]
    pub(crate) fn is_mapped(&self) -> bool {
        self.access & MAPPED != 0
    }

    /// Returns the process address of `length` bytes at `iova`, if all of them lie inside.
    #[inline]
    pub(crate) fn locate(&self, iova: u64, length: u64) -> Option<u64> {
        let offset = iova.checked_sub(self.iova)?;
        let end = offset.checked_add(length)?;
        (end <= self.length).then(|| self.address.wrapping_add(offset))
    }
}

#[derive(Debug, Default)]
#[repr(align(64))]
struct RegionSlot {
    /// `incarnation << 32 | key`; 0 while nothing is registered here.
    version: AtomicU64,
    address: AtomicU64,
    iova: AtomicU64,
    length: AtomicU64,
    scope: AtomicU64,
    access: AtomicU32,
    incarnation: AtomicU32,
}

impl RegionSlot {
    #[inline]
    fn read(&self, key: u32) -> Option<Region> {
        let before = self.version.load(Ordering::Acquire);
        if (before & 0xffff_ffff) as u32 != key || before == 0 {
            return None;
        }
        let region = Region {
            address: self.address.load(Ordering::Relaxed),
            iova: self.iova.load(Ordering::Relaxed),
            length: self.length.load(Ordering::Relaxed),
            access: self.access.load(Ordering::Relaxed),
            scope: self.scope.load(Ordering::Relaxed),
        };
        fence(Ordering::Acquire);
        (self.version.load(Ordering::Relaxed) == before).then_some(region)
    }

    /// Increments the incarnation. Writers are serialised by the table's lock. The incarnation is never 0, so no
    /// version is 0.
    fn renew(&self) {
        let incarnation = self.incarnation.load(Ordering::Relaxed).wrapping_add(1).max(1);
        self.incarnation.store(incarnation, Ordering::Relaxed);
    }

    /// Returns the version for this key in the current incarnation.
    fn version(&self, key: u32) -> u64 {
        u64::from(self.incarnation.load(Ordering::Relaxed)) << 32 | u64::from(key)
    }

    /// Fills a free slot. Writers are serialised by the table's lock.
    fn publish(&self, version: u64, region: &Region) {
        // Orders the clearing of the version before the writes of the fields. A reader that sees one of the new fields
        // then also sees that the version has changed.
        fence(Ordering::Release);
        self.address.store(region.address, Ordering::Relaxed);
        self.iova.store(region.iova, Ordering::Relaxed);
        self.length.store(region.length, Ordering::Relaxed);
        self.access.store(region.access, Ordering::Relaxed);
        self.scope.store(region.scope, Ordering::Relaxed);
        self.version.store(version, Ordering::Release);
    }
}

/// The number of slots in a chunk. A chunk is allocated when one of its slots is first used, and is never freed.
const CHUNK: usize = if cfg!(loom) { 1 } else { 1024 };
/// The bits of a slot number. A key consists of a slot number and 8 bits that change each time the slot is used.
const INDEX_MASK: u32 = 0x00ff_ffff;

type Chunks = Arc<[OnceLock<Box<[RegionSlot; CHUNK]>>]>;

/// The slots of retired tables, kept for later tables of the same size.
static UNUSED: std::sync::Mutex<Vec<Chunks>> = std::sync::Mutex::new(Vec::new());

#[derive(Debug)]
pub(crate) struct RegionTable {
    chunks: Chunks,
    /// Random, so that the keys of two devices or processes differ. A known key reveals the upper bits of nearby keys,
    /// but not which slots of its chunk are in use.
    mask: u32,
    places: Lock<Places>,
}

/// Returns the chunks of a retired table that had `count` of them.
fn unused(count: usize) -> Option<Chunks> {
    let mut unused = locked(&UNUSED);
    let found = unused.iter().position(|chunks| chunks.len() == count)?;
    Some(unused.swap_remove(found))
}

impl RegionTable {
    /// Creates a table for at most `limit` regions and windows. The table has more slots than that, since released
    /// slots have to rest: [`REST`] of them, or half of the slots in a smaller table.
    pub(crate) fn new(limit: u32, random: Random) -> Self {
        let rest = limit.min(REST);
        Self::with_slots(limit.saturating_add(rest), rest, random)
    }

    fn with_slots(slots: u32, rest: u32, mut random: Random) -> Self {
        let slots = slots.min(INDEX_MASK + 1);
        let chunks = (slots as usize).div_ceil(CHUNK);
        Self {
            chunks: unused(chunks)
                .unwrap_or_else(|| (0..chunks).map(|_| OnceLock::new()).collect()),
            mask: random.next_u32() & INDEX_MASK,
            places: Lock::new(Places::new(slots, rest, random)),
        }
    }

    /// Retires the table, and keeps its memory for later tables unless one of its keys is still valid. The caller
    /// ensures that no key becomes valid later, and that no thread looks one up.
    pub(crate) fn retire(&self) {
        self.places.lock().retire();
        let is_free = |slot: &RegionSlot| slot.version.load(Ordering::Acquire) == 0;
        let mut slots = self.chunks.iter().filter_map(OnceLock::get).flat_map(|chunk| chunk.iter());
        // A table with a key that is still valid is not reused (SAFETY.md F14).
        if slots.all(is_free) {
            locked(&UNUSED).push(Arc::clone(&self.chunks));
        }
    }

    #[inline]
    fn slot(&self, index: u32) -> Option<&RegionSlot> {
        let index = index as usize;
        Some(&self.chunks.get(index / CHUNK)?.get()?[index % CHUNK])
    }

    /// Returns the region with this key, if it is registered now.
    #[inline(always)]
    pub(crate) fn find(&self, key: u32) -> Option<Region> {
        self.slot((key >> 8) ^ self.mask)?.read(key)
    }

    /// Registers `region` and returns its key, or `None` if the table is full.
    pub(crate) fn insert(&self, region: &Region) -> Option<u32> {
        let mut places = self.places.lock();
        let (slot, key) = self.take(&mut places)?;
        slot.publish(slot.version(key), region);
        Some(key)
    }

    /// Notes that the memory of a registered region is [mapped](MAPPED). A thread that reads the slot concurrently may
    /// or may not see this.
    pub(crate) fn note_mapped(&self, key: u32) {
        let _writers = self.places.lock();
        if let Some(slot) = self.slot((key >> 8) ^ self.mask)
            && slot.read(key).is_some()
        {
            slot.access.fetch_or(MAPPED, Ordering::Relaxed);
        }
    }

    /// Reserves a slot for a window. Returns a key that does not name any memory yet.
    pub(crate) fn reserve(&self) -> Option<u32> {
        Some(self.take(&mut self.places.lock())?.1)
    }

    /// Takes a free slot and its next key.
    fn take(&self, places: &mut Places) -> Option<(&RegionSlot, u32)> {
        let (index, low) = places.take()?;
        let Some(slot) = self.slot(index).or_else(|| self.make(index)) else {
            // The chunk could not be allocated. The slot is released, with 0 as its last low byte because it has had no
            // key.
            places.release(index, 0);
            return None;
        };
        slot.renew();
        // The low byte is never 0, so no region's key is 0.
        Some((slot, ((index ^ self.mask) & INDEX_MASK) << 8 | low))
    }

    /// Allocates the chunk of a slot, directly on the heap.
    #[cold]
    fn make(&self, index: u32) -> Option<&RegionSlot> {
        let chunk = self.chunks.get(index as usize / CHUNK)?;
        let slots: Box<[RegionSlot; CHUNK]> =
            Room::new(CHUNK).ok()?.filled(RegionSlot::default).try_into().ok()?;
        // Writers are serialised by the table's lock.
        let _ = chunk.set(slots);
        self.slot(index)
    }

    /// Makes this key of a [reserved](Self::reserve) window name `region`, and makes the window's previous key unknown.
    /// The window's owner chooses the low byte of the key.
    pub(crate) fn publish(&self, key: u32, region: &Region) {
        let _writers = self.places.lock();
        if let Some(slot) = self.slot((key >> 8) ^ self.mask) {
            slot.version.store(0, Ordering::Release);
            slot.renew();
            slot.publish(slot.version(key), region);
        }
    }

    /// Makes `key` unknown to every lookup that starts from now on. Returns true if the key was known. The slot is not
    /// reused until it is [released](Self::release).
    #[inline]
    pub(crate) fn unpublish(&self, key: u32) -> bool {
        let _writers = self.places.lock();
        match self.slot((key >> 8) ^ self.mask) {
            Some(slot) if slot.read(key).is_some() => {
                slot.version.store(0, Ordering::Release);
                true
            }
            _ => false,
        }
    }

    /// Releases the slot of an unpublished key. The slot rests before it is reused.
    pub(crate) fn release(&self, key: u32) {
        self.places.lock().release((key >> 8) ^ self.mask, (key & 0xff) as u8);
    }
}

#[cfg(test)]
#[cfg(not(loom))]
mod tests {
    use std::collections::{HashSet, VecDeque};

    use super::*;
    use crate::fabric::random::{Purpose, Seed};

    fn table(limit: u32) -> RegionTable {
        RegionTable::new(limit, Seed::new(1).stream(Purpose::Keys))
    }

    fn region(address: u64) -> Region {
        Region { address, iova: address, length: 100, access: 1, scope: 1 }
    }

    #[test]
    fn finds_what_was_inserted_until_it_is_unpublished() {
        let table = table(1 << 20);
        let keys: Vec<u32> = (1..=1000).map(|n| table.insert(&region(n)).unwrap()).collect();
        for (n, &key) in keys.iter().enumerate() {
            assert_eq!(table.find(key), Some(region(n as u64 + 1)));
        }
        assert!(table.unpublish(keys[500]));
        assert!(!table.unpublish(keys[500]), "unknown the second time");
        assert_eq!(table.find(keys[500]), None);
        table.release(keys[500]);
        assert_ne!(table.insert(&region(7)).unwrap() >> 8, keys[500] >> 8, "the slot rests");
        assert_eq!(table.find(keys[500]), None);
    }

    /// The places of consecutive keys are at random distances from each other, up to the size of a chunk.
    #[test]
    fn a_key_does_not_reveal_the_next_one() {
        for limit in [1_000, 1 << 20] {
            let table = table(limit);
            let keys: Vec<u32> = (0..1000).map(|n| table.insert(&region(n)).unwrap()).collect();
            let steps: HashSet<u32> =
                keys.windows(2).map(|pair| (pair[0] ^ pair[1]) >> 8).collect();
            assert!(steps.len() > 500, "{} steps", steps.len());
        }
        let second = |seed| {
            let table = RegionTable::new(9, Seed::new(seed).stream(Purpose::Keys));
            let [first, second] = [1, 2].map(|n| table.insert(&region(n)).unwrap());
            (first ^ second) >> 8
        };
        assert!((0..50).map(second).collect::<HashSet<u32>>().len() > 8, "also of few regions");
    }

    /// Registers and deregisters one region at a time, until `of` returns the same value for its key as for the first
    /// key. Returns the number of registrations after the first.
    fn until_it_returns(table: &RegionTable, of: impl Fn(u32) -> u32) -> u32 {
        let register_for_a_moment = || {
            let key = table.insert(&region(1)).unwrap();
            assert!(table.unpublish(key));
            table.release(key);
            of(key)
        };
        let first = register_for_a_moment();
        (1..).find(|_| register_for_a_moment() == first).unwrap()
    }

    #[test]
    fn a_slot_returns_after_all_that_rest_and_a_key_after_255_times_as_many() {
        let slot = |key| key >> 8;
        assert_eq!(until_it_returns(&table(1 << 20), slot), REST + 1);
        // In a smaller table, half of the slots rest.
        assert_eq!(until_it_returns(&table(10), slot), 11);
        assert_eq!(until_it_returns(&table(10), |key| key), 255 * 11);
        assert_eq!(until_it_returns(&table(2_000), |key| key), 255 * 2_001);
    }

    #[test]
    fn the_table_fills_up_to_its_limit_however_many_slots_rest() {
        for limit in [1, 2, 3, 700] {
            let table = table(limit);
            let mut keys: VecDeque<u32> =
                (1..limit).map(|n| table.insert(&region(n.into())).unwrap()).collect();
            for n in 0..5 * limit {
                keys.push_back(table.insert(&region(n.into())).unwrap());
                let key = keys.pop_front().unwrap();
                assert!(table.unpublish(key), "all {limit} are registered each time");
                table.release(key);
            }
        }
    }

    #[test]
    fn unknown_keys_are_not_found() {
        let table = table(10);
        let key = table.insert(&region(1)).unwrap();
        for wrong in [0, u32::MAX, key ^ 1, key ^ 0x100, key ^ 0x8000_0000] {
            assert_eq!(table.find(wrong), None, "{wrong:#x}");
        }
    }

    #[test]
    fn a_full_table_refuses() {
        let table = RegionTable::with_slots(2, 0, Seed::new(1).stream(Purpose::Keys));
        let key = table.insert(&region(1)).unwrap();
        assert!(table.insert(&region(2)).is_some());
        assert!(table.insert(&region(3)).is_none());
        assert!(table.unpublish(key));
        table.release(key);
        assert!(table.insert(&region(4)).is_some());
    }

    #[test]
    fn a_window_is_found_only_by_its_current_key() {
        let table = RegionTable::with_slots(1, 0, Seed::new(1).stream(Purpose::Keys));
        let key = table.reserve().unwrap();
        assert_eq!(table.find(key), None, "bound to nothing");
        let mut before = key;
        // The owner may choose any low byte, even 0 or the previous one.
        for low in [7, 0, 0, 255, 7] {
            let next = key & !0xff | low;
            table.publish(next, &region(u64::from(low)));
            assert_eq!(table.find(next), Some(region(u64::from(low))));
            assert!(before == next || table.find(before).is_none());
            before = next;
        }
        assert!(table.unpublish(before));
        assert_eq!(table.find(before), None);
        table.release(before);
        let again = table.insert(&region(1)).unwrap();
        assert_eq!(again >> 8, key >> 8, "the place is free again");
        assert_ne!(again, before, "under another key");
    }

    #[test]
    fn only_a_registered_region_is_noted_as_mapped_until_its_slot_is_used_again() {
        let table = RegionTable::with_slots(1, 0, Seed::new(1).stream(Purpose::Keys));
        let key = table.insert(&region(1)).unwrap();
        table.note_mapped(key ^ 1);
        assert!(!table.find(key).unwrap().is_mapped(), "another key");
        table.note_mapped(key);
        let noted = Region { access: 1 | MAPPED, ..region(1) };
        assert_eq!(table.find(key), Some(noted), "nothing else has changed");
        assert!(table.unpublish(key));
        table.note_mapped(key);
        table.release(key);
        let next = table.insert(&region(2)).unwrap();
        assert_eq!(next >> 8, key >> 8, "the same slot");
        assert!(!table.find(next).unwrap().is_mapped());
    }

    #[test]
    fn scopes_that_differ_only_beyond_32_bits_differ() {
        let table = table(2);
        let of = |scope| Region { scope, ..region(1) };
        let keys = [7, 1 << 32 | 7].map(|scope| table.insert(&of(scope)).unwrap());
        assert_eq!(keys.map(|key| table.find(key).unwrap().scope), [7, 1 << 32 | 7]);
    }

    #[test]
    fn bounds_do_not_wrap() {
        let r = Region { address: 0x1000, iova: 0x50, length: 0x10, access: 0, scope: 0 };
        assert_eq!(r.locate(0x50, 0x10), Some(0x1000));
        assert_eq!(r.locate(0x60, 0), Some(0x1010));
        assert_eq!(r.locate(0x58, 9), None);
        assert_eq!(r.locate(0x4f, 1), None);
        assert_eq!(r.locate(0x51, u64::MAX), None);
    }
}

#[cfg(test)]
#[cfg(loom)]
mod loom_tests;
