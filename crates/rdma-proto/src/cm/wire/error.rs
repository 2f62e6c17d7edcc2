//! Errors from parsing and writing MADs.

use core::error::Error;
use core::fmt;

use super::header::{CLASS, CLASS_VERSION, MAD_LEN};

/// The reason that bytes are not a message of the communication manager.
///
/// # Examples
///
/// ```
/// use rdma_proto::cm::wire::{Mad, MadError};
///
/// assert_eq!(Mad::parse(&[0; 255]), Err(MadError::Length(255)));
/// assert_eq!(MadError::Length(255).to_string(), "a MAD has 256 bytes, not 255");
/// ```
#[derive(Clone, Copy, PartialEq, Eq)]
#[non_exhaustive]
pub enum MadError {
    /// The length is not that of a MAD.
    Length(usize),
    /// The base version is not 1.
    BaseVersion(u8),
    /// The management class is not 7, communication management.
    Class(u8),
    /// The class version is not 2.
    ClassVersion(u8),
    /// The method is not Send.
    Method(u8),
    /// The attribute is unknown, or that of a LAP or APR (alternate paths), which are not
    /// supported.
    Attribute(u16),
}

rdma_types::debug_messages!(
    enum MadError {
        Length(it),
        BaseVersion(it),
        Class(it),
        ClassVersion(it),
        Method(it),
        Attribute(it),
    }
);

impl fmt::Display for MadError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Length(len) => write!(f, "a MAD has {MAD_LEN} bytes, not {len}"),
            Self::BaseVersion(version) => write!(f, "base version {version} of a MAD is not 1"),
            Self::Class(class) => write!(f, "management class {class:#x} is not {CLASS:#x}"),
            Self::ClassVersion(version) => {
                write!(f, "version {version} of the communication manager is not {CLASS_VERSION}")
            }
            Self::Method(method) => write!(f, "method {method:#x} is not Send"),
            Self::Attribute(attribute) => {
                write!(f, "attribute {attribute:#06x} is not one of a supported message")
            }
        }
    }
}

impl Error for MadError {}

/// Private data, or additional information, does not fit into its message.
#[derive(Clone, Copy, PartialEq, Eq)]
#[non_exhaustive]
pub struct TooLong {
    /// The length in bytes.
    pub len: usize,
    /// The greatest possible length.
    pub most: usize,
}

rdma_types::debug_messages!(struct TooLong { len, most });

impl fmt::Display for TooLong {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} bytes do not fit into the message's field of {} bytes", self.len, self.most)
    }
}

impl Error for TooLong {}

/// Checks that a field fits.
pub(super) fn fits(field: &[u8], most: usize) -> Result<(), TooLong> {
    if field.len() <= most { Ok(()) } else { Err(TooLong { len: field.len(), most }) }
}
