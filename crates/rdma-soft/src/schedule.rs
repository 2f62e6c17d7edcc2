//! When the device executes what was posted to it.

use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

use crate::engine::aftermath::Aftermath;
use crate::engine::queue_pair::QueuePair;
use crate::engine::run::Work;
use crate::engine::send_side::{Blocked, SendSide};
use crate::random::SplitMix;
use crate::sync::locked;

/// When a device executes the requests that are posted to it.
///
/// A device on which nothing is ever in flight proves nothing about a program that must cope with
/// requests in flight. The requests of one queue pair are executed in order under every schedule.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
#[non_exhaustive]
pub enum Schedule {
    /// Within the post, on the poster's thread: the fastest, and the default.
    #[default]
    Immediate,
    /// At a later poll of the device, or a moment later on another thread, as the seed decides.
    Deferred {
        /// Decides what is executed when; threads still race.
        seed: u64,
    },
    /// Not before [`SoftDevice::release`](crate::SoftDevice::release) and its relatives say so.
    Held,
}

/// The longest that deferred work waits for a poll before the other thread takes it.
const PATIENCE: Duration = Duration::from_micros(300);
/// The most requests that one step of deferred work executes.
const STEP: u32 = 4;

/// The queue pairs of a device with deferred work.
#[derive(Debug)]
pub(crate) struct Deferred {
    state: Mutex<State>,
}

#[derive(Debug)]
struct State {
    pending: Vec<Arc<QueuePair>>,
    rng: SplitMix,
}

impl Deferred {
    pub(crate) fn new(seed: u64) -> Self {
        Self { state: Mutex::new(State { pending: Vec::new(), rng: SplitMix::new(seed) }) }
    }

    /// Makes room for that many queue pairs beside those in the list, which may be destroyed ones, so
    /// that posting never allocates.
    pub(crate) fn reserve(&self, queue_pairs: usize) {
        locked(&self.state).pending.reserve(queue_pairs);
    }

    fn add(&self, queue_pair: Arc<QueuePair>) {
        locked(&self.state).pending.push(queue_pair);
    }

    fn below(&self, bound: u32) -> u32 {
        locked(&self.state).rng.below(bound)
    }

    /// A step at a poll: now and then, some requests of some queue pair.
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
        let mut aftermath = Aftermath::default();
        {
            let mut send = queue_pair.send.lock();
            send.pending = false;
            if send.blocked == Blocked::No {
                queue_pair.drive(&mut send, Work::Requests(requests), &mut aftermath);
            }
            queue_pair.stay_pending(&mut send, self);
        }
        aftermath.settle(&queue_pair);
    }
}

impl QueuePair {
    /// A request was queued: sees to it that it is executed, as the device's schedule says.
    pub(crate) fn defer(self: &Arc<Self>, send: &mut SendSide) {
        if let Some(deferred) = &self.device.deferred {
            self.stay_pending(send, deferred);
            self.arm_if_deferred(send);
        }
    }

    fn stay_pending(self: &Arc<Self>, send: &mut SendSide, deferred: &Deferred) {
        if !send.pending && send.may_run() && !send.queue.is_empty() {
            send.pending = true;
            deferred.add(Arc::clone(self));
        }
    }

    /// Has the other thread look at the queue in a moment, if there is something to execute.
    pub(crate) fn arm_if_deferred(&self, send: &SendSide) {
        let Some(deferred) = &self.device.deferred else { return };
        if send.may_run() && send.blocked == Blocked::No && !send.queue.is_empty() {
            let micros = deferred.below(u32::try_from(PATIENCE.as_micros()).unwrap_or(1));
            self.alarm.set(Instant::now() + Duration::from_micros(u64::from(micros)));
        }
    }

    /// A step on the other thread.
    pub(crate) fn run_deferred(self: &Arc<Self>, send: &mut SendSide, aftermath: &mut Aftermath) {
        let Some(deferred) = &self.device.deferred else { return };
        let requests = 1 + deferred.below(STEP);
        self.drive(send, Work::Requests(requests), aftermath);
        self.arm_if_deferred(send);
    }
}
