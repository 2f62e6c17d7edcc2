//! Memory of known contents.
#![allow(unsafe_code, clippy::undocumented_unsafe_blocks)] // The device writes here, so no references.

use std::ptr;
use std::sync::atomic::{AtomicBool, Ordering};

/// The length of the longest message and the gap after it.
pub(crate) const SLOT: usize = 256;
const POISON: u8 = 0xdb;

/// Bytes that are accessed only through raw pointers, since the device accesses them too.
#[derive(Debug)]
pub(crate) struct Memory {
    start: *mut u8,
    length: usize,
    taken_back: AtomicBool,
}

unsafe impl Send for Memory {}
unsafe impl Sync for Memory {}

impl Memory {
    /// Allocates zeroes.
    pub(crate) fn new(slots: usize) -> Self {
        let length = slots * SLOT;
        let start = Box::into_raw(vec![0_u8; length].into_boxed_slice());
        Self { start: start.cast(), length, taken_back: AtomicBool::new(false) }
    }

    pub(crate) fn start(&self) -> *mut u8 {
        self.start
    }

    pub(crate) fn length(&self) -> usize {
        self.length
    }

    pub(crate) fn address_of(&self, slot: usize) -> u64 {
        (self.start.addr() + slot * SLOT) as u64
    }

    fn read(&self, slot: usize) -> [u8; SLOT] {
        assert!((slot + 1) * SLOT <= self.length);
        let place = self.start.wrapping_add(slot * SLOT);
        unsafe { place.cast::<[u8; SLOT]>().read() }
    }

    /// Writes the message of a tag into a slot.
    pub(crate) fn write(&self, slot: usize, tag: u64) {
        assert!((slot + 1) * SLOT <= self.length);
        let place = self.start.wrapping_add(slot * SLOT);
        let message = message(tag);
        unsafe { place.copy_from_nonoverlapping(message.as_ptr(), length_of(tag)) };
    }

    /// The tag of the message in a slot; 0 where nothing was written.
    pub(crate) fn tag(&self, slot: usize) -> u64 {
        u64::from_le_bytes(self.read(slot)[..8].try_into().unwrap())
    }

    /// Returns true if a slot begins with exactly the message of a tag, or with zeroes for tag 0.
    pub(crate) fn holds(&self, slot: usize, tag: u64) -> bool {
        let length = length_of(tag);
        self.read(slot)[..length] == message(tag)[..length]
    }

    /// Poisons these slots, which must not be written from now on.
    pub(crate) fn poison(&self, slots: std::ops::Range<usize>) {
        assert!(slots.end * SLOT <= self.length);
        let place = self.start.wrapping_add(slots.start * SLOT);
        unsafe { place.write_bytes(POISON, slots.len() * SLOT) };
    }

    /// Returns the memory to its owner.
    pub(crate) fn take_back(&self) {
        self.poison(0..self.length / SLOT);
        self.taken_back.store(true, Ordering::SeqCst);
    }

    pub(crate) fn is_taken_back(&self) -> bool {
        self.taken_back.load(Ordering::SeqCst)
    }

    /// Checks that these slots were not written since.
    pub(crate) fn assert_poisoned(&self, mut slots: std::ops::Range<usize>) {
        let written = slots.find(|&slot| self.read(slot) != [POISON; SLOT]);
        assert_eq!(written, None, "memory was written after it was returned to its owner");
    }

    pub(crate) fn assert_all_poisoned(&self) {
        self.assert_poisoned(0..self.length / SLOT);
    }
}

impl Drop for Memory {
    fn drop(&mut self) {
        drop(unsafe { Box::from_raw(ptr::slice_from_raw_parts_mut(self.start, self.length)) });
    }
}

pub(crate) fn length_of(tag: u64) -> usize {
    8 + (mix(tag) % (SLOT as u64 - 7)) as usize
}

/// The tag, then bytes that only this tag produces.
fn message(tag: u64) -> [u8; SLOT] {
    let mut message = [0; SLOT];
    if tag == 0 {
        return message;
    }
    let (words, _) = message.as_chunks_mut::<8>();
    words[0] = tag.to_le_bytes();
    for (n, word) in (1..).zip(&mut words[1..]) {
        *word = mix(tag.wrapping_add(n << 48)).to_le_bytes();
    }
    message
}

/// The finaliser of SplitMix64.
pub(crate) fn mix(z: u64) -> u64 {
    let z = (z ^ (z >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
    let z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
    z ^ (z >> 31)
}

/// Seeded random numbers.
pub(crate) struct Dice(u64);

impl Dice {
    pub(crate) fn new(seed: u64) -> Self {
        Self(seed)
    }

    pub(crate) fn roll(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        mix(self.0)
    }

    pub(crate) fn below(&mut self, bound: usize) -> usize {
        (self.roll() % bound as u64) as usize
    }

    pub(crate) fn one_in(&mut self, n: usize) -> bool {
        self.below(n) == 0
    }
}
