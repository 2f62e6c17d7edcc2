//! The bytes of messages that arrive.

use rdma_mem::Buffer;
use rdma_message::Incoming;

/// The bytes of a message.
#[derive(Debug, Default)]
#[non_exhaustive]
pub enum Body {
    /// An empty message.
    #[default]
    Empty,
    /// A message in memory of the pool: where it arrived, or a copy if it is short.
    Part {
        /// The memory.
        buffer: Buffer,
        /// The offset of the message.
        start: usize,
        /// The length of the message.
        length: usize,
    },
    /// A message whose parts were copied.
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

    fn append(&mut self, part: &[u8]) {
        match self {
            Self::Copy(bytes) => bytes.extend_from_slice(part),
            _ => *self = Self::Copy(part.to_vec()),
        }
    }
}

/// The messages that have begun to arrive. There are few: one that arrives in parts, and those that are complete but
/// were not delivered, because an earlier one is not complete.
#[derive(Debug, Default)]
pub(super) struct Arriving(Vec<(Incoming, Body)>);

impl Arriving {
    /// Adds a message that has arrived in one piece.
    pub(super) fn add(&mut self, message: Incoming, body: Body) {
        self.0.push((message, body));
    }

    /// Adds the next part of a message.
    pub(super) fn append(&mut self, message: Incoming, part: &[u8]) {
        match self.0.iter_mut().find(|(known, _)| *known == message) {
            Some((_, body)) => body.append(part),
            None => self.0.push((message, Body::Copy(part.to_vec()))),
        }
    }

    /// Removes a message. An empty one has no parts.
    pub(super) fn take(&mut self, message: Incoming) -> Body {
        let at = self.0.iter().position(|(known, _)| *known == message);
        at.map(|at| self.0.swap_remove(at).1).unwrap_or_default()
    }
}
