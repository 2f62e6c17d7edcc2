//! The budget of a thread that executes requests.

/// The maximum number of requests executed in one turn, across all queues that the call serves.
const TURN_REQUESTS: u32 = 16;
pub(super) const TURN_BYTES: u64 = if cfg!(loom) { STRETCH_BYTES } else { 64 << 10 };
/// The maximum number of bytes copied before the locks are yielded. Copying them takes some tens of microseconds. The
/// number is smaller in models, which copy this many bytes often.
pub(crate) const STRETCH_BYTES: u64 = if cfg!(loom) { 8 << 10 } else { 1 << 20 };

/// The amount of work that a thread may still do for other threads' queues in one call.
#[derive(Debug)]
pub(crate) struct Turn {
    pub(super) requests: u32,
    pub(super) bytes: u64,
}

impl Turn {
    pub(crate) const fn new() -> Self {
        Self { requests: TURN_REQUESTS, bytes: TURN_BYTES }
    }

    pub(crate) fn is_exhausted(&self) -> bool {
        self.requests == 0 || self.bytes == 0
    }
}

/// The amount of a request that one attempt may copy before it pauses.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Extent {
    /// At most this many bytes.
    Bytes(u64),
    /// Half of the request, or the rest if some of it was copied before.
    Half,
}

impl Extent {
    pub(crate) const WHOLE: Self = Self::Bytes(u64::MAX);

    /// Returns the offset at which an attempt stops copying a message of `length` bytes, if `progress` bytes were
    /// copied before.
    #[inline]
    pub(super) fn end(self, progress: u64, length: u64) -> u64 {
        match self {
            Self::Bytes(bytes) if bytes >= length - progress => length,
            Self::Bytes(bytes) => part_end(progress, length, bytes),
            Self::Half if progress == 0 && length > 1 => length / 2,
            Self::Half => length,
        }
    }
}

/// The minimum length of a part of a message in bytes, unless the message itself is shorter.
const SHORTEST_PART: u64 = 4096;

/// Returns the end of a part of about `bytes` bytes. The part ends with a 64-byte line. If little is left after that
/// line, the part ends with the message instead. So no word is written in two parts, and the last word is written after
/// all others.
#[cold]
fn part_end(progress: u64, length: u64, bytes: u64) -> u64 {
    let end = progress.saturating_add(bytes.max(SHORTEST_PART)) & !63;
    if length.saturating_sub(end) < SHORTEST_PART { length } else { end }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn parts_are_whole_lines_and_the_last_is_not_short() {
        let end = |bytes, progress, length| Extent::Bytes(bytes).end(progress, length);
        assert_eq!(end(8, 0, 8), 8);
        assert_eq!(end(4, 0, 8), 8, "a word is not written in two parts");
        assert_eq!(end(3, 0, 4096 + 72), 4096 + 72);
        assert_eq!(end(3, 0, 1 << 20), 4096);
        assert_eq!(end(100_001, 4096, 1 << 20), (4096 + 100_001) / 64 * 64);
        assert_eq!(end((1 << 20) - 4, 0, 1 << 20), 1 << 20, "no rest of four bytes");
        assert_eq!(end(1, 0, 2 * 4096), 4096, "4096 bytes are long enough for a part");
        assert_eq!(end(u64::MAX, 64, 1 << 31), 1 << 31);
    }
}
