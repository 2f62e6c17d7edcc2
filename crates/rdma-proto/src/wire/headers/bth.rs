//! BTH: the header at the start of every packet.

use rdma_types::{Psn, Qpn};

use crate::wire::bytes::{Reader, Writer};
use crate::wire::error::ParseError;
use crate::wire::opcode::Opcode;

const SOLICITED: u8 = 0x80;
const MIGRATION: u8 = 0x40;
const VERSION: u8 = 0x0f;
const FECN: u8 = 0x80;
const BECN: u8 = 0x40;
const ACK_REQUEST: u8 = 0x80;

/// The base transport header (IBTA section 9.2).
///
/// The transport version (TVer) is not a field: only version 0 exists, and [`parse`](Self::parse) refuses others.
///
/// # Examples
///
/// ```
/// use rdma_proto::wire::{Bth, PadCount};
///
/// let bytes = [0x04, 0x30, 0xff, 0xff, 0, 0, 0, 0x11, 0x80, 0x10, 0, 0];
/// let bth = Bth::parse(&bytes)?;
/// assert_eq!(bth.opcode.to_string(), "RC SEND Only");
/// assert_eq!((bth.destination.get(), bth.psn.get()), (0x11, 0x100000));
/// assert!(bth.ack_request && !bth.solicited);
/// assert_eq!(bth.pad_count, PadCount::of(21));
///
/// let mut again = [0; Bth::LEN];
/// bth.emit(&mut again);
/// assert_eq!(again, bytes);
/// # Ok::<(), rdma_proto::wire::ParseError>(())
/// ```
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Bth {
    /// The packet's operation, which also determines the headers that follow.
    pub opcode: Opcode,
    /// The solicited event bit (SE): the packet's completion also wakes threads that wait only for
    /// solicited completions.
    pub solicited: bool,
    /// The MigReq bit, for automatic path migration.
    pub migration: bool,
    /// The number of pad bytes after the payload.
    pub pad_count: PadCount,
    /// The partition key; the highest bit is set for full members.
    pub p_key: u16,
    /// Forward explicit congestion notification: the packet met congestion.
    pub fecn: bool,
    /// Backward explicit congestion notification: packets in the opposite direction met congestion.
    pub becn: bool,
    /// The destination queue pair (DestQP).
    pub destination: Qpn,
    /// The AckReq bit: the sender requests an acknowledgement from the responder.
    pub ack_request: bool,
    /// The packet sequence number.
    pub psn: Psn,
}

impl Bth {
    /// The size in bytes.
    pub const LEN: usize = 12;

    /// The key of a full member in the default partition, which is the only partition on most
    /// networks (IBTA section 10.9).
    pub const DEFAULT_P_KEY: u16 = 0xffff;

    /// Creates a header with no flags and no pad, in the default partition.
    #[must_use]
    #[inline]
    pub const fn new(opcode: Opcode, destination: Qpn, psn: Psn) -> Self {
        Self {
            opcode,
            solicited: false,
            migration: false,
            pad_count: PadCount::NONE,
            p_key: Self::DEFAULT_P_KEY,
            fecn: false,
            becn: false,
            destination,
            ack_request: false,
            psn,
        }
    }

    /// Reads the header.
    ///
    /// # Errors
    ///
    /// Returns [`ParseError::Opcode`] if the opcode is unknown, and
    /// [`ParseError::TransportVersion`] if the version is not 0.
    #[inline]
    pub fn parse(bytes: &[u8; Self::LEN]) -> Result<Self, ParseError> {
        let mut fields = Reader::new(bytes);
        let code = fields.u8();
        let opcode = Opcode::from_code(code).ok_or(ParseError::Opcode(code))?;
        let flags = fields.u8();
        if flags & VERSION != 0 {
            return Err(ParseError::TransportVersion(flags & VERSION));
        }
        let p_key = fields.u16();
        let congestion = fields.u8();
        let destination = fields.qpn();
        let acknowledge = fields.u8();
        Ok(Self {
            opcode,
            solicited: flags & SOLICITED != 0,
            migration: flags & MIGRATION != 0,
            pad_count: PadCount((flags >> 4) & 3),
            p_key,
            fecn: congestion & FECN != 0,
            becn: congestion & BECN != 0,
            destination,
            ack_request: acknowledge & ACK_REQUEST != 0,
            psn: fields.psn(),
        })
    }

    /// Writes the header.
    #[inline]
    pub fn emit(&self, bytes: &mut [u8; Self::LEN]) {
        let set = |condition, flag| if condition { flag } else { 0 };
        Writer::new(bytes)
            .u8(self.opcode.code())
            .u8(set(self.solicited, SOLICITED)
                | set(self.migration, MIGRATION)
                | (self.pad_count.get() << 4))
            .u16(self.p_key)
            .u8(set(self.fecn, FECN) | set(self.becn, BECN))
            .u24(self.destination.get())
            .u8(set(self.ack_request, ACK_REQUEST))
            .u24(self.psn.get());
    }
}

/// The number of zero bytes after the payload that fill the last word: 0 to 3 (IBTA section 9.2).
///
/// # Examples
///
/// ```
/// use rdma_proto::wire::PadCount;
///
/// assert_eq!([20, 21, 22, 23].map(|len| PadCount::of(len).get()), [0, 3, 2, 1]);
/// ```
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub struct PadCount(u8);

impl PadCount {
    /// No pad: the payload consists of whole words.
    pub const NONE: Self = Self(0);

    /// Returns the pad for a payload of this length.
    #[must_use]
    #[inline]
    pub const fn of(payload_len: usize) -> Self {
        Self(match payload_len % 4 {
            0 => 0,
            1 => 3,
            2 => 2,
            _ => 1,
        })
    }

    /// Returns the number of pad bytes.
    #[must_use]
    #[inline]
    pub const fn get(self) -> u8 {
        self.0
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_flag_has_its_bit() {
        let plain = Bth::new(Opcode::from_code(0).unwrap(), Qpn::default(), Psn::default());
        let flagged = [
            (Bth { solicited: true, ..plain }, 1, 0x80),
            (Bth { migration: true, ..plain }, 1, 0x40),
            (Bth { fecn: true, ..plain }, 4, 0x80),
            (Bth { becn: true, ..plain }, 4, 0x40),
            (Bth { ack_request: true, ..plain }, 8, 0x80),
        ];
        for (bth, at, bit) in flagged {
            let mut expected = [0, 0, 0xff, 0xff, 0, 0, 0, 0, 0, 0, 0, 0];
            expected[at] = bit;
            let mut bytes = [0; Bth::LEN];
            bth.emit(&mut bytes);
            assert_eq!(bytes, expected);
            assert_eq!(Bth::parse(&bytes), Ok(bth));
        }
    }

    #[test]
    fn another_version_is_refused() {
        for version in 1..16 {
            let bytes = [0, 0xf0 | version, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0];
            assert_eq!(Bth::parse(&bytes), Err(ParseError::TransportVersion(version)));
        }
    }
}
