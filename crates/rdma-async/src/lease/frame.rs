//! Frames about lent memory on a control connection, and their encoding.
//!
//! Each frame starts with the same [head](crate::control) as other frames, which identifies the connection and the
//! epoch. The table lists the bytes after the head. Numbers are in network byte order, times in microseconds.
//!
//! | | kind | from | when | bytes |
//! |---|---|---|---|---|
//! | 8 | LEND | lender | memory waits for the borrower | lease (4) |
//! | 9 | ASK | borrower | requests the memory of a waiting lease, or new memory if the lease is 0 | ask (4), lease (4), access (4), length (8), alignment (8), time (8) |
//! | 10 | GRANT | lender | the memory is open | ask (4), lease (4), access (4), descriptor (28) |
//! | 11 | DENY | lender | the request is denied | ask (4), why (4), limit (8) |
//! | 12 | BACK | borrower | returns the memory: 0, dropped; 1, handed over to the lender's program; 2, an operation on it has failed | lease (4), 0 to 2 (4) |
//! | 13 | OVER | lender | the memory was closed, at the end of its time or earlier; the lease may still wait for the borrower's program | lease (4) |

use std::time::Duration;

use rdma_mem::AccessFlags;

use super::error::LeaseDenial;
use crate::region::descriptor::Descriptor;

/// A frame about a lease.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum LeaseFrame {
    Lend { lease: u32 },
    Ask(Ask),
    Grant { ask: u32, lease: u32, access: AccessFlags, descriptor: Descriptor },
    Deny { ask: u32, denial: LeaseDenial },
    Back { lease: u32, how: Return },
    Over { lease: u32 },
}

/// The reason why a borrower returns memory.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(u32)]
pub(crate) enum Return {
    Dropped = 0,
    /// The memory goes to the lender's program.
    HandedOver = 1,
    /// An operation on the memory has failed.
    Failed = 2,
}

impl Return {
    /// Returns the reason with this number, or `None` if this version does not know the number.
    const fn of(number: u32) -> Option<Self> {
        Some(match number {
            0 => Self::Dropped,
            1 => Self::HandedOver,
            2 => Self::Failed,
            _ => return None,
        })
    }
}

/// A request from a borrower.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Ask {
    pub(crate) ask: u32,
    /// The lease, or 0 for new memory.
    pub(crate) lease: u32,
    pub(crate) access: AccessFlags,
    pub(crate) length: u64,
    pub(crate) alignment: u64,
    pub(crate) time: Duration,
}

const LEND: u16 = 8;
const ASK: u16 = 9;
const GRANT: u16 = 10;
const DENY: u16 = 11;
const BACK: u16 = 12;
const OVER: u16 = 13;

/// Returns the number of bytes after the head of a frame of this kind, or `None` if the kind is not about a lease.
#[allow(clippy::cast_possible_truncation)] // a small number
pub(crate) const fn length_of(kind: u16) -> Option<u16> {
    Some(match kind {
        LEND | OVER => 4,
        ASK => 36,
        GRANT => 12 + Descriptor::BYTES as u16,
        DENY => 16,
        BACK => 8,
        _ => return None,
    })
}

impl LeaseFrame {
    pub(crate) const fn kind(&self) -> u16 {
        match self {
            Self::Lend { .. } => LEND,
            Self::Ask(_) => ASK,
            Self::Grant { .. } => GRANT,
            Self::Deny { .. } => DENY,
            Self::Back { .. } => BACK,
            Self::Over { .. } => OVER,
        }
    }

    /// Appends the part of the frame that follows the head.
    pub(crate) fn write(&self, bytes: &mut Vec<u8>) {
        let mut word = |word: u32| bytes.extend(word.to_be_bytes());
        match self {
            Self::Lend { lease } | Self::Over { lease } => word(*lease),
            Self::Back { lease, how } => {
                word(*lease);
                word(*how as u32);
            }
            Self::Ask(Ask { ask, lease, access, length, alignment, time }) => {
                word(*ask);
                word(*lease);
                word(access.bits());
                bytes.extend(length.to_be_bytes());
                bytes.extend(alignment.to_be_bytes());
                bytes.extend(micros(*time).to_be_bytes());
            }
            Self::Grant { ask, lease, access, descriptor } => {
                word(*ask);
                word(*lease);
                word(access.bits());
                bytes.extend(descriptor.to_bytes());
            }
            Self::Deny { ask, denial } => {
                let (why, limit) = denial.to_numbers();
                word(*ask);
                word(why);
                bytes.extend(limit.to_be_bytes());
            }
        }
    }

    /// Decodes a frame of this kind from the bytes after the head. Returns `None` if their number is wrong, or a value
    /// is unknown to this version.
    pub(crate) fn read(kind: u16, bytes: &[u8]) -> Option<Self> {
        let mut rest = Rest(bytes);
        let frame = match kind {
            LEND => Self::Lend { lease: rest.word()? },
            OVER => Self::Over { lease: rest.word()? },
            BACK => Self::Back { lease: rest.word()?, how: Return::of(rest.word()?)? },
            ASK => Self::Ask(Ask {
                ask: rest.word()?,
                lease: rest.word()?,
                access: AccessFlags::from_bits_retain(rest.word()?),
                length: rest.long()?,
                alignment: rest.long()?,
                time: time(rest.long()?),
            }),
            GRANT => Self::Grant {
                ask: rest.word()?,
                lease: rest.word()?,
                access: AccessFlags::from_bits_retain(rest.word()?),
                descriptor: Descriptor::from_bytes(rest.take()?),
            },
            DENY => {
                let (ask, why) = (rest.word()?, rest.word()?);
                Self::Deny { ask, denial: LeaseDenial::from_numbers(why, rest.long()?) }
            }
            _ => return None,
        };
        rest.0.is_empty().then_some(frame)
    }
}

/// Converts a time to microseconds. A time too long for a `u64` becomes the maximum, which means no limit.
fn micros(time: Duration) -> u64 {
    u64::try_from(time.as_micros()).unwrap_or(u64::MAX)
}

const fn time(micros: u64) -> Duration {
    match micros {
        u64::MAX => Duration::MAX,
        micros => Duration::from_micros(micros),
    }
}

/// The bytes that have not been read yet.
struct Rest<'b>(&'b [u8]);

impl Rest<'_> {
    fn take<const N: usize>(&mut self) -> Option<[u8; N]> {
        let (first, rest) = self.0.split_first_chunk()?;
        self.0 = rest;
        Some(*first)
    }

    fn word(&mut self) -> Option<u32> {
        self.take().map(u32::from_be_bytes)
    }

    fn long(&mut self) -> Option<u64> {
        self.take().map(u64::from_be_bytes)
    }
}

#[cfg(test)]
mod tests {
    use rdma_mem::RemoteMemoryRegion;

    use super::*;

    fn written(frame: &LeaseFrame) -> Vec<u8> {
        let mut bytes = Vec::new();
        frame.write(&mut bytes);
        bytes
    }

    #[test]
    fn each_frame_survives_a_round_trip() {
        let access = AccessFlags::new().with_remote_read();
        let ask = Ask { ask: 1, lease: 2, access, length: 3, alignment: 4, time: Duration::MAX };
        let region = RemoteMemoryRegion::new(0x1000, 256, 0x42);
        let descriptor = Descriptor::new(region, Duration::from_secs(5));
        let denial = LeaseDenial::TooLong { most: 4096 };
        for frame in [
            LeaseFrame::Lend { lease: 0x0102_0304 },
            LeaseFrame::Ask(ask),
            LeaseFrame::Ask(Ask { time: Duration::from_micros(7), ..ask }),
            LeaseFrame::Grant { ask: 1, lease: 2, access, descriptor },
            LeaseFrame::Deny { ask: 1, denial },
            LeaseFrame::Back { lease: 7, how: Return::Dropped },
            LeaseFrame::Back { lease: 7, how: Return::HandedOver },
            LeaseFrame::Back { lease: 7, how: Return::Failed },
            LeaseFrame::Over { lease: 7 },
        ] {
            let bytes = written(&frame);
            assert_eq!(Some(bytes.len()), length_of(frame.kind()).map(usize::from));
            let back = LeaseFrame::read(frame.kind(), &bytes).unwrap();
            // A descriptor contains the time at which it was written, so it changes.
            if let (
                LeaseFrame::Grant { descriptor: before, .. },
                LeaseFrame::Grant { descriptor: after, .. },
            ) = (&frame, &back)
            {
                assert_eq!(before.remote(Duration::ZERO), after.remote(Duration::ZERO));
                assert!(after.remaining() <= Duration::from_secs(5));
            } else {
                assert_eq!(back, frame);
            }
            assert_eq!(LeaseFrame::read(frame.kind(), &bytes[1..]), None);
        }
        assert_eq!(LeaseFrame::read(7, &[]), None);
        assert_eq!(LeaseFrame::read(BACK, b"\0\0\0\x07\0\0\0\x03"), None, "of a later version");
    }

    /// The format is the same in every release.
    #[test]
    fn the_format_is_fixed() {
        let access = AccessFlags::new().with_remote_write();
        let ask = Ask {
            ask: 1,
            lease: 0,
            access,
            length: 4096,
            alignment: 64,
            time: Duration::from_secs(1),
        };
        let bytes = b"\0\0\0\x01\0\0\0\0\0\0\0\x02\0\0\0\0\0\0\x10\0\0\0\0\0\0\0\0\x40\0\0\0\0\0\x0f\x42\x40";
        assert_eq!(written(&LeaseFrame::Ask(ask)), bytes);
        let deny = LeaseFrame::Deny { ask: 3, denial: LeaseDenial::NotOffered };
        assert_eq!(written(&deny), b"\0\0\0\x03\0\0\0\x01\0\0\0\0\0\0\0\0");
    }
}
