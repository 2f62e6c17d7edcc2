//! Memory of one process that another process of the same user maps, so that it executes requests there itself.
//!
//! The process that owns the memory gives grants ([`given`]), and the other one receives them ([`received`]). Both use
//! the connection on which the owner otherwise only notifies the other process. A message with a file is one of two:
//!
//! | first byte | length | file |
//! |---|---|---|
//! | [`VERSIONS`] | 1 | the [versions](crate::link::executed::versions::Versions), once, before the first grant |
//! | [`GRANT`] | [`LENGTH`] | the pages of a region |

pub(super) mod area;
pub(super) mod given;
pub(super) mod memory_file;
pub(super) mod received;

use crate::engine::wire::grant::Version;
use crate::engine::wire::word::WordKey;

/// The first byte of the message with the versions.
pub(super) const VERSIONS: u8 = 1;
/// The first byte of a message with a grant.
pub(super) const GRANT: u8 = 2;
/// The length of a grant in bytes.
pub(super) const LENGTH: usize = 48;

/// The contents of a grant, whose file contains exactly the pages of the region.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Terms {
    /// The key of the word of the requester's connection.
    pub(super) word: WordKey,
    /// The key of the region.
    pub(super) key: u32,
    /// The address of the region's first byte in requests.
    pub(super) iova: u64,
    pub(super) length: u64,
    /// The rights: `IBV_ACCESS_REMOTE_*`.
    pub(super) access: u32,
    /// The version of the owner's queue pair, and that of the region.
    pub(super) versions: [Version; 2],
}

impl Terms {
    /// Encodes the grant. All numbers are little endian; after the first byte, three are zero.
    pub(super) fn encode(&self) -> [u8; LENGTH] {
        let [queue_pair, region] = self.versions;
        let words = [
            u32::from(GRANT),
            self.word.raw(),
            self.key,
            self.access,
            queue_pair.index,
            queue_pair.value,
            region.index,
            region.value,
        ];
        let mut bytes = [0; LENGTH];
        let (first, last) = bytes.split_at_mut(32);
        for (place, word) in first.chunks_exact_mut(4).zip(words) {
            place.copy_from_slice(&word.to_le_bytes());
        }
        for (place, number) in last.chunks_exact_mut(8).zip([self.iova, self.length]) {
            place.copy_from_slice(&number.to_le_bytes());
        }
        bytes
    }

    /// Decodes a grant. Returns `None` if no device sends such a message. Everything else may still be wrong.
    pub(super) fn decode(bytes: &[u8]) -> Option<Self> {
        let bytes: &[u8; LENGTH] = bytes.try_into().ok()?;
        let word = |n: usize| Some(u32::from_le_bytes(*bytes.get(4 * n..)?.first_chunk()?));
        let number = |n: usize| Some(u64::from_le_bytes(*bytes.get(8 * n..)?.first_chunk()?));
        let version = |n| Some(Version { index: word(n)?, value: word(n + 1)? });
        (word(0)? == u32::from(GRANT)).then_some(())?;
        let (iova, length) = (number(4)?, number(5)?);
        (length > 0 && iova.checked_add(length).is_some()).then_some(Self {
            word: WordKey::of(word(1)?)?,
            key: word(2)?,
            iova,
            length,
            access: word(3)?,
            versions: [version(4)?, version(6)?],
        })
    }
}

#[cfg(test)]
#[allow(clippy::unwrap_used)] // A failing helper fails its test.
mod tests {
    use super::*;

    #[test]
    fn a_grant_is_decoded_as_it_was_encoded() {
        let version = |index| Version { index, value: index + 100 };
        let terms = Terms {
            word: WordKey::new(7, 3),
            key: 0x1234_5678,
            iova: 0x7f00_0000_1000,
            length: 0x1_0000_0001,
            access: 6,
            versions: [version(1), version(2)],
        };
        let bytes = terms.encode();
        assert_eq!((bytes[0], Terms::decode(&bytes)), (GRANT, Some(terms)));
        assert_eq!(Terms::decode(&bytes[..LENGTH - 1]), None);
        for (at, byte) in [(0, 1), (1, 1)] {
            let mut other = bytes;
            other[at] = byte;
            assert_eq!(Terms::decode(&other), None);
        }
        let empty = Terms { length: 0, ..terms }.encode();
        let wrapping = Terms { iova: u64::MAX, ..terms }.encode();
        assert_eq!([empty, wrapping].map(|bytes| Terms::decode(&bytes)), [None, None]);
    }
}
