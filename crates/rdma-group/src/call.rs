//! Calls: what all ranks of a group must agree on in a collective. Each message begins with its call.

use std::fmt;

use crate::reduction::name_of;
use crate::schedule::BarrierAlgorithm;

/// The collectives.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Kind {
    Barrier = 1,
    Broadcast,
    Gather,
    Scatter,
    AllGather,
    AllToAll,
    Reduce,
    AllReduce,
    ReduceScatter,
    Connect,
}

/// A call of a collective. All ranks of a group must make equal calls in the same order.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct Call {
    /// A [`Kind`], or another number in an invalid message.
    pub(crate) kind: u8,
    /// The code of the reduction, or of the algorithm of a barrier; otherwise 0.
    pub(crate) variant: u8,
    /// The code of the type of number; 0 if the collective reduces nothing.
    pub(crate) number: u8,
    pub(crate) root: u32,
    pub(crate) element_bytes: u64,
    /// The identity of the group.
    pub(crate) group: u64,
    /// The number of earlier calls of the group.
    pub(crate) generation: u64,
    /// The length of the buffer in elements, if it is equal on all ranks.
    pub(crate) elements: u64,
    /// A checksum of the lengths of the blocks; 0 if all blocks have the same length.
    pub(crate) counts: u64,
}

impl Call {
    /// The length of the header of a message. It keeps numbers of 8 bytes aligned.
    pub(crate) const BYTES: usize = 48;

    /// The place of the [form](crate::world::lane::Form) in a message.
    pub(crate) const FORM_BYTE: usize = 3;

    pub(crate) fn to_bytes(self) -> [u8; Self::BYTES] {
        let mut bytes = [0; Self::BYTES];
        bytes[..3].copy_from_slice(&[self.kind, self.variant, self.number]);
        bytes[4..8].copy_from_slice(&self.root.to_le_bytes());
        let Self { element_bytes, group, generation, elements, counts, .. } = self;
        let words = [element_bytes, group, generation, elements, counts];
        for (place, word) in bytes[8..].chunks_exact_mut(8).zip(words) {
            place.copy_from_slice(&word.to_le_bytes());
        }
        bytes
    }

    /// Splits a message into the call and the data. Returns `None` if it is too short.
    pub(crate) fn split(message: &[u8]) -> Option<(Self, &[u8])> {
        let (header, data) = message.split_first_chunk::<{ Self::BYTES }>()?;
        let [kind, variant, number, ..] = *header;
        let (head, words) = header.split_first_chunk::<8>()?;
        let root = u32::from_le_bytes(*head.last_chunk()?);
        let mut words = words.as_chunks().0.iter().map(|word| u64::from_le_bytes(*word));
        let element_bytes = words.next()?;
        let (group, generation) = (words.next()?, words.next()?);
        let (elements, counts) = (words.next()?, words.next()?);
        let call = Self {
            kind,
            variant,
            number,
            element_bytes,
            root,
            group,
            generation,
            elements,
            counts,
        };
        Some((call, data))
    }
}

/// Returns a checksum of numbers (FNV-1a).
pub(crate) fn checksum(words: impl IntoIterator<Item = u64>) -> u64 {
    let bytes = words.into_iter().flat_map(u64::to_le_bytes);
    bytes.fold(0xcbf2_9ce4_8422_2325, |sum: u64, byte| {
        (sum ^ u64::from(byte)).wrapping_mul(0x0100_0000_01b3)
    })
}

const KINDS: [(Kind, &str); 10] = [
    (Kind::Barrier, "barrier"),
    (Kind::Broadcast, "broadcast"),
    (Kind::Gather, "gather"),
    (Kind::Scatter, "scatter"),
    (Kind::AllGather, "all_gather"),
    (Kind::AllToAll, "all_to_all"),
    (Kind::Reduce, "reduce"),
    (Kind::AllReduce, "all_reduce"),
    (Kind::ReduceScatter, "reduce_scatter"),
    (Kind::Connect, "connect"),
];

/// The collectives that have a root.
const ROOTED: [Kind; 4] = [Kind::Broadcast, Kind::Gather, Kind::Scatter, Kind::Reduce];

const NUMBERS: [&str; 11] =
    ["", "f32", "f64", "u8", "i8", "u16", "i16", "u32", "i32", "u64", "i64"];

impl fmt::Display for Call {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let kind = KINDS.iter().find(|(kind, _)| *kind as u8 == self.kind);
        let kind = kind.map_or("unknown", |(_, name)| name);
        write!(f, "{kind} (call {} of ", self.generation)?;
        match self.group {
            0 => f.write_str("the group")?,
            subgroup => write!(f, "subgroup {subgroup:x}")?,
        }
        if self.element_bytes > 0 {
            write!(f, ", {} elements", self.elements)?;
            match NUMBERS.get(usize::from(self.number)) {
                Some(&"") | None => write!(f, " of {} bytes", self.element_bytes)?,
                Some(number) => write!(f, " of {number}, {}", name_of(self.variant))?,
            }
        }
        if ROOTED.iter().any(|kind| *kind as u8 == self.kind) {
            write!(f, ", root {}", self.root)?;
        }
        if self.kind == Kind::Barrier as u8 {
            match BarrierAlgorithm::ALL.get(usize::from(self.variant)) {
                Some(algorithm) => write!(f, ", {algorithm:?}")?,
                None => write!(f, ", algorithm {}", self.variant)?,
            }
        }
        if self.counts != 0 {
            write!(f, ", counts with checksum {:x}", self.counts)?;
        }
        f.write_str(")")
    }
}
