//! A fabric in virtual time: what happens next, one event after the other.
//!
//! An event is a timer, or one of what is between devices. Nothing happens by itself: time passes where a program polls
//! in vain, or says so, and what is due meanwhile is done by its thread.

use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use crate::fabric::Fabric;
use crate::fabric::clock::Time;
use crate::sync::{locked_to_wait, this_thread};

/// How long an empty poll takes.
const POLL: Duration = Duration::from_nanos(100);
/// One poll has time for so many events.
const EVENTS: u32 = 16;

/// Events between the devices of a fabric.
pub(crate) trait Events: Send + Sync + std::fmt::Debug {
    /// When the next event is due.
    fn next(&self) -> Option<Time>;

    /// Has the next event happen. The caller holds no lock of the engine.
    fn happen(&self);
}

/// The order of events in virtual time.
#[derive(Debug)]
pub(crate) struct Simulation {
    /// Held by who has something happen; no lock of the engine is held then.
    stepping: Mutex<()>,
    /// The number of that thread.
    by: AtomicU64,
    events: Arc<dyn Events>,
}

impl Simulation {
    pub(super) fn new(events: Arc<dyn Events>) -> Self {
        Self { stepping: Mutex::new(()), by: AtomicU64::new(0), events }
    }
}

/// Who has something happen, as long as this lives.
struct By<'a>(&'a AtomicU64);

impl<'a> By<'a> {
    fn this_thread(by: &'a AtomicU64) -> Self {
        by.store(this_thread(), Ordering::Relaxed);
        Self(by)
    }
}

impl Drop for By<'_> {
    fn drop(&mut self) {
        self.0.store(0, Ordering::Relaxed);
    }
}

impl Fabric {
    /// A poll was in vain: a moment passes, if time is virtual, and what is due meanwhile happens.
    #[cold]
    pub(crate) fn pass_moment(&self) {
        self.pass(self.clock.now() + POLL, EVENTS);
    }

    /// Has the next thing happen, and says whether there was one. Nothing happens within what happens.
    pub(crate) fn step(&self) -> bool {
        self.with_steps(|simulation| self.next_happens(simulation, Time::END)).unwrap_or(false)
    }

    /// Time passes until `end`, and what is due by then happens.
    pub(crate) fn pass_until(&self, end: Time) {
        self.pass(end, u32::MAX);
    }

    fn pass(&self, end: Time, events: u32) {
        self.with_steps(|simulation| {
            for _ in 0..events {
                if !self.next_happens(simulation, end) {
                    self.clock.go_on_to(end);
                    return;
                }
            }
        });
    }

    /// One thread at a time, which does not wait for itself: somebody who was informed of an event
    /// may come here again.
    fn with_steps<R>(&self, steps: impl FnOnce(&Simulation) -> R) -> Option<R> {
        let simulation = self.simulation.as_ref()?;
        if simulation.by.load(Ordering::Relaxed) == this_thread() {
            return None;
        }
        let _stepping = locked_to_wait(&simulation.stepping);
        let _by = By::this_thread(&simulation.by);
        // What the program has left comes first.
        self.run_queue.run();
        Some(steps(simulation))
    }

    /// Has the next thing happen that happens until then, and all that follows from it at once. At
    /// the end of time nothing does: what is due again later would be due at once, without a limit.
    fn next_happens(&self, simulation: &Simulation, end: Time) -> bool {
        let (event, timer) = (simulation.events.next(), self.timers.next());
        let happens = |next: &Time| *next <= end && *next < Time::END;
        let Some(next) = event.into_iter().chain(timer).min().filter(happens) else {
            return false;
        };
        self.clock.go_on_to(next);
        // Packets and changes come first, since there is an end to those of one moment. Timers may be set for the
        // same moment again and again, and would hold them up.
        if event == Some(next) {
            simulation.events.happen();
        } else {
            self.expire_due_timers();
        }
        self.run_queue.run();
        true
    }
}
