//! Faults that a test injects on purpose.

/// Changes one byte of a stream in flight, to show that a checksum detects the change.
///
/// The code under test calls [`apply`](Self::apply) on each payload, but only the payload that
/// contains the byte is changed.
///
/// # Examples
///
/// ```
/// use test_support::fault::ByteFlip;
///
/// let flip = ByteFlip { at: 5 };
/// let mut first = *b"abcd";
/// let mut second = *b"efgh";
/// assert!(!flip.apply(0, &mut first));
/// assert!(flip.apply(4, &mut second));
/// assert_eq!((&first, second[1]), (b"abcd", !b'f'));
/// ```
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ByteFlip {
    /// The offset of the byte from the beginning of the stream.
    pub at: u64,
}

impl ByteFlip {
    /// Inverts all bits of the byte if this payload contains it. `stream_offset` is the offset of
    /// the payload's first byte in the stream. Returns true if the byte was inverted.
    pub fn apply(self, stream_offset: u64, payload: &mut [u8]) -> bool {
        let byte = self
            .at
            .checked_sub(stream_offset)
            .and_then(|index| usize::try_from(index).ok())
            .and_then(|index| payload.get_mut(index));
        match byte {
            Some(byte) => {
                *byte = !*byte;
                true
            }
            None => false,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn exactly_one_byte_of_the_stream_changes_whatever_the_chunks() {
        let original: Vec<u8> = (0..100).collect();
        for at in [0, 6, 7, 13, 99] {
            for chunk in [1, 7, 100] {
                let mut stream = original.clone();
                let mut offset = 0;
                let mut hits = 0;
                for payload in stream.chunks_mut(chunk) {
                    hits += u32::from(ByteFlip { at }.apply(offset, payload));
                    offset += payload.len() as u64;
                }
                let changed: Vec<_> = (0..100).filter(|&i| stream[i] != original[i]).collect();
                assert_eq!((hits, changed), (1, vec![usize::try_from(at).unwrap()]));
            }
        }
    }

    #[test]
    fn outside_of_the_payload_nothing_changes() {
        for (at, offset) in [(3, 4), (8, 4), (u64::MAX, 0), (0, u64::MAX)] {
            let mut payload = [1, 2, 3, 4];
            assert!(!ByteFlip { at }.apply(offset, &mut payload));
            assert_eq!(payload, [1, 2, 3, 4]);
        }
        assert!(!ByteFlip { at: 0 }.apply(0, &mut []));
    }
}
