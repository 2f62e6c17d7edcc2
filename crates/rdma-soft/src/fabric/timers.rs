//! Deadlines: one timer for each queue pair and each shared receive queue. Whoever polls an empty completion queue when
//! one has passed sees to it; for programs that do not poll there is a thread, which exists while a timer is set and
//! stays for a moment after the last, so that a program that meets RNR now and then does not make a thread each time.

use std::cmp::Reverse;
use std::collections::BinaryHeap;
use std::io;
use std::sync::{PoisonError, TryLockError, Weak};
use std::time::Duration;

use crate::abi::fork::Process;
use crate::fabric::Fabric;
use crate::fabric::clock::Time;
use crate::fabric::rest::Rest;
#[cfg(test)]
use crate::fabric::run_queue::Entry;
use crate::fabric::run_queue::Task;
use crate::fabric::stalls;
#[cfg(not(loom))]
use crate::fabric::thread;
use crate::sync::{AtomicU64, Condvar, Mutex, MutexGuard, Ordering, locked_for_calls};

#[cfg(all(test, loom))]
mod loom_tests;
#[cfg(loom)]
pub(crate) mod model;
#[cfg(all(test, not(loom)))]
mod tests;

/// In place of the time of the first timer, if none is set and polls look at a link.
const NEVER_BUT_LOOK: u64 = u64::MAX - 1;

const LINGER: Duration = Duration::from_secs(5);
/// One poll has time for so many timers.
const MOST_EXPIRED: u32 = 4;

/// All timers of a fabric.
#[derive(Debug)]
pub(crate) struct Timers {
    /// The time of the earliest, in nanoseconds: all that an empty poll looks at. Written under the lock
    /// of the schedule.
    earliest: AtomicU64,
    schedule: Mutex<Schedule>,
    changed: Condvar,
    /// In virtual time no thread serves, and each empty poll looks.
    in_virtual_time: bool,
    /// Each empty poll looks at a link, too.
    polls_look: std::sync::atomic::AtomicBool,
    /// The thread leaves all to who polls, for a moment.
    rests: std::sync::atomic::AtomicBool,
    #[cfg(loom)]
    model: model::Model,
}

#[derive(Debug)]
struct Schedule {
    timers: Vec<Option<Deadline>>,
    free: Vec<usize>,
    /// Times of timers, with their places; also of timers that were set to an earlier time since, or are
    /// gone.
    queue: BinaryHeap<Reverse<(Time, usize)>>,
    /// The process whose thread serves; a forked child has none.
    served_by: Option<Process>,
    /// Who sets a timer for an earlier time than this has the thread look; at any other time it looks by itself.
    looks_by: Time,
    #[cfg(loom)]
    at_rest: model::Rest,
}

#[derive(Debug)]
struct Deadline {
    owner: Weak<dyn Task>,
    at: Option<Time>,
}

/// A place among the timers.
#[derive(Debug)]
pub(crate) struct Timer {
    pub(super) fabric: &'static Fabric,
    place: usize,
}

impl Timer {
    pub(crate) fn new(fabric: &'static Fabric, owner: Weak<dyn Task>) -> Self {
        Self { fabric, place: fabric.timers.lock().add(owner) }
    }

    /// Has its owner [expire](Task::expire) at `at`, or earlier if it was set to an earlier time.
    pub(crate) fn set(&self, at: Time) {
        #[cfg(loom)]
        if !self.fabric.timers.model.has_timers() {
            return;
        }
        let fabric = self.fabric;
        // Behind those whose time has come: who is set again and again keeps nobody waiting.
        let at = if at == Time::AT_ONCE { fabric.clock.now() } else { at };
        let mut schedule = fabric.timers.lock();
        if !schedule.set(self.place, at) {
            return;
        }
        fabric.timers.publish(&schedule);
        if fabric.timers.in_virtual_time {
            return;
        }
        if schedule.served_by.is_some_and(Process::is_current) {
            let is_first = at < schedule.looks_by;
            drop(schedule);
            if is_first {
                fabric.timers.changed.notify_one();
            }
        } else if fabric.start_thread().is_ok() {
            schedule.served_by = Some(Process::current());
        }
        // Without a thread it expires at a poll, and the next timer tries to make one again.
    }
}

impl Drop for Timer {
    fn drop(&mut self) {
        self.fabric.timers.lock().remove(self.place);
    }
}

impl Fabric {
    /// Has those timers expire whose time has come, the first of them first, but no more than [`MOST_EXPIRED`]. The caller
    /// holds no lock.
    #[cold]
    pub(crate) fn expire_due_timers(&self) {
        // Once: what is set from here on is for the next poll.
        let now = self.clock.now();
        for _ in 0..MOST_EXPIRED {
            if Time::from_nanoseconds(self.timers.first()) > now {
                return;
            }
            // Who holds it sees to the timers, or sets one.
            let mut schedule = match self.timers.schedule.try_lock() {
                Ok(schedule) => schedule,
                Err(TryLockError::Poisoned(poisoned)) => poisoned.into_inner(),
                Err(TryLockError::WouldBlock) => return,
            };
            let due = schedule.take_due(now);
            // Also without one: the times of timers that are gone were dropped.
            self.timers.publish(&schedule);
            drop(schedule);
            if let Some(owner) = due.and_then(|owner| owner.upgrade()) {
                stalls::here();
                owner.expire();
                self.run_queue.run();
            }
        }
    }

    #[cfg(not(loom))]
    fn start_thread(&'static self) -> io::Result<()> {
        thread::spawn("rdma-soft timer", thread::STACK, || self.serve_timers())
    }

    /// What the thread does.
    fn serve_timers(&self) {
        let mut schedule = self.timers.lock();
        let (mut idle_since, mut rest) = (None, Rest::default());
        loop {
            let now = self.clock.now();
            let due = schedule.take_due(now);
            self.timers.publish(&schedule);
            if let Some(owner) = due {
                drop(schedule);
                // The last reference may go here, and takes the lock when it does.
                if let Some(owner) = owner.upgrade() {
                    stalls::here();
                    owner.expire();
                    self.run_queue.run();
                }
                schedule = self.timers.lock();
                idle_since = None;
                continue;
            }
            let wait = match schedule.earliest() {
                Some(at) => {
                    idle_since = None;
                    at.since(now)
                }
                None => {
                    let end = *idle_since.get_or_insert(now) + LINGER;
                    if now >= end {
                        schedule.served_by = None;
                        return;
                    }
                    end.since(now)
                }
            };
            let polls = || self.polled.get().map_or(0, |link| link.polls());
            let away = rest.next(polls(), false);
            let rests = !away.is_zero();
            // Who is away looks by itself in a moment, whatever is set.
            let wait = if rests { away } else { wait };
            schedule.looks_by = if rests { Time::AT_ONCE } else { now + wait };
            self.timers.rests.store(rests, Ordering::Relaxed);
            schedule = self.wait_for_change(schedule, wait);
            schedule.looks_by = Time::AT_ONCE;
            if rests && !self.timers.rests.swap(false, Ordering::Relaxed) {
                rest.end(polls());
            }
        }
    }

    /// Who has polled is about to sleep: the threads of the device do what polls did.
    #[cold]
    pub(crate) fn poller_sleeps(&self) {
        if let Some(link) = self.polled.get() {
            link.poller_sleeps();
        }
        if self.timers.rests.swap(false, Ordering::Relaxed) {
            // Not before it waits.
            drop(self.timers.lock());
            self.timers.changed.notify_one();
        }
    }

    /// Waits until a timer is set that expires before all others, or for so long.
    #[cfg(not(loom))]
    fn wait_for_change<'a>(
        &self,
        schedule: MutexGuard<'a, Schedule>,
        most: Duration,
    ) -> MutexGuard<'a, Schedule> {
        let waited = self.timers.changed.wait_timeout(schedule, most);
        waited.unwrap_or_else(PoisonError::into_inner).0
    }
}

impl Timers {
    #[cfg(not(loom))]
    pub(super) const fn new() -> Self {
        Self::of(u64::MAX, false)
    }

    /// Timers that expire when a simulation comes to their time.
    #[cfg(not(loom))]
    pub(super) const fn in_virtual_time() -> Self {
        Self::of(0, true)
    }

    #[cfg(not(loom))]
    const fn of(earliest: u64, in_virtual_time: bool) -> Self {
        Self {
            earliest: AtomicU64::new(earliest),
            schedule: Mutex::new(Schedule::new()),
            changed: Condvar::new(),
            in_virtual_time,
            polls_look: std::sync::atomic::AtomicBool::new(false),
            rests: std::sync::atomic::AtomicBool::new(false),
        }
    }

    /// No later than the time of the first timer; `None` if none is set.
    pub(crate) fn next(&self) -> Option<Time> {
        self.lock().earliest()
    }

    /// Whether a timer is set, time is virtual, or there is a link. What every empty poll asks.
    #[inline(always)]
    pub(crate) fn is_set(&self) -> bool {
        self.first() != u64::MAX
    }

    /// The time of the first timer, in nanoseconds; the last of all times if none is set.
    #[inline(always)]
    pub(crate) fn first(&self) -> u64 {
        self.earliest.load(Ordering::Relaxed)
    }

    fn lock(&self) -> MutexGuard<'_, Schedule> {
        locked_for_calls(&self.schedule)
    }

    fn publish(&self, schedule: &Schedule) {
        if self.in_virtual_time {
            return;
        }
        let none = if self.polls_look.load(Ordering::Relaxed) { NEVER_BUT_LOOK } else { u64::MAX };
        let earliest = schedule.earliest().map_or(none, Time::nanoseconds);
        self.earliest.store(earliest, Ordering::Relaxed);
    }

    /// Whether each empty poll has something to look at from now on, also without a timer.
    #[cfg(not(loom))]
    pub(crate) fn have_polls_look(&self, look: bool) {
        let schedule = self.lock();
        self.polls_look.store(look, Ordering::Relaxed);
        self.publish(&schedule);
    }
}

impl Schedule {
    const fn new() -> Self {
        let queue = BinaryHeap::new();
        Self {
            timers: Vec::new(),
            free: Vec::new(),
            queue,
            served_by: None,
            looks_by: Time::AT_ONCE,
            #[cfg(loom)]
            at_rest: model::Rest::new(),
        }
    }

    fn add(&mut self, owner: Weak<dyn Task>) -> usize {
        let slot = Some(Deadline { owner, at: None });
        if let Some(n) = self.free.pop() {
            self.timers[n] = slot;
            return n;
        }
        self.timers.push(slot);
        let places = self.timers.len();
        // Giving the place back then never allocates, nor does setting the timer.
        self.free.reserve(places);
        self.queue.reserve((2 * places).saturating_sub(self.queue.len()));
        places - 1
    }

    fn remove(&mut self, place: usize) {
        self.timers[place] = None;
        self.free.push(place);
    }

    /// Whether the timer expires earlier now than before.
    fn set(&mut self, place: usize, at: Time) -> bool {
        let Some(Some(slot)) = self.timers.get_mut(place) else { return false };
        if slot.at.is_some_and(|set| set <= at) {
            return false;
        }
        slot.at = Some(at);
        if self.queue.len() == self.queue.capacity() {
            // At most one time of each timer counts, so that half of the queue is free without the others.
            let timers = &self.timers;
            self.queue.retain(|&Reverse(time)| is_current(timers, time));
        }
        self.queue.push(Reverse((at, place)));
        true
    }

    /// No later than the time of the first timer.
    fn earliest(&self) -> Option<Time> {
        self.queue.peek().map(|Reverse((at, _))| *at)
    }

    /// Takes the owner whose time came first, so that who is always due again keeps nobody waiting.
    fn take_due(&mut self, now: Time) -> Option<Weak<dyn Task>> {
        while let Some(&Reverse(first)) = self.queue.peek() {
            if first.0 > now && is_current(&self.timers, first) {
                return None;
            }
            self.queue.pop();
            if is_current(&self.timers, first)
                && let Some(slot) = &mut self.timers[first.1]
            {
                slot.at = None;
                return Some(slot.owner.clone());
            }
        }
        None
    }
}

fn is_current(timers: &[Option<Deadline>], (at, place): (Time, usize)) -> bool {
    timers[place].as_ref().is_some_and(|slot| slot.at == Some(at))
}

#[cfg(all(test, not(loom)))]
impl Fabric {
    /// No thread comes for its timers: whoever polls sees to them.
    pub(crate) fn serve_by_polls_alone(&self) {
        self.timers.lock().served_by = Some(Process::current());
    }
}

/// An owner that has gone.
#[cfg(test)]
fn nobody() -> Weak<dyn Task> {
    #[derive(Debug)]
    enum Nobody {}
    impl Task for Nobody {
        fn entry(&self) -> &Entry {
            match *self {}
        }
    }
    Weak::<Nobody>::new()
}
