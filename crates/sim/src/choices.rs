//! Sources for the generator's choices: a seed, or bytes.

use std::ops::RangeBounds;

use fastrand::Rng;

/// A source of reproducible choices.
#[derive(Debug)]
pub(crate) enum Choices<'a> {
    /// Unlimited choices derived from a seed.
    OfSeed(Rng),
    /// Choices decoded from the bytes. After the last byte, every choice is the first possibility.
    OfBytes(&'a [u8]),
}

/// Returns the first and the last number of a range.
macro_rules! bounds {
    ($number:ident, $range:ident) => {{
        use std::ops::Bound;
        let first = match $range.start_bound() {
            Bound::Included(first) => *first,
            Bound::Excluded(before) => before + 1,
            Bound::Unbounded => 0,
        };
        let last = match $range.end_bound() {
            Bound::Included(last) => *last,
            Bound::Excluded(behind) => behind - 1,
            Bound::Unbounded => $number::MAX,
        };
        (first, last)
    }};
}

macro_rules! numbers {
    ($($number:ident)*) => {$(
        pub(crate) fn $number(&mut self, range: impl RangeBounds<$number>) -> $number {
            match self {
                Self::OfSeed(rng) => rng.$number(range),
                Self::OfBytes(bytes) => {
                    let (first, last) = bounds!($number, range);
                    let choice = below(bytes, (last - first) as u64);
                    first + choice as $number
                }
            }
        }
    )*};
}

impl Choices<'_> {
    numbers! { u8 u32 u64 usize }

    pub(crate) fn bool(&mut self) -> bool {
        self.u8(..2) == 1
    }

    /// Returns false if the bytes are used up.
    pub(crate) fn go_on(&self) -> bool {
        match self {
            Self::OfSeed(_) => true,
            Self::OfBytes(bytes) => !bytes.is_empty(),
        }
    }
}

/// Decodes a number up to `last`. The number of bytes that it uses depends only on `last`, so a
/// change of these bytes does not shift the bytes of later choices.
fn below(bytes: &mut &[u8], last: u64) -> u64 {
    let mut number = 0u64;
    let mut left = last;
    while left > 0 {
        let Some((first, rest)) = bytes.split_first() else { break };
        *bytes = rest;
        number = number << 8 | u64::from(*first);
        left >>= 8;
    }
    match last.checked_add(1) {
        Some(count) => number % count,
        None => number,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn bytes_encode_numbers_in_their_range_until_they_are_used_up() {
        let bytes = [7, 0x12, 0x34, 0xff, 1];
        let mut choices = Choices::OfBytes(&bytes);
        assert_eq!(choices.u32(..5), 2);
        assert_eq!(choices.usize(100..=0x1100), 100 + 0x1234 % 0x109d);
        assert_eq!(choices.u8(..), 0xff);
        assert_eq!(
            (choices.u64(3..4), choices.go_on()),
            (3, true),
            "one possibility takes no byte"
        );
        assert!(choices.bool() && !choices.go_on());
        assert_eq!((choices.u64(3..9), choices.bool()), (3, false));
    }
}
