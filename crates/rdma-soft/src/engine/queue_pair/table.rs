//! A device's queue pairs, by number.
#![expect(clippy::disallowed_types, reason = "a map whose hasher is the same each time")]

use std::collections::HashMap;
use std::hash::{BuildHasherDefault, Hasher};
use std::sync::{Arc, Weak};

use crate::abi::fork::PerProcess;
use crate::engine::Refusal;
use crate::engine::queue_pair::QueuePair;
use crate::engine::queue_pair::qpn::{Numbers, slot_of};
use crate::fabric::random::Random;

/// The map from numbers to queue pairs. Its size depends on the queue pairs that exist, not on all that ever existed.
#[derive(Debug)]
pub(crate) struct QueuePairTable {
    /// The queue pairs. The reference is dangling while a number is only reserved.
    by_number: HashMap<u32, Weak<QueuePair>, BuildHasherDefault<Spread>>,
    numbers: PerProcess<Numbers>,
}

impl QueuePairTable {
    pub(crate) fn new(random: Random) -> Self {
        Self { by_number: HashMap::default(), numbers: PerProcess::new(Numbers::new(random)) }
    }

    fn numbers(&mut self) -> &mut Numbers {
        self.numbers.get(Numbers::begin_in_child)
    }

    pub(crate) fn len(&self) -> usize {
        self.by_number.len()
    }

    /// Reserves a number for a queue pair that is being created. `claim` returns true if a slot of numbers may be used.
    pub(crate) fn reserve(&mut self, claim: impl FnMut(u16) -> bool) -> Result<u32, Refusal> {
        self.by_number.try_reserve(1).map_err(|_| Refusal::NoRoom)?;
        let number = self.numbers().take(claim)?;
        self.by_number.insert(number, Weak::new());
        Ok(number)
    }

    /// Returns true if this device assigns the numbers of this slot.
    pub(crate) fn has_slot(&self, slot: u16) -> bool {
        self.numbers.current().is_some_and(|numbers| numbers.has_slot(slot))
    }

    /// Makes the queue pair with a reserved number visible to lookups.
    pub(crate) fn publish(&mut self, number: u32, queue_pair: Weak<QueuePair>) {
        self.by_number.insert(number, queue_pair);
    }

    /// Removes the queue pair and releases its number.
    pub(crate) fn retire(&mut self, number: u32) {
        if self.by_number.remove(&number).is_none() {
            return;
        }
        // A forked child leaves its parent's numbers alone.
        if self.has_slot(slot_of(number)) {
            self.numbers().release(number);
        }
        let live = self.by_number.len();
        if self.by_number.capacity() / 8 > live.max(16) {
            self.by_number.shrink_to(2 * live);
        }
    }

    /// Empties and closes the table: no queue pair is found or created after this.
    pub(crate) fn end(&mut self) {
        self.by_number = HashMap::default();
        self.numbers().retire();
    }

    pub(crate) fn find(&self, number: u32) -> Option<Arc<QueuePair>> {
        self.by_number.get(&number).and_then(Weak::upgrade)
    }

    pub(crate) fn all(&self) -> Vec<Arc<QueuePair>> {
        self.by_number.values().filter_map(Weak::upgrade).collect()
    }
}

/// A hasher for queue pair numbers. They are random and chosen by this device, so a multiplication spreads them well.
#[derive(Debug, Default)]
struct Spread(u64);

impl Hasher for Spread {
    fn write(&mut self, bytes: &[u8]) {
        for &byte in bytes {
            self.write_u32(byte.into());
        }
    }

    fn write_u32(&mut self, number: u32) {
        self.0 = (self.0 ^ u64::from(number)).wrapping_mul(0x9e37_79b9_7f4a_7c15);
    }

    /// The table uses the lowest and the highest bits, but the lowest bits of a product are poor.
    fn finish(&self) -> u64 {
        self.0.rotate_left(32)
    }
}

#[cfg(test)]
#[cfg(not(loom))]
mod tests {
    use test_support::rig::fork::Child;

    use super::*;
    use crate::fabric::random::{Purpose, Seed};

    #[test]
    fn the_size_of_the_table_follows_the_queue_pairs_that_exist() {
        let mut table = QueuePairTable::new(Seed::new(1).stream(Purpose::QueuePairNumbers));
        let numbers: Vec<u32> = (0..20_000).map(|_| table.reserve(|_| true).unwrap()).collect();
        assert_eq!(table.len(), 20_000);
        for &number in &numbers[10..] {
            table.retire(number);
            table.retire(number);
        }
        assert_eq!(table.len(), 10);
        assert!(table.by_number.capacity() < 300, "{}", table.by_number.capacity());
        assert!(numbers[..10].iter().all(|number| table.by_number.contains_key(number)));
        assert!(table.find(numbers[0]).is_none(), "reserved, but not published yet");
    }

    #[test]
    fn a_forked_child_does_not_use_its_parents_numbers() {
        let mut table = QueuePairTable::new(Seed::new(1).stream(Purpose::QueuePairNumbers));
        let number = table.reserve(|_| true).unwrap();
        let child = Child::fork(|| {
            table.retire(number);
            assert_eq!(table.len(), 0);
            assert_eq!(table.reserve(|_| false), Err(Refusal::NoRoom));
        });
        child.join();
        table.retire(number);
        assert_eq!(table.len(), 0);
    }

    #[test]
    fn numbers_of_one_slot_are_spread_over_the_table() {
        let hash = |number| {
            let mut hasher = Spread::default();
            hasher.write_u32(number);
            hasher.finish()
        };
        for slot in [0, 0x123, 0xfff] {
            let mut lowest = [0_u32; 4096];
            let mut highest = [0_u32; 128];
            for number in (0..4096).map(|low| hash(slot << 12 | low)) {
                lowest[usize::try_from(number & 0xfff).unwrap()] += 1;
                highest[usize::try_from(number >> 57).unwrap()] += 1;
            }
            assert!(lowest.iter().all(|&count| count < 8), "{slot:#x}: {:?}", lowest.iter().max());
            assert!(highest.iter().all(|&count| count < 128), "{slot:#x}: {highest:?}");
        }
    }
}
