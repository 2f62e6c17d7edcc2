//! The counters of a connection.

/// Event counters of one end.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[non_exhaustive]
pub struct Counters {
    /// Frames that were sent.
    pub sent_frames: u64,
    /// Frames that arrived before the end of the connection.
    pub received_frames: u64,
    /// Credit frames that were sent because no other frame carried the limits in time.
    pub credit_frames: u64,
    /// Replies that were discarded because their calls had been cancelled.
    pub late_replies: u64,
}
