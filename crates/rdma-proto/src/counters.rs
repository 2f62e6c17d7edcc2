//! What a queue pair counts.

/// How often what happened. Named as SoftRoCE names its own (`hw_counters`), where it has a name for it.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[non_exhaustive]
pub struct Counters {
    /// Packets that were given out.
    pub sent_pkts: u64,
    /// Packets that came.
    pub rcvd_pkts: u64,
    /// Requests that came again.
    pub duplicate_request: u64,
    /// Requests that came before one that is missing.
    pub out_of_seq_request: u64,
    /// "Receiver not ready" that came.
    pub rcvd_rnr_err: u64,
    /// "Receiver not ready" that was answered.
    pub send_rnr_err: u64,
    /// "A packet is missing" that came.
    pub rcvd_seq_err: u64,
    /// Requests that failed since nothing came back.
    pub retry_exceeded_err: u64,
    /// Requests that failed since the receiver was not ready.
    pub retry_rnr_exceeded_err: u64,
    /// How often packets were sent again, for a timeout or since a packet was missing.
    pub completer_retry_err: u64,
    /// Packets that were dropped: duplicate and unsolicited responses, duplicate requests that are not
    /// answered, packets of another service, and all that comes after the end.
    pub dropped: u64,
}

impl Counters {
    /// So many packets are given out.
    pub(crate) fn sent(&mut self, packets: u16) {
        self.sent_pkts = self.sent_pkts.wrapping_add(packets.into());
    }
}

/// One more of a counter.
pub(crate) fn count(counter: &mut u64) {
    *counter = counter.wrapping_add(1);
}
