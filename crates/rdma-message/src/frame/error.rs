//! Errors from reading frames.

use core::error::Error;
use core::fmt;

/// The reason that bytes are not a frame.
///
/// # Examples
///
/// ```
/// use rdma_message::frame::{Frame, FrameError};
///
/// assert_eq!(Frame::decode(&[0x02, 0, 0]), Err(FrameError::Truncated));
/// assert_eq!(FrameError::Kind(0x7f).to_string(), "frame kind 0x7f is unknown");
/// ```
#[derive(Clone, Copy, PartialEq, Eq)]
#[non_exhaustive]
pub enum FrameError {
    /// The frame ends before its fields do.
    Truncated,
    /// The kind is unknown.
    Kind(u8),
    /// A reserved flag or field is set.
    Reserved {
        /// The flags.
        flags: u8,
        /// The field that must be zero.
        zero: u16,
    },
    /// The hello does not begin with the magic number.
    Magic(u32),
    /// The version in the hello does not exist.
    Version(u16),
    /// The mode in the hello is unknown.
    Mode(u8),
    /// The first frame of a message has more payload than the message, or none of it.
    Length {
        /// The length of the message.
        length: u32,
        /// The length of the payload.
        payload: u32,
    },
    /// A frame of this kind needs a payload.
    Empty(u8),
    /// A frame has a payload although its kind has none.
    Payload {
        /// The kind.
        kind: u8,
        /// The length of the payload.
        bytes: usize,
    },
}

rdma_types::debug_messages!(
    enum FrameError {
        Truncated,
        Kind(it),
        Reserved { flags, zero },
        Magic(it),
        Version(it),
        Mode(it),
        Length { length, payload },
        Empty(it),
        Payload { kind, bytes },
    }
);

impl fmt::Display for FrameError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Truncated => f.write_str("the frame ends too early"),
            Self::Kind(kind) => write!(f, "frame kind {kind:#04x} is unknown"),
            Self::Reserved { flags, zero } => {
                write!(f, "reserved bits are set: flags {flags:#04x}, field {zero:#06x}")
            }
            Self::Magic(magic) => write!(f, "{magic:#010x} is not the magic number of a hello"),
            Self::Version(version) => write!(f, "protocol version {version} does not exist"),
            Self::Mode(mode) => write!(f, "mode {mode} is neither messages nor a stream"),
            Self::Length { length, payload } => {
                write!(f, "the first frame of a message of {length} B has {payload} B of it")
            }
            Self::Empty(kind) => write!(f, "a frame of kind {kind:#04x} is empty"),
            Self::Payload { kind, bytes } => {
                write!(f, "a frame of kind {kind:#04x} has {bytes} B of payload instead of none")
            }
        }
    }
}

impl Error for FrameError {}
