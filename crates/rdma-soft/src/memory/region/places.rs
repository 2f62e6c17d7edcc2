//! The choice of the table's next slot (place), and of the low byte of its key.
//!
//! Peers keep keys, and may use one after it was invalidated. So a key stays unknown as long as possible. A released
//! place is not reused until many others are free, and the place that was released first is reused first. Each time a
//! place is used, its key has another low byte, in an unpredictable order. Places are allocated in chunks, and the
//! places of a chunk are first used in random order. So a key does not reveal the keys of regions registered just
//! before and after.

use crate::fabric::random::Random;
use crate::memory::region::CHUNK;
use crate::memory::room::Room;

/// The number of other places that must be free before a released place is reused.
pub(super) const REST: u32 = 16_384;

/// The state of a place, without its region.
#[derive(Debug, Default)]
struct Place {
    /// Determines the order of the place's low bytes.
    secret: [u8; 8],
    /// The place that was released just after this one.
    next: u32,
    /// The position in the order of low bytes, from 1 to 255; 0 before the first use.
    turn: u8,
    /// The low byte that was used last.
    last: u8,
}

#[derive(Debug)]
pub(super) struct Places {
    /// Chunks of [`CHUNK`] places, as in the table.
    chunks: Vec<Box<[Place]>>,
    made: u32,
    /// The places of the newest chunk that were never used, in random order.
    fresh: Vec<u32>,
    most: u32,
    rest: u32,
    resting: u32,
    /// The place that was released first; meaningless if none rests.
    oldest: u32,
    /// The place that was released last; meaningless if none rests.
    newest: u32,
    /// The numbers 0 to 255 in an order specific to this table.
    mixed: Box<[u8]>,
    random: Random,
}

impl Places {
    /// Creates an empty list, which grows to at most `most` places. A released place is reused only while more than
    /// `rest` places rest.
    pub(super) fn new(most: u32, rest: u32, mut random: Random) -> Self {
        let mut mixed: Box<[u8]> = (0..=255).collect();
        random.shuffle(&mut mixed);
        let (chunks, made, fresh) = (Vec::new(), 0, Vec::new());
        let (resting, oldest, newest) = (0, 0, 0);
        Self { chunks, made, fresh, most, rest, resting, oldest, newest, mixed, random }
    }

    /// Drops all places for good.
    pub(super) fn retire(&mut self) {
        (self.chunks, self.fresh, self.mixed) = Default::default();
        (self.made, self.most, self.resting) = (0, 0, 0);
    }

    /// Takes a free place. Returns its index and the low byte of its next key, which is not 0. Returns `None` if all
    /// free places have to rest and no place can be added, because of the limit or a lack of memory.
    pub(super) fn take(&mut self) -> Option<(u32, u32)> {
        let index = if self.resting > self.rest { self.wake()? } else { self.grow()? };
        let place = self.place(index)?;
        // There are 255 turns and 255 low bytes, and each turn has its own low byte.
        place.turn = place.turn % 255 + 1;
        let (turn, secret, last) = (place.turn, place.secret, place.last);
        let low = match self.low(turn, secret) {
            // The owner of a window has chosen this low byte for the place's last key.
            low if low == last => {
                let turn = turn % 255 + 1;
                self.place(index)?.turn = turn;
                self.low(turn, secret)
            }
            low => low,
        };
        Some((index, low.into()))
    }

    /// Releases a place whose last key had the low byte `low`.
    pub(super) fn release(&mut self, index: u32, low: u8) {
        let Some(place) = self.place(index) else { return };
        place.last = low;
        if self.resting == 0 {
            self.oldest = index;
        } else if let Some(before) = self.place(self.newest) {
            before.next = index;
        }
        self.newest = index;
        self.resting += 1;
    }

    /// Takes the place that was released first.
    fn wake(&mut self) -> Option<u32> {
        let index = self.oldest;
        self.oldest = self.place(index)?.next;
        self.resting -= 1;
        Some(index)
    }

    /// Takes a place that was never used.
    fn grow(&mut self) -> Option<u32> {
        if self.fresh.is_empty() {
            self.make_chunk()?;
        }
        let index = self.fresh.pop()?;
        let secret = self.random.next_u64().to_ne_bytes();
        self.place(index)?.secret = secret;
        Some(index)
    }

    /// Allocates a chunk of places, or fewer if the limit does not allow a whole chunk, and shuffles them.
    #[cold]
    fn make_chunk(&mut self) -> Option<()> {
        let end = self.most.min(self.made.saturating_add(u32::try_from(CHUNK).ok()?));
        if end == self.made {
            return None;
        }
        let chunk = Room::new(CHUNK).ok()?.filled(Place::default);
        self.chunks.try_reserve(1).ok()?;
        self.fresh.try_reserve_exact(CHUNK).ok()?;
        self.chunks.push(chunk);
        self.fresh.extend(self.made..end);
        self.random.shuffle(&mut self.fresh);
        self.made = end;
        Some(())
    }

    fn place(&mut self, index: u32) -> Option<&mut Place> {
        let index = index as usize;
        self.chunks.get_mut(index / CHUNK)?.get_mut(index % CHUNK)
    }

    /// Returns the low byte for a turn, from 1 to 255, in the order that this secret determines. This is a cipher of
    /// one byte: each round combines the byte with one of the secret, and replaces it by an entry of `mixed`. Neither a
    /// turn nor a low byte can be 0, so the turn that maps to 0 gets the value that 0 maps to.
    fn low(&self, turn: u8, secret: [u8; 8]) -> u8 {
        let cipher =
            |byte: u8| secret.iter().fold(byte, |byte, key| self.mixed[usize::from(byte ^ key)]);
        match cipher(turn) {
            0 => cipher(0),
            low => low,
        }
    }
}

#[cfg(test)]
#[cfg(not(loom))]
mod tests {
    use std::collections::HashSet;

    use super::*;
    use crate::fabric::random::{Purpose, Seed};

    fn places(most: u32, rest: u32, seed: u8) -> Places {
        Places::new(most, rest, Seed::new(seed).stream(Purpose::Keys))
    }

    /// Returns the low bytes of a single place, in the order in which they are used.
    fn order(seed: u8) -> Vec<u32> {
        let mut places = places(1, 0, seed);
        let next = |_| {
            let (index, low) = places.take().unwrap();
            places.release(index, u8::try_from(low).unwrap());
            low
        };
        (0..510).map(next).collect()
    }

    #[test]
    fn each_low_byte_comes_once_in_255_turns_and_in_an_order_of_its_own() {
        let orders: Vec<_> = (0..50).map(order).collect();
        for order in &orders {
            let once: HashSet<u32> = order[..255].iter().copied().collect();
            assert!(once.len() == 255 && !once.contains(&0) && order[..255] == order[255..]);
            // The order does not count up and has no constant step: each step is as likely as any other.
            let steps: HashSet<u32> =
                order.windows(2).map(|pair| pair[1].wrapping_sub(pair[0]) & 0xff).collect();
            assert!(steps.len() > 100, "{steps:?}");
        }
        let starts: HashSet<_> = orders.iter().map(|order| &order[..3]).collect();
        assert_eq!(starts.len(), 50);
    }

    #[test]
    fn places_of_one_table_have_different_orders() {
        let mut places = places(64, 63, 1);
        let mut keys = vec![Vec::new(); 64];
        for (index, low) in (0..64 * 8).map_while(|_| {
            let taken = places.take()?;
            places.release(taken.0, u8::try_from(taken.1).unwrap());
            Some(taken)
        }) {
            keys[index as usize].push(low);
        }
        assert!(keys.iter().all(|order| order.len() == 8));
        let different: HashSet<_> = keys.iter().map(|order| &order[..3]).collect();
        assert_eq!(different.len(), 64);
    }

    #[test]
    fn the_longest_resting_place_is_used_first_once_enough_are_free() {
        let mut places = places(8, 4, 1);
        let mut taken: Vec<u32> = (0..8).map(|_| places.take().unwrap().0).collect();
        taken.sort_unstable();
        assert_eq!(taken, [0, 1, 2, 3, 4, 5, 6, 7], "grows first");
        for index in [6, 1, 4, 3] {
            places.release(index, 1);
            assert!(places.take().is_none(), "it would be used again too early");
        }
        places.release(0, 1);
        assert_eq!(places.take().unwrap().0, 6);
        assert!(places.take().is_none());
        places.release(6, 1);
        assert_eq!(places.take().unwrap().0, 1);
    }

    /// If the owner of a window has chosen the low byte that would come next, the next key gets a different one.
    #[test]
    fn the_last_low_byte_of_a_window_is_skipped() {
        let order = order(3);
        let mut places = places(1, 0, 3);
        let (index, low) = places.take().unwrap();
        assert_eq!(low, order[0]);
        places.release(index, u8::try_from(order[1]).unwrap());
        assert_eq!(places.take().unwrap().1, order[2]);
    }
}
