//! The state shared by devices that can reach each other: a clock, deadlines, random numbers, and queued work.
//!
//! The engine accesses all of this state through a device. So the devices of a separate fabric, created by a test or a
//! model, share nothing with the devices of the process.

#[cfg(not(loom))]
use std::sync::Arc;
use std::sync::OnceLock;

use crate::sync::Line;
use clock::Clock;
use ids::Ids;
use random::Seeds;
use run_queue::RunQueue;
#[cfg(not(loom))]
use simulation::Events;
use simulation::Simulation;
use timers::Timers;
#[cfg(loom)]
use timers::model::ServedBy;
use watchers::Watchers;

pub(crate) mod clock;
pub(crate) mod deferred;
#[cfg_attr(loom, allow(dead_code))] // models have no subscriber
pub(crate) mod emitters;
pub(crate) mod ids;
pub(crate) mod poll_backoff;
#[cfg_attr(loom, allow(dead_code))] // models need no seeds
pub(crate) mod random;
pub(crate) mod run_queue;
#[cfg_attr(loom, allow(dead_code))] // no model is a simulation
pub(crate) mod simulation;
pub(crate) mod stalls;
#[cfg_attr(loom, allow(dead_code))] // models use their own threads
pub(crate) mod thread;
pub(crate) mod timers;
#[cfg_attr(loom, allow(dead_code))] // models have no link
pub(crate) mod watchers;

/// A link that empty polls drive while the timers [make polls look](Timers::set_polls_look).
pub(crate) trait Polled: Sync + std::fmt::Debug {
    /// Receives arrived packets and executes them. The caller holds no lock.
    fn poll(&'static self);

    /// Receives everything that has arrived so far, and executes or drops it. The caller holds no lock.
    fn catch_up(&'static self);

    /// Returns the number of polls so far.
    fn polls(&self) -> u32;

    /// Called when a thread that has polled is about to sleep. The caller holds no lock.
    fn poller_sleeps(&self);

    /// Handles what has arrived, if a completion channel [watches](watchers::Watcher) the link. The caller holds no
    /// lock.
    fn handle_arrivals(&'static self);
}

pub(crate) struct Fabric {
    pub(crate) clock: Clock,
    pub(crate) seeds: Seeds,
    pub(crate) ids: Ids,
    /// Every empty poll reads this, so it is kept apart from state that changes more often.
    pub(crate) timers: Line<Timers>,
    /// Every verb reads this before it returns, so it is kept apart as well.
    pub(crate) run_queue: Line<RunQueue>,
    /// The number of completion queues that send an event for their next completion, whether or not it is solicited.
    /// Loom does not explore it.
    pub(crate) armed: std::sync::atomic::AtomicUsize,
    pub(crate) watchers: Watchers,
    /// The simulation, if time is virtual.
    pub(crate) simulation: Option<Simulation>,
    /// The link to other processes and hosts, created when a device first claims a slot, connects to another process or
    /// listens at an address.
    pub(crate) polled: OnceLock<&'static dyn Polled>,
}

impl Fabric {
    #[cfg(not(loom))]
    pub(crate) const fn new() -> Self {
        Self::of(Clock::System, Timers::new(), RunQueue::new())
    }

    const fn of(clock: Clock, timers: Timers, run_queue: RunQueue) -> Self {
        Self {
            clock,
            seeds: Seeds::System,
            ids: Ids::new(),
            timers: Line(timers),
            run_queue: Line(run_queue),
            armed: std::sync::atomic::AtomicUsize::new(0),
            watchers: Watchers::new(),
            simulation: None,
            polled: OnceLock::new(),
        }
    }

    /// Creates a fabric in virtual time, with the events between its devices.
    #[cfg(not(loom))]
    pub(crate) fn simulated(seed: u64, events: Arc<dyn Events>) -> Self {
        Self {
            seeds: Seeds::simulated(seed),
            simulation: Some(Simulation::new(events)),
            ..Self::of(Clock::stopped(), Timers::in_virtual_time(), RunQueue::new())
        }
    }

    /// Creates a fabric for one model, in which no timer ever expires. The fabric and its devices are never freed.
    #[cfg(all(test, loom))]
    pub(crate) fn of_model() -> &'static Self {
        Self::of_model_with(ServedBy::Nobody)
    }

    /// Creates a fabric for one model, with timers.
    #[cfg(all(test, loom))]
    pub(crate) fn of_model_with(served_by: ServedBy) -> &'static Self {
        Box::leak(Box::new(Self::with(served_by)))
    }

    /// Creates a fabric for a test that sets the clock.
    #[cfg(all(test, not(loom)))]
    pub(crate) fn with_set_clock() -> Self {
        Self::of(Clock::stopped(), Timers::new(), RunQueue::new())
    }

    #[cfg(loom)]
    pub(crate) fn with(served_by: ServedBy) -> Self {
        Self::of(Clock::stopped(), Timers::of_model(served_by), RunQueue::new())
    }
}

impl std::fmt::Debug for Fabric {
    /// Prints the fabric without its devices, because each device would print the fabric again.
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Fabric").finish_non_exhaustive()
    }
}
