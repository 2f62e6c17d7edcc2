//! Random numbers: unpredictable ones for what a device gives out, seeded ones for schedules.

use std::sync::Mutex;

use chacha20::ChaCha20Rng;
use chacha20::rand_core::{Rng, SeedableRng};
use rustix::io::{Errno, retry_on_intr};
use rustix::rand::{GetRandomFlags, getrandom};

use crate::sync::locked;

#[cfg(test)]
#[cfg(not(loom))]
mod tests;

/// What all random numbers of a device come from. Two devices of one seed draw the same.
#[derive(Clone)]
pub(crate) struct Seed([u8; 32]);

/// What numbers are for. What is drawn for one purpose tells nothing about the others: peers see the
/// identity, and must not learn from it what names memory.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Purpose {
    Identity,
    Keys,
    QueuePairNumbers,
}

/// Where the seeds of a fabric's devices come from. What is not the system goes here.
#[derive(Debug)]
pub(crate) enum Seeds {
    /// Ones that nobody else has.
    System,
    /// From the seed of a simulation: the same each time.
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
            // Up to 256 bytes come whole (getrandom(2)).
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
    /// The same for each process, of a text that is no secret.
    pub(crate) fn of_text(text: &str) -> Self {
        let mut seed = [0; 32];
        for (place, word) in (0_u64..).zip(seed.chunks_exact_mut(8)) {
            // FNV-1a, from another beginning for each word.
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

/// Numbers that nobody can tell who has seen the ones before: the key stream of ChaCha20.
#[derive(Debug)]
pub(crate) struct Random(ChaCha20Rng);

impl Random {
    pub(crate) fn next_u64(&mut self) -> u64 {
        self.0.next_u64()
    }

    pub(crate) fn next_u32(&mut self) -> u32 {
        self.0.next_u32()
    }

    /// Uniform below a bound, but for a part in 2^32 / `bound`; `bound` 0 gives 0.
    pub(crate) fn below(&mut self, bound: u32) -> u32 {
        scaled(self.next_u32(), bound)
    }

    /// Every order is as likely as any other.
    pub(crate) fn shuffle<T>(&mut self, list: &mut [T]) {
        for last in (1..list.len()).rev() {
            let bound = u32::try_from(last + 1).unwrap_or(u32::MAX);
            list.swap(last, self.below(bound) as usize);
        }
    }
}

/// SplitMix64 (Steele, Lea, Flood 2014): a full-period generator that any seed starts well. Whoever sees
/// an output knows all others, so that it is for schedules alone.
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

    /// Uniform enough below a small bound; `bound` 0 gives 0.
    pub(crate) fn below(&mut self, bound: u32) -> u32 {
        scaled(self.next_u32(), bound)
    }
}

fn scaled(random: u32, bound: u32) -> u32 {
    ((u64::from(random) * u64::from(bound)) >> 32) as u32
}
