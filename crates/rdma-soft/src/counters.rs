//! What a device counts.

use std::collections::BTreeMap;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, Weak};

use rdma_types::WcStatus;

use crate::engine::queue_pair::QueuePair;
use crate::sync::locked;

macro_rules! counters {
    ($($(#[$doc:meta])* $name:ident,)+) => {
        /// What a device counted since it was installed, from
        /// [`SoftDevice::counters`](crate::SoftDevice::counters).
        ///
        /// Named as the kernel's SoftRoCE names its own (`drivers/infiniband/sw/rxe/rxe_hw_counters.c`,
        /// `/sys/class/infiniband/rxe0/ports/1/hw_counters`). Of those that nothing in one process can
        /// raise, the value is always 0.
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
    };
}

counters! {
    /// Requests of this device that were executed, or sent without anybody to take them. Between two queue pairs of one process a message is one
    /// copy, so that it counts as one packet, however long it is; acknowledgements are none.
    sent_pkts,
    /// Requests from peers that were executed.
    rcvd_pkts,
    /// Requests from the connected peer whose sequence number has been before. They are dropped.
    duplicate_request,
    /// Requests from the connected peer whose sequence number is beyond the expected one. They are
    /// dropped.
    out_of_seq_request,
    /// How often a request of this device found its receiver without a receive request.
    rcvd_rnr_err,
    /// How often a request from a peer found no receive request here.
    send_rnr_err,
    /// Always 0: nothing is lost, so that no peer says that it missed something.
    rcvd_seq_err,
    /// Always 0: there is nothing to acknowledge.
    ack_deferred,
    /// Requests that were given up because the peer did not answer.
    retry_exceeded_err,
    /// Requests that were given up because the peer had no receive request.
    retry_rnr_exceeded_err,
    /// How often a request was tried again because the peer did not answer.
    completer_retry_err,
    /// Always 0: sending cannot fail by itself.
    send_err,
    /// How often the port went down.
    link_downed,
    /// SEND requests that were executed.
    rdma_sends,
    /// Receive requests that completed with success.
    rdma_recvs,
}

/// One counter of what is rare enough to be counted by an atomic.
#[derive(Debug, Default)]
pub(crate) struct Rare(AtomicU64);

impl Rare {
    #[cold]
    pub(crate) fn count(&self) {
        self.add(1);
    }

    fn add(&self, count: u64) {
        self.0.fetch_add(count, Ordering::Relaxed);
    }

    fn get(&self) -> u64 {
        self.0.load(Ordering::Relaxed)
    }
}

/// A counter that one thread at a time raises.
#[derive(Debug, Default)]
pub(crate) struct Exclusive(AtomicU64);

impl Exclusive {
    #[inline]
    pub(crate) fn count(&self) {
        self.0.store(self.get() + 1, Ordering::Relaxed);
    }

    fn get(&self) -> u64 {
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

/// What a device counts itself, and the queue pairs that count the rest, each under its own locks.
#[derive(Debug, Default)]
pub(crate) struct Tally {
    pub(crate) duplicates: Rare,
    pub(crate) out_of_sequence: Rare,
    pub(crate) not_ready_received: Rare,
    pub(crate) not_ready_sent: Rare,
    pub(crate) retries_exceeded: Rare,
    pub(crate) not_ready_exceeded: Rare,
    pub(crate) retries: Rare,
    pub(crate) link_downed: Rare,
    traffic: Mutex<Traffic>,
}

/// A leaf: nobody waits for a queue pair with this lock.
#[derive(Debug, Default)]
struct Traffic {
    /// The sums of queue pairs that are gone.
    gone: Counters,
    by_id: BTreeMap<u64, Weak<QueuePair>>,
}

impl Tally {
    pub(crate) fn add_queue_pair(&self, queue_pair: &Arc<QueuePair>) {
        locked(&self.traffic).by_id.insert(queue_pair.id, Arc::downgrade(queue_pair));
    }

    /// Takes over the counts of a queue pair that executes nothing any more.
    pub(crate) fn remove_queue_pair(&self, queue_pair: &QueuePair) {
        let mut counts = Counters::default();
        counts.add(queue_pair);
        let mut traffic = locked(&self.traffic);
        traffic.by_id.remove(&queue_pair.id);
        traffic.gone.sent_pkts += counts.sent_pkts;
        traffic.gone.rcvd_pkts += counts.rcvd_pkts;
        traffic.gone.rdma_sends += counts.rdma_sends;
        traffic.gone.rdma_recvs += counts.rdma_recvs;
    }

    /// A request was given up.
    #[cold]
    pub(crate) fn count_failure(&self, status: WcStatus) {
        match status {
            WcStatus::RETRY_EXC_ERR => self.retries_exceeded.count(),
            WcStatus::RNR_RETRY_EXC_ERR => self.not_ready_exceeded.count(),
            _ => {}
        }
    }

    /// Adds what one side of a connection counted whose messages went as packets.
    pub(crate) fn add(&self, packets: &rdma_proto::Counters) {
        self.duplicates.add(packets.duplicate_request);
        self.out_of_sequence.add(packets.out_of_seq_request);
        self.not_ready_received.add(packets.rcvd_rnr_err);
        self.not_ready_sent.add(packets.send_rnr_err);
        self.retries.add(packets.completer_retry_err);
    }

    pub(crate) fn counters(&self) -> Counters {
        // Each queue pair is in one of the two, also one that goes meanwhile. It keeps its counts.
        let (gone, queue_pairs): (_, Vec<Arc<QueuePair>>) = {
            let traffic = locked(&self.traffic);
            (traffic.gone, traffic.by_id.values().filter_map(Weak::upgrade).collect())
        };
        let mut sum = Counters {
            duplicate_request: self.duplicates.get(),
            out_of_seq_request: self.out_of_sequence.get(),
            rcvd_rnr_err: self.not_ready_received.get(),
            send_rnr_err: self.not_ready_sent.get(),
            retry_exceeded_err: self.retries_exceeded.get(),
            retry_rnr_exceeded_err: self.not_ready_exceeded.get(),
            completer_retry_err: self.retries.get(),
            link_downed: self.link_downed.get(),
            ..gone
        };
        for queue_pair in queue_pairs {
            sum.add(&queue_pair);
        }
        sum
    }
}

impl Counters {
    fn add(&mut self, queue_pair: &QueuePair) {
        {
            let send = queue_pair.send.lock();
            self.sent_pkts += send.executed - queue_pair.counts.local.get();
            self.rdma_sends += queue_pair.counts.sends.get();
        }
        let responder = queue_pair.responder.lock();
        self.rcvd_pkts += responder.executed;
        self.rdma_recvs += responder.receives;
    }
}
