//! The errors of connections, of operations, and of local calls.

use core::error::Error;
use core::fmt;

use crate::frame::{CallId, CloseReason, FrameError, Mode};

/// The reason that a connection ended.
#[derive(Clone, Copy, PartialEq, Eq)]
#[non_exhaustive]
pub enum ConnectionError {
    /// The device lost the connection.
    Lost,
    /// This end aborted the connection.
    Aborted,
    /// The peer closed the connection.
    PeerClosed(CloseReason),
    /// The peer sent bytes that are not a frame.
    Frame(FrameError),
    /// The peer's first frame is not a hello, or a later one is.
    Hello,
    /// The peer wants another kind of connection.
    Mode(Mode),
    /// The peer's receive slots are too short, in bytes.
    ReceiveBytes(u32),
    /// The peer sent a data frame without credit for a receive.
    Receives,
    /// The peer sent a data frame with more bytes than its credit.
    Bytes {
        /// The length of the frame.
        frame: u32,
        /// The remaining credit.
        credit: u32,
    },
    /// The peer sent a second credit frame before the first was acknowledged, or acknowledged a
    /// credit frame that was not sent.
    Control,
    /// A limit in a frame is lower than an earlier one, or too high.
    Limit {
        /// The new limit.
        new: u32,
        /// The last limit.
        old: u32,
    },
    /// The peer reports that it fetched more messages than were offered.
    Fetched {
        /// The number that the peer reports.
        reported: u32,
        /// The number of offers.
        offered: u32,
    },
    /// The peer sent a frame that this kind of connection does not have.
    Unexpected,
    /// The peer sent another frame with data before its last message was complete, or the
    /// rest of a message that it had not begun.
    Interrupted,
    /// A message is longer than this end accepts.
    TooLong {
        /// The length of the message.
        length: u32,
        /// The limit.
        limit: u32,
    },
    /// A frame has more bytes than the rest of its message.
    Overrun {
        /// The length of the payload.
        payload: u32,
        /// The number of missing bytes.
        missing: u32,
    },
    /// The ID of a request is not new, or its index is in use or out of range. Or no call that waits
    /// for an answer has the ID of a reply or a refusal.
    Call(CallId),
    /// The peer sent data after it had finished.
    Finished,
}

rdma_types::debug_messages!(
    enum ConnectionError {
        Lost,
        Aborted,
        PeerClosed(it),
        Frame(it),
        Hello,
        Mode(it),
        ReceiveBytes(it),
        Receives,
        Bytes { frame, credit },
        Control,
        Limit { new, old },
        Fetched { reported, offered },
        Unexpected,
        Interrupted,
        TooLong { length, limit },
        Overrun { payload, missing },
        Call(it),
        Finished,
    }
);

impl ConnectionError {
    /// Returns the reason to send to the peer, if it can still receive a frame.
    #[must_use]
    pub const fn close_reason(&self) -> Option<CloseReason> {
        match self {
            Self::Lost | Self::PeerClosed(_) => None,
            Self::Aborted => Some(CloseReason::ABORTED),
            Self::Receives | Self::Bytes { .. } | Self::Control | Self::Fetched { .. } => {
                Some(CloseReason::CREDIT)
            }
            Self::TooLong { .. } => Some(CloseReason::TOO_LONG),
            _ => Some(CloseReason::PROTOCOL),
        }
    }
}

impl fmt::Display for ConnectionError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Lost => f.write_str(
                "the connection is lost: the peer died or became unreachable, or a device failed",
            ),
            Self::Aborted => f.write_str("this end aborted the connection"),
            Self::PeerClosed(reason) => match *reason {
                CloseReason::FINISHED => f.write_str("the peer closed the connection too early"),
                CloseReason::ABORTED => f.write_str("the peer aborted the connection"),
                CloseReason::PROTOCOL => f.write_str("the peer reports an invalid frame"),
                CloseReason::CREDIT => f.write_str("the peer reports a frame without credit"),
                CloseReason::TOO_LONG => f.write_str("the peer reports a message beyond its limit"),
                CloseReason(code) => write!(f, "the peer closed the connection, reason {code}"),
            },
            Self::Frame(_) => f.write_str("the peer sent an invalid frame"),
            Self::Hello => f.write_str("exactly the first frame of a peer must be a hello"),
            Self::Mode(Mode::Messages) => f.write_str(
                "this end has a stream, but the peer has messages: use the same at both ends",
            ),
            Self::Mode(Mode::Stream) => f.write_str(
                "this end has messages, but the peer has a stream: use the same at both ends",
            ),
            Self::ReceiveBytes(bytes) => {
                write!(f, "the peer's receives of {bytes} B are too short for the protocol")
            }
            Self::Receives => f.write_str("the peer sent a frame without credit for a receive"),
            Self::Bytes { frame, credit } => {
                write!(f, "the peer sent a frame of {frame} B with a credit of {credit} B")
            }
            Self::Control => {
                f.write_str("the peer sent or acknowledged a credit frame that was not due")
            }
            Self::Limit { new, old } => {
                write!(f, "the peer's limit {new} does not follow its last limit {old}")
            }
            Self::Fetched { reported, offered } => {
                write!(f, "the peer reports {reported} fetched messages, {offered} were offered")
            }
            Self::Unexpected => f.write_str("the frame does not belong to this kind of connection"),
            Self::Interrupted => f.write_str("the peer's frames are not consecutive parts"),
            Self::TooLong { length, limit } => {
                write!(f, "the peer sent a message of {length} B, {limit} B are accepted")
            }
            Self::Overrun { payload, missing } => {
                write!(f, "a frame has {payload} B of a message that lacks {missing} B")
            }
            Self::Call(id) => {
                write!(f, "call {} at index {} is invalid here", id.serial(), id.index())
            }
            Self::Finished => f.write_str("the peer sent data after it had finished"),
        }
    }
}

impl Error for ConnectionError {
    fn source(&self) -> Option<&(dyn Error + 'static)> {
        match self {
            Self::Frame(error) => Some(error),
            _ => None,
        }
    }
}

/// The reason that an operation failed.
#[derive(Clone, Copy, PartialEq, Eq)]
#[non_exhaustive]
pub enum OperationError {
    /// The connection ended before any byte was sent.
    NotSent,
    /// The connection ended afterwards. The peer may have received the message or not.
    Unknown,
    /// The caller cancelled the operation.
    Cancelled,
    /// The peer refused the request.
    Refused,
    /// The peer finished without replying.
    PeerFinished,
}

rdma_types::debug_messages!(
    enum OperationError {
        NotSent,
        Unknown,
        Cancelled,
        Refused,
        PeerFinished,
    }
);

impl fmt::Display for OperationError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::NotSent => "the connection ended before the message was sent",
            Self::Unknown => "the connection ended; the peer may have received the message or not",
            Self::Cancelled => "the operation was cancelled",
            Self::Refused => "the peer dropped the request without a reply",
            Self::PeerFinished => "the peer finished without a reply",
        })
    }
}

impl Error for OperationError {}

/// The reason that a call of this crate started no operation.
#[derive(Clone, Copy, PartialEq, Eq)]
#[non_exhaustive]
pub enum SendError {
    /// The peer's hello has not arrived yet.
    NotOpen,
    /// The connection is ending or has ended.
    Ended,
    /// This end has finished.
    Finished,
    /// The peer no longer reads the stream or the messages. Or it has finished, so it will not reply.
    PeerFinished,
    /// The peer accepts no requests.
    NoRequests,
    /// The maximum number of operations or calls is pending. Try again after one has completed.
    Full,
    /// The message is longer than the peer accepts.
    TooLong {
        /// The length of the message.
        length: usize,
        /// The peer's limit.
        limit: u32,
    },
    /// The request is not open: it was answered, refused, or cancelled by the peer. If it was
    /// cancelled, it is now refused.
    NotOpenRequest,
    /// All call IDs of this connection were used.
    Exhausted,
}

rdma_types::debug_messages!(
    enum SendError {
        NotOpen,
        Ended,
        Finished,
        PeerFinished,
        NoRequests,
        Full,
        TooLong { length, limit },
        NotOpenRequest,
        Exhausted,
    }
);

impl fmt::Display for SendError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::NotOpen => f.write_str("the connection is not open yet"),
            Self::Ended => f.write_str("the connection has ended"),
            Self::Finished => f.write_str("this end has finished sending"),
            Self::PeerFinished => f.write_str("the peer no longer reads or replies"),
            Self::NoRequests => f.write_str("the peer accepts no requests; send a message"),
            Self::Full => f.write_str("too many operations are pending; wait until one completes"),
            Self::TooLong { length, limit } => {
                write!(
                    f,
                    "the message has {length} B, the peer accepts {limit} B: send it in parts or over a stream, or \
                     raise the peer's `max_message`"
                )
            }
            Self::NotOpenRequest => {
                f.write_str("the request was answered before, or its caller cancelled it")
            }
            Self::Exhausted => f.write_str("all call IDs were used; open another connection"),
        }
    }
}

impl Error for SendError {}
