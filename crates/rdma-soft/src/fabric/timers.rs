//! Deadlines: one timer for each queue pair and each shared receive queue. A poll of an empty completion queue handles
//! timers that have expired. For programs that do not poll there is a thread, which exists while a timer is set. It
//! stays for a moment after the last one, so that occasional RNR waits do not start a thread each time.

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

/// The value of `earliest` if no timer is set, and polls must look at a link.
const NEVER_BUT_LOOK: u64 = u64::MAX - 1;

const LINGER: Duration = Duration::from_secs(5);
/// The maximum number of timers that one poll expires.
const MOST_EXPIRED: u32 = 4;

/// All timers of a fabric.
#[derive(Debug)]
pub(crate) struct Timers {
    /// The time of the earliest timer, in nanoseconds: the only value that an empty poll reads. Written under the lock
    /// of the schedule.
    earliest: AtomicU64,
    schedule: Mutex<Schedule>,
    changed: Condvar,
    /// Whether time is virtual: then no thread serves, and each empty poll looks.
    in_virtual_time: bool,
    /// Whether each empty poll looks at a link, too.
    polls_look: std::sync::atomic::AtomicBool,
    /// Whether the thread currently leaves all timers to polls.
    rests: std::sync::atomic::AtomicBool,
    #[cfg(loom)]
    model: model::Model,
}

#[derive(Debug)]
struct Schedule {
    timers: Vec<Option<Deadline>>,
    free: Vec<usize>,
    /// Times of timers, with their places. It also holds times of timers that were set to an earlier time since, or
    /// were dropped.
    queue: BinaryHeap<Reverse<(Time, usize)>>,
    /// The process whose thread serves; a forked child has none.
    served_by: Option<Process>,
    /// The time at which the thread looks by itself. Setting a timer to an earlier time wakes the thread.
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

    /// Lets its owner [expire](Task::expire) at `at`, or earlier if it was set to an earlier time.
    pub(crate) fn set(&self, at: Time) {
        #[cfg(loom)]
        if !self.fabric.timers.model.has_timers() {
            return;
        }
        let fabric = self.fabric;
        // Queued after all timers that are due already, so that a timer that is set again and again does not delay
        // others.
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
        // Without a thread it expires at a poll, and the next timer tries to start a thread again.
    }
}

impl Drop for Timer {
    fn drop(&mut self) {
        self.fabric.timers.lock().remove(self.place);
    }
}

impl Fabric {
    /// Expires timers that are due, in the order of their times, but no more than [`MOST_EXPIRED`]. The caller holds no
    /// lock.
    #[cold]
    pub(crate) fn expire_due_timers(&self) {
        // Read once: timers that are set from here on are for the next poll.
        let now = self.clock.now();
        for _ in 0..MOST_EXPIRED {
            if Time::from_nanoseconds(self.timers.first()) > now {
                return;
            }
            // The thread that holds the lock handles the timers, or sets one.
            let mut schedule = match self.timers.schedule.try_lock() {
                Ok(schedule) => schedule,
                Err(TryLockError::Poisoned(poisoned)) => poisoned.into_inner(),
                Err(TryLockError::WouldBlock) => return,
            };
            let due = schedule.take_due(now);
            // Also without one, since the times of dropped timers were removed.
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

    /// Runs the thread.
    fn serve_timers(&self) {
        let mut schedule = self.timers.lock();
        let (mut idle_since, mut rest) = (None, Rest::default());
        loop {
            let now = self.clock.now();
            let due = schedule.take_due(now);
            self.timers.publish(&schedule);
            if let Some(owner) = due {
                drop(schedule);
                // The last reference may be dropped here, and takes the lock then.
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
            // While it rests the thread looks by itself soon, so that no timer needs to wake it.
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

    /// Notes that a thread that has polled is about to sleep, so that the threads of the device take over the work of
    /// its polls.
    #[cold]
    pub(crate) fn poller_sleeps(&self) {
        if let Some(link) = self.polled.get() {
            link.poller_sleeps();
        }
        if self.timers.rests.swap(false, Ordering::Relaxed) {
            // Not before the thread waits.
            drop(self.timers.lock());
            self.timers.changed.notify_one();
        }
    }

    /// Waits until a timer is set that expires before all others, or for `most`.
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

    /// Timers that expire when a simulation reaches their time.
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

    /// Returns a time no later than that of the first timer; `None` if none is set.
    pub(crate) fn next(&self) -> Option<Time> {
        self.lock().earliest()
    }

    /// Returns true if a timer is set, time is virtual, or there is a link. Every empty poll calls this.
    #[inline(always)]
    pub(crate) fn is_set(&self) -> bool {
        self.first() != u64::MAX
    }

    /// Returns the time of the first timer, in nanoseconds; the largest number if none is set.
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

    /// Sets whether each empty poll looks at a link, also without a timer.
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
        // So neither removing a timer nor setting it ever allocates.
        self.free.reserve(places);
        self.queue.reserve((2 * places).saturating_sub(self.queue.len()));
        places - 1
    }

    fn remove(&mut self, place: usize) {
        self.timers[place] = None;
        self.free.push(place);
    }

    /// Sets a timer. Returns true if it now expires earlier than before.
    fn set(&mut self, place: usize, at: Time) -> bool {
        let Some(Some(slot)) = self.timers.get_mut(place) else { return false };
        if slot.at.is_some_and(|set| set <= at) {
            return false;
        }
        slot.at = Some(at);
        if self.queue.len() == self.queue.capacity() {
            // At most one time of each timer counts, so half of the queue is free without the others.
            let timers = &self.timers;
            self.queue.retain(|&Reverse(time)| is_current(timers, time));
        }
        self.queue.push(Reverse((at, place)));
        true
    }

    /// Returns a time no later than that of the first timer.
    fn earliest(&self) -> Option<Time> {
        self.queue.peek().map(|Reverse((at, _))| *at)
    }

    /// Removes and returns the owner of the earliest timer that is due. So a timer that is always due does not delay
    /// others.
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
    /// Prevents a thread for its timers: only polls expire them.
    pub(crate) fn serve_by_polls_alone(&self) {
        self.timers.lock().served_by = Some(Process::current());
    }
}

/// An owner that no longer exists.
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
