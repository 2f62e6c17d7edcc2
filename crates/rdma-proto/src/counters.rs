//! The counters of a queue pair.

use core::ops::AddAssign;

use crate::operation::{Nak, Stop};

macro_rules! counters {
    ($($(#[$doc:meta])* $name:ident,)+) => {
        /// Event counters of one end of a queue pair.
        ///
        /// `rcvd_pkts` counts every packet that arrives. A packet that is not executed or used as
        /// intended also increments the counter for the reason. This explains cases such as
        /// "connected, but nothing arrives".
        ///
        /// Counters that SoftRoCE also has (`rxe_hw_counters.c`) have the same names here.
        /// `local_ack_timeout_err`, `roce_adp_retrans`, `implied_nak_seq_err`, `out_of_buffer` and
        /// `resp_remote_access_errors` are from mlx5 (`hw/mlx5/counters.c`), and `qkey_viol_cntr`
        /// is a field of `ibv_port_attr`. The other names are our own.
        ///
        /// The caller counts what neither end can see: packets that cannot be parsed, or that have
        /// a wrong ICRC, queue pair, partition or source. It also counts `send_err` and
        /// `link_downed`, because this crate does not see the link, and `rdma_sends` and
        /// `rdma_recvs`, because it does not see completions. SoftRoCE's `ack_deferred` has no
        /// counterpart: it counts how often SoftRoCE's completer left work to another thread.
        ///
        /// # Examples
        ///
        /// The nonzero counters, summed over all ends:
        ///
        /// ```
        /// use rdma_proto::Counters;
        ///
        /// let mut ends = [Counters::default(); 2];
        /// ends[0].sent_pkts = 4;
        /// ends[1].sent_pkts = 3;
        /// ends[1].out_of_seq_request = 2;
        /// let mut sum = Counters::default();
        /// ends.iter().for_each(|&end| sum += end);
        /// let shown: Vec<_> = sum.iter().filter(|&(_, value)| value > 0).collect();
        /// assert_eq!(shown, [("sent_pkts", 7), ("out_of_seq_request", 2)]);
        /// ```
        #[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
        #[non_exhaustive]
        pub struct Counters {
            $($(#[$doc])* pub $name: u64,)+
        }

        impl Counters {
            /// Iterates over the names and values, in the order of the fields.
            pub fn iter(&self) -> impl Iterator<Item = (&'static str, u64)> + use<> {
                [$((stringify!($name), self.$name)),+].into_iter()
            }
        }

        impl Counters {
            /// Returns all counters and resets them to zero, unless only sent and received packets
            /// were counted.
            pub(crate) fn take_reasons(&mut self) -> Option<Self> {
                let reasons = Self { sent_pkts: 0, rcvd_pkts: 0, ..*self };
                // Uses one combined test, because usually no counter is set.
                let any = [$(reasons.$name),+].into_iter().fold(0, |any, value| any | value);
                (any != 0).then(|| core::mem::take(self))
            }
        }

        impl AddAssign for Counters {
            fn add_assign(&mut self, other: Self) {
                $(self.$name = self.$name.wrapping_add(other.$name);)+
            }
        }
    };
}

counters! {
    /// Packets that were sent.
    sent_pkts,
    /// Packets that arrived.
    rcvd_pkts,
    /// Requests with a PSN that was executed before.
    duplicate_request,
    /// Requests that were dropped because an earlier one is missing. Every such request is counted,
    /// whereas SoftRoCE counts each gap once.
    out_of_seq_request,
    /// "Receiver not ready" (RNR) NAKs that arrived.
    rcvd_rnr_err,
    /// Requests that found no receive and were answered with an RNR NAK.
    send_rnr_err,
    /// NAKs that arrived and reported a missing packet.
    rcvd_seq_err,
    /// Requests that failed because no answer arrived.
    retry_exceeded_err,
    /// Requests that failed because the receiver was not ready.
    retry_rnr_exceeded_err,
    /// Retransmissions of everything in flight, after a timeout or a missing packet.
    completer_retry_err,
    /// Transport timers that expired without an answer.
    local_ack_timeout_err,
    /// Probes: the oldest packet was sent again alone, because its answer was overdue although the
    /// timer had not expired yet.
    roce_adp_retrans,
    /// Responses that arrived while an earlier READ or atomic was unanswered, which means that its
    /// answer was lost.
    implied_nak_seq_err,
    /// Requests on unreliable connections that found no receive, and datagrams that found none, or
    /// one that was too small or unusable. They were dropped.
    out_of_buffer,
    /// Requests that were refused because their key, range or rights are wrong.
    resp_remote_access_errors,
    /// Requests that were refused as invalid: wrong opcode or length, or too many READs.
    resp_invalid_request_errors,
    /// Requests that were refused because this end could not continue.
    resp_remote_operation_errors,
    /// Datagrams with a wrong Q_Key.
    qkey_viol_cntr,
    /// Duplicate requests (PSN before the expected one) without an answer: too old, different from
    /// the original, or with a PSN that was never accepted.
    unanswered_duplicate,
    /// Responses whose PSN is not in flight: duplicates, or responses that match no request.
    unsolicited_response,
    /// NAKs for packets that are already due to be sent again.
    stale_nak,
    /// Acknowledgements with a syndrome that is not specified, and responses with data whose
    /// syndrome is not ACK.
    reserved_syndrome,
    /// Responses that do not match their request, which then fails, and acknowledgements with a
    /// payload, which are dropped.
    bad_response,
    /// Packets whose opcode this end does not accept, because it belongs to another service or the
    /// other direction.
    wrong_opcode,
    /// Packets that arrived after this end failed or was stopped.
    after_end,
    /// Requests that the host asked to drop ([`Stop::Drop`]).
    dropped_by_host,
}

impl Counters {
    /// Counts packets that were sent.
    pub(crate) fn sent(&mut self, packets: u16) {
        self.sent_pkts = self.sent_pkts.wrapping_add(packets.into());
    }

    /// Counts a request that was refused.
    pub(crate) fn refused(&mut self, nak: Nak) {
        count(match nak {
            Nak::InvalidRequest => &mut self.resp_invalid_request_errors,
            Nak::RemoteAccess => &mut self.resp_remote_access_errors,
            Nak::RemoteOperational => &mut self.resp_remote_operation_errors,
        });
    }

    /// Counts a request that is neither executed nor answered.
    pub(crate) fn dropped(&mut self, stop: Stop) {
        match stop {
            Stop::NotReady => count(&mut self.out_of_buffer),
            Stop::Nak(nak) => self.refused(nak),
            Stop::Drop => count(&mut self.dropped_by_host),
        }
    }
}

/// Increments a counter.
pub(crate) fn count(counter: &mut u64) {
    *counter = counter.wrapping_add(1);
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn sent_and_received_packets_alone_are_not_taken() {
        let mut counters = Counters { sent_pkts: 3, rcvd_pkts: 2, ..Counters::default() };
        assert_eq!(counters.take_reasons(), None);
        counters.dropped_by_host = 1;
        let taken =
            Counters { sent_pkts: 3, rcvd_pkts: 2, dropped_by_host: 1, ..Counters::default() };
        assert_eq!(counters.take_reasons(), Some(taken));
        assert_eq!(counters, Counters::default());
    }
}
