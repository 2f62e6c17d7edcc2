//! The messages between the two sides of a copy.
//!
//! Every message is an RDMA WRITE with immediate data. The upper two bits of the immediate data are
//! the kind, and the rest is a sequence number modulo 2^30. Chunks, and the trailer after the last
//! chunk, are numbered consecutively. Number `n` is written to slot `n % depth` of the receiver's
//! memory.

use std::fmt;

use super::Error;

const KIND_SHIFT: u32 = 30;
const SEQUENCE_MASK: u32 = (1 << KIND_SHIFT) - 1;

/// The kind of a message, as encoded in its immediate data.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Kind {
    /// To the receiver: a slot contains a chunk of the file, whose length is in the completion.
    Data = 0,
    /// To the receiver: a slot contains the [`Trailer`].
    End = 1,
    /// To the sender, without a payload: the slot of the message with this number is free again.
    /// The credit for the trailer also confirms that everything was checked and written.
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

/// Returns the immediate data of a message.
pub(crate) fn immediate(kind: Kind, sequence: u64) -> u32 {
    // The mask ensures that the number is in range.
    #[allow(clippy::cast_possible_truncation)]
    let sequence = (sequence & u64::from(SEQUENCE_MASK)) as u32;
    (kind as u32) << KIND_SHIFT | sequence
}

/// Returns the kind of the message with this immediate data. Its number must be `expected`.
pub(crate) fn kind_of(immediate: u32, expected: u64) -> Result<Kind, Error> {
    let kind = match immediate >> KIND_SHIFT {
        0 => Kind::Data,
        1 => Kind::End,
        2 => Kind::Credit,
        _ => return Err(Error::Protocol(format!("immediate {immediate:#010x} has no valid kind"))),
    };
    if immediate == self::immediate(kind, expected) {
        Ok(kind)
    } else {
        let got = immediate & SEQUENCE_MASK;
        Err(Error::Protocol(format!("{kind} number {got} arrived instead of number {expected}")))
    }
}

/// The contents of the last message: the totals that the receiver must have computed too.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Trailer {
    /// The length of the stream, in bytes.
    pub(crate) bytes: u64,
    /// The CRC-32 of the stream (IEEE 802.3).
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
                assert!(error.to_string().contains("instead of"), "{error}");
            }
        }
        assert!(kind_of(3 << 30, 0).unwrap_err().to_string().contains("no valid kind"));
        assert_eq!(immediate(Kind::Credit, (1 << 30) + 5), 0x8000_0005);
    }

    #[test]
    fn a_trailer_round_trips_through_bytes() {
        let trailer = Trailer { bytes: 0x0102_0304_0506_0708, crc32: 0xa0b0_c0d0 };
        assert_eq!(trailer.to_bytes(), [8, 7, 6, 5, 4, 3, 2, 1, 0xd0, 0xc0, 0xb0, 0xa0]);
        assert_eq!(Trailer::from_bytes(trailer.to_bytes()), trailer);
    }
}
