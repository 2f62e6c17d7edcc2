//! The schedule that executes requests at a later poll, or slightly later on the device's thread.

use std::sync::{Arc, Mutex};
use std::time::Duration;

use crate::engine::Refusal;
use crate::fabric::random::SplitMix;
use crate::sync::locked;

/// The longest time that deferred work waits for a poll before the device's thread executes it.
pub(crate) const PATIENCE: Duration = Duration::from_micros(300);
/// The maximum number of requests that one step of deferred work executes.
pub(crate) const STEP: u32 = 4;

/// A queue pair that can have deferred work.
pub(crate) trait Deferrable: Send + Sync + std::fmt::Debug {
    /// Executes up to `requests` requests, and adds itself to the list again if there are more. The caller holds no
    /// lock.
    fn step(self: Arc<Self>, requests: u32);
}

/// The queue pairs of a device that have deferred work.
#[derive(Debug)]
pub(crate) struct Deferred {
    state: Mutex<Pending>,
}

#[derive(Debug)]
struct Pending {
    pending: Vec<Arc<dyn Deferrable>>,
    rng: SplitMix,
}

impl Deferred {
    pub(crate) fn new(seed: u64) -> Self {
        Self { state: Mutex::new(Pending { pending: Vec::new(), rng: SplitMix::new(seed) }) }
    }

    /// Reserves space for this many queue pairs beyond the ones in the list, so that posting never allocates. The ones
    /// in the list may all be about to be removed, so their space does not count.
    pub(crate) fn reserve(&self, queue_pairs: usize) -> Result<(), Refusal> {
        let reserved = locked(&self.state).pending.try_reserve(queue_pairs);
        reserved.map_err(|_| Refusal::NoRoom)
    }

    pub(crate) fn add(&self, queue_pair: Arc<dyn Deferrable>) {
        locked(&self.state).pending.push(queue_pair);
    }

    /// Removes a queue pair that is being destroyed and has nothing left to execute.
    pub(crate) fn remove(&self, queue_pair: &Arc<impl Deferrable>) {
        let mut state = locked(&self.state);
        let queue_pair = Arc::as_ptr(queue_pair);
        state.pending.retain(|other| !std::ptr::addr_eq(Arc::as_ptr(other), queue_pair));
    }

    pub(crate) fn below(&self, bound: u32) -> u32 {
        locked(&self.state).rng.below(bound)
    }

    /// Called by each poll. At random, does nothing or executes some requests of a random queue pair.
    pub(crate) fn step(&self) {
        let (queue_pair, requests) = {
            let mut state = locked(&self.state);
            let count = u32::try_from(state.pending.len()).unwrap_or(u32::MAX);
            if count == 0 || state.rng.below(2) == 0 {
                return;
            }
            let chosen = state.rng.below(count) as usize;
            let requests = 1 + state.rng.below(STEP);
            (state.pending.swap_remove(chosen), requests)
        };
        queue_pair.step(requests);
    }

    #[cfg(all(test, not(loom)))]
    pub(crate) fn pending(&self) -> usize {
        locked(&self.state).pending.len()
    }
}
