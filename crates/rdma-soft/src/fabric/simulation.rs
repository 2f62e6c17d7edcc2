//! A fabric in virtual time, in which events happen one after the other.
//!
//! An event is the expiry of a timer, or something that happens between devices. Nothing happens on its own: time
//! advances when a program makes an empty poll or asks for it. The calling thread then handles the events that are due.

use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use crate::fabric::Fabric;
use crate::fabric::clock::Time;
use crate::sync::{locked_to_wait, this_thread};

/// The virtual time that an empty poll takes.
const POLL: Duration = Duration::from_nanos(100);
/// The maximum number of events that one empty poll handles.
const EVENTS: u32 = 16;

/// Events between the devices of a fabric.
pub(crate) trait Events: Send + Sync + std::fmt::Debug {
    /// Returns the time of the next event.
    fn next(&self) -> Option<Time>;

    /// Makes the next event happen. The caller holds no engine lock.
    fn run_next(&self);
}

/// Makes events happen in the order of their virtual times.
#[derive(Debug)]
pub(crate) struct Simulation {
    /// Held by the thread that makes events happen. A thread that locks this holds no engine lock.
    stepping: Mutex<()>,
    /// The number of the thread that makes events happen.
    stepper: AtomicU64,
    events: Arc<dyn Events>,
    /// Whether a request for a completion event makes the next event happen.
    steps_on_arming: AtomicBool,
}

impl Simulation {
    pub(super) fn new(events: Arc<dyn Events>) -> Self {
        let steps_on_arming = AtomicBool::new(true);
        Self { stepping: Mutex::new(()), stepper: AtomicU64::new(0), events, steps_on_arming }
    }
}

/// Marks a thread as the one that makes events happen, until this value is dropped.
struct Stepper<'a>(&'a AtomicU64);

impl<'a> Stepper<'a> {
    fn this_thread(stepper: &'a AtomicU64) -> Self {
        stepper.store(this_thread(), Ordering::Relaxed);
        Self(stepper)
    }
}

impl Drop for Stepper<'_> {
    fn drop(&mut self) {
        self.0.store(0, Ordering::Relaxed);
    }
}

impl Fabric {
    /// Handles an empty poll: if time is virtual, advances it slightly and handles the events that are due by then.
    #[cold]
    pub(crate) fn advance_one_poll(&self) {
        self.advance(self.clock.now() + POLL, EVENTS);
    }

    /// Handles the next event. Returns true if there was one. Does nothing if it is called from within an event.
    pub(crate) fn step(&self) -> bool {
        self.with_steps(|simulation| self.run_next_event(simulation, Time::END)).unwrap_or(false)
    }

    /// Handles the next event if it is due by `end`. Returns true if there was one. Otherwise advances the time to `end`,
    /// unless that is the end of time. Does nothing if it is called from within an event.
    pub(crate) fn step_until(&self, end: Time) -> bool {
        let stepped = self.with_steps(|simulation| {
            let stepped = self.run_next_event(simulation, end);
            if !stepped && end < Time::END {
                self.clock.advance_to(end);
            }
            stepped
        });
        stepped.unwrap_or(false)
    }

    /// Sets whether a request for a completion event makes the next event happen.
    pub(crate) fn set_steps_on_arming(&self, steps: bool) {
        if let Some(simulation) = &self.simulation {
            simulation.steps_on_arming.store(steps, Ordering::Relaxed);
        }
    }

    /// Handles the next event because a program has requested a completion event. Returns true if there was one.
    pub(crate) fn step_on_arming(&self) -> bool {
        self.steps_on_arming() && self.step()
    }

    pub(crate) fn steps_on_arming(&self) -> bool {
        let simulation = self.simulation.as_ref();
        simulation.is_some_and(|it| it.steps_on_arming.load(Ordering::Relaxed))
    }

    /// Returns the time of the next event, after doing the work that the program has left.
    pub(crate) fn next_event(&self) -> Option<Time> {
        let next = self.with_steps(|simulation| self.next_time(simulation)).flatten();
        next.filter(|next| *next < Time::END)
    }

    fn next_time(&self, simulation: &Simulation) -> Option<Time> {
        simulation.events.next().into_iter().chain(self.timers.next()).min()
    }

    /// Advances the time to `end`. Events that are due by then happen.
    pub(crate) fn advance_until(&self, end: Time) {
        self.advance(end, u32::MAX);
    }

    fn advance(&self, end: Time, events: u32) {
        self.with_steps(|simulation| {
            for _ in 0..events {
                if !self.run_next_event(simulation, end) {
                    self.clock.advance_to(end);
                    return;
                }
            }
        });
    }

    /// Admits one thread at a time. Returns at once if the calling thread itself is already inside: a subscriber that
    /// receives an event may make calls that lead here.
    fn with_steps<R>(&self, steps: impl FnOnce(&Simulation) -> R) -> Option<R> {
        let simulation = self.simulation.as_ref()?;
        if simulation.stepper.load(Ordering::Relaxed) == this_thread() {
            return None;
        }
        let _stepping = locked_to_wait(&simulation.stepping);
        let _stepper = Stepper::this_thread(&simulation.stepper);
        // First does the work that the program has left.
        self.run_queue.run();
        Some(steps(simulation))
    }

    /// Makes the next event happen if it is due by `end`, with all its immediate consequences. Nothing happens at the
    /// end of time, where a timer that sets itself again would be due forever.
    fn run_next_event(&self, simulation: &Simulation, end: Time) -> bool {
        let is_due = |next: &Time| *next <= end && *next < Time::END;
        let Some(next) = self.next_time(simulation).filter(is_due) else { return false };
        let event = simulation.events.next();
        self.clock.advance_to(next);
        // Packets and changes of links are handled first, because only finitely many happen at the same time. Timers
        // could be set for the same time again and again, and delay packets forever.
        if event == Some(next) {
            simulation.events.run_next();
        } else {
            self.expire_due_timers();
        }
        self.run_queue.run();
        true
    }
}
