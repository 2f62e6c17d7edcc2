//! AETH: the responder's answer to a request.

use rdma_types::MinRnrTimer;

use crate::wire::bytes::{Reader, Writer};

/// The acknowledge extended transport header (IBTA section 9.3).
///
/// # Examples
///
/// ```
/// use rdma_proto::wire::{Aeth, CreditCount, NakCode, Syndrome};
///
/// let ack = Aeth::parse(&[0x1f, 0, 0, 7]);
/// assert_eq!(ack, Aeth { syndrome: Syndrome::Ack(CreditCount::UNLIMITED), msn: 7 });
///
/// let mut bytes = [0; Aeth::LEN];
/// Aeth { syndrome: Syndrome::Nak(NakCode::RemoteAccess), msn: 7 }.emit(&mut bytes);
/// assert_eq!(bytes, [0x62, 0, 0, 7]);
/// ```
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Aeth {
    /// The result: an acknowledgement, or the reason why the request is not acknowledged.
    pub syndrome: Syndrome,
    /// The message sequence number: how many messages the responder has completed, modulo 2^24
    /// (IBTA section 9.7.7.1). Higher bits are not sent.
    pub msn: u32,
}

impl Aeth {
    /// The size in bytes.
    pub const LEN: usize = 4;

    /// Reads the header.
    #[must_use]
    #[inline]
    pub fn parse(bytes: &[u8; Self::LEN]) -> Self {
        let mut fields = Reader::new(bytes);
        Self { syndrome: Syndrome::from_code(fields.u8()), msn: fields.u24() }
    }

    /// Writes the header.
    #[inline]
    pub fn emit(&self, bytes: &mut [u8; Self::LEN]) {
        Writer::new(bytes).u8(self.syndrome.code()).u24(self.msn);
    }
}

/// The content of an acknowledgement (IBTA section 9.7.5).
///
/// # Examples
///
/// ```
/// use rdma_proto::wire::Syndrome;
/// use rdma_types::MinRnrTimer;
///
/// let timer = MinRnrTimer::limited(12).unwrap();
/// assert_eq!(Syndrome::from_code(0x2c), Syndrome::RnrNak(timer));
/// assert_eq!(Syndrome::RnrNak(timer).code(), 0x2c);
/// ```
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub enum Syndrome {
    /// All packets up to and including this PSN were accepted. The credits allow this many further
    /// messages.
    Ack(CreditCount),
    /// The receiver is not ready. Try again after this time.
    RnrNak(MinRnrTimer),
    /// The request failed.
    Nak(NakCode),
    /// A code that the specification reserves, kept unchanged.
    Reserved(u8),
}

impl Syndrome {
    /// Returns the syndrome with this code.
    #[must_use]
    #[inline]
    pub fn from_code(code: u8) -> Self {
        let value = code & 0x1f;
        let known = match code >> 5 {
            0b000 => CreditCount::from_code(value).map(Self::Ack),
            0b001 => MinRnrTimer::from_code(value).map(Self::RnrNak),
            0b011 => NakCode::from_code(value).map(Self::Nak),
            _ => None,
        };
        known.unwrap_or(Self::Reserved(code))
    }

    /// Returns the byte in the packet.
    #[must_use]
    #[inline]
    pub const fn code(self) -> u8 {
        match self {
            Self::Ack(credits) => credits.code(),
            Self::RnrNak(timer) => 0b001 << 5 | timer.code(),
            Self::Nak(code) => 0b011 << 5 | code as u8,
            Self::Reserved(code) => code,
        }
    }
}

/// The number of further messages that the responder has posted receives for, as a 5-bit code (IBTA
/// section 9.7.7.2).
///
/// # Examples
///
/// ```
/// use rdma_proto::wire::CreditCount;
///
/// let codes = [0, 4, 5, 6, 7, 30].map(|code| CreditCount::from_code(code).unwrap());
/// assert_eq!(codes.map(CreditCount::messages), [0, 4, 6, 8, 12, 32768].map(Some));
/// assert_eq!(CreditCount::UNLIMITED.messages(), None);
/// ```
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct CreditCount(u8);

impl CreditCount {
    /// The responder grants unlimited credits. SoftRoCE always sends this, and so does a queue pair
    /// with a shared receive queue.
    pub const UNLIMITED: Self = Self(31);

    /// Returns the count with this code, or `None` if the code has more than 5 bits.
    #[must_use]
    #[inline]
    pub const fn from_code(code: u8) -> Option<Self> {
        if code <= Self::UNLIMITED.0 { Some(Self(code)) } else { None }
    }

    /// Returns the code.
    #[must_use]
    #[inline]
    pub const fn code(self) -> u8 {
        self.0
    }

    /// Returns the number of messages; `None` if it is unlimited. From one code to the next, it
    /// grows by a half or a third: 2, 3, 4, 6, 8, 12, and so on.
    #[must_use]
    pub const fn messages(self) -> Option<u16> {
        let half = self.0 >> 1;
        match (self.0, self.0 & 1) {
            (31, _) => None,
            (0 | 1, _) => Some(self.0 as u16),
            (_, 0) => Some(1 << half),
            _ => Some(3 << half >> 1),
        }
    }
}

/// The reason that a request failed (IBTA section 9.7.5.2.2).
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[non_exhaustive]
#[repr(u8)]
pub enum NakCode {
    /// A packet before this one is missing. Send again, starting at the PSN of the NAK.
    PsnSequence = 0,
    /// The request itself is invalid, or longer than the receive.
    InvalidRequest = 1,
    /// The key, the range or the rights are wrong.
    RemoteAccess = 2,
    /// The responder cannot continue.
    RemoteOperational = 3,
    /// Used only by reliable datagrams.
    InvalidRdRequest = 4,
}

impl NakCode {
    /// Returns the NAK with this code, the lower five bits of the syndrome; `None` if the
    /// specification reserves the code.
    #[must_use]
    #[inline]
    pub const fn from_code(code: u8) -> Option<Self> {
        Some(match code {
            0 => Self::PsnSequence,
            1 => Self::InvalidRequest,
            2 => Self::RemoteAccess,
            3 => Self::RemoteOperational,
            4 => Self::InvalidRdRequest,
            _ => return None,
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_byte_is_parsed_as_a_syndrome_and_written_unchanged() {
        let mut reserved = 0;
        for code in 0..=u8::MAX {
            let syndrome = Syndrome::from_code(code);
            assert_eq!(syndrome.code(), code);
            reserved += u32::from(syndrome == Syndrome::Reserved(code));
        }
        // The specification defines 32 credit counts, 32 timers and 5 NAK codes.
        assert_eq!(reserved, 256 - 32 - 32 - 5);
    }

    #[test]
    fn credits_grow_by_half_or_a_third() {
        let counts: std::vec::Vec<_> =
            (0..31).map(|code| CreditCount(code).messages().unwrap()).collect();
        assert_eq!(counts[..10], [0, 1, 2, 3, 4, 6, 8, 12, 16, 24]);
        assert_eq!(counts[25..], [6144, 8192, 12288, 16384, 24576, 32768]);
        assert!(counts.is_sorted_by(|a, b| a < b));
        assert_eq!((CreditCount::from_code(32), CreditCount(31).messages()), (None, None));
    }
}
