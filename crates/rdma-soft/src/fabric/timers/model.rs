//! Replacements for time and for the thread under the model checker.
//!
//! Time does not pass while a model's threads run, so only timers that are due at once expire during a run. A wait with
//! a deadline ends when a change is notified. Once the model has nothing else to do, the thread's waits end at once, as
//! if their time had passed.

use super::*;

/// Determines how timers expire.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum ServedBy {
    /// Timers are not even set.
    Nobody,
    /// No thread can be started, so polls expire timers.
    Polls,
    PollsAndThread,
}

#[derive(Debug)]
pub(super) struct Model {
    served_by: ServedBy,
    /// Notified when the thread waits or has ended.
    idle: Condvar,
}

/// State that the thread and the model share, guarded by the schedule's lock.
#[derive(Debug)]
pub(super) struct Shared {
    /// Whether the thread is waiting for a change.
    waits: bool,
    /// Whether time passes.
    passes: bool,
}

impl Shared {
    pub(super) const fn new() -> Self {
        Self { waits: false, passes: false }
    }
}

impl Model {
    pub(super) fn has_timers(&self) -> bool {
        self.served_by != ServedBy::Nobody
    }
}

impl Timers {
    pub(crate) fn of_model(served_by: ServedBy) -> Self {
        Self {
            earliest: AtomicU64::new(u64::MAX),
            schedule: Mutex::new(Schedule::new()),
            changed: Condvar::new(),
            in_virtual_time: false,
            polls_look: std::sync::atomic::AtomicBool::new(false),
            yields_to_polls: std::sync::atomic::AtomicBool::new(false),
            model: Model { served_by, idle: Condvar::new() },
        }
    }

    /// Waits until the thread has ended, or has handled everything that is due.
    fn lock_when_idle(&self, now: Time) -> MutexGuard<'_, Schedule> {
        let mut schedule = self.lock();
        while schedule.served_by.is_some()
            && (!schedule.shared.waits || schedule.earliest().is_some_and(|at| at <= now))
        {
            schedule = self.model.idle.wait(schedule).unwrap_or_else(PoisonError::into_inner);
        }
        schedule
    }
}

impl Fabric {
    pub(super) fn start_thread(&'static self) -> io::Result<()> {
        if self.timers.model.served_by != ServedBy::PollsAndThread {
            return Err(io::ErrorKind::WouldBlock.into());
        }
        loom::thread::spawn(|| {
            self.serve_timers();
            self.timers.model.idle.notify_all();
        });
        Ok(())
    }

    pub(super) fn wait_for_change<'a>(
        &self,
        mut schedule: MutexGuard<'a, Schedule>,
        most: Duration,
    ) -> MutexGuard<'a, Schedule> {
        if schedule.shared.passes {
            self.clock.advance_to(self.clock.now() + most);
            return schedule;
        }
        schedule.shared.waits = true;
        self.timers.model.idle.notify_all();
        let waited = self.timers.changed.wait(schedule);
        let mut schedule = waited.unwrap_or_else(PoisonError::into_inner);
        schedule.shared.waits = false;
        schedule
    }

    /// Waits until the thread has nothing to do.
    pub(crate) fn wait_until_idle(&self) {
        drop(self.timers.lock_when_idle(self.clock.now()));
    }

    /// Lets time pass from now on: the thread handles the deadlines that pass, until it ends.
    pub(crate) fn let_time_pass(&self) {
        self.timers.lock().shared.passes = true;
        self.timers.changed.notify_all();
    }

    /// Waits until the thread has ended. It ends only if [`let_time_pass`](Self::let_time_pass) was called.
    pub(crate) fn thread_ends(&self) {
        let mut schedule = self.timers.lock();
        while schedule.served_by.is_some() {
            let waited = self.timers.model.idle.wait(schedule);
            schedule = waited.unwrap_or_else(PoisonError::into_inner);
        }
    }
}

impl Timer {
    /// Returns true if the timer is set.
    pub(crate) fn is_set(&self) -> bool {
        let schedule = self.fabric.timers.lock();
        schedule.timers[self.place].as_ref().is_some_and(|slot| slot.at.is_some())
    }
}
