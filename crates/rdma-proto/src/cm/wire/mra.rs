//! MRA: the receipt of a message whose answer takes longer.

use super::error::{TooLong, fits};
use super::timeout::Timeout;
use crate::cm::address::CommId;
use crate::wire::bytes::{Reader, Writer};

/// The message that an MRA or a REJ is about.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[non_exhaustive]
#[repr(u8)]
pub enum Subject {
    /// A REQ.
    Req = 0,
    /// A REP.
    Rep = 1,
    /// No message, or one of another kind.
    Other = 2,
    /// A value that the specification reserves.
    Reserved = 3,
}

impl Subject {
    /// Returns the subject in the upper 2 bits.
    pub(super) const fn upper(byte: u8) -> Self {
        match byte >> 6 {
            0 => Self::Req,
            1 => Self::Rep,
            2 => Self::Other,
            _ => Self::Reserved,
        }
    }

    /// Returns the byte with the subject in its upper 2 bits.
    pub(super) const fn to_upper(self) -> u8 {
        (self as u8) << 6
    }
}

/// A message receipt acknowledgement (IBTA table 107): the answer to the message will take up to
/// the service timeout.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Mra<'a> {
    /// The sender's communication ID.
    pub local_id: CommId,
    /// The receiver's communication ID.
    pub remote_id: CommId,
    /// The received message.
    pub subject: Subject,
    /// The time until the answer.
    pub service_timeout: Timeout,
    /// At most 222 bytes.
    pub private_data: &'a [u8],
}

impl<'a> Mra<'a> {
    pub(super) fn parse(fields: &mut Reader<'a>) -> Self {
        Self {
            local_id: CommId::new(fields.u32()),
            remote_id: CommId::new(fields.u32()),
            subject: Subject::upper(fields.u8()),
            service_timeout: Timeout::upper(fields.u8()),
            private_data: fields.rest(),
        }
    }

    pub(super) fn check(&self) -> Result<(), TooLong> {
        fits(self.private_data, 222)
    }

    pub(super) fn emit(&self, out: &mut Writer<'_>) {
        out.u32(self.local_id.get())
            .u32(self.remote_id.get())
            .u8(self.subject.to_upper())
            .u8(self.service_timeout.code() << 3)
            .padded(self.private_data, 222);
    }
}
