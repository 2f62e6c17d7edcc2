//! The budget of a thread that executes requests.

/// What a turn executes at most; also of several queues, if one call comes to them.
const TURN_REQUESTS: u32 = 16;
pub(super) const TURN_BYTES: u64 = if cfg!(loom) { STRETCH_BYTES } else { 64 << 10 };
/// Some tens of microseconds; less in models, which copy it often.
pub(crate) const STRETCH_BYTES: u64 = if cfg!(loom) { 8 << 10 } else { 1 << 20 };

/// What a thread may still execute, in one call, of queues that are not its own.
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
