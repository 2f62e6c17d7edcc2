//! The frames of the protocol, and their bytes.
//!
//! All numbers are in network order. Each frame begins with the same 16 bytes:
//!
//! | offset | bytes | field |
//! |---|---|---|
//! | 0 | 1 | kind |
//! | 1 | 1 | flags: 1 acknowledges the last credit frame, 2 stops the peer's stream or messages |
//! | 2 | 2 | zero |
//! | 4 | 4 | [`Limits::receives`] |
//! | 8 | 4 | [`Limits::bytes`] |
//! | 12 | 4 | [`Limits::fetched`] |
//!
//! The fields of the kind follow, and then the payload, whose length is the rest of the frame:
//!
//! | kind | frame | fields after the first 16 bytes | payload | class |
//! |---|---|---|---|---|
//! | 0x01 | hello | see [`Hello`] | ignored | control |
//! | 0x02 | credit | | none | control |
//! | 0x03 | acknowledgement of a credit frame | | none | control |
//! | 0x04 | close | reason (2), zero (2) | none | control |
//! | 0x10 | message | length (4) | its first bytes | data |
//! | 0x11 | request | call (8), length (4) | its first bytes | data |
//! | 0x12 | reply | call (8), length (4) | its first bytes | data |
//! | 0x13 | rest of the message, request or reply before it | | its next bytes | data |
//! | 0x14 | offer of a message | length (4), rkey (4), address (8) | none | data |
//! | 0x15 | offer of a request | call (8), length (4), rkey (4), address (8) | none | data |
//! | 0x16 | offer of a reply | call (8), length (4), rkey (4), address (8) | none | data |
//! | 0x17 | cancel | call (8) | none | data |
//! | 0x18 | refusal, a reply that reports an error | call (8) | none | data |
//! | 0x19 | finish | | none | data |
//! | 0x20 | data of a stream | | its next bytes | data |

mod bytes;
mod error;
mod hello;

use rdma_types::Rkey;

use bytes::{Reader, Writer};

pub use error::FrameError;
pub use hello::{Hello, Mode};

/// The kind of a hello, which the codec of [`Hello`] shares.
const HELLO: u8 = 0x01;
const CREDIT: u8 = 0x02;
const ACKNOWLEDGE: u8 = 0x03;
const CLOSE: u8 = 0x04;
const MESSAGE: u8 = 0x10;
const REQUEST: u8 = 0x11;
const REPLY: u8 = 0x12;
const REST: u8 = 0x13;
const OFFER: u8 = 0x04;
const CANCEL: u8 = 0x17;
const REFUSAL: u8 = 0x18;
const FINISH: u8 = 0x19;
const DATA: u8 = 0x20;

const ACKNOWLEDGES: u8 = 1;
const STOPS: u8 = 2;

/// The length of the longest frame without its payload.
pub const MAX_HEADER_BYTES: usize = 40;

/// The limits that each frame carries. They count from the start of the connection and wrap.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub struct Limits {
    /// The number of data frames that the peer may have sent.
    pub receives: u32,
    /// The number of bytes that the peer's data frames may have, headers included.
    pub bytes: u32,
    /// The number of the peer's offers that are over, because this end has fetched or discarded
    /// them.
    pub fetched: u32,
}

/// The ID of a call. A connection never uses an ID twice.
///
/// The upper 48 bits count the calls of one end, from 1. The lower 16 bits are the index of the call
/// in the tables of both ends.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct CallId(u64);

impl CallId {
    /// The largest [`serial`](Self::serial).
    pub const MAX_SERIAL: u64 = u64::MAX >> 16;

    /// Creates an ID. A serial above [`MAX_SERIAL`](Self::MAX_SERIAL) loses its upper bits.
    #[must_use]
    pub const fn new(serial: u64, index: u16) -> Self {
        // Widening: `u64::from` is not a constant function.
        Self(serial << 16 | index as u64)
    }

    /// Returns the number of the call.
    #[must_use]
    pub const fn serial(self) -> u64 {
        self.0 >> 16
    }

    /// Returns the index of the call.
    #[must_use]
    pub const fn index(self) -> u16 {
        let [.., high, low] = self.0.to_be_bytes();
        u16::from_be_bytes([high, low])
    }
}

/// Memory of the peer.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Remote {
    /// The virtual address of the first byte.
    pub va: u64,
    /// The key of the memory.
    pub rkey: Rkey,
}

/// The role of a message.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub enum Role {
    /// A message without an answer.
    Message,
    /// A message that expects a reply with the same ID.
    Request(CallId),
    /// The reply to the request with this ID.
    Reply(CallId),
}

impl Role {
    /// Returns the length of the ID.
    const fn bytes(&self) -> u32 {
        match self {
            Self::Message => 0,
            Self::Request(_) | Self::Reply(_) => 8,
        }
    }
}

/// The reason in a close frame. Unknown reasons are plain values.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct CloseReason(pub u16);

impl CloseReason {
    /// Both ends have finished, and this end has received everything.
    pub const FINISHED: Self = Self(0);
    /// The program closed the connection.
    pub const ABORTED: Self = Self(1);
    /// The peer broke the protocol.
    pub const PROTOCOL: Self = Self(2);
    /// The peer sent a data frame, a credit frame or a notice without credit.
    pub const CREDIT: Self = Self(3);
    /// A message is longer than this end accepts.
    pub const TOO_LONG: Self = Self(4);
}

/// The part of a frame that depends on its kind.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum Body {
    /// The first frame of each end.
    Hello(Hello),
    /// A frame that only carries limits.
    Credit,
    /// Acknowledges a credit frame, if no other frame does.
    Acknowledge,
    /// The last frame of an end that closes the connection.
    Close(CloseReason),
    /// The first bytes of a message.
    First {
        /// The role of the message.
        role: Role,
        /// The length of the whole message.
        length: u32,
    },
    /// The next bytes of the message.
    Rest,
    /// A message in the memory of its sender.
    Offer {
        /// The role of the message.
        role: Role,
        /// The length of the message.
        length: u32,
        /// The memory with the message.
        source: Remote,
    },
    /// The caller no longer wants the reply.
    Cancel(CallId),
    /// The request gets no reply.
    Refusal(CallId),
    /// The sender sends no further data, messages or replies.
    Finish,
    /// The next bytes of the stream.
    Data,
}

impl Body {
    /// Returns true if the frame needs credit.
    #[must_use]
    pub const fn is_data(&self) -> bool {
        !matches!(self, Self::Hello(_) | Self::Credit | Self::Acknowledge | Self::Close(_))
    }

    /// Returns the length of a frame with this body, without its payload.
    #[must_use]
    pub const fn header_bytes(&self) -> u32 {
        let fields: u32 = match self {
            Self::Hello(_) => 20,
            Self::Close(_) => 4,
            Self::First { role, .. } => role.bytes().saturating_add(4),
            Self::Offer { role, .. } => role.bytes().saturating_add(16),
            Self::Cancel(_) | Self::Refusal(_) => 8,
            Self::Credit | Self::Acknowledge | Self::Rest | Self::Finish | Self::Data => 0,
        };
        fields.saturating_add(16)
    }
}

/// A frame without its payload.
///
/// # Examples
///
/// ```
/// use rdma_message::frame::{Body, Frame, Limits, Role};
///
/// let body = Body::First { role: Role::Message, length: 5 };
/// let frame = Frame::new(Limits::default(), body);
/// let mut bytes = frame.encode().as_bytes().to_vec();
/// bytes.extend(b"hello");
/// let (decoded, payload) = Frame::decode(&bytes)?;
/// assert_eq!((decoded, payload), (frame, 20));
/// # Ok::<(), rdma_message::frame::FrameError>(())
/// ```
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Frame {
    /// Whether the frame acknowledges the last credit frame.
    pub acknowledges: bool,
    /// Whether the sender no longer reads the peer's stream or messages. Later frames repeat it.
    pub stops: bool,
    /// The limits for the peer.
    pub limits: Limits,
    /// The part that depends on the kind.
    pub body: Body,
}

impl Frame {
    /// Creates a frame without flags.
    #[must_use]
    pub const fn new(limits: Limits, body: Body) -> Self {
        Self { acknowledges: false, stops: false, limits, body }
    }

    /// Writes the frame.
    #[must_use]
    pub fn encode(&self) -> Header {
        let mut bytes = [0; MAX_HEADER_BYTES];
        let mut writer = Writer::new(&mut bytes);
        let flag = |is_set, flag| if is_set { flag } else { 0 };
        writer.u8(kind(&self.body));
        writer.u8(flag(self.acknowledges, ACKNOWLEDGES) | flag(self.stops, STOPS));
        writer.u16(0);
        writer.u32(self.limits.receives).u32(self.limits.bytes).u32(self.limits.fetched);
        match self.body {
            Body::Hello(hello) => hello.write(&mut writer),
            Body::Credit | Body::Acknowledge | Body::Rest | Body::Finish | Body::Data => {}
            Body::Close(reason) => _ = writer.u16(reason.0).u16(0),
            Body::First { role, length } => {
                write_role(role, &mut writer);
                writer.u32(length);
            }
            Body::Offer { role, length, source } => {
                write_role(role, &mut writer);
                writer.u32(length).u32(source.rkey.get()).u64(source.va);
            }
            Body::Cancel(call) | Body::Refusal(call) => _ = writer.u64(call.0),
        }
        let unused = writer.remaining();
        Header { bytes, len: MAX_HEADER_BYTES.saturating_sub(unused) }
    }

    /// Returns the reason if the header is that of a close frame.
    #[must_use]
    pub fn close_reason(header: &[u8]) -> Option<CloseReason> {
        if header.first() != Some(&CLOSE) {
            return None;
        }
        match Self::decode(header) {
            Ok((Self { body: Body::Close(reason), .. }, _)) => Some(reason),
            _ => None,
        }
    }

    /// Reads a frame, and returns it with the offset of its payload. Checks everything that does not
    /// depend on the connection.
    ///
    /// # Errors
    ///
    /// Fails if the bytes are not a frame.
    pub fn decode(bytes: &[u8]) -> Result<(Self, usize), FrameError> {
        let mut reader = Reader::new(bytes);
        let (code, flags, zero) = (reader.u8()?, reader.u8()?, reader.u16()?);
        let limits =
            Limits { receives: reader.u32()?, bytes: reader.u32()?, fetched: reader.u32()? };
        if zero != 0 || flags & !(ACKNOWLEDGES | STOPS) != 0 {
            return Err(FrameError::Reserved { flags, zero });
        }
        let body = read_body(code, &mut reader)?;
        let payload = reader.remaining();
        match body {
            Body::Hello(_) => {}
            Body::First { length, .. } => check_first(length, payload)?,
            Body::Rest | Body::Data if payload == 0 => return Err(FrameError::Empty(code)),
            Body::Rest | Body::Data => {}
            Body::Offer { length: 0, .. } => return Err(FrameError::Empty(code)),
            _ if payload != 0 => return Err(FrameError::Payload { kind: code, bytes: payload }),
            _ => {}
        }
        let frame = Self {
            acknowledges: flags & ACKNOWLEDGES != 0,
            stops: flags & STOPS != 0,
            limits,
            body,
        };
        Ok((frame, bytes.len().saturating_sub(payload)))
    }
}

/// The bytes of a frame without its payload.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Header {
    bytes: [u8; MAX_HEADER_BYTES],
    len: usize,
}

impl Header {
    /// Returns the bytes.
    #[must_use]
    pub fn as_bytes(&self) -> &[u8] {
        self.bytes.get(..self.len).unwrap_or_default()
    }
}

/// Checks the first frame of a message: it carries the whole message or at least one byte.
fn check_first(length: u32, payload: usize) -> Result<(), FrameError> {
    let payload = u32::try_from(payload).unwrap_or(u32::MAX);
    if payload > length || payload == 0 && length != 0 {
        return Err(FrameError::Length { length, payload });
    }
    Ok(())
}

const fn kind(body: &Body) -> u8 {
    match body {
        Body::Hello(_) => HELLO,
        Body::Credit => CREDIT,
        Body::Acknowledge => ACKNOWLEDGE,
        Body::Close(_) => CLOSE,
        Body::First { role, .. } => role_kind(*role),
        Body::Rest => REST,
        Body::Offer { role, .. } => role_kind(*role) | OFFER,
        Body::Cancel(_) => CANCEL,
        Body::Refusal(_) => REFUSAL,
        Body::Finish => FINISH,
        Body::Data => DATA,
    }
}

const fn role_kind(role: Role) -> u8 {
    match role {
        Role::Message => MESSAGE,
        Role::Request(_) => REQUEST,
        Role::Reply(_) => REPLY,
    }
}

fn write_role(role: Role, writer: &mut Writer<'_>) {
    match role {
        Role::Message => {}
        Role::Request(call) | Role::Reply(call) => _ = writer.u64(call.0),
    }
}

fn read_body(code: u8, reader: &mut Reader<'_>) -> Result<Body, FrameError> {
    let call = |reader: &mut Reader<'_>| Ok(CallId(reader.u64()?));
    Ok(match code {
        HELLO => Body::Hello(Hello::read(reader)?),
        CREDIT => Body::Credit,
        ACKNOWLEDGE => Body::Acknowledge,
        CLOSE => {
            let (reason, zero) = (reader.u16()?, reader.u16()?);
            if zero != 0 {
                return Err(FrameError::Reserved { flags: 0, zero });
            }
            Body::Close(CloseReason(reason))
        }
        REST => Body::Rest,
        CANCEL => Body::Cancel(call(reader)?),
        REFUSAL => Body::Refusal(call(reader)?),
        FINISH => Body::Finish,
        DATA => Body::Data,
        _ => {
            let role = match code & !OFFER {
                MESSAGE => Role::Message,
                REQUEST => Role::Request(call(reader)?),
                REPLY => Role::Reply(call(reader)?),
                _ => return Err(FrameError::Kind(code)),
            };
            let length = reader.u32()?;
            if code & OFFER == 0 {
                return Ok(Body::First { role, length });
            }
            let rkey = Rkey::new(reader.u32()?);
            Body::Offer { role, length, source: Remote { va: reader.u64()?, rkey } }
        }
    })
}

#[cfg(test)]
mod tests;
