//! Counters of a connection.

/// The counters of a connection or a channel: a snapshot of all of them at one moment.
///
/// The counters start when the connection is made and continue across reconnections. None ever decreases.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[non_exhaustive]
pub struct ConnectionCounters {
    /// Operations that were posted to the device: sends, receives, writes, reads, atomic operations, binds and
    /// invalidations. An operation whose post failed is not counted.
    pub posted: u64,
    /// Posted operations that have completed, including the failed ones. The others are outstanding.
    pub completed: u64,
    /// Posted operations that failed: those with an error completion, and those that were outstanding when the queue
    /// pair was destroyed.
    pub failed: u64,
    /// Operations that had to wait for a free slot of their queue before they were posted.
    pub slot_waits: u64,
}

impl ConnectionCounters {
    /// Returns these counters with [`completed`](Self::completed) computed for `outstanding` posted requests.
    #[must_use]
    pub const fn snapshot(mut self, outstanding: u64) -> Self {
        debug_assert!(outstanding <= self.posted, "more are outstanding than were posted");
        self.completed = self.posted - outstanding;
        debug_assert!(self.failed <= self.completed, "more have failed than have completed");
        self
    }
}
