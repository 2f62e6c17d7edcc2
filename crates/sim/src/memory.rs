//! Which bytes may be where. A message has bytes that are made of its number, so that those of another one, and those
//! that came too late, are seen.

use crate::run::{Outcome, ensure};

/// The word `n` of a message.
fn word(message: u64, n: usize) -> u64 {
    let word = message.wrapping_mul(0x9e37_79b9_7f4a_7c15)
        ^ (n as u64).wrapping_mul(0xd1b5_4a32_d192_ed03);
    word ^ (word >> 29)
}

fn byte(message: u64, n: usize) -> u8 {
    word(message, n / 8).to_le_bytes()[n % 8]
}

/// The bytes of a message from one of them on.
pub(crate) fn fill(message: u64, from: usize, out: &mut [u8]) {
    let head = (out.len()).min((8 - from % 8) % 8);
    let (first, rest) = out.split_at_mut(head);
    for (n, place) in first.iter_mut().enumerate() {
        *place = byte(message, from + n);
    }
    for (n, chunk) in rest.chunks_mut(8).enumerate() {
        let word = word(message, (from + head) / 8 + n).to_le_bytes();
        chunk.copy_from_slice(&word[..chunk.len()]);
    }
}

pub(crate) fn bytes(message: u64, length: usize) -> Vec<u8> {
    let mut bytes = vec![0; length];
    fill(message, 0, &mut bytes);
    bytes
}

/// A WRITE and the place that it is for.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Placed {
    pub(crate) at: usize,
    pub(crate) length: usize,
    pub(crate) message: u64,
}

impl Placed {
    /// Whether it writes that byte there.
    pub(crate) fn has(&self, at: usize, actual: u8) -> bool {
        (self.at..self.at + self.length).contains(&at) && byte(self.message, at - self.at) == actual
    }
}

/// An atomic on a word.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Atomic {
    pub(crate) word: usize,
    /// What it compares with, if it does.
    pub(crate) compare: Option<u64>,
    /// What it adds, or puts there.
    pub(crate) operand: u64,
}

impl Atomic {
    pub(crate) fn result(&self, before: u64) -> u64 {
        match self.compare {
            None => before.wrapping_add(self.operand),
            Some(compare) if compare == before => self.operand,
            Some(_) => before,
        }
    }
}

pub(crate) const WORDS: usize = 4;
/// What is behind the words, and at the end: nothing may be written there.
pub(crate) const GUARD: usize = 32;
/// Where the bytes begin.
pub(crate) const DATA: usize = 8 * WORDS + GUARD;

/// What is known of the memory that one peer reads and writes: words, a guard, bytes, a guard.
#[derive(Debug)]
pub(crate) struct Target {
    /// What is there, but for the words and for what is in flight.
    pub(crate) known: Vec<u8>,
    pub(crate) words: [u64; WORDS],
    /// What may have been written, or may be yet.
    pub(crate) uncertain: Vec<Placed>,
    /// Atomics that may have been executed, in their order.
    pub(crate) unanswered: Vec<Atomic>,
}

impl Target {
    pub(crate) fn new(end: usize, longest: usize) -> Self {
        let mut known = bytes((1 << 40) + end as u64, DATA + 2 * longest + GUARD);
        known[..8 * WORDS].fill(0);
        Self { known, words: [0; WORDS], uncertain: Vec::new(), unanswered: Vec::new() }
    }

    /// A WRITE is there for certain.
    pub(crate) fn place(&mut self, placed: &Placed) {
        fill(placed.message, 0, &mut self.known[DATA + placed.at..][..placed.length]);
    }

    /// Whether bytes are those that are known, or of something that is in flight.
    pub(crate) fn check<'a>(
        &'a self,
        from: usize,
        actual: &[u8],
        under_way: impl Iterator<Item = &'a Placed> + Clone,
    ) -> Outcome {
        let known = &self.known[from..from + actual.len()];
        if known == actual {
            return Ok(());
        }
        for (n, (known, actual)) in known.iter().zip(actual).enumerate() {
            if known == actual {
                continue;
            }
            let at = from + n;
            let mut others = under_way.clone().chain(&self.uncertain);
            let one_of_them =
                at.checked_sub(DATA).is_some_and(|at| others.any(|placed| placed.has(at, *actual)));
            ensure!(
                one_of_them,
                "byte {at} is {actual:#x}, {known:#x} was there, and nobody wrote that"
            );
        }
        Ok(())
    }

    /// Whether the words are what the atomics made of them, the first of those that were not answered too.
    pub(crate) fn check_words(&self, actual: &[u8], under_way: &[Atomic]) -> Outcome {
        let word = |n: usize| u64::from_ne_bytes(actual[8 * n..8 * n + 8].try_into().unwrap());
        let actual: [u64; WORDS] = std::array::from_fn(word);
        let mut words = self.words;
        if words == actual {
            return Ok(());
        }
        for atomic in self.unanswered.iter().chain(under_way) {
            words[atomic.word] = atomic.result(words[atomic.word]);
            if words == actual {
                return Ok(());
            }
        }
        Err(format!("the words are {actual:?}, and {:?} was there", self.words))
    }
}
