//! Random numbers: unpredictable ones for identities and keys, seeded ones for schedules.

use std::hash::{BuildHasher, Hasher, RandomState};

/// SplitMix64 (Steele, Lea, Flood 2014): a full-period generator that any seed starts well.
#[derive(Debug, Clone)]
pub(crate) struct SplitMix(u64);

impl SplitMix {
    pub(crate) fn new(seed: u64) -> Self {
        Self(seed)
    }

    /// A generator that no other process shares: std seeds `RandomState` from the system.
    pub(crate) fn from_system() -> Self {
        Self(RandomState::new().build_hasher().finish())
    }

    pub(crate) fn next_u64(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let z = (self.0 ^ (self.0 >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        let z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        z ^ (z >> 31)
    }

    pub(crate) fn next_u32(&mut self) -> u32 {
        (self.next_u64() >> 32) as u32
    }

    /// Uniform enough below a small bound; `bound` 0 gives 0.
    pub(crate) fn below(&mut self, bound: u32) -> u32 {
        ((u64::from(self.next_u32()) * u64::from(bound)) >> 32) as u32
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn equal_seeds_agree_and_system_seeds_differ() {
        let (mut a, mut b) = (SplitMix::new(7), SplitMix::new(7));
        assert!((0..100).all(|_| a.next_u64() == b.next_u64()));
        assert_ne!(SplitMix::from_system().next_u64(), SplitMix::from_system().next_u64());
    }

    #[test]
    fn below_stays_below() {
        let mut rng = SplitMix::new(1);
        assert!((0..1000).all(|_| rng.below(3) < 3));
        assert_eq!(rng.below(0), 0);
    }
}
