//! The choice of queue pair numbers.
//!
//! A peer that knows some numbers cannot predict the lower 12 bits of others. A released number stays unused as long as
//! possible, because peers may still send to it. Numbers are drawn in slots: the numbers of a slot have the same random
//! value in the upper 12 of their 24 bits. The numbers of a slot are used in random order. Another slot is drawn when
//! no unused numbers are left and too few released ones are resting.

use std::collections::VecDeque;

use crate::engine::Refusal;
use crate::fabric::random::{Purpose, Random, Seeds};

/// The size of a slot, in queue pair numbers, and also the number of slots.
const SLOT: u32 = 1 << 12;
/// The number of released numbers that must rest before one is reused, while there are slots left to draw.
const REST: usize = 16_384;

/// Returns the slot of a number.
#[allow(clippy::cast_possible_truncation)] // 24 bits, less 12
pub(crate) const fn slot_of(number: u32) -> u16 {
    ((number & 0x00ff_ffff) / SLOT) as u16
}

#[derive(Debug)]
pub(crate) struct Numbers {
    /// Numbers that were never used, in random order.
    fresh: Vec<u32>,
    /// Released numbers, oldest first.
    resting: VecDeque<u32>,
    /// Slots that may still be drawn.
    slots: Vec<u16>,
    /// Slots that were drawn.
    own: Vec<u16>,
    random: Random,
}

impl Numbers {
    pub(crate) fn new(random: Random) -> Self {
        let slots = (0..=0xfff).collect();
        let (fresh, resting, own) = (Vec::new(), VecDeque::new(), Vec::new());
        Self { fresh, resting, slots, own, random }
    }

    /// Takes a free number. `claim` returns true if a slot may be used; a slot may belong to another process.
    pub(crate) fn take(&mut self, claim: impl FnMut(u16) -> bool) -> Result<u32, Refusal> {
        if self.fresh.is_empty() && self.resting.len() <= REST {
            self.draw_slot(claim)?;
        }
        self.fresh.pop().or_else(|| self.resting.pop_front()).ok_or(Refusal::NoRoom)
    }

    /// Leaves the parent's slots to the parent, and draws numbers that neither it nor its other children can predict.
    pub(crate) fn begin_in_child(&mut self) {
        self.retire();
        self.slots = (0..=0xfff).collect();
        if let Ok(seed) = Seeds::System.draw() {
            self.random = seed.stream(Purpose::QueuePairNumbers);
        }
    }

    /// Returns true if this slot was drawn.
    pub(crate) fn has_slot(&self, slot: u16) -> bool {
        self.own.contains(&slot)
    }

    /// Drops all numbers permanently: none can be taken any longer.
    pub(crate) fn retire(&mut self) {
        (self.fresh, self.resting, self.slots, self.own) = Default::default();
    }

    /// Releases a number. Space for it was reserved when its slot was drawn.
    pub(crate) fn release(&mut self, number: u32) {
        self.resting.push_back(number);
    }

    /// Draws a slot, if any are left, and shuffles its numbers.
    fn draw_slot(&mut self, mut claim: impl FnMut(u16) -> bool) -> Result<(), Refusal> {
        if self.slots.is_empty() {
            return Ok(());
        }
        let drawn = self.drawn() + SLOT as usize;
        self.fresh.try_reserve(SLOT as usize).map_err(|_| Refusal::NoRoom)?;
        let more = drawn.saturating_sub(self.resting.len());
        self.resting.try_reserve(more).map_err(|_| Refusal::NoRoom)?;
        self.own.try_reserve(1).map_err(|_| Refusal::NoRoom)?;
        let slot = loop {
            let count = u32::try_from(self.slots.len()).unwrap_or(u32::MAX);
            if count == 0 {
                return Ok(());
            }
            let slot = self.slots.swap_remove(self.random.below(count) as usize);
            if claim(slot) {
                break slot;
            }
        };
        self.own.push(slot);
        let slot = u32::from(slot);
        self.fresh.extend((slot * SLOT..(slot + 1) * SLOT).filter(|&number| is_usable(number)));
        self.random.shuffle(&mut self.fresh);
        Ok(())
    }

    /// Returns how many numbers there are in the slots that were drawn.
    fn drawn(&self) -> usize {
        self.own.len() * SLOT as usize
    }
}

/// Returns false for 0 and 1, which are the management queue pairs, and for all ones, which is the multicast number.
fn is_usable(number: u32) -> bool {
    (2..0x00ff_ffff).contains(&number)
}

#[cfg(test)]
#[cfg(not(loom))]
mod tests {
    use std::collections::HashSet;

    use super::*;
    use crate::fabric::random::{Purpose, Seed};

    fn numbers(seed: u8) -> Numbers {
        Numbers::new(Seed::new(seed).stream(Purpose::QueuePairNumbers))
    }

    fn slot(number: u32) -> u32 {
        number / SLOT
    }

    #[test]
    fn a_number_returns_after_all_others() {
        let mut numbers = numbers(1);
        let kept: Vec<u32> = (0..100).map(|_| numbers.take(|_| true).unwrap()).collect();
        let mut one_at_a_time = || {
            let number = numbers.take(|_| true).unwrap();
            numbers.release(number);
            number
        };
        let first_slot: Vec<u32> = (0..SLOT - 100).map(|_| one_at_a_time()).collect();
        assert!(first_slot.iter().all(|&number| slot(number) == slot(kept[0])), "only one slot");
        let round: Vec<u32> =
            first_slot.into_iter().chain((0..4 * SLOT).map(|_| one_at_a_time())).collect();
        let different: HashSet<u32> = round.iter().chain(&kept).copied().collect();
        assert_eq!(different.len(), 5 * SLOT as usize);
        assert!(round.iter().all(|&number| number == one_at_a_time()), "the oldest comes first");
    }

    #[test]
    fn numbers_are_not_sequential() {
        let mut numbers = numbers(2);
        let taken: Vec<u32> = (0..SLOT).map(|_| numbers.take(|_| true).unwrap()).collect();
        let steps: HashSet<u32> =
            taken.windows(2).map(|pair| pair[1].wrapping_sub(pair[0])).collect();
        assert!(steps.len() > 2000, "{} steps", steps.len());
        let rising = taken.windows(2).filter(|pair| pair[0] < pair[1]).count();
        assert!((1800..2300).contains(&rising), "{rising} times the next is larger");
    }

    #[test]
    fn devices_draw_different_slots() {
        let first: HashSet<u32> =
            (0..20).map(|seed| slot(numbers(seed).take(|_| true).unwrap())).collect();
        assert!(first.len() > 15, "{first:?}");
        let mut numbers = numbers(3);
        let slots: HashSet<u32> =
            (0..16 * SLOT).map(|_| slot(numbers.take(|_| true).unwrap())).collect();
        assert!((16..=17).contains(&slots.len()), "{}", slots.len());
    }

    /// A released number rests even if many queue pairs are in use, because the device then draws more slots.
    #[test]
    fn a_number_rests_whatever_is_in_use() {
        let mut numbers = numbers(4);
        let mut live: VecDeque<u32> =
            (0..3 * SLOT).map(|_| numbers.take(|_| true).unwrap()).collect();
        let mut rests = HashSet::new();
        for _ in 0..9 * SLOT {
            let oldest = live.pop_front().unwrap();
            numbers.release(oldest);
            rests.insert(oldest);
            let next = numbers.take(|_| true).unwrap();
            if rests.remove(&next) {
                assert!(rests.len() >= REST, "{next:#x} is used again after {}", rests.len());
            }
            live.push_back(next);
        }
        assert_eq!(live.iter().collect::<HashSet<_>>().len(), live.len());
        let drawn = numbers.own.len();
        assert_eq!(drawn, 7, "three in use, four resting");
    }

    #[test]
    fn all_numbers_except_three_are_used_once() {
        let slots = vec![0xfff, 7, 0];
        let mut numbers = Numbers { slots: slots.clone(), ..numbers(5) };
        let mut had = HashSet::new();
        while let Ok(number) = numbers.take(|_| true) {
            assert!(had.insert(number), "{number:#x} twice");
        }
        let all = slots.iter().flat_map(|&slot| (0..SLOT).map(move |n| u32::from(slot) * SLOT + n));
        let never: Vec<u32> = all.filter(|number| !had.contains(number)).collect();
        assert_eq!((never, had.len()), (vec![0x00ff_ffff, 0, 1], 3 * SLOT as usize - 3));
        numbers.release(77);
        assert_eq!(numbers.take(|_| true), Ok(77), "a resting number, when there is no other");
    }
}
