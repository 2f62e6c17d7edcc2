//! What a device counts.

pub(crate) mod rare;

use std::collections::BTreeMap;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, Weak};

use rdma_types::WcStatus;

use crate::counters::rare::Rare;
use crate::sync::locked;

macro_rules! counters {
    ($($(#[$doc:meta])* $name:ident $(: $packets:ident)?,)+) => {
        /// What a device counted since it was installed, from
        /// [`SoftDevice::counters`](crate::SoftDevice::counters).
        ///
        /// The first are named as the kernel's SoftRoCE names its own (`drivers/infiniband/sw/rxe/rxe_hw_counters.c`,
        /// `/sys/class/infiniband/rxe0/ports/1/hw_counters`). Those from `local_ack_timeout_err` on count packets,
        /// which go to other processes ([`Builder::peers`](crate::Builder::peers)), to other hosts
        /// ([`Builder::listen`](crate::Builder::listen)), and where a device asks for them
        /// ([`Builder::force_wire`](crate::Builder::force_wire)); there
        /// `local_ack_timeout_err`, `roce_adp_retrans`, `implied_nak_seq_err`, `out_of_buffer`,
        /// `resp_remote_access_errors` and `rx_icrc_encapsulated` are mlx5's names, `qkey_viol_cntr` and `bad_pkey_cntr` are fields of
        /// `ibv_port_attr`, and the others have no name elsewhere. Of those that nothing can raise, the value is always 0.
        #[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
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

        /// A counter of each name, for what is rare enough.
        #[derive(Debug, Default)]
        pub(crate) struct Rares {
            $(pub(crate) $name: Rare,)+
        }

        impl Rares {
            fn get(&self) -> Counters {
                Counters { $($name: self.$name.get(),)+ }
            }

            /// Adds what one side of a connection counted whose messages go as packets. The others are requests
            /// here, and counted when they are done.
            #[cold]
            pub(crate) fn add(&self, counted: &rdma_proto::Counters) {
                $($(
                    let $packets = counted.$name;
                    if $packets != 0 {
                        self.$name.add($packets);
                    }
                )?)+
            }
        }
    };
}

// `: packets` is behind those that connections of packets count under the same name.
counters! {
    /// Requests of this device that were executed, or sent without a receiver. Between two queue
    /// pairs of one process a message is one copy, so that it counts as one packet, however long it
    /// is; acknowledgements are none.
    sent_pkts,
    /// Requests from peers that were executed.
    rcvd_pkts,
    /// Requests from the connected peer whose PSN has been before. They are dropped; packets are
    /// answered again.
    duplicate_request: packets,
    /// Requests from the connected peer whose PSN is beyond the expected one. They are dropped.
    out_of_seq_request: packets,
    /// How often a request of this device found its receiver without a receive request.
    rcvd_rnr_err: packets,
    /// How often a request from a peer found no receive request here.
    send_rnr_err: packets,
    /// How often a peer said that a packet is missing. Without packets nothing is lost.
    rcvd_seq_err: packets,
    /// Always 0: SoftRoCE counts here how often its completer was left to another thread, which has no counterpart.
    ack_deferred,
    /// Requests that were given up because the peer did not answer.
    retry_exceeded_err,
    /// Requests that were given up because the peer had no receive request.
    retry_rnr_exceeded_err,
    /// How often a request was tried again because the peer did not answer.
    completer_retry_err: packets,
    /// Packets that the network did not take.
    send_err,
    /// How often the port went down.
    link_downed,
    /// SEND requests that were executed.
    rdma_sends,
    /// Receive requests that completed with success.
    rdma_recvs,
    /// How often nothing came back in time.
    local_ack_timeout_err: packets,
    /// How often the oldest packet was sent again alone, as a probe.
    roce_adp_retrans: packets,
    /// Responses that came past a READ or an atomic which is not answered.
    implied_nak_seq_err: packets,
    /// Messages without acknowledgements that were dropped for want of a receive request, or since it was too small.
    out_of_buffer: packets,
    /// Requests that were refused since their key, range or rights are wrong.
    resp_remote_access_errors: packets,
    /// Requests that were refused since they are wrong in themselves.
    resp_invalid_request_errors: packets,
    /// Requests that were refused since the responder could not go on.
    resp_remote_operation_errors: packets,
    /// Datagrams with another Q_Key than that of their queue pair. Counted without packets, too.
    qkey_viol_cntr,
    /// Requests before the expected one that are not answered: too old, not what was asked for
    /// then, or with a PSN that was never taken.
    unanswered_duplicate: packets,
    /// Responses whose PSN is not in flight: duplicates, or nobody asked for them.
    unsolicited_response: packets,
    /// Negative acknowledgements of what is going to be sent again already.
    stale_nak: packets,
    /// Acknowledgements that say nothing which is specified, and responses with data that say anything but ACK.
    reserved_syndrome: packets,
    /// Responses that do not fit their request, which failed. Acknowledgements with a payload.
    bad_response: packets,
    /// Packets of the right service with an opcode that nobody takes there.
    wrong_opcode: packets,
    /// Packets that came after a request of their connection had failed.
    after_end: packets,
    /// Requests that were dropped for a reason of this process.
    dropped_by_host: packets,
    /// Packets that were damaged on a simulated link, or came by UDP, as their checksums say.
    rx_icrc_encapsulated,
    /// Packets of another partition than the port's.
    bad_pkey_cntr,
    /// Packets for a QPN that nobody has, or nobody any more.
    unknown_qp,
    /// Packets for a queue pair of another service: reliable connection, unreliable connection, datagrams.
    wrong_service,
    /// Packets for a connected queue pair that came from another address than its peer's.
    wrong_source,
    /// Packets for a queue pair that takes none in its state.
    wrong_state,
    /// Packets that were lost since this port was down: sent, or arrived.
    port_down,
    /// Packets that were sent to an address that nobody has, or to a process that has ended.
    no_route,
    /// Datagrams to a process that took nothing for a second, or for which more than 1 MiB waited.
    stalled,
    /// Times that a process of this host read and answered nothing for half of its
    /// [limit](crate::Builder::peer_limit), and had not ended.
    silent,
    /// Messages of other processes that are not what a device sends: their connection is closed. UDP datagrams that are no
    /// packet.
    malformed,
    /// Connections of other processes that were closed at once: of another user, or too many.
    refused_connections,
    /// System calls that copied memory which may have been unmapped since its registration. `rdma-mem` notes that the memory
    /// of its regions stays mapped, except of `MemoryRegion` and `DmabufRegion`; programs in C note nothing.
    guarded_copies,
    /// How often connections of other processes were left waiting, since others hold up all threads that close what they
    /// have sent.
    held_up_connections,
}

/// A counter that one thread at a time raises.
#[derive(Debug, Default)]
pub(crate) struct Exclusive(AtomicU64);

impl Exclusive {
    #[inline]
    pub(crate) fn count(&self) {
        self.0.store(self.get() + 1, Ordering::Relaxed);
    }

    pub(crate) fn get(&self) -> u64 {
        self.0.load(Ordering::Relaxed)
    }
}

/// What a queue pair counts under its send lock, apart from the path of a write.
#[derive(Debug, Default)]
pub(crate) struct SendCounts {
    /// SENDs that were executed.
    pub(crate) sends: Exclusive,
    /// Requests that were executed and that no peer hears of.
    pub(crate) local: Exclusive,
}

/// A queue pair, which counts what is executed under its own locks.
pub(crate) trait Counting: Send + Sync + std::fmt::Debug {
    /// Adds what it has counted by now.
    fn add_to(&self, sum: &mut Counters);
}

/// What a device counts itself, and the queue pairs that count the rest.
#[derive(Debug, Default)]
pub(crate) struct Tally {
    /// Those that queue pairs count are 0 here.
    pub(crate) rare: Rares,
    traffic: Mutex<Traffic>,
}

/// A leaf: nobody waits for a queue pair with this lock.
#[derive(Debug, Default)]
struct Traffic {
    /// The sums of queue pairs that are gone.
    gone: Counters,
    by_id: BTreeMap<u64, Weak<dyn Counting>>,
}

impl Tally {
    pub(crate) fn add_queue_pair(&self, id: u64, queue_pair: Weak<dyn Counting>) {
        locked(&self.traffic).by_id.insert(id, queue_pair);
    }

    /// Takes over the counts of a queue pair that executes nothing any more.
    pub(crate) fn remove_queue_pair(&self, id: u64, queue_pair: &impl Counting) {
        let mut counts = Counters::default();
        queue_pair.add_to(&mut counts);
        let mut traffic = locked(&self.traffic);
        traffic.by_id.remove(&id);
        traffic.gone.sent_pkts += counts.sent_pkts;
        traffic.gone.rcvd_pkts += counts.rcvd_pkts;
        traffic.gone.rdma_sends += counts.rdma_sends;
        traffic.gone.rdma_recvs += counts.rdma_recvs;
    }

    /// A request was given up.
    #[cold]
    pub(crate) fn count_failure(&self, status: WcStatus) {
        match status {
            WcStatus::RETRY_EXC_ERR => self.rare.retry_exceeded_err.count(),
            WcStatus::RNR_RETRY_EXC_ERR => self.rare.retry_rnr_exceeded_err.count(),
            _ => {}
        }
    }

    pub(crate) fn counters(&self) -> Counters {
        // Each queue pair is in one of the two, also one that goes meanwhile. It keeps its counts.
        let (gone, queue_pairs): (_, Vec<Arc<dyn Counting>>) = {
            let traffic = locked(&self.traffic);
            (traffic.gone, traffic.by_id.values().filter_map(Weak::upgrade).collect())
        };
        let mut sum = self.rare.get();
        sum.sent_pkts += gone.sent_pkts;
        sum.rcvd_pkts += gone.rcvd_pkts;
        sum.rdma_sends += gone.rdma_sends;
        sum.rdma_recvs += gone.rdma_recvs;
        for queue_pair in queue_pairs {
            queue_pair.add_to(&mut sum);
        }
        sum
    }
}
