//! What a queue pair counts.

use core::ops::AddAssign;

use crate::operation::{Nak, Stop};

macro_rules! counters {
    ($($(#[$doc:meta])* $name:ident,)+) => {
        /// How often what happened at one end of a queue pair.
        ///
        /// Each packet that came is in `rcvd_pkts`. One that was not executed or used as it should have been is in
        /// the counter of its reason as well, so that "connected, but nothing comes" has an explanation.
        ///
        /// Names are those of SoftRoCE (`rxe_hw_counters.c`) where it has one. `local_ack_timeout_err`,
        /// `roce_adp_retrans`, `implied_nak_seq_err`, `out_of_buffer` and `resp_remote_access_errors` are mlx5's
        /// (`hw/mlx5/counters.c`), and `qkey_viol_cntr` is a field of `ibv_port_attr`. The others have no name
        /// elsewhere.
        ///
        /// What is known only outside is counted by the caller: packets that cannot be parsed, a wrong ICRC, an
        /// unknown queue pair, a wrong partition or source, because no end sees them; `send_err` and `link_downed`,
        /// because the link is not here; `rdma_sends` and `rdma_recvs`, because completions are not. SoftRoCE's
        /// `ack_deferred`, how often its completer was left to another thread, has no counterpart.
        ///
        /// # Examples
        ///
        /// The counters of all ends together, those that are not zero:
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
            /// Each name and its value, in the order of the fields.
            pub fn iter(&self) -> impl Iterator<Item = (&'static str, u64)> + use<> {
                [$((stringify!($name), self.$name)),+].into_iter()
            }
        }

        impl Counters {
            /// Takes all, and counts from zero again, if there is more than packets that were given out and came.
            pub(crate) fn take_reasons(&mut self) -> Option<Self> {
                let reasons = Self { sent_pkts: 0, rcvd_pkts: 0, ..*self };
                // All as one, since mostly there are none.
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
    /// Packets that were given out.
    sent_pkts,
    /// Packets that came.
    rcvd_pkts,
    /// Requests whose PSN was executed before.
    duplicate_request,
    /// Requests that were dropped since one before them is missing: each of them. SoftRoCE counts each gap.
    out_of_seq_request,
    /// "Receiver not ready" that came.
    rcvd_rnr_err,
    /// Requests that found no receive, and were answered "receiver not ready".
    send_rnr_err,
    /// "A packet is missing" that came.
    rcvd_seq_err,
    /// Requests that failed since nothing came back.
    retry_exceeded_err,
    /// Requests that failed since the receiver was not ready.
    retry_rnr_exceeded_err,
    /// How often all was sent again, for a timeout or since a packet was missing.
    completer_retry_err,
    /// How often nothing came back in time.
    local_ack_timeout_err,
    /// How often the oldest packet was sent again alone, as a probe, since an answer was due long before the
    /// timer expires.
    roce_adp_retrans,
    /// Responses that came past a READ or an atomic which is not answered: they say that its answer was lost.
    implied_nak_seq_err,
    /// Requests that were dropped for want of a receive, or since it was too small: of unreliable connections
    /// and datagrams.
    out_of_buffer,
    /// Requests that were refused since their key, range or rights are wrong.
    resp_remote_access_errors,
    /// Requests that were refused since they are wrong in themselves: opcode, length, too many READs.
    resp_invalid_request_errors,
    /// Requests that were refused since this end could not go on.
    resp_remote_operation_errors,
    /// Datagrams with another Q_Key.
    qkey_viol_cntr,
    /// Requests before the expected one that are not answered: too old, not what was asked for then, or with a PSN
    /// that was never taken.
    unanswered_duplicate,
    /// Responses whose PSN is not in flight: duplicates, or nobody asked for them.
    unsolicited_response,
    /// Negative acknowledgements of what is going to be sent again already.
    stale_nak,
    /// Acknowledgements that say nothing which is specified, and responses with data that say anything but ACK.
    reserved_syndrome,
    /// Responses that do not fit their request, which failed. Acknowledgements with a payload, which are dropped.
    bad_response,
    /// Packets with an opcode that this end does not take: of another service, or of the other direction.
    wrong_opcode,
    /// Packets that came after this end had failed or was stopped.
    after_end,
    /// Requests that the host asked to drop ([`Stop::Drop`]).
    dropped_by_host,
}

impl Counters {
    /// So many packets are given out.
    pub(crate) fn sent(&mut self, packets: u16) {
        self.sent_pkts = self.sent_pkts.wrapping_add(packets.into());
    }

    /// A request is refused.
    pub(crate) fn refused(&mut self, nak: Nak) {
        count(match nak {
            Nak::InvalidRequest => &mut self.resp_invalid_request_errors,
            Nak::RemoteAccess => &mut self.resp_remote_access_errors,
            Nak::RemoteOperational => &mut self.resp_remote_operation_errors,
        });
    }

    /// A request is not executed, and its peer is not told.
    pub(crate) fn dropped(&mut self, stop: Stop) {
        match stop {
            Stop::NotReady => count(&mut self.out_of_buffer),
            Stop::Nak(nak) => self.refused(nak),
            Stop::Drop => count(&mut self.dropped_by_host),
        }
    }
}

/// One more of a counter.
pub(crate) fn count(counter: &mut u64) {
    *counter = counter.wrapping_add(1);
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn packets_alone_are_no_reason_to_take_what_was_counted() {
        let mut counters = Counters { sent_pkts: 3, rcvd_pkts: 2, ..Counters::default() };
        assert_eq!(counters.take_reasons(), None);
        counters.dropped_by_host = 1;
        let taken =
            Counters { sent_pkts: 3, rcvd_pkts: 2, dropped_by_host: 1, ..Counters::default() };
        assert_eq!(counters.take_reasons(), Some(taken));
        assert_eq!(counters, Counters::default());
    }
}
