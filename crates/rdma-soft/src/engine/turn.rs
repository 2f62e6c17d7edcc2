//! The budget of a thread that executes requests.

/// The most requests executed in one turn, also across several queues if one call serves them.
const TURN_REQUESTS: u32 = 16;
pub(super) const TURN_BYTES: u64 = if cfg!(loom) { STRETCH_BYTES } else { 64 << 10 };
/// The most bytes copied before the locks are yielded: some tens of microseconds. Less in models, which copy this many
/// bytes often.
pub(crate) const STRETCH_BYTES: u64 = if cfg!(loom) { 8 << 10 } else { 1 << 20 };

/// The work that a thread may still do in one call for queues of others.
#[derive(Debug)]
pub(crate) struct Turn {
    pub(super) requests: u32,
    pub(super) bytes: u64,
}

impl Turn {
    pub(crate) const fn new() -> Self {
        Self { requests: TURN_REQUESTS, bytes: TURN_BYTES }
    }

    pub(crate) fn is_over(&self) -> bool {
        self.requests == 0 || self.bytes == 0
    }
}
