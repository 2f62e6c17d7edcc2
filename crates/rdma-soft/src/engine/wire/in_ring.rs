//! Payloads in the ring between two processes.
//!
//! The protocol divides the payload of a burst, but never accesses its bytes. So a buffer can represent a payload that is
//! in a ring. Each part of the buffer represents the part of the payload at the same position. The buffer's own bytes have
//! no meaning then.

use crate::memory::copy::Segment;

/// The place of a payload that a buffer represents.
#[derive(Debug, Clone, Copy)]
pub(crate) struct InRing {
    ring: [Segment; 2],
    /// The address of the buffer.
    buffer: usize,
    /// The size of the buffer in bytes.
    size: usize,
}

impl InRing {
    /// Lets `buffer` represent the payload at the beginning of `ring`.
    pub(crate) fn new(ring: [Segment; 2], buffer: &[u8]) -> Self {
        debug_assert!(buffer.len() as u64 <= ring.iter().map(|part| part.length()).sum::<u64>());
        Self { ring, buffer: buffer.as_ptr().addr(), size: buffer.len() }
    }

    /// Returns the size of the buffer in bytes.
    pub(crate) fn size(&self) -> usize {
        self.size
    }

    /// Returns the memory that a part of the buffer represents, and what follows it. Returns `None` for bytes outside the
    /// buffer, such as the result of an atomic, which is in a header.
    #[inline]
    pub(crate) fn memory(&self, part: &[u8]) -> Option<[Segment; 2]> {
        let skipped = part.as_ptr().addr().wrapping_sub(self.buffer);
        if skipped > self.size.checked_sub(part.len())? {
            return None;
        }
        let ([first, second], skipped) = (self.ring, skipped as u64);
        Some([first.skip(skipped), second.skip(skipped.saturating_sub(first.length()))])
    }
}
