//! The header of a MAD.

use super::error::MadError;
use crate::wire::bytes::{Reader, Writer};

/// The size of a management datagram (MAD) in bytes.
pub const MAD_LEN: usize = 256;

/// The version of the messages.
pub const CLASS_VERSION: u8 = 2;

/// The management class of the messages: communication management.
pub(super) const CLASS: u8 = 0x07;

const BASE_VERSION: u8 = 1;

/// The method of all messages. They are answered by other messages, not by a GetResp.
pub(super) const SEND: u8 = 0x03;

const GET: u8 = 0x01;
const SET: u8 = 0x02;
const GET_RESP: u8 = 0x81;

/// The status of an answer: the class version is not supported.
pub(crate) const BAD_VERSION: u16 = 0x0004;

/// The status of an answer: the method and attribute are not supported.
pub(crate) const UNSUPPORTED_METHOD: u16 = 0x000c;

/// The header of each MAD of the class (IBTA volume 1, chapter 13).
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Header {
    /// The version of the class; [`CLASS_VERSION`] in supported messages.
    pub class_version: u8,
    /// The method.
    pub method: u8,
    /// The transaction ID.
    pub tid: u64,
    /// The attribute ID, which selects the message.
    pub attribute: u16,
}

impl Header {
    /// The size in bytes.
    pub const LEN: usize = 24;

    /// Reads the header and returns it with the bytes after it.
    ///
    /// # Errors
    ///
    /// Returns [`MadError::Length`], [`MadError::BaseVersion`] or [`MadError::Class`].
    pub fn parse(mad: &[u8]) -> Result<(Self, &[u8]), MadError> {
        if mad.len() != MAD_LEN {
            return Err(MadError::Length(mad.len()));
        }
        let mut fields = Reader::new(mad);
        let (base_version, class, class_version) = (fields.u8(), fields.u8(), fields.u8());
        if base_version != BASE_VERSION {
            return Err(MadError::BaseVersion(base_version));
        }
        if class != CLASS {
            return Err(MadError::Class(class));
        }
        let method = fields.u8();
        let _status = fields.u16();
        let _class_specific = fields.u16();
        let (tid, attribute) = (fields.u64(), fields.u16());
        let _reserved = fields.u16();
        let _modifier = fields.u32();
        Ok((Self { class_version, method, tid, attribute }, fields.rest()))
    }

    pub(super) fn emit(&self, out: &mut Writer<'_>) {
        out.u8(BASE_VERSION)
            .u8(CLASS)
            .u8(self.class_version)
            .u8(self.method)
            .u16(0)
            .u16(0)
            .u64(self.tid)
            .u16(self.attribute)
            .u16(0)
            .u32(0);
    }
}

/// Returns the answer to a MAD that reads or writes an attribute (Get or Set); the manager has no
/// attributes. Returns `None` for other methods, whose senders expect no answer (IBTA volume 1,
/// chapter 13).
pub(crate) fn refusal(mad: &[u8], status: u16) -> Option<[u8; MAD_LEN]> {
    let mut answer: [u8; MAD_LEN] = mad.try_into().ok()?;
    let [_, _, _, method, high, low, ..] = &mut answer;
    if !matches!(*method, GET | SET) {
        return None;
    }
    *method = GET_RESP;
    [*high, *low] = status.to_be_bytes();
    Some(answer)
}
