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
