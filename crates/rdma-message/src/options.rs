//! The limits of one end.

use core::error::Error;
use core::fmt;

use crate::credit::MAX_CREDIT;
use crate::frame::{Hello, Mode};

/// The number of receives for frames that need no credit: a credit frame, an acknowledgement, and a
/// hello or a close frame.
pub const RESERVED_RECEIVES: u32 = 3;

/// The number of send slots that frames with data leave free: for a credit frame, an
/// acknowledgement, and a close frame.
pub const RESERVED_SENDS: u32 = 3;

/// The shortest slot.
pub(crate) const MIN_SLOT_BYTES: u32 = 64;

/// The limits of one end of a connection.
///
/// # Examples
///
/// ```
/// use rdma_message::Options;
///
/// let mut options = Options::default();
/// options.receives = 8;
/// assert!(options.check().is_ok());
/// assert_eq!(options.receive_slots(), 11);
/// options.receive_bytes = 16;
/// let error = options.check().unwrap_err();
/// assert_eq!(error.to_string(), "`receive_bytes` is 16, it must be from 64 to 536870912");
/// ```
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct Options {
    /// The number of data frames that the peer may send before this end releases one.
    pub receives: u32,
    /// The length of a receive slot in bytes.
    pub receive_bytes: u32,
    /// The number of bytes in data frames that the peer may send before this end releases some. It
    /// bounds the memory of messages that the program has not taken.
    pub window_bytes: u32,
    /// The number of send slots, [`RESERVED_SENDS`] included.
    pub sends: u32,
    /// The length of a send slot in bytes.
    pub send_bytes: u32,
    /// The number of pending operations at which no further message or call begins. Replies count, but
    /// are not limited by this: there is one for each request, and `calls` limits the requests.
    pub operations: u32,
    /// The length of the longest message that this end accepts.
    pub max_message: u32,
    /// The length of the longest message that is sent without an offer, if the peer fetches.
    pub eager_bytes: u32,
    /// The maximum number of READs at a time. If this is 0, the peer makes no offers.
    pub reads: u32,
    /// The number of bytes that may be fetched before the program takes the messages. A single
    /// longer message is fetched too. Replies do not count.
    pub fetch_bytes: u32,
    /// The maximum number of pending offers. If this is 0, this end makes none.
    pub offers: u32,
    /// The number of bytes that may be offered at a time. A single longer message is offered too.
    pub offer_bytes: u32,
    /// The maximum number of the peer's requests that were not answered.
    pub calls: u32,
}

impl Default for Options {
    fn default() -> Self {
        Self {
            receives: 32,
            receive_bytes: 4096,
            window_bytes: 1 << 20,
            sends: 32,
            send_bytes: 4096,
            operations: 1024,
            max_message: 64 << 20,
            eager_bytes: 16 << 10,
            reads: 4,
            fetch_bytes: 64 << 20,
            offers: 16,
            offer_bytes: 64 << 20,
            calls: 256,
        }
    }
}

impl Options {
    /// Checks the limits.
    ///
    /// # Errors
    ///
    /// Fails if a limit is outside its range.
    pub fn check(&self) -> Result<(), OptionsError> {
        let double = self.receive_bytes.saturating_mul(2);
        let rows = [
            ("receives", self.receives, 1, MAX_CREDIT),
            ("receive_bytes", self.receive_bytes, MIN_SLOT_BYTES, MAX_CREDIT >> 1),
            ("window_bytes", self.window_bytes, double, MAX_CREDIT),
            ("sends", self.sends, RESERVED_SENDS.saturating_add(1), 1 << 16),
            ("send_bytes", self.send_bytes, MIN_SLOT_BYTES, MAX_CREDIT),
            ("operations", self.operations, 1, 1 << 24),
            ("max_message", self.max_message, 0, 1 << 31),
            ("calls", self.calls, 0, 1 << 16),
        ];
        let wrong = rows.into_iter().find(|&(_, value, min, max)| value < min || value > max);
        wrong.map_or(Ok(()), |(name, value, min, max)| Err(OptionsError { name, value, min, max }))
    }

    /// Returns the number of receives to post before the connection is established.
    #[must_use]
    pub const fn receive_slots(&self) -> u32 {
        self.receives.saturating_add(RESERVED_RECEIVES)
    }

    /// Returns the number of SENDs and READs that are posted at a time. The send queue needs this
    /// length, plus the requests that the caller posts itself, such as binding windows.
    #[must_use]
    pub const fn send_queue(&self) -> u32 {
        self.sends.saturating_add(self.reads)
    }

    pub(crate) const fn hello(&self, mode: Mode) -> Hello {
        Hello {
            version: Hello::VERSION,
            mode,
            fetches: self.reads > 0,
            receive_bytes: self.receive_bytes,
            max_message: self.max_message,
            calls: self.calls,
        }
    }
}

/// A limit that is outside its range.
#[derive(Clone, Copy, PartialEq, Eq)]
#[non_exhaustive]
pub struct OptionsError {
    /// The name of the limit.
    pub name: &'static str,
    /// Its value.
    pub value: u32,
    /// The smallest valid value.
    pub min: u32,
    /// The largest valid value.
    pub max: u32,
}

rdma_types::debug_messages!(struct OptionsError { name, value, min, max });

impl fmt::Display for OptionsError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { name, value, min, max } = self;
        write!(f, "`{name}` is {value}, it must be from {min} to {max}")
    }
}

impl Error for OptionsError {}
