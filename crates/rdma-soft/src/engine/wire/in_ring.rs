//! Payloads in the ring between two processes.
//!
//! The protocol divides the payload of a burst, but never accesses its bytes. So a buffer can represent a payload that is
//! in a ring. Each part of the buffer represents the part of the payload at the same position. The buffer's own bytes are
//! then meaningless.

use crate::memory::copy::{Fault, Reach, Segment};

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

    /// Returns the memory that a part of the buffer represents, and the rest of the ring after it. Returns `None` for
    /// bytes outside the buffer, such as the result of an atomic, which is in a header.
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

/// Copies from a list of segments to `out`, or to the memory that it represents, skipping the first `lead` bytes of the
/// list.
pub(crate) fn collect(
    reach: Reach,
    (source, lead): (&[Segment], u64),
    in_ring: Option<InRing>,
    out: &mut [u8],
) -> Result<(), Fault> {
    match in_ring.and_then(|in_ring| in_ring.memory(out)) {
        Some(memory) => reach.collect(source, lead, &memory, out.len() as u64),
        None => reach.collect_bytes(source, lead, out),
    }
}
