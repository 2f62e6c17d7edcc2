//! The bytes of messages that are still to be sent.

use rdma_mem::Buffer;

use super::body::Body;

/// The bytes of a message that are still to be sent.
#[derive(Debug, Default)]
pub(super) enum Source {
    /// None are left, or they are lent to the peer.
    #[default]
    Nothing,
    /// The part that could not be sent when the operation began, and its offset in the message.
    Rest(Body, u32),
    /// All bytes of the message, in registered memory.
    Buffer(Buffer),
}

impl Source {
    /// Returns the memory to free, which may be of a pool of the program.
    pub(super) fn into_buffer(self) -> Option<Buffer> {
        match self {
            Self::Buffer(buffer) => Some(buffer),
            Self::Nothing | Self::Rest(..) => None,
        }
    }
}

/// The length of the longest message that is copied while the session is locked.
pub(super) const LONG_COPY: usize = 1 << 20;

/// The memory for the copy of a long message.
#[derive(Debug)]
pub struct LongCopy {
    /// Memory of the pool, if it has some now.
    memory: Option<Buffer>,
    /// Whether this memory is lent to the peer. Otherwise the message is sent in frames.
    is_lent: bool,
}

impl LongCopy {
    pub(super) const fn new(memory: Option<Buffer>, is_lent: bool) -> Self {
        Self { memory, is_lent }
    }

    /// Copies the message. The caller does not lock the session meanwhile.
    #[must_use]
    pub fn of(self, message: &[u8]) -> Copied {
        Copied(match self.memory {
            Some(mut buffer) if self.is_lent => {
                buffer.copy_from_slice(message);
                Source::Buffer(buffer)
            }
            memory => Source::Rest(Body::copy(message, memory), 0),
        })
    }
}

/// The copy of a long message.
#[derive(Debug)]
pub struct Copied(Source);

impl Copied {
    pub(super) fn into_source(self) -> Source {
        self.0
    }
}
