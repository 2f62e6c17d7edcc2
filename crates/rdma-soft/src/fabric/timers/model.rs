//! What stands in for time and for the thread where the model checker runs.
//!
//! Time stands still while a model's threads run, so that in them only those timers expire that are due at
//! once. A wait with a deadline ends when somebody says that something has changed. Once the model has
//! nothing else to do, the thread's waits are over at once, and the time has passed that they were for.

use super::*;

/// Who lets timers expire.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum ServedBy {
    /// They are not even set.
    Nobody,
    /// No thread can be made.
    Polls,
    PollsAndThread,
}

#[derive(Debug)]
pub(super) struct Model {
    served_by: ServedBy,
    /// The thread waits, or has ended.
    rests: Condvar,
}

/// What the thread and the model tell each other, under the lock of the schedule.
#[derive(Debug)]
pub(super) struct Rest {
    /// The thread waits for a change.
    waits: bool,
    /// Time passes.
    passes: bool,
}

impl Rest {
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
            rests: std::sync::atomic::AtomicBool::new(false),
            model: Model { served_by, rests: Condvar::new() },
        }
    }

    /// Waits until the thread has served all that is due; it may have ended, too.
    fn lock_at_rest(&self, now: Time) -> MutexGuard<'_, Schedule> {
        let mut schedule = self.lock();
        while schedule.served_by.is_some()
            && (!schedule.at_rest.waits || schedule.earliest().is_some_and(|at| at <= now))
        {
            schedule = self.model.rests.wait(schedule).unwrap_or_else(PoisonError::into_inner);
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
            self.timers.model.rests.notify_all();
        });
        Ok(())
    }

    pub(super) fn wait_for_change<'a>(
        &self,
        mut schedule: MutexGuard<'a, Schedule>,
        most: Duration,
    ) -> MutexGuard<'a, Schedule> {
        if schedule.at_rest.passes {
            self.clock.go_on_to(self.clock.now() + most);
            return schedule;
        }
        schedule.at_rest.waits = true;
        self.timers.model.rests.notify_all();
        let waited = self.timers.changed.wait(schedule);
        let mut schedule = waited.unwrap_or_else(PoisonError::into_inner);
        schedule.at_rest.waits = false;
        schedule
    }

    /// Waits until the thread has nothing to do now.
    pub(crate) fn rest(&self) {
        drop(self.timers.lock_at_rest(self.clock.now()));
    }

    /// Has time pass from now on, of which the thread sees to the deadlines, until it ends.
    pub(crate) fn let_time_pass(&self) {
        self.timers.lock().at_rest.passes = true;
        self.timers.changed.notify_all();
    }

    /// Waits until the thread has ended, which never comes to pass before time does.
    pub(crate) fn thread_ends(&self) {
        let mut schedule = self.timers.lock();
        while schedule.served_by.is_some() {
            let waited = self.timers.model.rests.wait(schedule);
            schedule = waited.unwrap_or_else(PoisonError::into_inner);
        }
    }
}

impl Timer {
    /// Whether it is to expire.
    pub(crate) fn is_set(&self) -> bool {
        let schedule = self.fabric.timers.lock();
        schedule.timers[self.place].as_ref().is_some_and(|slot| slot.at.is_some())
    }
}
