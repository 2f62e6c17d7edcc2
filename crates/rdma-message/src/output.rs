//! The instructions and events for the driver.

use crate::error::{ConnectionError, OperationError};
use crate::frame::{CallId, Header, Hello, Remote};

/// A send, call or reply of this end.
///
/// An index is used again after its operation has [completed](Output::Completed).
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Operation {
    pub(crate) index: u32,
    pub(crate) generation: u32,
}

impl Operation {
    /// Returns the index, for a table of the driver. All indices are below the largest number of
    /// operations that were pending at a time.
    #[must_use]
    pub const fn index(self) -> u32 {
        self.index
    }
}

/// The number of a message that arrives. Numbers are not used again.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct Incoming(pub(crate) u64);

/// Bytes in a receive slot. The driver reads or copies them, and then releases the chunk.
#[derive(Debug, PartialEq, Eq)]
#[must_use = "the peer gets the credit when the chunk is released"]
pub struct Chunk {
    pub(crate) slot: u32,
    pub(crate) start: u32,
    pub(crate) len: u32,
    /// The length of the whole frame.
    pub(crate) cost: u32,
}

impl Chunk {
    /// Returns the receive slot.
    #[must_use]
    pub const fn slot(&self) -> u32 {
        self.slot
    }

    /// Returns the offset of the first byte in the slot.
    #[must_use]
    pub const fn start(&self) -> u32 {
        self.start
    }

    /// Returns the number of bytes, at least 1.
    #[must_use]
    #[allow(clippy::len_without_is_empty)] // A chunk is never empty.
    pub const fn len(&self) -> u32 {
        self.len
    }
}

/// The bytes that follow the header of a frame.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum Payload {
    /// None.
    Empty,
    /// A part of the message of an operation.
    Message {
        /// The operation.
        operation: Operation,
        /// The offset of the part in the message.
        at: u32,
        /// The length of the part.
        len: u32,
    },
    /// The first bytes that the program passed to
    /// [`Stream::write`](crate::Stream::write).
    Stream {
        /// The number of bytes.
        len: u32,
    },
}

/// A SEND to post. The driver copies the header and the payload to the send slot.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Transmit {
    /// The send slot, below [`Options::sends`](crate::Options::sends). It is in use until the SEND
    /// completes.
    pub slot: u32,
    /// The first bytes of the frame.
    pub header: Header,
    /// The bytes after them.
    pub payload: Payload,
    /// The operation that begins with this frame.
    pub begins: Option<Operation>,
}

/// The role of a complete message.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum Delivery {
    /// A message without an answer.
    Message,
    /// A request, to be replied to or refused.
    Request(CallId),
    /// The reply to this operation.
    Reply(Operation),
}

/// An instruction or an event for the driver.
#[derive(Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum Output {
    /// Post a receive into this slot.
    PostReceive(u32),
    /// Post a SEND.
    Send(Transmit),
    /// Post a READ of a message into memory of this end, and report its completion with
    /// [`fetched`](crate::Messages::fetched).
    Fetch {
        /// The message.
        message: Incoming,
        /// The peer's memory.
        source: Remote,
        /// The length in bytes.
        length: u32,
    },
    /// Make the message of an operation readable by the peer, and report its address with
    /// [`lent`](crate::Messages::lent).
    Lend {
        /// The operation.
        operation: Operation,
        /// The length in bytes.
        length: u32,
    },
    /// The peer no longer reads the [lent](Self::Lend) message of an operation. A call may still wait
    /// for its reply.
    Fetched(Operation),
    /// The peer's hello has arrived: operations may start.
    Opened(Hello),
    /// A part of a message has arrived.
    Part {
        /// The message.
        message: Incoming,
        /// The length of the whole message. It is the peer's claim: allocate memory for the bytes
        /// that have arrived.
        length: u32,
        /// The offset of the part in the message.
        at: u32,
        /// The bytes.
        chunk: Chunk,
    },
    /// A message is complete. Messages and requests are delivered in the order of their sending.
    Deliver {
        /// The message. An empty one has no parts.
        message: Incoming,
        /// The length in bytes.
        length: u32,
        /// The role of the message.
        delivery: Delivery,
    },
    /// The message will not be delivered. Free its memory.
    Discard(Incoming),
    /// The peer no longer wants the reply to this request. The request may be delivered later. It is
    /// still to be [refused](crate::Messages::refuse).
    Cancelled(CallId),
    /// The operation is over, and its memory and its index are free. A call that succeeded was
    /// [delivered](Self::Deliver) before.
    Completed {
        /// The operation.
        operation: Operation,
        /// Its result.
        result: Result<(), OperationError>,
    },
    /// Bytes of the stream have arrived.
    Data(Chunk),
    /// The stream accepts bytes again.
    Writable,
    /// The peer's device has received everything that this end sent, up to its end.
    Flushed,
    /// The peer sends nothing further. Everything before was delivered.
    PeerFinished,
    /// The peer no longer reads the stream.
    PeerStopped,
    /// Move the queue pair to the error state and drain it, and then report
    /// [`lost`](crate::Messages::lost). `None` means that both ends have finished.
    Disconnect(Option<ConnectionError>),
    /// The last output. `None` means that both ends have finished, or for messages, that the peer has finished and has
    /// received everything.
    Ended(Option<ConnectionError>),
}
