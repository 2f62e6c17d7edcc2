//! Counters of the communication manager.

use core::ops::AddAssign;

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

impl AddAssign for Counters {
    fn add_assign(&mut self, other: Self) {
        let pairs = [
            (&mut self.received, other.received),
            (&mut self.sent, other.sent),
            (&mut self.malformed, other.malformed),
            (&mut self.unsupported_version, other.unsupported_version),
            (&mut self.unsupported, other.unsupported),
            (&mut self.wrong_source, other.wrong_source),
            (&mut self.half_open_full, other.half_open_full),
            (&mut self.table_full, other.table_full),
            (&mut self.duplicates, other.duplicates),
            (&mut self.unmatched, other.unmatched),
            (&mut self.unexpected, other.unexpected),
            (&mut self.stale, other.stale),
            (&mut self.retries, other.retries),
            (&mut self.timeouts, other.timeouts),
            (&mut self.rejects, other.rejects),
        ];
        for (count, more) in pairs {
            *count = count.wrapping_add(more);
        }
    }
}
