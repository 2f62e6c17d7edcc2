//! Deadlines: one alarm a queue pair, served by one thread that exists while an alarm is set.
//!
//! The thread stays for a moment after the last alarm, so that a program that meets RNR now and then
//! does not make a thread each time.

use std::sync::{Condvar, Mutex, PoisonError, Weak};
use std::time::{Duration, Instant};

use crate::engine::queue_pair::QueuePair;
use crate::sync::locked_to_wait as locked;

const LINGER: Duration = Duration::from_secs(5);

#[derive(Debug)]
struct Clock {
    alarms: Vec<Option<Slot>>,
    free: Vec<usize>,
    /// The process whose thread serves; a forked child has none.
    served_by: Option<u32>,
}

#[derive(Debug)]
struct Slot {
    owner: Weak<QueuePair>,
    at: Option<Instant>,
}

static CLOCK: Mutex<Clock> =
    Mutex::new(Clock { alarms: Vec::new(), free: Vec::new(), served_by: None });
static CHANGED: Condvar = Condvar::new();

/// A queue pair's place at the clock.
#[derive(Debug)]
pub(crate) struct Alarm(usize);

impl Alarm {
    pub(crate) fn new(owner: Weak<QueuePair>) -> Self {
        let mut clock = locked(&CLOCK);
        let slot = Some(Slot { owner, at: None });
        if let Some(n) = clock.free.pop() {
            clock.alarms[n] = slot;
            return Self(n);
        }
        clock.alarms.push(slot);
        let places = clock.alarms.len();
        // Giving the place back then never allocates.
        clock.free.reserve(places);
        Self(places - 1)
    }

    /// Has [`QueuePair::alarm_rings`] called at `at`, or earlier if it was set to an earlier time.
    pub(crate) fn set(&self, at: Instant) {
        if cfg!(loom) {
            return; // its models have no clock
        }
        let mut clock = locked(&CLOCK);
        let Some(Some(slot)) = clock.alarms.get_mut(self.0) else { return };
        if slot.at.is_some_and(|set| set <= at) {
            return;
        }
        slot.at = Some(at);
        let process = std::process::id();
        if clock.served_by == Some(process) {
            CHANGED.notify_one();
        } else {
            clock.served_by = Some(process);
            let serve = std::thread::Builder::new().name("rdma-soft timer".into()).spawn(serve);
            if serve.is_err() {
                // Without a thread the alarm rings when the next one is set, or never.
                clock.served_by = None;
            }
        }
    }
}

impl Drop for Alarm {
    fn drop(&mut self) {
        let mut clock = locked(&CLOCK);
        clock.alarms[self.0] = None;
        clock.free.push(self.0);
    }
}

impl Clock {
    fn earliest(&self) -> Option<Instant> {
        self.alarms.iter().flatten().filter_map(|slot| slot.at).min()
    }

    /// Takes the owner whose time came first, so that who is always due again keeps nobody waiting.
    fn take_due(&mut self, now: Instant) -> Option<Weak<QueuePair>> {
        let due = |slot: &&mut Slot| slot.at.is_some_and(|at| at <= now);
        let slot = self.alarms.iter_mut().flatten().filter(due).min_by_key(|slot| slot.at)?;
        slot.at = None;
        Some(slot.owner.clone())
    }
}

fn serve() {
    let mut clock = locked(&CLOCK);
    let mut idle_since = None;
    loop {
        let now = Instant::now();
        if let Some(owner) = clock.take_due(now) {
            drop(clock);
            // The last reference may go here, and takes the clock's lock when it does.
            if let Some(queue_pair) = owner.upgrade() {
                queue_pair.alarm_rings();
            }
            clock = locked(&CLOCK);
            idle_since = None;
            continue;
        }
        let wait = match clock.earliest() {
            Some(at) => {
                idle_since = None;
                at.saturating_duration_since(now)
            }
            None => {
                let end = *idle_since.get_or_insert(now) + LINGER;
                if now >= end {
                    clock.served_by = None;
                    return;
                }
                end - now
            }
        };
        clock = CHANGED.wait_timeout(clock, wait).unwrap_or_else(PoisonError::into_inner).0;
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn who_was_due_first_is_served_first() {
        let now = Instant::now();
        let times = [3, 1, 0, 2].map(|n| now + Duration::from_secs(n));
        let slot = |at| Some(Slot { owner: Weak::new(), at: Some(at) });
        let alarms = times.into_iter().map(slot).collect();
        let mut clock = Clock { alarms, free: Vec::new(), served_by: None };
        for left in (0..3).rev() {
            assert!(clock.take_due(now + Duration::from_secs(2)).is_some());
            let waiting = clock.alarms.iter().flatten().filter_map(|slot| slot.at);
            assert_eq!(waiting.min(), Some(now + Duration::from_secs(3 - left)));
        }
        assert!(clock.take_due(now + Duration::from_secs(2)).is_none(), "it is not time yet");
    }
}
