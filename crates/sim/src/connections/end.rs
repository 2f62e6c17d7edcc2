//! One end of a connection or query, as its program sees it.

use std::time::Duration;

use rdma_cm::unmanaged::Id;

/// The state of an end.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Phase {
    /// The active end waits for an answer to its REQ.
    Connecting,
    /// The program of the passive end has to decide.
    Asked,
    /// The program of the active end has to confirm.
    Replied,
    /// The passive end waits for the confirmation.
    Accepted,
    Established,
    /// This end has disconnected, and waits for the answer.
    Disconnecting,
    /// The active end waits for the answer to its SIDR_REQ.
    Querying,
    /// The program of the passive end has to answer.
    Queried,
    /// An event has ended it, or its program has decided.
    Over,
    /// The program has dropped it.
    Left,
    /// Its host has died.
    Dead,
}

impl Phase {
    /// Returns true if no event may follow.
    pub(super) const fn is_past(self) -> bool {
        matches!(self, Self::Over | Self::Left | Self::Dead)
    }
}

pub(super) struct End {
    /// The number of the attempt, among all of the workload.
    pub(super) attempt: usize,
    pub(super) host: usize,
    pub(super) is_active: bool,
    /// The connection, until its program drops it.
    pub(super) id: Option<Id>,
    /// This end's queue pair: 0 until the program of a passive end has chosen it.
    pub(super) qpn: u32,
    /// The peer's queue pair, once a message has contained it.
    pub(super) peer_qpn: u32,
    pub(super) phase: Phase,
    /// The time of the last change of the phase.
    pub(super) since: Duration,
    /// Whether the program of this end has rejected, dropped or disconnected it, or its host has died.
    pub(super) has_acted: bool,
    /// Whether a message of this end was unanswered until the last repetition.
    pub(super) is_unanswered: bool,
    /// Whether the program of this passive end has established it without the confirmation. The end then no longer repeats
    /// its REP, although that may be lost.
    pub(super) is_forced: bool,
}

/// A requested connection, or a query.
pub(super) struct Attempt {
    pub(super) from: usize,
    pub(super) to: usize,
    /// The numbers of deaths of both hosts before it.
    pub(super) deaths: [u64; 2],
    pub(super) begun: Duration,
    /// Whether its queue pair belonged to an earlier connection.
    pub(super) reuses: bool,
    /// The ends: that of the requester, and those of the host that received a REQ. A late copy of a REQ may begin another
    /// one.
    pub(super) ends: Vec<usize>,
}
