//! Pseudo-random numbers, the same for the same seed.

/// A generator of pseudo-random numbers (SplitMix64).
pub(crate) struct Chance(pub(crate) u64);

impl Chance {
    pub(crate) fn next(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mixed = (self.0 ^ (self.0 >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        let mixed = (mixed ^ (mixed >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        mixed ^ (mixed >> 31)
    }

    pub(crate) fn below(&mut self, bound: u64) -> u64 {
        self.next() % bound
    }

    /// Shuffles the elements.
    pub(crate) fn shuffle<T>(&mut self, all: &mut [T]) {
        for count in (2..=all.len()).rev() {
            let chosen = usize::try_from(self.below(count as u64)).unwrap();
            all.swap(count - 1, chosen);
        }
    }
}
