//! What the two sides say to each other.
//!
//! Every message is an RDMA WRITE with an immediate. Its two upper bits are the kind, the rest is the
//! sequence number of the chunk, modulo 2^30. Chunks and the trailer that follows the last of them
//! share one numbering, and number `n` lies in slot `n % depth` of the receiver's memory.

use std::fmt;

use super::Error;

const KIND_SHIFT: u32 = 30;
const SEQUENCE_MASK: u32 = (1 << KIND_SHIFT) - 1;

/// What an immediate says.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Kind {
    /// To the receiver: a slot holds a chunk of the file; the completion says how many bytes.
    Data = 0,
    /// To the receiver: a slot holds the [`Trailer`].
    End = 1,
    /// To the sender, without a payload: this number's slot is free again. That of the trailer says
    /// that everything was checked and written.
    Credit = 2,
}

impl fmt::Display for Kind {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Data => "chunk",
            Self::End => "trailer",
            Self::Credit => "credit",
        })
    }
}

/// The immediate of a message.
pub(crate) fn immediate(kind: Kind, sequence: u64) -> u32 {
    // In range after the mask.
    #[allow(clippy::cast_possible_truncation)]
    let sequence = (sequence & u64::from(SEQUENCE_MASK)) as u32;
    (kind as u32) << KIND_SHIFT | sequence
}

/// The kind of an immediate that must be that of message number `expected`.
pub(crate) fn kind_of(immediate: u32, expected: u64) -> Result<Kind, Error> {
    let kind = match immediate >> KIND_SHIFT {
        0 => Kind::Data,
        1 => Kind::End,
        2 => Kind::Credit,
        _ => return Err(Error::Protocol(format!("immediate {immediate:#010x} is of no kind"))),
    };
    if immediate == self::immediate(kind, expected) {
        Ok(kind)
    } else {
        let got = immediate & SEQUENCE_MASK;
        Err(Error::Protocol(format!("{kind} number {got} came where number {expected} was due")))
    }
}

/// The last message: what the receiver must have got.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Trailer {
    /// All bytes of the stream.
    pub(crate) bytes: u64,
    /// Their CRC-32, that of IEEE 802.3.
    pub(crate) crc32: u32,
}

impl Trailer {
    pub(crate) const SIZE: usize = 12;

    pub(crate) fn to_bytes(self) -> [u8; Self::SIZE] {
        let mut bytes = [0; Self::SIZE];
        bytes[..8].copy_from_slice(&self.bytes.to_le_bytes());
        bytes[8..].copy_from_slice(&self.crc32.to_le_bytes());
        bytes
    }

    pub(crate) fn from_bytes(bytes: [u8; Self::SIZE]) -> Self {
        let [a, b, c, d, e, f, g, h, crc32 @ ..] = bytes;
        Self {
            bytes: u64::from_le_bytes([a, b, c, d, e, f, g, h]),
            crc32: u32::from_le_bytes(crc32),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_immediate_names_its_kind_and_its_number() {
        for sequence in [0, 1, 7, (1 << 30) - 1, 1 << 30, (1 << 30) + 5, u64::MAX] {
            for kind in [Kind::Data, Kind::End, Kind::Credit] {
                assert_eq!(kind_of(immediate(kind, sequence), sequence).unwrap(), kind);
                let error = kind_of(immediate(kind, sequence), sequence ^ 1).unwrap_err();
                assert!(error.to_string().contains("was due"), "{error}");
            }
        }
        assert!(kind_of(3 << 30, 0).unwrap_err().to_string().contains("of no kind"));
        assert_eq!(immediate(Kind::Credit, (1 << 30) + 5), 0x8000_0005);
    }

    #[test]
    fn a_trailer_survives_its_bytes() {
        let trailer = Trailer { bytes: 0x0102_0304_0506_0708, crc32: 0xa0b0_c0d0 };
        assert_eq!(trailer.to_bytes(), [8, 7, 6, 5, 4, 3, 2, 1, 0xd0, 0xc0, 0xb0, 0xa0]);
        assert_eq!(Trailer::from_bytes(trailer.to_bytes()), trailer);
    }
}
