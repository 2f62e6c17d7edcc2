//! The counters of a device.

mod declared;
pub(crate) mod rare;

use std::collections::BTreeMap;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, Weak};

use rdma_types::WcStatus;

pub use crate::counters::declared::Counters;
pub(crate) use crate::counters::declared::Rares;
use crate::sync::locked;

/// A counter that only one thread at a time increments.
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

/// The counters that a queue pair increments under its send lock. They have their own cache lines, apart from the
/// fields that every WRITE uses.
#[derive(Debug, Default)]
pub(crate) struct SendCounts {
    /// SENDs that were executed.
    pub(crate) sends: Exclusive,
    /// Requests that were executed without involving the peer.
    pub(crate) local: Exclusive,
    /// Requests that were executed on mapped memory of another process.
    pub(crate) mapped: Exclusive,
}

/// A queue pair, which counts its executed requests under its own locks.
pub(crate) trait Counting: Send + Sync + std::fmt::Debug {
    /// Adds the current counts to `sum`.
    fn add_to(&self, sum: &mut Counters);
}

/// The counters of a device. Its queue pairs keep those of executed requests.
#[derive(Debug, Default)]
pub(crate) struct Tally {
    /// The device's own counters. Counters that the queue pairs keep are 0 here.
    pub(crate) rare: Rares,
    traffic: Mutex<Traffic>,
}

/// The queue pairs, and the summed counts of destroyed ones. The lock that guards them is a leaf: a thread that holds
/// it never waits for a queue pair.
#[derive(Debug, Default)]
struct Traffic {
    /// The summed counts of destroyed queue pairs.
    gone: Counters,
    by_id: BTreeMap<u64, Weak<dyn Counting>>,
}

impl Tally {
    pub(crate) fn add_queue_pair(&self, id: u64, queue_pair: Weak<dyn Counting>) {
        locked(&self.traffic).by_id.insert(id, queue_pair);
    }

    /// Takes over the counts of a queue pair that will execute nothing more.
    pub(crate) fn remove_queue_pair(&self, id: u64, queue_pair: &impl Counting) {
        let mut counts = Counters::default();
        queue_pair.add_to(&mut counts);
        let mut traffic = locked(&self.traffic);
        traffic.by_id.remove(&id);
        traffic.gone += counts;
    }

    /// Counts a failed request if its retries are exhausted. Other failures have no counter.
    #[cold]
    pub(crate) fn count_failure(&self, status: WcStatus) {
        match status {
            WcStatus::RETRY_EXC_ERR => self.rare.retry_exceeded_err.count(),
            WcStatus::RNR_RETRY_EXC_ERR => self.rare.retry_rnr_exceeded_err.count(),
            _ => {}
        }
    }

    pub(crate) fn counters(&self) -> Counters {
        // Each queue pair is in exactly one of `gone` and `queue_pairs`. If it is destroyed while we add, its counts
        // are still read from `queue_pairs`, because a destroyed queue pair keeps them.
        let (gone, queue_pairs): (_, Vec<Arc<dyn Counting>>) = {
            let traffic = locked(&self.traffic);
            (traffic.gone, traffic.by_id.values().filter_map(Weak::upgrade).collect())
        };
        let mut sum = self.rare.get();
        sum += gone;
        for queue_pair in queue_pairs {
            queue_pair.add_to(&mut sum);
        }
        sum
    }
}
