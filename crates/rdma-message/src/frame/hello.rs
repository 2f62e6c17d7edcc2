//! The first frame of each end.

use super::bytes::{Reader, Writer};
use super::error::FrameError;

const MAGIC: u32 = 0x5244_4d53;
const FETCHES: u8 = 1;

/// The kind of connection. Both ends must state the same.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub enum Mode {
    /// Messages, requests and replies.
    Messages,
    /// Two streams of bytes, one in each direction.
    Stream,
}

/// The properties of an end. Its first frame carries them after the limits:
///
/// | bytes | field |
/// |---|---|
/// | 4 | the magic number, `RDMS` |
/// | 2 | [`version`](Self::version) |
/// | 1 | [`mode`](Self::mode): 1 messages, 2 stream |
/// | 1 | features: 1 if the end [fetches](Self::fetches); others are ignored |
/// | 4 | [`receive_bytes`](Self::receive_bytes) |
/// | 4 | [`max_message`](Self::max_message) |
/// | 4 | [`calls`](Self::calls) |
///
/// The hello of a later version may be longer. A reader ignores the additional bytes.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Hello {
    /// The highest version that the end supports. The connection uses the lower one of both ends.
    pub version: u16,
    /// The kind of connection.
    pub mode: Mode,
    /// Whether the end can fetch messages from the peer's memory.
    pub fetches: bool,
    /// The length of the longest frame that the end receives.
    pub receive_bytes: u32,
    /// The length of the longest message that the end accepts.
    pub max_message: u32,
    /// The maximum number of the peer's requests that were not answered, at most 65,536.
    pub calls: u32,
}

impl Hello {
    /// The version that this crate supports.
    pub const VERSION: u16 = 1;

    pub(super) fn write(&self, writer: &mut Writer<'_>) {
        let mode = match self.mode {
            Mode::Messages => 1,
            Mode::Stream => 2,
        };
        writer.u32(MAGIC).u16(self.version).u8(mode).u8(if self.fetches { FETCHES } else { 0 });
        writer.u32(self.receive_bytes).u32(self.max_message).u32(self.calls);
    }

    pub(super) fn read(reader: &mut Reader<'_>) -> Result<Self, FrameError> {
        let magic = reader.u32()?;
        if magic != MAGIC {
            return Err(FrameError::Magic(magic));
        }
        let version = reader.u16()?;
        if version == 0 {
            return Err(FrameError::Version(version));
        }
        let mode = match reader.u8()? {
            1 => Mode::Messages,
            2 => Mode::Stream,
            other => return Err(FrameError::Mode(other)),
        };
        Ok(Self {
            version,
            mode,
            fetches: reader.u8()? & FETCHES != 0,
            receive_bytes: reader.u32()?,
            max_message: reader.u32()?,
            calls: reader.u32()?,
        })
    }
}
