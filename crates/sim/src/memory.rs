//! The expected contents of memory. The bytes of a message are derived from its number. Therefore,
//! checks detect the bytes of another message, and of a message that arrived too late.

use crate::run::{Outcome, ensure};

/// Returns word `n` of the bytes of a message.
fn word(message: u64, n: usize) -> u64 {
    let word = message.wrapping_mul(0x9e37_79b9_7f4a_7c15)
        ^ (n as u64).wrapping_mul(0xd1b5_4a32_d192_ed03);
    word ^ (word >> 29)
}

fn byte(message: u64, n: usize) -> u8 {
    word(message, n / 8).to_le_bytes()[n % 8]
}

/// Fills `out` with the bytes of a message, starting at offset `from` of the message.
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

/// A WRITE, and where it stores its bytes.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Placed {
    pub(crate) at: usize,
    pub(crate) length: usize,
    pub(crate) message: u64,
}

impl Placed {
    /// Returns true if the WRITE stores this byte at this offset.
    pub(crate) fn has(&self, at: usize, actual: u8) -> bool {
        (self.at..self.at + self.length).contains(&at) && byte(self.message, at - self.at) == actual
    }
}

/// An atomic on a word.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Atomic {
    pub(crate) word: usize,
    /// For a compare-and-swap: the value to compare with.
    pub(crate) compare: Option<u64>,
    /// The value to add or to store.
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
/// The size of the two guards, after the words and at the end. Nothing may write there.
pub(crate) const GUARD: usize = 32;
/// The offset of the data bytes.
pub(crate) const DATA: usize = 8 * WORDS + GUARD;

/// The expected contents of the memory that a peer reads and writes. It consists of words, a guard,
/// data bytes, and another guard.
#[derive(Debug)]
pub(crate) struct Target {
    /// The known contents. Not valid for the words, nor for data bytes that WRITEs in flight may
    /// change.
    pub(crate) known: Vec<u8>,
    pub(crate) words: [u64; WORDS],
    /// WRITEs that may already have been executed, or may still be executed.
    pub(crate) uncertain: Vec<Placed>,
    /// Atomics that may have been executed, in the order in which they were posted.
    pub(crate) unanswered: Vec<Atomic>,
}

impl Target {
    pub(crate) fn new(end: usize, longest: usize) -> Self {
        let mut known = bytes((1 << 40) + end as u64, DATA + 2 * longest + GUARD);
        known[..8 * WORDS].fill(0);
        Self { known, words: [0; WORDS], uncertain: Vec::new(), unanswered: Vec::new() }
    }

    /// Records a WRITE that has certainly been executed.
    pub(crate) fn place(&mut self, placed: &Placed) {
        fill(placed.message, 0, &mut self.known[DATA + placed.at..][..placed.length]);
    }

    /// Checks that each byte is the known one, or comes from a WRITE that is uncertain or in
    /// flight.
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
                "byte {at} is {actual:#x}, but was {known:#x}, and no request wrote that"
            );
        }
        Ok(())
    }

    /// Checks that the words result from atomics. Of the unanswered atomics, any number may have
    /// been executed, starting with the first.
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
        Err(format!("the words are {actual:?}, but were {:?}", self.words))
    }
}
