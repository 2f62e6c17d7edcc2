//! Random numbers: unpredictable ones for values that peers see, and seeded ones for schedules.

use std::sync::Mutex;

use chacha20::ChaCha20Rng;
use chacha20::rand_core::{Rng, SeedableRng};
use rustix::io::{Errno, retry_on_intr};
use rustix::rand::{GetRandomFlags, getrandom};

use crate::sync::locked;

#[cfg(test)]
#[cfg(not(loom))]
mod tests;

/// The source of all random numbers of a device. Two devices with the same seed draw the same numbers.
#[derive(Clone)]
pub(crate) struct Seed([u8; 32]);

/// The purpose of random numbers. Numbers for one purpose reveal nothing about those for another. Peers see the
/// identity, and must not be able to derive the memory keys from it.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Purpose {
    Identity,
    Keys,
    QueuePairNumbers,
}

/// The source of the seeds for a fabric's devices: the system, or a simulation.
#[derive(Debug)]
pub(crate) enum Seeds {
    /// Unique seeds from the kernel.
    System,
    /// Seeds derived from the seed of a simulation, which are the same in each run.
    Simulated(Mutex<SplitMix>),
}

impl Seeds {
    pub(super) fn simulated(seed: u64) -> Self {
        Self::Simulated(Mutex::new(SplitMix::new(seed)))
    }

    #[expect(clippy::disallowed_methods, reason = "this is where seeds come from")]
    pub(crate) fn draw(&self) -> Result<Seed, Errno> {
        let mut seed = [0; 32];
        match self {
            // Up to 256 bytes are always returned completely (getrandom(2)).
            Self::System => _ = retry_on_intr(|| getrandom(&mut seed, GetRandomFlags::empty()))?,
            Self::Simulated(random) => {
                let mut random = locked(random);
                for word in seed.chunks_exact_mut(8) {
                    word.copy_from_slice(&random.next_u64().to_le_bytes());
                }
            }
        }
        Ok(Seed(seed))
    }
}

impl Seed {
    /// Derives a seed from a text that is not secret. The seed is the same in each process.
    pub(crate) fn of_text(text: &str) -> Self {
        let mut seed = [0; 32];
        for (place, word) in (0_u64..).zip(seed.chunks_exact_mut(8)) {
            // FNV-1a, with a different initial value for each word.
            let begin = 0xcbf2_9ce4_8422_2325 ^ place;
            let hash = text.bytes().fold(begin, |hash: u64, byte| {
                (hash ^ u64::from(byte)).wrapping_mul(0x0000_0100_0000_01b3)
            });
            word.copy_from_slice(&hash.to_le_bytes());
        }
        Self(seed)
    }

    #[cfg(test)]
    pub(crate) fn new(number: u8) -> Self {
        Self([number; 32])
    }

    pub(crate) fn stream(&self, purpose: Purpose) -> Random {
        let mut rng = ChaCha20Rng::from_seed(self.0);
        rng.set_stream(purpose as u64);
        Random(rng)
    }
}

impl std::fmt::Debug for Seed {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("Seed { .. }")
    }
}

/// Numbers that cannot be predicted from earlier ones: the key stream of ChaCha20.
#[derive(Debug)]
pub(crate) struct Random(ChaCha20Rng);

impl Random {
    pub(crate) fn next_u64(&mut self) -> u64 {
        self.0.next_u64()
    }

    pub(crate) fn next_u32(&mut self) -> u32 {
        self.0.next_u32()
    }

    /// Returns a number below `bound`, uniform except for one part in 2^32 / `bound`. If `bound` is 0, returns 0.
    pub(crate) fn below(&mut self, bound: u32) -> u32 {
        scaled(self.next_u32(), bound)
    }

    /// Shuffles a list. All orders are equally likely.
    pub(crate) fn shuffle<T>(&mut self, list: &mut [T]) {
        for last in (1..list.len()).rev() {
            let bound = u32::try_from(last + 1).unwrap_or(u32::MAX);
            list.swap(last, self.below(bound) as usize);
        }
    }
}

/// SplitMix64 (Steele, Lea, Flood 2014): a full-period generator that works well with any seed. One output reveals all
/// others, so it is used only for schedules.
#[derive(Debug, Clone)]
pub(crate) struct SplitMix(u64);

impl SplitMix {
    pub(crate) fn new(seed: u64) -> Self {
        Self(seed)
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

    /// Returns a number below a small `bound`, uniform enough for schedules. If `bound` is 0, returns 0.
    pub(crate) fn below(&mut self, bound: u32) -> u32 {
        scaled(self.next_u32(), bound)
    }
}

fn scaled(random: u32, bound: u32) -> u32 {
    ((u64::from(random) * u64::from(bound)) >> 32) as u32
}
