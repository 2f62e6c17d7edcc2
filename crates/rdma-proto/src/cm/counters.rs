//! Counters of the communication manager.

/// Event counters of a [`Manager`](super::Manager).
///
/// Each received MAD that causes neither a MAD nor an event nor a transition has incremented the
/// counter of the reason.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[non_exhaustive]
pub struct Counters {
    /// MADs that arrived.
    pub received: u64,
    /// MADs to send that were returned.
    pub sent: u64,
    /// MADs with a wrong length or base version.
    pub malformed: u64,
    /// MADs with an unsupported class version. A REQ was answered with a REJ, a SIDR_REQ with a
    /// SIDR_REP, and a Get or Set with its status.
    pub unsupported_version: u64,
    /// MADs with an unsupported management class, method or attribute, for example LAP and APR. A
    /// Get or Set was answered with its status; all others were dropped.
    pub unsupported: u64,
    /// REQs whose path does not begin at the packet's source address.
    pub wrong_source: u64,
    /// REQs and SIDR_REQs that were dropped because their listener had too many half-open
    /// connections.
    pub half_open_full: u64,
    /// REQs and SIDR_REQs that were dropped because the manager had too many connections.
    pub table_full: u64,
    /// Messages that arrived before.
    pub duplicates: u64,
    /// Messages whose communication IDs, source or queue pair are those of no connection.
    pub unmatched: u64,
    /// Messages that do not fit the state of their connection.
    pub unexpected: u64,
    /// REQs and REPs for a queue pair that another connection uses.
    pub stale: u64,
    /// Messages that were sent again because no answer arrived.
    pub retries: u64,
    /// Messages that were given up because no answer arrived.
    pub timeouts: u64,
    /// REJs that were sent.
    pub rejects: u64,
}
