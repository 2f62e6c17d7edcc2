//! The bytes of messages that arrive.

use std::collections::BTreeMap;

use rdma_mem::Buffer;
use rdma_message::Incoming;

/// The maximum length of a short message. With its length and the number of the variant, it takes 96 bytes.
const SHORT_BYTES: usize = 94;

/// The bytes of a message.
#[derive(Debug, Default)]
#[non_exhaustive]
pub enum Body {
    /// An empty message.
    #[default]
    Empty,
    /// A message in memory of the pool: where it arrived, or a copy.
    Part {
        /// The memory.
        buffer: Buffer,
        /// The offset of the message.
        start: usize,
        /// The length of the message.
        length: usize,
    },
    /// A copy of a short message. It takes less time than memory of the pool.
    Short {
        /// The message, and unused bytes.
        bytes: [u8; SHORT_BYTES],
        /// The length of the message.
        length: u8,
    },
    /// A copy in memory of the heap, because the pool had none.
    Copy(Vec<u8>),
}

impl Body {
    /// Returns the bytes.
    #[must_use]
    pub fn bytes(&self) -> &[u8] {
        match self {
            Self::Empty => &[],
            Self::Part { buffer, start, length } => {
                buffer.get(*start..*start + *length).unwrap_or_default()
            }
            Self::Short { bytes, length } => bytes.get(..usize::from(*length)).unwrap_or_default(),
            Self::Copy(bytes) => bytes,
        }
    }

    /// Returns the memory of the message, if nothing else is in it.
    ///
    /// # Errors
    /// Returns the body.
    pub fn into_buffer(self) -> Result<Buffer, Self> {
        match self {
            Self::Part { buffer, start: 0, length } if length == buffer.len() => Ok(buffer),
            body => Err(body),
        }
    }

    /// Copies the bytes of a short message. Returns `None` if there are too many.
    pub(super) fn short(message: &[u8]) -> Option<Self> {
        let mut bytes = [0; SHORT_BYTES];
        bytes.get_mut(..message.len())?.copy_from_slice(message);
        Some(Self::Short { bytes, length: u8::try_from(message.len()).ok()? })
    }

    /// Copies bytes to memory of the pool that has their length, or to the heap.
    pub(super) fn copy(bytes: &[u8], memory: Option<Buffer>) -> Self {
        match memory {
            Some(mut buffer) => {
                buffer.copy_from_slice(bytes);
                Self::Part { buffer, start: 0, length: bytes.len() }
            }
            None => Self::Copy(bytes.to_vec()),
        }
    }

    /// Appends the next part of a message that arrives in parts. `stage` returns memory of the pool, if there is some.
    fn append(&mut self, part: &[u8], sizes: Sizes, stage: impl FnOnce(usize) -> Option<Buffer>) {
        let arrived = self.bytes().len();
        let length = arrived + part.len();
        let is_full = match self {
            Self::Empty | Self::Short { .. } => true,
            Self::Part { buffer, .. } => length > buffer.len(),
            Self::Copy(_) => false,
        };
        if is_full {
            *self = match stage(sizes.room(arrived, length)) {
                Some(mut buffer) => {
                    if let Some(mut copy) = buffer.get_mut(0, arrived) {
                        copy.copy_from_slice(self.bytes());
                    }
                    Self::Part { buffer, start: 0, length: arrived }
                }
                None => Self::Copy(self.bytes().to_vec()),
            };
        }
        match self {
            Self::Empty | Self::Short { .. } => {}
            Self::Part { buffer, length: end, .. } => {
                if let Some(mut free) = buffer.get_mut(arrived, part.len()) {
                    free.copy_from_slice(part);
                    *end = length;
                }
            }
            Self::Copy(bytes) => bytes.extend_from_slice(part),
        }
    }
}

/// The numbers of bytes by which the memory of a message grows.
#[derive(Clone, Copy, Debug)]
pub(super) struct Sizes {
    /// The length of the message, as its first frame states it.
    pub(super) message: usize,
    /// The number of bytes that the peer may send before the program has taken some.
    pub(super) window: usize,
}

impl Sizes {
    /// Returns the length of the next memory. It is proportional to what has arrived, because a peer may state any
    /// length and send nothing.
    fn room(self, arrived: usize, length: usize) -> usize {
        self.message.min(self.window.max(2 * arrived)).max(length)
    }
}

/// The messages that have begun to arrive. One arrives in parts. The others are complete, but an earlier one is not. A
/// peer can make them many.
#[derive(Debug, Default)]
pub(super) struct Arriving(BTreeMap<Incoming, Body>);

impl Arriving {
    /// Adds a message that has arrived in one piece.
    pub(super) fn add(&mut self, message: Incoming, body: Body) {
        self.0.insert(message, body);
    }

    /// Adds the next part of a message. `stage` returns memory of the pool, if there is some.
    pub(super) fn append(
        &mut self,
        message: Incoming,
        part: &[u8],
        sizes: Sizes,
        stage: impl FnOnce(usize) -> Option<Buffer>,
    ) {
        self.0.entry(message).or_default().append(part, sizes, stage);
    }

    /// Removes a message. An empty one has no parts.
    pub(super) fn take(&mut self, message: Incoming) -> Body {
        self.0.remove(&message).unwrap_or_default()
    }
}
