//! A message with its header.

use super::confirm::{Drep, Rtu};
use super::disconnect::Dreq;
use super::error::{MadError, TooLong};
use super::header::{CLASS_VERSION, Header, MAD_LEN, SEND};
use super::mra::Mra;
use super::reject::Rej;
use super::reply::Rep;
use super::request::Req;
use super::sidr::{SidrRep, SidrReq};
use crate::wire::bytes::{Reader, Writer};

/// A message of the communication manager, with its transaction ID.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Mad<'a> {
    /// The transaction ID. An answer has that of its request.
    pub tid: u64,
    /// The message.
    pub message: Message<'a>,
}

impl<'a> Mad<'a> {
    /// Reads a MAD.
    ///
    /// # Errors
    ///
    /// Returns any [`MadError`].
    pub fn parse(mad: &'a [u8]) -> Result<Self, MadError> {
        let (header, body) = Header::parse(mad)?;
        if header.class_version != CLASS_VERSION {
            return Err(MadError::ClassVersion(header.class_version));
        }
        if header.method != SEND {
            return Err(MadError::Method(header.method));
        }
        let message = Message::parse(header.attribute, &mut Reader::new(body))?;
        Ok(Self { tid: header.tid, message })
    }

    /// Returns the bytes.
    ///
    /// # Errors
    ///
    /// Returns [`TooLong`] if the private data, or the additional information, does not fit.
    pub fn emit(&self) -> Result<[u8; MAD_LEN], TooLong> {
        self.message.check()?;
        Ok(self.to_bytes())
    }

    /// Returns the bytes. Private data that does not fit is truncated.
    pub(crate) fn to_bytes(self) -> [u8; MAD_LEN] {
        let mut mad = [0; MAD_LEN];
        let mut out = Writer::new(&mut mad);
        let attribute = self.message.attribute();
        let header =
            Header { class_version: CLASS_VERSION, method: SEND, tid: self.tid, attribute };
        header.emit(&mut out);
        self.message.emit(&mut out);
        mad
    }
}

macro_rules! messages {
    ($($(#[$doc:meta])* $name:ident = $attribute:literal,)+) => {
        /// A message of the communication manager.
        #[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
        #[non_exhaustive]
        pub enum Message<'a> {
            $($(#[$doc])* $name($name<'a>),)+
        }

        $(
            impl $name<'_> {
                /// The attribute ID.
                pub const ATTRIBUTE: u16 = $attribute;
            }
        )+

        impl<'a> Message<'a> {
            /// Returns the attribute ID.
            #[must_use]
            pub const fn attribute(&self) -> u16 {
                match self {
                    $(Self::$name(_) => $name::ATTRIBUTE,)+
                }
            }

            fn parse(attribute: u16, fields: &mut Reader<'a>) -> Result<Self, MadError> {
                Ok(match attribute {
                    $($name::ATTRIBUTE => Self::$name($name::parse(fields)),)+
                    _ => return Err(MadError::Attribute(attribute)),
                })
            }

            fn check(&self) -> Result<(), TooLong> {
                match self {
                    $(Self::$name(message) => message.check(),)+
                }
            }

            fn emit(&self, out: &mut Writer<'_>) {
                match self {
                    $(Self::$name(message) => message.emit(out),)+
                }
            }
        }
    };
}

messages! {
    /// Request for communication.
    Req = 0x0010,
    /// Message receipt acknowledgement.
    Mra = 0x0011,
    /// Rejection.
    Rej = 0x0012,
    /// Reply to a REQ.
    Rep = 0x0013,
    /// Ready to use.
    Rtu = 0x0014,
    /// Disconnection request.
    Dreq = 0x0015,
    /// Disconnection reply.
    Drep = 0x0016,
    /// Service ID resolution request.
    SidrReq = 0x0017,
    /// Service ID resolution reply.
    SidrRep = 0x0018,
}
